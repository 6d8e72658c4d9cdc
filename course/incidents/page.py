"""What wakes you up: one alarming number, out of the run itself, and the service's SLO."""

from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from course.incidents.causes.base import LEAST_BREACH, breach_of
from course.incidents.generate import PAGED_AT, Hidden
from course.incidents.numbers import answered, latencies
from course.incidents.service import ServicePlay, SimulatedService
from course.lab.run import percentile
from course.lab.style import ALARM, number, seconds

UNRELIABLE = (
    "Monitoring was moved last night: a panel can be missing, or show last week's data as today's. Check what you "
    "build on against a second one."
)
MANY = 9.95
"""Times a limit, from which decimals are left out."""
NAMES = {"ttft": "TTFT", "itl": "the largest gap between tokens", "tpot": "TPOT", "e2e": "E2E"}


@dataclass(frozen=True)
class PagerMessage:
    """An alarm."""

    alarm: str
    service: str
    promise: str
    """The SLO."""
    kept: float
    """Share of requests that meet it now."""
    story: str
    warning: str
    """What can't be relied on tonight; "" = nothing in particular."""
    basis: str
    """What the simulated step times rest on."""

    def __str__(self) -> str:
        told = f"PAGE  {self.alarm}\n{self.service}\n{self.promise} {self.kept:.0%} of requests meet it."
        parts = (told, self.story, self.warning, f"Simulated, with {self.basis}.")
        return "\n".join(part for part in parts if part)

    def _repr_html_(self) -> str:
        first, *rest = (escape(line) for line in str(self).split("\n"))
        look = f"border-left:6px solid {ALARM};padding:6px 12px;max-width:840px;line-height:1.4"
        return f'<div style="{look}"><b>{first}</b><br>{"<br>".join(rest)}</div>'

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)


def page_of(hidden: Hidden) -> PagerMessage:
    now = hidden.scene.now
    limits = ", ".join(f"{NAMES[name]} at most {seconds(getattr(now.service.slo, name))}" for name in NAMES)
    slo = f"SLO, for {now.service.target:.0%} of requests: {limits}."
    basis = str(now.service.deployment().profile.provenance["source"])
    warning = UNRELIABLE if hidden.scene.missing or hidden.scene.stale else ""
    return PagerMessage(_alarm(now), in_words(now.service), slo, now.attainment, hidden.case.story, warning, basis)


def _alarm(play: ServicePlay) -> str:
    """The metric that is furthest over its limit, at the percentile that the SLO speaks of, as clients see it."""
    if not answered(play):
        return "no request is answered any more."
    worst, factor = breach_of(play)
    percent = 100 * play.service.target
    slow, limit = percentile(latencies(play)[worst], percent), getattr(play.service.slo, worst)
    lost = 1 - len(answered(play)) / len(play.run.records)
    failing = [f"{lost:.0%} of requests get no answer."] if lost > 1 - play.service.target else []
    over = f"{factor:.{0 if factor >= MANY else 1}f} times the limit of {seconds(limit)}"
    if factor < 1:
        return " ".join([*failing, f"p{percent:.0f} of those answered is within the limits."])
    late = [f"p{percent:.0f} of {NAMES[worst]} is {seconds(slow)}, {over}."]
    return " ".join(failing + late if factor < LEAST_BREACH else late + failing)


def in_words(service: SimulatedService) -> str:
    """What doesn't give a cause away: model, hardware and traffic. Only a few causes have several replicas, or an odd
    number of cards in one, and fewer have kinds of traffic or autoscaling: those are for who asks.
    """
    return (
        f"{service.model} on {service.hardware}, {number(service.rate)} requests/s; the configuration says on how many "
        f"replicas. It began half an hour ago, and won't wait while you ask. (Time is compressed: an hour of it is "
        f"{seconds(service.duration_s / PAGED_AT)} of simulated traffic.)"
    )
