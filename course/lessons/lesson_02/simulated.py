"""The same questions at 70B: the unchanged scheduler on simulated hardware, many more requests, no noise."""

from collections.abc import Sequence
from typing import Any

from course.lab.simulated_70b import capacity, served
from course.lab.visits import mean, visits_of, waits
from course.simulator.cluster.run import FleetRun
from course.simulator.workload.arrivals import Poisson
from course.simulator.workload.kinds import Independent, TrafficModel
from course.simulator.workload.lengths import Fixed, LogNormal

CHAT = Independent(
    prompt=LogNormal(median=300, sigma=0.6, high=2000), output=LogNormal(median=100, sigma=0.7, high=800)
)
"""Lighter than Azure's chat trace, so that a slider answers in a moment."""
LONG_PROMPTS = Independent(prompt=Fixed(tokens=4000), output=Fixed(tokens=4))
OVERLOADED = 240
"""Requests that come a little faster than they can be served."""
ENOUGH_FOR_A_QUEUE = 160
"""Requests without which no queue has time to grow."""


def at_load(traffic: TrafficModel, load: float, count: int = 300, seed: int = 0, **fields: Any) -> FleetRun:
    """Independent arrivals at this share of its capacity."""
    return served(traffic, Poisson(rate=load * capacity(traffic, **fields)), count, seed=seed, **fields)


def many_slots_curves(
    slots: Sequence[int] = (8, 32), loads: Sequence[float] = (0.5, 0.7, 0.85, 0.95), seeds: int = 3
) -> dict[int, list[tuple[float, float]]]:
    """By slots: (load, mean wait in seconds) of chats, over several runs."""

    def wait(load: float, n: int) -> float:
        runs = [at_load(CHAT, load, 300, seed, max_num_seqs=n) for seed in range(seeds)]
        return mean([each for run in runs for each in waits(visits_of(run))])

    return {n: [(load, wait(load, n)) for load in loads] for n in slots}


def waits_over_time(loads: Sequence[float] = (0.8, 1.1, 1.3), each: int = 20) -> dict[str, list[tuple[float, float]]]:
    """By load: (arrival, wait) of chats on 8 slots, means of so many arrivals."""
    found = {}
    for load in loads:
        visits = [v for v in visits_of(at_load(CHAT, load, 600, max_num_seqs=8)) if v.wait is not None]
        groups = [visits[i : i + each] for i in range(0, len(visits) - each + 1, each)]
        found[f"{load:.0%}"] = [(mean([v.arrival for v in group]), mean(waits(group))) for group in groups]
    return found


CASES = {
    "short of slots, larger batch (4 H100s, 32 slots, chat)": (CHAT, {"tp": 4, "max_num_seqs": 32}),
    "short of slots, small batch (4 H200s, 8 slots, chat)": (CHAT, {"profile": "h200", "tp": 4, "max_num_seqs": 8}),
    "short of compute (4 H100s, 4000-token prompts)": (LONG_PROMPTS, {"tp": 4, "max_num_seqs": 32}),
    "short of memory (2 H100s, chat)": (CHAT, {"tp": 2, "max_num_seqs": 256}),
}
"""Four servers at slightly more than they can serve, by what each is short of."""


def quantized_waits() -> dict[str, dict[str, float]]:
    """By case: the mean wait in seconds with weights in bf16, int8 (dequantized before each product) and fp8, on the
    same arrivals, which are 1.15 times what bf16 can serve.
    """
    found: dict[str, dict[str, float]] = {}
    for name, (traffic, fields) in CASES.items():
        rate, found[name] = 1.15 * capacity(traffic, **fields), {}
        for weights in ("bf16", "int8", "fp8"):
            changed = {} if weights == "bf16" else {"quantization": weights}
            run = served(traffic, Poisson(rate=rate), OVERLOADED, least=ENOUGH_FOR_A_QUEUE, **fields, **changed)
            found[name][weights] = mean(waits(visits_of(run)))
    return found
