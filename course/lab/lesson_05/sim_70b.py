"""The same policies on Llama-3 70B, simulated, and one more: prefill and decode on machines of their own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from course.lab import simulated_70b
from course.lab.lesson_05.causes import Stay, inside, mean
from course.lab.run import percentile
from course.lab.scale import enough
from course.lab.style import number, seconds
from minillm.core.batch import ScheduledBatch
from minillm.core.timeline import StepRecord, StepShare, VirtualClock
from minillm.frontend.engine import Engine
from minillm.runner.simulated import StepPrice
from minillm.simulate.cluster.fleet import ClusterConfig, simulate
from minillm.simulate.cluster.record import ClientRecord
from minillm.simulate.cluster.run import FleetRun
from minillm.simulate.deployment import Deployment
from minillm.simulate.workload.arrivals import Arrivals, Deterministic, Poisson
from minillm.simulate.workload.kinds import Independent
from minillm.simulate.workload.lengths import LogNormal
from minillm.simulate.workload.requests import make_workload

TRAFFIC = Independent(
    prompt=LogNormal(median=1500, sigma=0.6, high=6000), output=LogNormal(median=150, sigma=0.5, high=600)
)
"""Prompts like a chat with documents in it."""
SLOTS = 128
POLICIES: dict[str, dict[str, object]] = {
    "prefill first": {"enable_chunked_prefill": False, "max_num_batched_tokens": 8192},
    "mixed, 2048": {"max_num_batched_tokens": 2048},
    "mixed, 512": {"max_num_batched_tokens": 512},
    "decode first": {"batching": "static", "enable_chunked_prefill": False, "max_num_batched_tokens": 1_000_000},
}
"""On a GPU a step of a few hundred tokens costs hardly more than one of a few: chunks can be larger than in the lab."""
APART = "disaggregated"
REPLICAS = 4
LINK = 50e9
"""Bytes per second between the pools: one 400 Gbit/s network card."""
OTHERS = "others"


@dataclass(eq=False)
class Watched:
    """Engines of a fleet, and every step that each took. The fast engines keep no records of their own."""

    on: Deployment
    steps: list[list[StepRecord]] = field(default_factory=list)

    def engine(self, clock: VirtualClock) -> Engine:
        """Makes one more."""
        steps: list[StepRecord] = []
        self.steps.append(steps)

        def watch(batch: ScheduledBatch, price: StepPrice, end: float) -> None:
            steps.append(record(engine, batch, price, end))

        engine = self.on.fast_engine(clock, watch)
        return engine


def record(engine: Engine, batch: ScheduledBatch, price: StepPrice, end: float) -> StepRecord:
    """A step's record. Requests that only decode are out of a fast engine's sight: they are one share, together."""
    shares = [StepShare(s.request.request_id, s.num_tokens, s.is_prefill) for s in batch.requests]
    num_running = getattr(engine, "num_running", len(engine.scheduler.running))
    if unseen := num_running - len(engine.scheduler.running):
        shares.append(StepShare(OTHERS, unseen, False))
    stages = {"forward": price.forward, "sample": price.total - price.forward}
    waiting = len(engine.scheduler.waiting)
    return StepRecord(batch.step_id, end - price.total, end, tuple(shares), waiting, num_running, 0, 1, (), stages)


@dataclass(frozen=True)
class Fleet:
    """One simulated run and what its first tokens waited for."""

    run: FleetRun
    causes: tuple[dict[str, float], ...]
    """Of each request's TTFT at its client, seconds."""

    @property
    def mean_causes(self) -> dict[str, float]:
        return mean(self.causes)

    def ttft(self, q: float) -> float:
        return percentile([sum(each.values()) for each in self.causes], q)

    def itl(self, q: float) -> float:
        """Of the gaps between two tokens, seconds."""
        return percentile([gap for r in self.run.records for gap in r.timeline.itl], q)

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second, over the whole run."""
        return sum(record.num_tokens for record in self.run.records) / self.run.duration


def serve(
    policy: str,
    qps: float,
    *,
    replicas: int = REPLICAS,
    prefill_replicas: int = 2,
    num_requests: int = 200,
    evenly: bool = False,
    rtt_s: float = 0.0,
    handshakes: int = 0,
    **fields: object,
) -> Fleet:
    """Play TRAFFIC to a fleet under one policy. In the lab's short form, a quarter of the requests.

    Args:
        policy: a name in POLICIES, or APART.
        qps: requests per second to the whole fleet; Poisson, or `evenly` spaced.
        prefill_replicas: with APART, so many of the replicas read prompts, and the others write answers.
        rtt_s, handshakes: the network's round trip, and round trips before each request.
        fields: EngineConfig fields on top of the policy's.
    """
    apart = policy == APART
    own = {"max_num_batched_tokens": 8192} if apart else POLICIES[policy]
    on = simulated_70b.deployment(**{"max_num_seqs": SLOTS, **own, **fields})
    workload = make_workload(TRAFFIC, arrivals(qps, evenly), num_requests=enough(num_requests, 12), seed=0)
    if not apart:  # no two prompts share a token: looking them up would only take time
        on, workload = on.without_prefix_lookups(), workload.anonymous()
    network = {"rtt_s": rtt_s, "handshakes": handshakes}
    config = ClusterConfig(replicas=replicas, network=network, sample_every_s=None)
    if apart:
        kv_bytes = on.placement.kv_bytes_per_token(on.model) * on.placement.tp
        pools = {"prefill_replicas": prefill_replicas, "kv_bytes_per_token": kv_bytes, "link_bytes_per_s": LINK}
        config = config.replace(replicas=replicas - prefill_replicas, disaggregation=pools)
    watched = Watched(on)
    run = simulate(workload, config, watched.engine)
    pool = "prefill" if apart else "main"
    find = finder(watched.steps)
    return Fleet(run, tuple(causes_of(r, f"{r.request.index}.1.{pool}", find) for r in run.records if r.completed))


def standard(
    policy: str,
    qps: float,
    prefill_replicas: int = 2,
    rtt_ms: int = 0,
    new_connection: bool = False,
    num_requests: int = 200,
) -> Fleet:
    """`cached`, with what the explorer and the claims vary: they share their simulations."""
    apart = {"prefill_replicas": prefill_replicas} if policy == APART else {}
    wire = {"rtt_s": rtt_ms / 1000, "handshakes": 2 * new_connection}
    return cached(policy, qps, num_requests=num_requests, **wire, **apart)


@lru_cache(maxsize=64)
def cached(policy: str, qps: float, **fields: object) -> Fleet:
    """`serve`, remembered: simulations of one seed are all alike."""
    return serve(policy, qps, **fields)


def arrivals(qps: float, evenly: bool) -> Arrivals:
    return Deterministic(rate=qps) if evenly else Poisson(rate=qps)


def finder(steps: list[list[StepRecord]]) -> Callable[[str, float, float], list[StepRecord]]:
    """Looks up the steps of a request's engine between two moments."""
    home = {share.request_id: i for i, log in enumerate(steps) for step in log for share in step.shares}

    def find(request_id: str, start: float, end: float) -> list[StepRecord]:
        return [step for step in steps[home[request_id]] if step.end > start and step.start < end]

    return find


def causes_of(
    record: ClientRecord, job_id: str, find: Callable[[str, float, float], list[StepRecord]]
) -> dict[str, float]:
    """One request's TTFT at its client: the simulator's network around the engine's part."""
    line = record.timeline
    stay = Stay(job_id, record.accepted, line.prefill_end, line.first_token)
    spent = inside(stay, find(job_id, record.accepted, line.first_token))
    return {**spent, "way in": record.accepted - record.intended, "way out": record.first_byte - line.first_token}


def sweep(budgets: tuple[int, ...], qps: float, **fields: object) -> dict[int, tuple[float, float]]:
    """By token budget, of one mixed replica: TTFT p50 and ITL p99, seconds."""
    found = {}
    for budget in budgets:
        fleet = cached("mixed, 512", qps, replicas=1, max_num_batched_tokens=budget, **fields)
        found[budget] = fleet.ttft(50), fleet.itl(99)
    return found


def compare(fleets: Mapping[str, Fleet]) -> list[tuple[str, ...]]:
    """Rows of a table: policy, TTFT p50 and p99, ITL p50 and p99, tokens per second."""
    return [
        (name, *(seconds(v) for v in (f.ttft(50), f.ttft(99), f.itl(50), f.itl(99))), number(f.tokens_per_s))
        for name, f in fleets.items()
    ]
