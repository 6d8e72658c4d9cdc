"""What a cached prompt prefix costs at a hosted API: write once, read cheaply, pay again after the time limit."""

import math
from dataclasses import dataclass

from course.lab.explorer import Explorer, choices, slider
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.svg import Picture


@dataclass(frozen=True)
class Rate:
    """A published price list's multipliers of the price of an input token, and how long an entry lives."""

    write: float
    read: float
    ttl_s: float

    def hit_rate(self, per_hour: float) -> float:
        """Share of requests that find the prefix, when they arrive at random (Poisson) and each use renews it."""
        return 1 - math.exp(-per_hour * self.ttl_s / 3600)

    def cost(self, per_hour: float) -> float:
        """Mean price of the prefix per request, as a multiple of not caching it."""
        hit = self.hit_rate(per_hour)
        return hit * self.read + (1 - hit) * self.write

    @property
    def break_even(self) -> float:
        """Requests per hour from which on caching pays."""
        missing = (1 - self.read) / (self.write - self.read)
        return -math.log(missing) / self.ttl_s * 3600 if missing < 1 else 0.0


RATES = {"write 1.25x, read 0.1x, 5 minutes": Rate(1.25, 0.1, 300), "write 2x, read 0.1x, 1 hour": Rate(2.0, 0.1, 3600)}
"""Anthropic's two (platform.claude.com, Prompt caching; read in November 2026)."""
PER_HOUR = (0.5, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


def draw(per_hour: float, prefix: int, dollars: float) -> Picture:
    """What the prefix costs per request, against how often it's used.

    Args:
        dollars: per million uncached input tokens.
    """
    plain = prefix * dollars / 1e6
    curves = [Curve(name, PER_HOUR, [1000 * plain * rate.cost(n) for n in PER_HOUR]) for name, rate in RATES.items()]
    curves.append(Curve("not cached", PER_HOUR, [1000 * plain] * len(PER_HOUR), style="dashes"))
    return draw_chart(
        "When does a hosted prompt cache pay?",
        curves,
        Axis("requests with this prefix, per hour", log=True),
        Axis("prefix, dollars per 1,000 requests", low=0),
        [Mark(f"{per_hour:g} per hour", x=per_hour)],
    )


def explorer() -> Explorer:
    """How often, how long, at what price."""
    return Explorer(
        draw,
        per_hour=choices("requests per hour", list(PER_HOUR), 12),
        prefix=slider("prefix, tokens", 1024, 32768, 4096, 1024),
        dollars=choices("$ per million input tokens", [0.5, 1.0, 3.0, 5.0, 15.0], 3.0),
    )
