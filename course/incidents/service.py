"""A service as one frozen value: model, machines, engine, fleet, traffic and SLO. Playing it is all there is.

A cause makes a healthy service ill, an intervention changes one thing of whatever service it is given. Neither
knows the other: what a fix does is found out by playing both services.
"""

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from course.simulator.cluster.events import rare_collections
from course.simulator.cluster.fleet import ClusterConfig, simulate
from course.simulator.cluster.run import FleetRun
from course.simulator.cost.hardware import find_hardware
from course.simulator.cost.models import find_model
from course.simulator.cost.placement import Placement
from course.simulator.cost.profile import PACKAGED, Profile, typical_profile
from course.simulator.cost.roofline import StepTime
from course.simulator.deployment import Deployment, kv_dtype_of
from course.simulator.simulated_runner import SimulatedDrafting, SimulatedRunner, StepWatch
from course.simulator.workload.arrivals import Arrivals, Poisson
from course.simulator.workload.kinds import TrafficModel
from course.simulator.workload.requests import Workload, make_workload, merge
from course.summary import SLO
from minillm.core.batch import ScheduledBatch, ScheduledRequest
from minillm.core.brief import brief
from minillm.core.timeline import VirtualClock
from minillm.policies.config import EngineConfig

if TYPE_CHECKING:
    from minillm.frontend.engine import Engine

Links = Literal["own", "pcie", "ethernet"]
ETHERNET = 12.5e9
"""100 Gbit/s between two servers, bytes/s."""
EAGER_PROFILE = "h100-sxm-2023"
"""The packaged measurement of a stack without CUDA graphs: what launching a layer kernel by kernel takes."""
SAMPLES = 120
"""How often replicas are looked at in one run."""
CROWD_RATE = 1e4
"""Requests a second that come as good as all at once, and still in random order."""


@dataclass(frozen=True)
class Flow:
    """One kind of request that the service gets."""

    name: str
    kind: TrafficModel
    arrivals: Arrivals

    def scaled(self, factor: float) -> "Flow":
        """So many times as often."""
        rates = {name: getattr(self.arrivals, name) * factor for name in RATES if hasattr(self.arrivals, name)}
        return replace(self, arrivals=self.arrivals.replace(**rates))


RATES = ("rate", "spike_rate", "start_rate", "end_rate")


FaultKind = Literal["throttled", "hung", "bad_link", "wrong_weights"]


@dataclass(frozen=True)
class ReplicaFault:
    """What is wrong with the first replica alone: with its cards, or with what it has loaded."""

    kind: FaultKind
    clock: float = 1.0
    """Share of the rated clock at which its cards compute; memory keeps its pace."""
    links: Links = "own"
    """Between its cards."""
    quantization: str | None = None
    """Format of the weights that it has loaded, where they are the wrong ones."""
    hangs_at_s: float = 0.0
    """When it hangs: a collective waits for a rank that never comes."""


HANG = 2.0
"""A hung step lasts so many times as long as requests arrive: until long after anyone waits for it."""


@dataclass(frozen=True)
class SimulatedService:
    """Everything that decides what its clients see."""

    model: str
    hardware: str
    engine: EngineConfig
    flows: tuple[Flow, ...]
    duration_s: float
    """Requests arrive for so long."""
    tp: int = 1
    links: Links = "own"
    """Between the accelerators of one replica."""
    cuda_graphs: bool = True
    fleet: ClusterConfig = field(default_factory=lambda: ClusterConfig(sample_every_s=None))
    memory_taken: bool = False
    """By another process on the same accelerators: the KV pool cannot grow."""
    acceptance: Mapping[str, float] = field(default_factory=dict)
    """The acceptance rate of drafts on this traffic, by proposer: a property of the two, not a setting."""
    slo: SLO = field(default_factory=SLO)
    target: float = 0.95
    """Share of requests that must meet the SLO."""
    answer_limit: int | None = None
    """`max_tokens`: longer answers are cut, and a cut answer is a lost one; None = no limit."""
    admitted: float = 1.0
    """Share of requests that are let in; all others are refused at the door."""
    fault: ReplicaFault | None = None
    """What is wrong with one replica only."""
    clock: float = 1.0
    """Share of the rated clock at which the cards compute."""
    attention_speed: float = 1.0
    """Share of its usual speed at which attention runs; 1 = the kernel is made for these cards."""
    restored_acceptance: float | None = None
    """The acceptance rate of drafts for a prompt out of the prefix cache, where that restores the model's KV, not the
    draft model's; None = both are restored."""
    released: "SimulatedService | None" = None
    """The service with last night's release; None = nothing that a rollback takes back has changed since."""

    @property
    def gpus(self) -> int:
        """Accelerators that are always paid for."""
        scaling = self.fleet.autoscaling
        return self.tp * (max(scaling.min_replicas, self.fleet.replicas) if scaling else self.fleet.replicas)

    @functools.cached_property
    def mean_tokens(self) -> tuple[float, float]:
        """Prompt and answer tokens of a mean request."""
        made = replace(self, answer_limit=None).workload(0)
        return made.num_prompt_tokens / len(made), made.num_output_tokens / len(made)

    @property
    def rate(self) -> float:
        """Requests per second, averaged over time; the conversations of a flow count once."""
        return len(self.workload(0)) / self.duration_s

    def with_engine(self, **fields: Any) -> "SimulatedService":
        return replace(self, engine=self.engine.replace(**fields))

    def with_fleet(self, **fields: Any) -> "SimulatedService":
        return replace(self, fleet=self.fleet.replace(**fields))

    def with_load(self, factor: float) -> "SimulatedService":
        """So many times the requests a second, over as much less time: the run has as many requests."""
        flows = tuple(flow.scaled(factor) for flow in self.flows)
        return replace(self, flows=flows, duration_s=self.duration_s / factor)

    def during(self, share: float) -> "SimulatedService":
        """The same traffic, up to this share of its time."""
        released = None if self.released is None else self.released.during(share)
        return replace(self, duration_s=self.duration_s * share, released=released)

    def with_kind(self, kind: TrafficModel) -> "SimulatedService":
        """Its only flow gets requests of another kind, as often."""
        (flow,) = self.flows
        return replace(self, flows=(replace(flow, kind=kind),))

    def deployment(self) -> Deployment:
        """One replica.

        Raises:
            PricingError: the model does not fit, or cannot be cut so.
        """
        hardware = find_hardware(self.hardware)
        profile = typical_profile(hardware)
        if self.links != "own":
            hardware = hardware.replace(link=min(hardware.link, LINK_SPEED[self.links](hardware)))
        if self.clock != 1:
            hardware = hardware.replace(flops={dtype: self.clock * peak for dtype, peak in hardware.flops.items()})
        constants = profile.constants
        if not self.cuda_graphs:
            constants = constants.replace(launch_s=Profile.read(PACKAGED[EAGER_PROFILE]).constants.launch_s)
        if self.attention_speed != 1:
            slower = {name: self.attention_speed * getattr(constants, name) for name in ATTENTION_SHARES}
            constants = constants.replace(**slower)
        dtypes = (self.engine.quantization or "bfloat16", kv_dtype_of(self.engine) or "bfloat16")
        model, placement = find_model(self.model), Placement(self.tp, *dtypes)
        placement.check(model)
        return Deployment(model, profile.replace(hardware=hardware, constants=constants), placement, self.engine)

    def with_fault(self) -> "SimulatedService":
        """What the replica with the fault is like."""
        fault = self.fault
        if fault is None:
            return self
        engine = self.engine if fault.kind != "wrong_weights" else self.engine.replace(quantization=fault.quantization)
        return replace(
            self, clock=fault.clock, links=fault.links if fault.kind == "bad_link" else self.links, engine=engine
        )

    def workload(self, seed: int) -> Workload:
        """What is let in, with answers as long as they may be; other seeds, other luck."""
        made = [
            make_workload(
                flow.kind,
                flow.scaled(self.admitted).arrivals,
                duration_s=self.duration_s,
                seed=seed,
                name=flow.name,
            )
            for flow in self.flows
        ]
        joined = merge("incident", *made) if len(made) > 1 else made[0]
        limit = self.answer_limit
        if limit is None:
            return joined
        shorter = (replace(one, output_tokens=min(one.output_tokens, limit)) for one in joined)
        return replace(joined, requests=tuple(shorter))

    def price_per_hour(self) -> float:
        """Dollars for the accelerators that are always on."""
        return self.gpus * (find_hardware(self.hardware).price_per_hour or 0.0)


ATTENTION_SHARES = ("attention_mfu", "kv_bandwidth")
"""The constants of a profile that say how fast attention is."""
LINK_SPEED = {"pcie": lambda hardware: hardware.host_link, "ethernet": lambda hardware: ETHERNET}


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step of one replica. Seconds and tokens."""

    replica: int
    end: float
    seconds: float
    tokens: int
    prompt_tokens: int
    requests: int
    attention: float
    all_reduce: float
    host: float
    """Waiting for the host to launch it."""


@dataclass(frozen=True)
class ServicePlay:
    """A service, played once."""

    service: SimulatedService
    seed: int
    run: FleetRun
    steps: tuple[StepRow, ...] = ()
    cut: frozenset[int] = frozenset()
    """Indexes of the requests whose answers are cut short."""

    __repr__ = brief

    @functools.cached_property
    def attainment(self) -> float:
        """Share of all requests that were let in, answered in full, and within every limit."""
        return self.service.admitted * attainment(self.run, self.service.slo, self.cut)

    @property
    def holds(self) -> bool:
        """Whether enough requests met the SLO."""
        return self.attainment >= self.service.target


def attainment(run: FleetRun, slo: SLO, cut: frozenset[int] = frozenset()) -> float:
    """Share of a run's requests that were answered in full, and within every limit; as clients saw it."""
    return sum(_met(run, slo, cut)) / len(run.records) if run.records else 0.0


def met_by_request(play: ServicePlay) -> list[bool]:
    """Whether each of a play's requests was answered in full, and within every limit; as its client saw it."""
    return _met(play.run, play.service.slo, play.cut)


def _met(run: FleetRun, slo: SLO, cut: frozenset[int]) -> list[bool]:
    return [
        r.completed and r.request.index not in cut and slo.met_by(r.as_request_record("intended").timeline)
        for r in run.records
    ]


def play(service: SimulatedService, seed: int, watched: bool = False) -> ServicePlay:
    """Play a service's traffic to it.

    Args:
        watched: also keep samples over time, every step, and what each request lost to others' prompts.
    Raises:
        PricingError: such a service cannot be built.
    """
    workload = service.workload(seed)
    cut: frozenset[int] = frozenset()
    if service.answer_limit is not None:
        wanted = replace(service, answer_limit=None).workload(seed)
        cut = frozenset(one.index for one in wanted if one.output_tokens > service.answer_limit)
    config = service.fleet.replace(
        sample_every_s=max(service.duration_s, 1e-3) / SAMPLES if watched else None, seed=seed % 2**31
    )
    on, ill = service.deployment(), service.with_fault().deployment()
    asked_once = config.clients.max_attempts == 1 or not service.engine.enable_prefix_caching
    if workload.shares_nothing and asked_once:
        workload, on, ill = workload.anonymous(), on.without_prefix_lookups(), ill.without_prefix_lookups()
    fault = service.fault
    steps: list[StepRow] = []
    replicas = itertools.count()
    counts_chunks = config.network.hold_chunks > 1 and config.clients.first_byte_timeout_s is not None

    def make(clock: VirtualClock) -> "Engine":
        number = next(replicas)
        watch = _watch(steps, number) if watched else None
        this = ill if number == 0 else on
        hangs = fault is not None and fault.kind == "hung" and number == 0
        fast = functools.partial(this.fast_engine, tells_stalls=watched)
        engine = (this.engine if counts_chunks or hangs else fast)(clock, watch)
        if fault is not None and hangs:
            _hang(engine, fault.hangs_at_s, HANG * service.duration_s)
        if service.restored_acceptance is not None and service.engine.speculative is not None:
            _restore_half(engine, service.restored_acceptance)
        return engine

    with rare_collections():
        return ServicePlay(service, seed, simulate(workload, config, make), tuple(steps), cut)


def _hang(engine: "Engine", at_s: float, for_s: float) -> None:
    """Let one step of its device take so much longer: the first that is launched after `at_s`."""
    runner = _runner_of(engine)
    price = runner.price
    hung: list[float] = []

    def slower(batch: ScheduledBatch) -> StepTime:
        found = price(batch)
        assert isinstance(found, StepTime)
        if hung or runner.clock.now() < at_s:
            return found
        hung.append(at_s)
        return replace(found, all_reduce=found.all_reduce + for_s)

    runner.price = slower


def _runner_of(engine: "Engine") -> SimulatedRunner:
    runner = engine.core.runner
    assert isinstance(runner, SimulatedRunner), "the engines of a deployment have no other"
    return runner


@dataclass(frozen=True)
class HalfRestoredDrafting(SimulatedDrafting):
    """Drafts by a model that lacks the keys and values of what the prefix cache has restored."""

    restored_rate: float = 0.0
    """The acceptance rate then."""

    def num_accepted(self, scheduled: ScheduledRequest) -> int:
        """How many of a request's draft tokens pass this time."""
        is_restored = scheduled.request.num_cached_tokens > 0
        rate, passed = self.restored_rate if is_restored else self.acceptance_rate, 0
        while passed < scheduled.num_drafts and self.rng.random() < rate:
            passed += 1
        return passed


def _restore_half(engine: "Engine", rate: float) -> None:
    runner = _runner_of(engine)
    whole = runner.drafting
    runner.drafting = HalfRestoredDrafting(whole.seconds, whole.acceptance_rate, whole.rng, rate)


def _watch(steps: list[StepRow], replica: int) -> StepWatch:
    def see(batch: ScheduledBatch, price: StepTime, end: float) -> None:
        prompts = sum(s.num_tokens for s in batch.requests if s.is_prefill)
        work = price.work
        steps.append(
            StepRow(
                replica,
                end,
                price.total,
                work.tokens,
                prompts,
                work.requests,
                price.attention,
                price.all_reduce,
                price.waiting_for_host,
            )
        )

    return see


CROWD, REFILLS = 90, 3
"""Requests for each replica when its capacity is measured: so many at least, and so many for each slot."""


def capacity(service: SimulatedService) -> float:
    """Requests a second that the whole fleet answers when its queue is never empty: over the middle of a run in which
    all requests come at once, so that neither filling the batch nor draining it counts. Clients and network are left
    out.
    """
    rates = [len(make_workload(f.kind, f.arrivals, duration_s=service.duration_s, seed=1)) for f in service.flows]
    wanted = max(CROWD, REFILLS * service.engine.max_num_seqs) * max(service.fleet.replicas, 1)
    crowd = tuple(
        replace(flow, arrivals=Poisson(rate=CROWD_RATE * share / sum(rates)))
        for flow, share in zip(service.flows, rates)
    )
    fleet = ClusterConfig(replicas=service.fleet.replicas, router=service.fleet.router)
    run = play(replace(service, flows=crowd, duration_s=wanted / CROWD_RATE, fleet=fleet), seed=1).run
    ends = sorted(record.ended for record in run.records)
    first, last = len(ends) * 3 // 10, len(ends) * 8 // 10
    return (last - first) / (ends[last] - ends[first])
