"""Fewer bits at 70 billion weights: phases under load, and slots where memory is short. Simulated."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from course.lab import simulated_70b
from course.lab.display import Html, table_by_name
from course.lab.explorer import Explorer, buttons
from course.lab.scale import enough
from course.lab.simulated_70b import OLD, STACKS, TODAY, phase_means
from course.lab.style import seconds
from course.lab.svg import Picture
from course.lessons.lesson_02.simulated import CHAT, LONG_PROMPTS
from course.lessons.lesson_06.simulated import price
from course.lessons.lesson_09.pictures import draw_pairs
from course.lessons.lesson_09.run import PLAIN, PhasePair
from course.simulator.cluster.run import FleetRun
from course.simulator.deployment import Deployment
from course.simulator.workload.arrivals import AllAtOnce, Poisson
from course.simulator.workload.requests import make_workload
from minillm.core.brief import brief
from minillm.core.timeline import PHASES

BF16 = "bfloat16"
STORED = {
    PLAIN: (BF16, BF16),
    "int8": ("int8", BF16),
    "int4": ("int4", BF16),
    "fp8": ("fp8", BF16),
    "KV int8": (BF16, "int8"),
    "fp8, KV fp8": ("fp8", "fp8"),
}
"""Weights, and keys and values. int8 and int4 weights are widened before they are multiplied; fp8 is multiplied as it
is, at twice the rate on this hardware."""
TRAFFIC = {"chat": CHAT, "long prompts, 4000 in, 4 out": LONG_PROMPTS}
LOADS = {"quiet: a tenth of capacity": 0.1, "busy: nine tenths of it": 0.9, "overrun: 1.15 times": 1.15}
"""Shares of what 16 bits can serve."""
SLOTS = 64
COUNT, LEAST = 200, 60
"""Requests of a run; and of one in the short form, since a queue takes time to form."""
CRAMPED_GPUS, CRAMPED_SLOTS, CRAMPED_LOAD, CRAMPED_COUNT = 2, 256, 1.3, 300
"""In the short form, too: with fewer requests no queue would form, whatever the format."""


def deployment(stack: str, name: str, tp: int = 4, slots: int = SLOTS) -> Deployment:
    weights, kv = STORED[name]
    fields = {"profile": STACKS[stack](simulated_70b.HARDWARE), "tp": tp, "max_num_seqs": slots}
    return simulated_70b.deployment(**fields, weight_dtype=weights, kv_dtype=kv)


@functools.lru_cache(maxsize=64)
def capacity(stack: str, traffic: str, tp: int = 4, slots: int = SLOTS, count: int | None = None) -> float:
    """Requests a second that 16 bits can serve: over the middle of a run in which all come at once."""
    work = make_workload(TRAFFIC[traffic], AllAtOnce(), num_requests=count or enough(COUNT, LEAST))
    return simulated_70b.steady_rate(
        record.ended for record in simulated_70b.play(deployment(stack, PLAIN, tp, slots), work).records
    )


@functools.lru_cache(maxsize=64)
def served(
    stack: str, name: str, traffic: str, load: float, tp: int = 4, slots: int = SLOTS, count: int | None = None
) -> FleetRun:
    """One format under a load: the same arrivals for all formats.

    Args:
        count: requests; None = as many as the lab's form has.
    """
    rate = load * capacity(stack, traffic, tp, slots, count)
    work = make_workload(TRAFFIC[traffic], Poisson(rate=rate), num_requests=count or enough(COUNT, LEAST))
    return simulated_70b.play(deployment(stack, name, tp, slots), work)


def compared(before: FleetRun, after: FleetRun) -> dict[str, PhasePair]:
    was, now = phase_means(before), phase_means(after)
    found = {phase: PhasePair(phase, (was[phase],), (now[phase],)) for phase in PHASES}
    return {**found, "E2E": PhasePair("E2E", (sum(was.values()),), (sum(now.values()),))}


def phases_lab() -> Explorer:
    """70B on four H100s: format, traffic, load, and the stack that launches the kernels."""

    def draw(name: str, traffic: str, load: str, stack: str) -> Picture:
        before, after = (served(stack, each, traffic, LOADS[load]) for each in (PLAIN, name))
        return draw_pairs(compared(before, after), f"70B, {traffic.split(',')[0]}, {load.split(':')[0]}", name)

    return Explorer(
        draw,
        name=buttons("format", list(STORED)[1:]),
        traffic=buttons("traffic", list(TRAFFIC)),
        load=buttons("load", list(LOADS), list(LOADS)[1]),
        stack=buttons("serving stack", [TODAY, OLD], TODAY),
    )


def throughput_gain(
    name: str = "int8", batches: tuple[int, ...] = (1, 32, 256), context: int = 512
) -> dict[str, float]:
    """Decode speed over 16 bits, step by step, by batch and stack."""
    found = {}
    for stack in (TODAY, OLD):
        for batch in batches:
            plain, after = (price(deployment(stack, each), batch, context).itl for each in (PLAIN, name))
            found[f"batch {batch} ({stack})"] = plain / after
    return found


@dataclass(frozen=True)
class Cramped:
    """One format on GPUs that hardly hold the 16-bit weights."""

    name: str
    weights: float
    """Bytes on each GPU."""
    room: int
    """Tokens whose keys and values fit."""
    run: FleetRun

    __repr__ = brief

    @property
    def wait(self) -> float:
        """Mean seconds in the queue."""
        return phase_means(self.run)["queue"]

    @property
    def decode(self) -> float:
        """Mean seconds of decode."""
        return phase_means(self.run)["decode"]


def cramped(names: tuple[str, ...] = tuple(STORED)) -> dict[str, Cramped]:
    """Chats on two H100s, more than 16 bits can serve there: the same arrivals in every format."""
    found = {}
    for name in names:
        on = deployment(TODAY, name, CRAMPED_GPUS, CRAMPED_SLOTS)
        found[name] = Cramped(
            name,
            on.model.stored_bytes(on.placement.weight_dtype) / CRAMPED_GPUS,
            on.num_kv_blocks * on.block_size,
            served(TODAY, name, "chat", CRAMPED_LOAD, CRAMPED_GPUS, CRAMPED_SLOTS, CRAMPED_COUNT),
        )
    return found


def cramped_table(found: Mapping[str, Cramped]) -> Html:
    """What the weights leave of a GPU's memory, and the queue that forms."""
    return table_by_name(
        "two H100s",
        found,
        {
            "weights on each": lambda each: f"{each.weights / 1e9:.0f} GB",
            "room for KV, tokens": lambda each: f"{each.room:,}",
            "mean wait in the queue": lambda each: seconds(each.wait),
            "mean decode": lambda each: seconds(each.decode),
        },
    )
