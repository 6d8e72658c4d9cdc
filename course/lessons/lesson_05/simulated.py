"""The same policies on Llama-3 70B, simulated, and one more: prefill and decode on machines of their own."""

from functools import lru_cache

from course.lab import simulated_70b
from course.lab.scale import enough
from course.lab.ttft_causes import mean
from course.simulator.cluster.record import ClientRecord
from course.simulator.cluster.run import FleetRun
from course.simulator.workload.arrivals import Deterministic, Poisson
from course.simulator.workload.kinds import Independent
from course.simulator.workload.lengths import LogNormal
from course.simulator.workload.requests import make_workload

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
"""On a GPU a step of a few hundred tokens costs little more than one of a few: chunks can be larger than on a CPU."""
APART = "disaggregated"
REPLICAS = 4
LINK = 50e9
"""Bytes per second between the pools: one 400 Gbit/s network card."""


def serve(policy: str, qps: float, *, num_requests: int = 200, **how: object) -> FleetRun:
    """Play TRAFFIC to a fleet under one policy; the same call is played once. In the lab's short form, a quarter of the
    requests.

    Args:
        how: as of `_served`.
    """
    return _served(policy, qps, enough(num_requests, 12), **how)


@lru_cache(maxsize=64)
def _served(
    policy: str,
    qps: float,
    count: int,
    *,
    replicas: int = REPLICAS,
    prefill_replicas: int = 2,
    evenly: bool = False,
    rtt_s: float = 0.0,
    handshakes: int = 0,
    **fields: object,
) -> FleetRun:
    """So many requests, whatever the form.

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
    arrivals = Deterministic(rate=qps) if evenly else Poisson(rate=qps)
    workload = make_workload(TRAFFIC, arrivals, num_requests=count, seed=0)
    fleet: dict[str, object] = {"replicas": replicas, "network": {"rtt_s": rtt_s, "handshakes": handshakes}}
    if apart:
        pools = {"prefill_replicas": prefill_replicas, "link_bytes_per_s": LINK}
        fleet |= {"replicas": replicas - prefill_replicas, "disaggregation": pools}
    return simulated_70b.play(on, workload, keep_prefixes=apart, **fleet)


def mean_causes(run: FleetRun) -> dict[str, float]:
    """What TTFT at the client is made of, on average over the answered requests, seconds."""
    return mean([causes_of(record) for record in run.records if record.completed])


def causes_of(record: ClientRecord) -> dict[str, float]:
    """One request's TTFT at its client: the simulator's network around the engine's three phases."""
    line = record.timeline
    phases = line.phases()
    return {
        "way in": record.accepted - record.intended,
        "queue": phases["queue"],
        "prefill": phases["prefill"],
        "sampling": phases["first_token"],
        "way out": record.first_byte - line.first_token,
    }


def sweep(budgets: tuple[int, ...], qps: float, **fields: object) -> dict[int, tuple[float, float]]:
    """By token budget, of one mixed replica: TTFT p50 and ITL p99, seconds."""
    found = {}
    for budget in budgets:
        run = serve("mixed, 512", qps, replicas=1, max_num_batched_tokens=budget, **fields)
        found[budget] = simulated_70b.ttft(run, 50), simulated_70b.itl(run, 99)
    return found
