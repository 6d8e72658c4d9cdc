"""Lesson 05b, disaggregation: KV that moves from a prefill GPU to a decode GPU, and three ways to run a fleet."""

import functools

from course.lab import simulated_70b
from course.lessons.lesson_05 import simulated
from course.simulator.cluster.run import FleetRun

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


WAYS = {"whole prompts": "prefill first", "chunks of 512": "mixed, 512", "disaggregated, 2 + 2": simulated.APART}


def ways(qps: float, prefill_replicas: int = 2) -> dict[str, FleetRun]:
    """The same arrivals, four replicas, three ways."""
    found = {}
    for name, policy in WAYS.items():
        split = {"prefill_replicas": prefill_replicas} if policy == simulated.APART else {}
        found[name] = simulated.serve(policy, qps, **split)
    return found
