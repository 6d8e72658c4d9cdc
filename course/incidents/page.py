"""What wakes you up: one alarming number, out of the run itself, and the service's SLO."""

from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from course.incidents.causes.base import breach_of
from course.incidents.generate import PAGED_AT, Hidden
from course.incidents.numbers import answered, latencies
from course.incidents.service import ServicePlay, SimulatedService
from course.lab.run import percentile
from course.lab.style import ALARM, number, seconds

NAMES = {"ttft": "TTFT", "itl": "largest gap between tokens", "tpot": "TPOT", "e2e": "E2E"}


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
    basis: str
    """What the simulated step times rest on."""

    def __str__(self) -> str:
        told = f"PAGE  {self.alarm}\n{self.service}\n{self.promise} {self.kept:.0%} of requests meet it."
        return "\n".join(part for part in (told, self.story, f"Simulated, with {self.basis}.") if part)

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
    return PagerMessage(_alarm(now), _told(now.service), slo, now.attainment, hidden.case.story, basis)


def _alarm(play: ServicePlay) -> str:
    """The metric that is furthest over its limit, at p99, as clients see it."""
    if not answered(play):
        return "no request is answered any more."
    worst, factor = breach_of(play)
    p99, limit = percentile(latencies(play)[worst], 99), getattr(play.service.slo, worst)
    lost = 1 - len(answered(play)) / len(play.run.records)
    failing = f" {lost:.0%} of requests get no answer." if lost > 1 - play.service.target else ""
    return f"p99 of {NAMES[worst]} is {seconds(p99)}, {factor:.1f} times the limit of {seconds(limit)}.{failing}"


def _told(service: SimulatedService) -> str:
    """What an engineer on call knows. Kinds of traffic and autoscaling are for those who ask: few causes have them."""
    replicas = service.fleet.replicas
    count = f"{replicas} replicas" if replicas > 1 else "one replica"
    return (
        f"{service.model}, started on {count} of {service.tp} x {service.hardware}; {number(service.rate)} requests/s "
        f"since it began, half an hour ago. It goes on while you ask. (Time is compressed: an hour of it is "
        f"{seconds(service.duration_s / PAGED_AT)} of simulated traffic.)"
    )
