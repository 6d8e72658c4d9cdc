"""When not to believe a load test: what its own record says against it. Each caution says what to do."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minillm.bench.loadgen.observation import COMPLETED, CUT_OFF, NEVER_SENT, Observation, TokenSource
from minillm.bench.loadgen.server_metrics import Histogram
from minillm.core.known import known

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
class Caution:
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


def find_cautions(
    observations: Sequence[Observation],
    client: ClientLoad,
    max_in_flight: int | None,
    has_schedule: bool,
    server: dict[str, Histogram],
) -> list[Caution]:
    """All that apply, the gravest first."""
    completed = [o for o in observations if o.completed]
    found = [
        _failures(observations),
        _omission(observations, completed, max_in_flight, has_schedule),
        _late(completed, max_in_flight),
        _coalesced(completed),
        _slow_client(completed, client),
        _counting(completed),
        _short_answers(completed),
        _strangers(observations, server),
        _few(completed),
    ]
    return [caution for caution in found if caution is not None]


def _failures(observations: Sequence[Observation]) -> Caution | None:
    failed = [o for o in observations if o.outcome not in (COMPLETED, CUT_OFF, NEVER_SENT)]
    if not failed:
        return None
    first = next((f" First: {o.outcome}: {o.message[:160]}" for o in failed if o.message), "")
    return Caution(
        "failures",
        f"{len(failed)} of {len(observations)} requests have no answer, and so no latency: a server that sheds what "
        f"is slow looks fast. Read the counts first.{first}",
    )


def _omission(
    observations: Sequence[Observation], completed: Sequence[Observation], cap: int | None, has_schedule: bool
) -> Caution | None:
    if cap is None or not completed:
        return None
    if not has_schedule:
        return Caution(
            "coordinated omission",
            f"a closed loop of {cap} never asks while the server stalls, and its rate is the server's, not the "
            "users'. 'From an even schedule' counts from when each request would have come had they not waited for "
            "each other. For users who do not know of each other, use --rate.",
        )
    held = [o for o in observations if o.late_s > LATE_S]
    if not held:
        return None
    longest = max(o.late_s for o in held)
    return Caution(
        "coordinated omission",
        f"--concurrency held {len(held)} of {len(observations)} requests back, by up to {longest:.3g} s that no "
        "latency from 'sent' shows. Believe 'from the schedule', or leave the cap away.",
    )


def _late(completed: Sequence[Observation], cap: int | None) -> Caution | None:
    if cap is not None or not completed:
        return None
    ttft = float(np.median([o.deliveries[0] - known(o.sent) for o in completed]))
    limit = max(LATE_S, LATE_SHARE * ttft)
    late = [o for o in completed if o.late_s > limit]
    if not late:
        return None
    return Caution(
        "late sends",
        f"{len(late)} of {len(completed)} requests left more than {limit * 1e3:.0f} ms after they were due (at worst "
        f"{max(o.late_s for o in late) * 1e3:.0f} ms): this client cannot keep its schedule. Give it a core of its "
        "own, or send less from each of several.",
    )


def near_zero_share(completed: Sequence[Observation]) -> float | None:
    """Of all gaps, those shorter than NEAR_ZERO of the request's mean gap. None without gaps."""
    gaps = near = 0
    for observation in completed:
        own = np.diff(observation.deliveries)
        gaps += len(own)
        near += int(np.sum(own < NEAR_ZERO * own.mean())) if len(own) else 0
    return near / gaps if gaps else None


def tokens_per_delivery(completed: Sequence[Observation]) -> float | None:
    """Mean tokens that one event carried; None = no events."""
    deliveries = sum(len(o.deliveries) for o in completed)
    return sum(o.num_tokens for o in completed) / deliveries if deliveries else None


def _coalesced(completed: Sequence[Observation]) -> Caution | None:
    density, near = tokens_per_delivery(completed), near_zero_share(completed)
    signs = []
    if density is not None and density > TOKENS_AN_EVENT:
        signs.append(f"an event carries {density:.2f} tokens on average")
    if near is not None and near > NEAR_ZERO_GAPS:
        signs.append(f"{near:.0%} of the gaps are near zero")
    if not signs:
        return None
    return Caution(
        "coalesced chunks",
        f"{' and '.join(signs)}: something on the way gathers tokens (a proxy that buffers, speculative decoding, "
        "a busy server). ITL then measures how they are packed; believe TPOT, and p99 and max of ITL.",
    )


def _slow_client(completed: Sequence[Observation], client: ClientLoad) -> Caution | None:
    gaps = [gap for o in completed for gap in np.diff(o.deliveries)]
    median = float(np.median(gaps)) if gaps else 0.0
    if client.cpu_share <= BUSY_CPU and not (median and client.lag_p99_s > LAG_SHARE * median):
        return None
    return Caution(
        "busy client",
        f"the load generator used {client.cpu_share:.0%} of a core, and its loop was up to "
        f"{client.lag_p99_s * 1e3:.1f} ms late (p99): part of what it measured is itself. Give it a core of its own, "
        "or fewer streams.",
    )


def _counting(completed: Sequence[Observation]) -> Caution | None:
    guessed = sum(o.token_source is TokenSource.EVENTS for o in completed)
    if not guessed:
        return None
    return Caution(
        "token counts",
        f"{guessed} answers came without `usage`, so one token an event is assumed: TPOT and tokens/s are wrong "
        "where events carry several. Give --tokenizer to count.",
    )


def _short_answers(completed: Sequence[Observation]) -> Caution | None:
    short = sum(o.num_tokens < o.max_tokens for o in completed)
    if short <= SHORT_SHARE * len(completed):
        return None
    return Caution(
        "short answers",
        f"{short} of {len(completed)} answers ended before the length that was planned, so the load is lighter than "
        "planned. vLLM, SGLang and minillm go on with --body ignore_eos=true.",
    )


def _strangers(observations: Sequence[Observation], server: dict[str, Histogram]) -> Caution | None:
    """Whether the server's histograms counted about what we sent."""
    counted = next((server[name].count for name in ("e2e", "ttft", "queue") if name in server), None)
    answered = sum(bool(o.deliveries) for o in observations)
    if counted is None or abs(counted - answered) <= max(1, STRANGE_SHARE * answered):
        return None
    return Caution(
        "server's histograms",
        f"the server counted {counted:.0f} requests where this client had {answered} answers: its queue and prefill "
        "times are of other traffic too, or of several replicas of which /metrics shows one.",
    )


def _few(completed: Sequence[Observation]) -> Caution | None:
    if not 0 < len(completed) < FEW:
        return None
    return Caution(
        "few samples", f"with {len(completed)} answers, p99 of TTFT, TPOT and E2E is about the slowest one: send more."
    )
