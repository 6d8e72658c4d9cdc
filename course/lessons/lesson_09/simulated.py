"""Fewer bits at 70 billion weights: phases under load, and slots where memory is short. Simulated."""

from collections.abc import Mapping
from typing import Any

from course.lab import simulated_70b
from course.lab.display import Html, as_table
from course.lab.explorer import Explorer, buttons
from course.lab.simulated_70b import OLD, TODAY, phase_means
from course.lab.style import seconds
from course.lab.svg import Picture
from course.lessons.lesson_02.simulated import CHAT, LONG_PROMPTS
from course.lessons.lesson_06.simulated import price
from course.lessons.lesson_09.pictures import draw_pairs
from course.lessons.lesson_09.run import PLAIN, PhasePair
from course.simulator.cluster.run import FleetRun
from course.simulator.workload.arrivals import Poisson
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
"""Weights, and keys and values. int8 and int4 weights are dequantized before they're multiplied; fp8 is multiplied as
it is, at twice the rate on this hardware."""
TRAFFIC = {"chat": CHAT, "long prompts, 4000 in, 4 out": LONG_PROMPTS}
LOADS = {"quiet: a tenth of capacity": 0.1, "busy: nine tenths of it": 0.9, "overrun: 1.15 times": 1.15}
"""Shares of what 16 bits can serve."""
SLOTS = 64
COUNT, LEAST = 200, 60
"""Requests of a run; and of one in the short form, since a queue takes time to form."""
CRAMPED = {"tp": 2, "max_num_seqs": 256}
CRAMPED_LOAD, CRAMPED_COUNT = 1.3, 300
"""In the short form, too: with fewer requests no queue would form, whatever the format."""


def fields_of(stack: str, name: str, **fields: int) -> dict[str, Any]:
    """Fields of a deployment that keeps its numbers in one format; `fields` are further ones, such as tp."""
    weights, kv = STORED[name]
    return {"stack": stack, "weight_dtype": weights, "kv_dtype": kv, "max_num_seqs": SLOTS, **fields}


def served(
    stack: str, name: str, traffic: str, load: float, count: int = COUNT, least: int = LEAST, **fields: int
) -> FleetRun:
    """One format under a load, which is a share of what 16 bits can serve: the same arrivals for all formats."""
    asked = TRAFFIC[traffic]
    most = simulated_70b.capacity(asked, count, least=least, **fields_of(stack, PLAIN, **fields))
    arrivals = Poisson(rate=load * most)
    return simulated_70b.served(asked, arrivals, count, least=least, **fields_of(stack, name, **fields))


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
            plain, after = (
                price(simulated_70b.deployment(**fields_of(stack, each)), batch, context).itl for each in (PLAIN, name)
            )
            found[f"batch {batch} ({stack})"] = plain / after
    return found


def cramped_room(name: str) -> int:
    """Tokens whose keys and values fit on GPUs that barely hold the 16-bit weights."""
    return simulated_70b.room_tokens(simulated_70b.deployment(**fields_of(TODAY, name, **CRAMPED)))


def cramped(names: tuple[str, ...] = tuple(STORED)) -> dict[str, FleetRun]:
    """Chats on two H100s, more than 16 bits can serve there: the same arrivals in every format."""
    few = {"count": CRAMPED_COUNT, "least": CRAMPED_COUNT, **CRAMPED}
    return {name: served(TODAY, name, "chat", CRAMPED_LOAD, **few) for name in names}


def cramped_table(found: Mapping[str, FleetRun]) -> Html:
    """What the weights leave of a GPU's memory, and the queue that forms."""
    rows = []
    for name, run in found.items():
        on, took = simulated_70b.deployment(**fields_of(TODAY, name, **CRAMPED)), phase_means(run)
        weights = on.model.stored_bytes(on.placement.weight_dtype) / on.placement.tp
        room, times = f"{cramped_room(name):,}", (seconds(took[phase]) for phase in ("queue", "decode"))
        rows.append((name, f"{weights / 1e9:.0f} GB", room, *times))
    header = ("two H100s", "weights on each", "KV capacity, tokens", "mean wait in the queue", "mean decode")
    return as_table(header, rows)
