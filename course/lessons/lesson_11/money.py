"""Dollars: what a replica costs, and the same miss mended by replicas or by one field of the configuration."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from course.lab.explorer import Explorer, buttons, slider, switch
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.svg import Picture
from course.lessons.lesson_11 import fleet
from course.simulator.cost.hardware import find_hardware
from minillm.observe.summary import SLO

HARDWARE, GPUS = "h100-sxm", 4
TARGET = 0.99
"""Of the requests must be in time."""
REPLICAS = (1, 2, 3, 4)
HOURS_A_DAY = 24


def gpu_price(hardware: str = HARDWARE) -> float:
    """Dollars an hour in the catalogue (course/simulator/cost/hardware.py). Raises LookupError: it has none."""
    price = find_hardware(hardware).price_per_hour
    if price is None:
        raise LookupError(f"{hardware} is not for rent: there is no price for it")
    return price


def price_source(hardware: str = HARDWARE) -> str:
    return find_hardware(hardware).price_source


def dollars(amount: float) -> str:
    """$10.76, $0.0123: two digits behind the point, or three that count."""
    return f"${amount:,.2f}" if amount >= 1 or amount == 0 else f"${amount:.3g}"


@dataclass(frozen=True)
class Trouble:
    """An SLO that is missed, and the field that is proposed."""

    name: str
    about: str
    change: str
    prompt: int
    answer: int
    qps: float
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    slo: SLO = fleet.LIMITS
    stack_before: str = fleet.STACKS[0]
    stack_after: str = fleet.STACKS[0]
    count: int = field(default=400)

    def run(self, replicas: int, changed: bool) -> fleet.Served:
        fields = self.after if changed else self.before
        stack = self.stack_after if changed else self.stack_before
        traffic = fleet.asking(self.prompt, self.answer)
        return fleet.served(traffic, self.qps, self.count, stack=stack, replicas=replicas, **fields)

    def enough(self, changed: bool) -> int | None:
        """The fewest replicas that meet the SLO; None = none of those that were tried."""
        return next((n for n in REPLICAS if self.run(n, changed).attainment(self.slo) >= TARGET), None)


TROUBLES = {
    each.name: each
    for each in (
        Trouble(
            "too few slots",
            "max-batch was set long ago and is too small for this traffic.",
            "max_num_seqs 16 → 64",
            1500, 150, 4.0, {"max_num_seqs": 16}, {"max_num_seqs": 64},
        ),
        Trouble(
            "too much work",
            "More prompt tokens arrive than the GPUs can process.",
            "max_num_seqs 64 → 256",
            1500, 150, 12.0, {"max_num_seqs": 64}, {"max_num_seqs": 256},
        ),
        Trouble(
            "slow even when idle",
            "No CUDA graphs: each step waits for the host (vLLM's enforce_eager, left on after a debugging session).",
            "CUDA graphs on",
            500, 150, 0.5, {}, {}, SLO(ttft=2.0, tpot=0.028), fleet.STACKS[1], fleet.STACKS[0],
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Bill:
    """One way to serve it."""

    replicas: int
    changed: bool
    attainment: float
    per_hour: float
    per_million: float
    """Dollars per million output tokens that were really written."""
    ttft: float
    tpot: float


def bill(trouble: Trouble, replicas: int, changed: bool, price: float) -> Bill:
    """Args: price: dollars for a GPU and an hour."""
    run = trouble.run(replicas, changed)
    per_hour = replicas * GPUS * price
    per_million = 1e6 * per_hour / (3600 * run.throughput)
    return Bill(
        replicas, changed, run.attainment(trouble.slo), per_hour, per_million, run.p("ttft", 99), run.p("tpot", 99)
    )


def draw_mends(trouble: Trouble, replicas: int, changed: bool, price: float) -> Picture:
    """Share in time against dollars an hour: replicas go to the right, a config change goes up."""
    bills = {each: [bill(trouble, n, each, price) for n in REPLICAS] for each in (False, True)}
    names = {False: "as it is", True: trouble.change}
    curves = [
        Curve(names[each], [b.per_hour for b in found], [100 * b.attainment for b in found])
        for each, found in bills.items()
    ]
    here = bill(trouble, replicas, changed, price)
    label = f"{replicas} replica{'s' * (replicas > 1)}"
    title = (
        f"{names[changed]}, {label}: {here.attainment:.0%} within SLO, {dollars(here.per_hour)} an hour, "
        f"{dollars(here.per_million)} a million tokens"
    )
    told = "; ".join(
        f"{names[each]}: "
        + ", ".join(f"{b.replicas} replica{'s' * (b.replicas > 1)} {b.attainment:.0%}" for b in found)
        for each, found in bills.items()
    )
    return draw_chart(
        title,
        curves,
        Axis("dollars an hour (one point a replica)", low=0, high=1.06 * bills[False][-1].per_hour),
        Axis("requests within the SLO, %", low=-4, high=108),
        [Mark(f"wanted: {TARGET:.0%}", y=100 * TARGET), Mark(label, x=here.per_hour, y=100 * here.attainment)],
        description=f"{trouble.about} {told}",
    )


def mends() -> Explorer:
    """Three troubles; money on one handle, a field on the other."""

    return Explorer(
        lambda trouble, replicas, changed, price: draw_mends(TROUBLES[trouble], replicas, changed, price),
        slow=True,
        trouble=buttons("what is wrong", list(TROUBLES)),
        replicas=slider("replicas", REPLICAS[0], REPLICAS[-1], 1),
        changed=switch("change the setting"),
        price=slider("dollars for a GPU and hour", 0.5, 12.0, gpu_price(), 0.01),
    )
