"""When not to believe a load test: what its own record says against it. Each check says what to do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from minillm.bench.loadgen.observation import COMPLETED, CUT_OFF, NEVER_SENT, Observation, TokenSource
from minillm.bench.loadgen.server_metrics import Histogram

LATE_S, LATE_SHARE = 0.005, 0.05
"""A request was sent late from here on: 5 ms, and 5% of the median TTFT."""
NEAR_ZERO = 0.1
"""A gap below this share of the request's own mean gap was not made by a decode step."""
FEW = 100
"""With fewer requests, p99 is the slowest one or between the two slowest."""
BUSY_CPU = 0.7
"""Of one core: above, the client's own event loop is a queue."""
TOKENS_AN_EVENT, NEAR_ZERO_GAPS = 1.1, 0.1
"""From here on chunks are coalesced: a stray event of two tokens, or a gap that the network closed, is nothing yet."""
LAG_SHARE = 0.25
"""Of the median gap: a loop that is later than that moves gaps by as much as one wants to see."""
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
    """Of one core, over the test."""
    lag_p50_s: float
    """How late its event loop was when a timer was due, seconds."""
    lag_p99_s: float


@dataclass(frozen=True)
class Evidence:
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


def check_validity(evidence: Evidence) -> list[ValidityWarning]:
    """All warnings that apply, the gravest first."""
    found = ((kind, check(evidence)) for kind, check in CHECKS.items())
    return [ValidityWarning(kind, message) for kind, message in found if message is not None]


def near_zero_share(completed: Sequence[Observation]) -> float | None:
    """Of all gaps, those shorter than NEAR_ZERO of the request's mean gap. None without gaps."""
    gaps = [np.diff(o.deliveries) for o in completed if len(o.deliveries) > 1]
    return float(np.mean(np.concatenate([own < NEAR_ZERO * own.mean() for own in gaps]))) if gaps else None


def tokens_per_delivery(completed: Sequence[Observation]) -> float | None:
    """Mean tokens that one event carried; None = no events."""
    deliveries = sum(len(o.deliveries) for o in completed)
    return sum(o.num_tokens for o in completed) / deliveries if deliveries else None


def _failures(e: Evidence) -> str | None:
    failed = [o for o in e.observations if o.outcome not in (COMPLETED, CUT_OFF, NEVER_SENT)]
    if not failed:
        return None
    first = next((f" First: {o.outcome}: {o.message[:160]}" for o in failed if o.message), "")
    return (
        f"{len(failed)} of {len(e.observations)} requests have no answer, and so no latency: a server that sheds what "
        f"is slow looks fast. Read the counts first.{first}"
    )


def _omission(e: Evidence) -> str | None:
    if e.max_in_flight is None or not e.completed:
        return None
    if not e.has_schedule:
        return (
            f"a closed loop of {e.max_in_flight} never asks while the server stalls, and its rate is the server's, not "
            "the users'. 'From an even schedule' counts from when each request would have come had they not waited "
            "for each other. For users who do not know of each other, use --rate."
        )
    held = [o.late_s for o in e.observations if o.late_s > LATE_S]
    if not held:
        return None
    return (
        f"--concurrency held {len(held)} of {len(e.observations)} requests back, by up to {max(held):.3g} s that no "
        "latency from 'sent' shows. Believe 'from the schedule', or leave the cap away."
    )


def _late(e: Evidence) -> str | None:
    if e.max_in_flight is not None or not e.completed:
        return None
    ttft = float(np.median([o.deliveries[0] - o.sent for o in e.completed if o.sent is not None]))
    limit = max(LATE_S, LATE_SHARE * ttft)
    late = [o.late_s for o in e.completed if o.late_s > limit]
    if not late:
        return None
    return (
        f"{len(late)} of {len(e.completed)} requests left more than {limit * 1e3:.0f} ms after they were due (at worst "
        f"{max(late) * 1e3:.0f} ms): this client cannot keep its schedule. Give it a core of its own, or send less "
        "from each of several."
    )


def _coalesced(e: Evidence) -> str | None:
    density, near = tokens_per_delivery(e.completed), near_zero_share(e.completed)
    signs = []
    if density is not None and density > TOKENS_AN_EVENT:
        signs.append(f"an event carries {density:.2f} tokens on average")
    if near is not None and near > NEAR_ZERO_GAPS:
        signs.append(f"{near:.0%} of the gaps are near zero")
    if not signs:
        return None
    return (
        f"{' and '.join(signs)}: something on the way gathers tokens (a proxy that buffers, speculative decoding, "
        "a busy server). ITL then measures how they are packed; believe TPOT, and p99 and max of ITL."
    )


def _slow_client(e: Evidence) -> str | None:
    gaps = [gap for o in e.completed for gap in np.diff(o.deliveries)]
    median = float(np.median(gaps)) if gaps else 0.0
    if e.client.cpu_share <= BUSY_CPU and not (median and e.client.lag_p99_s > LAG_SHARE * median):
        return None
    return (
        f"the load generator used {e.client.cpu_share:.0%} of a core, and its loop was up to "
        f"{e.client.lag_p99_s * 1e3:.1f} ms late (p99): part of what it measured is itself. Give it a core of its "
        "own, or fewer streams."
    )


def _counting(e: Evidence) -> str | None:
    guessed = sum(o.token_source is TokenSource.EVENTS for o in e.completed)
    if not guessed:
        return None
    return (
        f"{guessed} answers came without `usage`, so one token an event is assumed: TPOT and tokens/s are wrong "
        "where events carry several. Give --tokenizer to count."
    )


def _short_answers(e: Evidence) -> str | None:
    short = sum(o.num_tokens < o.max_tokens for o in e.completed)
    if short <= SHORT_SHARE * len(e.completed):
        return None
    return (
        f"{short} of {len(e.completed)} answers ended before the length that was planned, so the load is lighter than "
        "planned. vLLM, SGLang and minillm go on with --body ignore_eos=true."
    )


def _strangers(e: Evidence) -> str | None:
    """Whether the server's histograms counted about what we sent."""
    counted = next((e.server[name].count for name in ("e2e", "ttft", "queue") if name in e.server), None)
    answered = sum(bool(o.deliveries) for o in e.observations)
    if counted is None or abs(counted - answered) <= max(1, STRANGE_SHARE * answered):
        return None
    return (
        f"the server counted {counted:.0f} requests where this client had {answered} answers: its queue and prefill "
        "times are of other traffic too, or of several replicas of which /metrics shows one."
    )


def _few(e: Evidence) -> str | None:
    if not 0 < len(e.completed) < FEW:
        return None
    return f"with {len(e.completed)} answers, p99 of TTFT, TPOT and E2E is about the slowest one: send more."


CHECKS = {
    "failures": _failures,
    "coordinated omission": _omission,
    "late sends": _late,
    "coalesced chunks": _coalesced,
    "busy client": _slow_client,
    "token counts": _counting,
    "short answers": _short_answers,
    "server's histograms": _strangers,
    "few samples": _few,
}
"""By the kind of warning, the gravest first."""
