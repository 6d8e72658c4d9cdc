"""Lesson 05b, disaggregation: KV that moves from a prefill GPU to a decode GPU, and three ways to run a fleet."""

import functools

from course.lab import simulated_70b
from course.lab.simulated_70b import Served
from course.lessons.lesson_05 import simulated
from course.simulator.cluster.run import FleetRun
from minillm.observe.summary import SLO

LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
LINKS = {"10 GbE": 10, "100 Gb/s": 100, "400 Gb/s": 400, "NVLink, 3600 Gb/s": 3600}
"""Gb/s. The last: 450 GB/s each way, one H100's NVLink."""


@functools.cache
def token_bytes() -> float:
    """KV of one token of Llama-3-70B in bf16."""
    return simulated_70b.token_bytes(simulated_70b.deployment())


def transfer_s(tokens: int, gbit: float) -> float:
    """Seconds until a prompt's KV is on the other side."""
    return tokens * token_bytes() * 8 / (gbit * 1e9)


@functools.cache
def prefill_s(tokens: int) -> float:
    return simulated_70b.prefill_seconds(simulated_70b.deployment(), tokens)


LOADS = (4, 8, 12, 16, 20, 24)
"""Requests per second to all four replicas."""
SLOS = {
    "TTFT 1 s, TPOT 50 ms": SLO(ttft=1.0, tpot=0.05),
    "TTFT 1 s, TPOT 25 ms": SLO(ttft=1.0, tpot=0.025),
}
"""A loose and a strict limit on TPOT."""
MET = 0.9
"""The share of requests that has to be within both limits: DistServe's definition of goodput."""
NUM_REQUESTS = 200
APART_3 = "disaggregated, 3 + 1"
WAYS = {"whole prompts": "prefill first", "chunks of 512": "mixed, 512", "disaggregated, 2 + 2": simulated.APART}


def ways(qps: float, prefill_replicas: int = 2) -> dict[str, FleetRun]:
    """The same arrivals, four replicas, three ways."""
    found = {}
    for name, policy in WAYS.items():
        split = {"prefill_replicas": prefill_replicas} if policy == simulated.APART else {}
        found[name] = simulated.serve(policy, qps, num_requests=NUM_REQUESTS, **split)
    return found


def goodputs() -> dict[str, dict[str, float]]:
    """SLO -> way -> the highest of LOADS at which MET of the requests were within it; 0 = none."""
    shares: dict[str, dict[str, dict[float, float]]] = {limits: {} for limits in SLOS}
    for load in LOADS:
        fleets = ways(load)
        fleets[APART_3] = list(ways(load, 3).values())[-1]
        for name, run in fleets.items():
            served = Served.of(run)
            for limits, slo in SLOS.items():
                shares[limits].setdefault(name, {})[load] = served.attainment(slo)
    return {
        limits: {name: max((load for load in LOADS if met[load] >= MET), default=0.0) for name, met in found.items()}
        for limits, found in shares.items()
    }
