"""Lesson 05b, disaggregation: KV that moves from a prefill GPU to a decode GPU, and three ways to run a fleet."""

import bisect
import functools
import math
from dataclasses import dataclass

from course.lab import simulated_70b
from course.lab.simulated_70b import Served
from course.lessons.lesson_05 import simulated
from course.simulator.cluster.run import FleetRun
from course.simulator.workload.lengths import LogNormal
from course.summary import SLO

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


# ---------------------------------------------------------------- how many of each, and which prompts stay

MOST_DECODES = 1024
PIPELINED, STAGES = 32768, 4
"""Tokens of a prompt that goes through a pipeline, and its stages."""


@dataclass(frozen=True)
class Need:
    """What one request of the lesson's traffic takes of a replica of each pool. Seconds."""

    prefill: float
    decode: float
    batch: int
    """Requests that decode together."""
    is_full: bool
    """Whether KV has no room for more; else it's the ITL that sets the batch."""

    @property
    def ratio(self) -> float:
        """Prefill replicas for one decode replica."""
        return self.prefill / self.decode

    def prefill_part(self, replicas: float) -> float:
        """How many of these replicas should prefill, before rounding."""
        return replicas * self.prefill / (self.prefill + self.decode)


@functools.cache
def need(itl_s: float) -> Need:
    """By the step model, with decodes at the largest batch that keeps this ITL and that KV has room for."""
    on = simulated_70b.deployment()
    prompt, answer = mean_tokens()
    context = round(prompt + answer / 2)
    room = simulated_70b.room_tokens(on) // context
    in_time = bisect.bisect_right(
        range(1, MOST_DECODES), itl_s, key=lambda n: simulated_70b.decode_seconds(on, n, context)
    )
    batch = min(in_time, room)
    step = simulated_70b.decode_seconds(on, batch, context)
    return Need(prompt * prefill_s(8192) / 8192, answer * step / batch, batch, batch == room)


def mean_tokens() -> tuple[float, float]:
    """A prompt of the lesson's traffic, and an answer."""
    return mean_length(simulated.TRAFFIC.prompt), mean_length(simulated.TRAFFIC.output)


def mean_length(lengths: LogNormal) -> float:
    """The mean of such lengths, were they not cut off."""
    return lengths.median * math.exp(lengths.sigma**2 / 2)


def pipelined(chunks: int, stages: int = STAGES) -> float:
    """How many times as fast a prompt in equal chunks goes through a pipeline as through one GPU after the other."""
    return chunks * stages / (chunks + stages - 1)
