"""The capacity worksheet: traffic and an SLO in; replicas, dollars and what binds out; each line explained."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from course.lab.display import Html, as_table
from course.lab.explorer import Explorer, buttons, choices, slider
from course.lab.scale import enough
from course.lab.style import number
from course.lessons.lesson_11 import fleet
from course.lessons.lesson_11.money import dollars, gpu_price, price_source
from course.simulator.capacity.plan import worksheet_for
from course.simulator.capacity.worksheet import CapacityPlan, plan_capacity
from course.simulator.cost.hardware import CATALOGUE
from minillm.core.errors import MinillmError
from minillm.observe.summary import SLO

HARDWARE = ("h100-sxm", "h200", "a100-80gb", "b200")
REQUESTS = 500
TARGET = 0.95


@dataclass(frozen=True)
class Filled:
    """A worksheet with its answers, and what was put in."""

    found: CapacityPlan
    hardware: str
    gpus: int
    """In a replica."""
    headroom: float
    """Share of the knee that stays unused."""
    price: float | None
    """Dollars for a GPU and hour as given; None = the catalogue's."""


@functools.lru_cache(maxsize=32)
def plan(
    qps: float = 100.0,
    prompt: int = 1500,
    answer: int = 150,
    ttft: float = 2.0,
    tpot: float = 0.05,
    *,
    hardware: str = "h100-sxm",
    gpus: int = 4,
    slots: int = fleet.SLOTS,
    headroom: float = 0.2,
    price: float | None = None,
    stack: str = fleet.STACKS[0],
    requests: int = REQUESTS,
) -> Filled:
    """The worksheet of 70B, filled in by simulation.

    Args:
        price: dollars for a GPU and hour; None = the catalogue's.
        requests: in each simulated run: few, so that it answers in seconds.
    Raises:
        MinillmError: such a replica cannot be, or no number of them meets the SLO.
    """
    on = fleet.deployment(stack, profile=hardware, tp=gpus, max_num_seqs=slots)
    sheet = worksheet_for(
        on.without_prefix_lookups(),
        fleet.asking(prompt, answer),
        SLO(ttft=ttft, tpot=tpot),
        target=TARGET,
        num_requests=enough(requests, 80),
    )
    per_hour = gpus * (gpu_price(hardware) if price is None else price)
    found = plan_capacity(sheet, qps, price_per_hour=per_hour, headroom=headroom, try_out=False)
    return Filled(found, hardware, gpus, headroom, price)


def explained(filled: Filled) -> Html:
    """A row a line: what it says, and where it comes from."""
    found, gpus, headroom = filled.found, filled.gpus, filled.headroom
    limits = found.limits
    priced = price_source(filled.hardware) if filled.price is None else f"{dollars(filled.price)}, as entered"
    spent = ", ".join(
        f"{name} {share:.0%}" for name, share in sorted(limits.step_time.items(), key=lambda each: -each[1])
    )
    million = found.input_cost_per_million, found.output_cost_per_million
    rows = [
        ("asked", f"{number(found.demand)} requests/s", "your traffic at its highest hour"),
        ("knee of one replica", f"{number(found.knee)} requests/s",
         f"the highest rate at which {found.target:.0%} meet the SLO, by bisection over {len(found.curve)} runs"),
        ("left unused", f"{headroom:.0%} of the knee", "for spikes, failed replicas, and errors of the simulation"),
        ("replicas", f"{found.replicas} of {gpus} GPUs",
         f"{number(found.demand)} / ({number(found.knee)} x {1 - headroom:.2f}), rounded up"),
        ("GPUs", str(found.replicas * gpus), filled.hardware),
        ("what binds", limits.binding, limits.why),
        ("a step's time", spent or "not known", "a little past the knee"),
        ("dollars an hour", dollars(found.cost_per_hour), f"replicas x GPUs x price; {priced}"),
        ("dollars for 1000 requests", dollars(1000 * found.cost_per_request),
         "if as many come at every hour; an idle GPU costs the same"),
        ("a million input tokens", dollars(million[0]),
         f"at the knee prompts add {found.prefill_share:.0%} of the busy time; more on a full replica, lesson 11c's"),
        ("a million output tokens", dollars(million[1]), "the rest of the bill, over the answers' tokens"),
    ]  # fmt: skip
    return as_table(("line", "value", "where it comes from"), rows)


def sheet() -> Explorer:
    """The worksheet with sliders and a button."""

    def draw(tpot: int, headroom: int, price: float, **asked: Any) -> Iterator[Html]:
        yield Html("<p><em>simulating: looking for the knee …</em></p>", "simulating")
        try:
            filled = plan(tpot=tpot / 1000, headroom=headroom / 100, price=price or None, **asked)
        except MinillmError as error:
            raise ValueError(str(error)) from None
        yield explained(filled)

    return Explorer(
        draw,
        button="Fill it in",
        qps=slider("asked, requests/s", 1, 200, 100),
        prompt=choices("prompts, tokens (mean)", (200, 500, 1500, 4000), 1500),
        answer=choices("answers, tokens (mean)", (20, 150, 400), 150),
        ttft=choices("TTFT at most, s", (0.5, 1.0, 2.0, 5.0), 2.0),
        tpot=choices("TPOT at most, ms", (25, 40, 50, 100, 200), 50),
        hardware=buttons("GPU", [name for name in HARDWARE if name in CATALOGUE]),
        gpus=choices("GPUs in a replica", (2, 4, 8), 4),
        headroom=slider("left unused, %", 0, 60, 20),
        price=slider("dollars for a GPU and hour (0: catalogue)", 0.0, 12.0, 0.0, 0.01),
    )
