"""When not to believe a load test: what its own record says against it. What each check then says, and what to do about
it, stands in validity.toml."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from course.loadgen.observation import COMPLETED, CUT_OFF, NEVER_SENT, Observation, TokenSource
from course.loadgen.server_metrics import Histogram

LATE_S, LATE_SHARE = 0.005, 0.05
"""A request was sent late from here on: 5 ms, and 5% of the median TTFT."""
NEAR_ZERO = 0.1
"""A gap below this share of the request's own mean gap was not made by a decode step."""
FEW = 100
"""Fewest requests for a p99: with fewer it is the slowest one or between the two slowest."""
BUSY_CPU = 0.7
"""The share of one core above which the client's own event loop is a queue."""
TOKENS_AN_EVENT, NEAR_ZERO_GAPS = 1.1, 0.1
"""Tokens an event from which chunks are coalesced, and the share of gaps near 0: a stray event of two tokens, or a gap
that the network closed, is nothing yet."""
LAG_SHARE = 0.25
"""The share of the median gap by which a late event loop moves gaps as much as one wants to see."""
SHORT_SHARE = 0.05
"""Answers that end early, from which on the load is not the one that was planned."""
STRANGE_SHARE = 0.02
"""How far the server's count of requests may be from ours: one at work when its counters are read, or two."""


@dataclass(frozen=True, slots=True)
class ValidityWarning:
    """One reason not to believe a result, and what to do about it."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """How busy the load generator itself was."""

    cpu_share: float
    """The share of one core that it took, over the test."""
    lag_p50_s: float
    """How late its event loop was when a timer was due, seconds."""
    lag_p99_s: float


@dataclass(frozen=True)
class LoadTestEvidence:
    """What the checks look at."""

    observations: Sequence[Observation]
    client: ClientLoad
    max_in_flight: int | None
    has_schedule: bool
    """Requests had moments of their own; not so in a closed loop."""
    server: Mapping[str, Histogram]
    """The server's histograms of the time of the test."""

    @cached_property
    def completed(self) -> list[Observation]:
        return [o for o in self.observations if o.completed]


def check_validity(evidence: LoadTestEvidence) -> list[ValidityWarning]:
    """All warnings that apply, the gravest first."""
    told = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return [
        ValidityWarning(told[name]["kind"], told[name]["message"].format(**facts))
        for name, check in CHECKS.items()
        if (facts := check(evidence)) is not None
    ]


def near_zero_share(completed: Sequence[Observation]) -> float | None:
    """The share of gaps that are shorter than NEAR_ZERO of the request's mean gap. None without gaps."""
    gaps = [np.diff(o.deliveries) for o in completed if len(o.deliveries) > 1]
    return float(np.mean(np.concatenate([own < NEAR_ZERO * own.mean() for own in gaps]))) if gaps else None


def tokens_per_delivery(completed: Sequence[Observation]) -> float | None:
    """Mean tokens that one event carried; None = no events."""
    deliveries = sum(len(o.deliveries) for o in completed)
    return sum(o.num_tokens for o in completed) / deliveries if deliveries else None


Facts = dict[str, float | str] | None
"""What a message is filled with; None: nothing is wrong."""


def _failures(e: LoadTestEvidence) -> Facts:
    failed = [o for o in e.observations if o.outcome not in (COMPLETED, CUT_OFF, NEVER_SENT)]
    first = next((f" First: {o.outcome}: {o.message[:160]}" for o in failed if o.message), "")
    return {"failed": len(failed), "total": len(e.observations), "first": first} if failed else None


def _closed_loop(e: LoadTestEvidence) -> Facts:
    applies = e.max_in_flight is not None and e.completed and not e.has_schedule
    return {"cap": e.max_in_flight or 0} if applies else None


def _held_back(e: LoadTestEvidence) -> Facts:
    held = [o.late_s for o in e.observations if o.late_s > LATE_S]
    if e.max_in_flight is None or not e.completed or not e.has_schedule or not held:
        return None
    return {"held": len(held), "total": len(e.observations), "longest": max(held)}


def _late(e: LoadTestEvidence) -> Facts:
    if e.max_in_flight is not None or not e.completed:
        return None
    ttft = float(np.median([o.deliveries[0] - o.sent for o in e.completed if o.sent is not None]))
    limit = max(LATE_S, LATE_SHARE * ttft)
    late = [o.late_s for o in e.completed if o.late_s > limit]
    if not late:
        return None
    return {"late": len(late), "total": len(e.completed), "limit_ms": limit * 1e3, "worst_ms": max(late) * 1e3}


def _coalesced(e: LoadTestEvidence) -> Facts:
    density, near = tokens_per_delivery(e.completed) or 0.0, near_zero_share(e.completed) or 0.0
    return {"density": density, "near": near} if density > TOKENS_AN_EVENT or near > NEAR_ZERO_GAPS else None


def _slow_client(e: LoadTestEvidence) -> Facts:
    gaps = [gap for o in e.completed for gap in np.diff(o.deliveries)]
    median = float(np.median(gaps)) if gaps else 0.0
    if e.client.cpu_share <= BUSY_CPU and not (median and e.client.lag_p99_s > LAG_SHARE * median):
        return None
    return {"cpu": e.client.cpu_share, "lag_ms": e.client.lag_p99_s * 1e3}


def _counting(e: LoadTestEvidence) -> Facts:
    guessed = sum(o.token_source is TokenSource.EVENTS for o in e.completed)
    return {"guessed": guessed} if guessed else None


def _short_answers(e: LoadTestEvidence) -> Facts:
    short = sum(o.num_tokens < o.max_tokens for o in e.completed)
    return {"short": short, "total": len(e.completed)} if short > SHORT_SHARE * len(e.completed) else None


def _other_traffic(e: LoadTestEvidence) -> Facts:
    """Whether the server's histograms counted about what we sent."""
    counted = next((e.server[name].count for name in ("e2e", "ttft", "queue") if name in e.server), None)
    answered = sum(bool(o.deliveries) for o in e.observations)
    if counted is None or abs(counted - answered) <= max(1, STRANGE_SHARE * answered):
        return None
    return {"counted": counted, "answered": answered}


CHECKS: dict[str, Callable[[LoadTestEvidence], Facts]] = {
    "failures": _failures,
    "closed_loop": _closed_loop,
    "held_back": _held_back,
    "late_sends": _late,
    "coalesced_chunks": _coalesced,
    "busy_client": _slow_client,
    "token_counts": _counting,
    "short_answers": _short_answers,
    "other_traffic": _other_traffic,
    "few_samples": lambda e: {"total": len(e.completed)} if 0 < len(e.completed) < FEW else None,
}
"""The check for each message in validity.toml, the gravest first."""
