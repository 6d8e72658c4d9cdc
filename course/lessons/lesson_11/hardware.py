"""A lone reader on one GPU or another, and what a day of so few requests costs: hardware against a field."""

from dataclasses import dataclass

from course.lab.waiting import with_progress
from course.lessons.lesson_11 import fleet
from course.lessons.lesson_11.money import HOURS_A_DAY, gpu_price
from course.simulator.workload.arrivals import Poisson

STACK = fleet.STACKS[0]
"""Typical constants for all of them: no A100 was measured for this course."""
PROMPT, ANSWER = 500, 300
ARTICLE_GAIN = 1.4
FEW_A_DAY = 1000
DAY_S = 86400.0


@dataclass(frozen=True)
class GpuOption:
    """One way to serve 70B to few people. Seconds; dollars; requests per second."""

    name: str
    ttft: float
    tpot: float
    e2e: float
    """Medians when a thousand requests come in a day."""
    capacity: float
    per_day: float

    @property
    def load(self) -> float:
        """Share of its capacity that a thousand requests a day use."""
        return FEW_A_DAY / DAY_S / self.capacity


OPTIONS: dict[str, dict[str, object]] = {
    "four A100s, bf16": {"profile": "a100-80gb", "tp": 4},
    "four H100s, bf16": {"profile": "h100-sxm", "tp": 4},
    "one H100, int4 (a setting)": {"profile": "h100-sxm", "tp": 1, "quantization": "int4"},
    "one A100, int4 (a setting)": {"profile": "a100-80gb", "tp": 1, "quantization": "int4"},
}


def option(name: str) -> GpuOption:
    """One of OPTIONS, simulated."""
    fields = OPTIONS[name]
    traffic = fleet.asking(PROMPT, ANSWER)
    rare = Poisson(rate=FEW_A_DAY / DAY_S)
    run = fleet.served(traffic, rare, 60, stack=STACK, **fields)
    most = fleet.capacity(traffic, STACK, **{**fields, "max_num_seqs": 64})
    per_day = HOURS_A_DAY * int(fields["tp"]) * gpu_price(str(fields["profile"]))
    return GpuOption(name, run.p("ttft", 50), run.p("tpot", 50), run.p("e2e", 50), most, per_day)


def options() -> dict[str, GpuOption]:
    return {name: option(name) for name in with_progress(OPTIONS, "simulating hardware")}
