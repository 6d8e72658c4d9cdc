"""Lesson 05b, disaggregation: KV that moves from a prefill GPU to a decode GPU, and three ways to run a fleet."""

import functools
from dataclasses import dataclass

from course.lab import simulated_70b
from course.lessons.lesson_05 import simulated

LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
LINKS = {"10 GbE": 10, "100 Gb/s": 100, "400 Gb/s": 400, "NVLink, 3600 Gb/s": 3600}
"""Gb/s. The last: 450 GB/s each way, one H100's NVLink."""


@functools.cache
def token_bytes() -> float:
    """KV of one token of Llama-3-70B in bf16."""
    on = simulated_70b.deployment()
    return on.block_bytes * on.placement.tp / on.block_size


def transfer_s(tokens: int, gbit: float) -> float:
    """Seconds until a prompt's KV is on the other side."""
    return tokens * token_bytes() * 8 / (gbit * 1e9)


@functools.cache
def prefill_s(tokens: int) -> float:
    return simulated_70b.deployment().step_time().price(simulated_70b.prefill_work(tokens)).total


WAYS = {"whole prompts": "prefill first", "chunks of 512": "mixed, 512", "disaggregated, 2 + 2": simulated.APART}


@dataclass(frozen=True)
class FleetWay:
    """One way to run the fleet."""

    ttft: float
    ttft_p99: float
    itl_p99: float
    tokens_per_s: float


@functools.cache
def ways(qps: float, prefill_replicas: int = 2) -> dict[str, FleetWay]:
    """The same arrivals, four replicas, three ways."""
    found = {}
    for name, policy in WAYS.items():
        split = {"prefill_replicas": prefill_replicas} if policy == simulated.APART else {}
        fleet = simulated.serve(policy, qps, **split)
        found[name] = FleetWay(fleet.ttft(50), fleet.ttft(99), fleet.itl(99), fleet.tokens_per_s)
    return found
