"""The definitions of the metrics bug hunt, the bugs of published tools, and requests that tell them apart."""

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from course.grading.exercises.percentiles import PERCENTILE_SLIPS, right_percentile
from course.grading.tools import average

Request = Mapping[str, Any]
"""due and sent (s), chunks (pairs of a moment in s and a number of tokens), failed."""
Servers = Sequence[Sequence[Request]]
Numbers = Callable[[Sequence[float], float], float | None]


def deliveries(request: Request) -> list[tuple[float, int]]:
    return [] if request["failed"] else [(at, tokens) for at, tokens in request["chunks"] if tokens > 0]


def every_chunk(request: Request) -> list[tuple[float, int]]:
    """The mistake of counting chunks without a token."""
    return [] if request["failed"] else list(request["chunks"])


def right_ttft(request: Request) -> float | None:
    came = deliveries(request)
    return came[0][0] - request["due"] if came else None


def right_tpot(request: Request) -> float | None:
    came = deliveries(request)
    tokens = sum(count for _, count in came)
    return (came[-1][0] - came[0][0]) / (tokens - 1) if tokens > 1 else None


def right_gaps(request: Request) -> list[float]:
    return gaps_of([at for at, _ in deliveries(request)])


def gaps_of(moments: Sequence[float]) -> list[float]:
    return [later - sooner for sooner, later in itertools.pairwise(moments)]


def enough(samples: Sequence[float], q: float) -> bool:
    return len(samples) * (100 - q) >= 100


def right_guarded(samples: Sequence[float], q: float) -> float | None:
    return right_percentile(samples, q) if enough(samples, q) else None


def right_fleet(servers: Sequence[Sequence[float]], q: float) -> float | None:
    return right_guarded([sample for own in servers for sample in own], q)


def met(
    counted: Callable[[Request], bool] = lambda request: True,
    is_met: Callable[[float, float], bool] = lambda ttft, limit_ms: ttft * 1000 <= limit_ms,
    ttft_of: Callable[[Request], float | None] = right_ttft,
) -> Callable[..., float | None]:
    """The share of those counted whose TTFT is within the limit; the defaults are right."""

    def attainment(requests: Sequence[Request], limit_ms: float) -> float | None:
        of = [ttft_of(request) for request in requests if counted(request)]
        return average([float(ttft is not None and is_met(ttft, limit_ms)) for ttft in of])

    return attainment


right_attainment = met()


def per_token(numerator: Callable[[Request], float], less: int) -> Callable[[Request], float | None]:
    """A time divided by the tokens, or by one less."""

    def tpot(request: Request) -> float | None:
        tokens = sum(count for _, count in deliveries(request))
        return numerator(request) / (tokens - less) if tokens > 1 else None

    return tpot


def writing(request: Request) -> float:
    return deliveries(request)[-1][0] - deliveries(request)[0][0]


def broke_off_too(formula: Callable[[Request], Any]) -> Callable[[Request], Any]:
    return lambda request: formula({**request, "failed": False})


TTFT_SLIPS = {
    "ttft_from_sent": lambda r: deliveries(r)[0][0] - r["sent"] if deliveries(r) else None,
    "ttft_of_empty_chunk": lambda r: every_chunk(r)[0][0] - r["due"] if every_chunk(r) else None,
    "ttft_zero_for_none": lambda r: right_ttft(r) or 0.0,
    "latency_of_failed_request": broke_off_too(right_ttft),
}
TPOT_SLIPS = {
    "tpot_is_e2e_per_token": per_token(lambda r: deliveries(r)[-1][0] - r["due"], 0),
    "tpot_includes_ttft": per_token(lambda r: deliveries(r)[-1][0] - r["due"], 1),
    "tpot_divided_by_tokens": per_token(writing, 0),
    "tpot_divided_by_chunks": lambda r: writing(r) / (len(deliveries(r)) - 1) if len(deliveries(r)) > 1 else None,
    "tpot_to_empty_chunk": lambda r: (
        (every_chunk(r)[-1][0] - every_chunk(r)[0][0]) / (sum(n for _, n in deliveries(r)) - 1)
        if sum(n for _, n in deliveries(r)) > 1
        else None
    ),
    "tpot_zero_for_none": lambda r: right_tpot(r) or 0.0,
    "latency_of_failed_request": broke_off_too(right_tpot),
}
GAP_SLIPS = {
    "zero_gap_for_each_token": lambda r: gaps_of([at for at, tokens in deliveries(r) for _ in range(tokens)]),
    "gap_spread_over_tokens": lambda r: [
        gap / tokens for gap, (_, tokens) in zip(right_gaps(r), deliveries(r)[1:]) for _ in range(tokens)
    ],
    "gaps_of_empty_chunks": lambda r: gaps_of([at for at, _ in every_chunk(r)]),
    "gaps_include_ttft": lambda r: gaps_of([r["due"], *(at for at, _ in deliveries(r))]),
    "gaps_of_failed_request": broke_off_too(right_gaps),
}


def guarded(formula: Numbers) -> Numbers:
    return lambda samples, q: formula(samples, q) if enough(samples, q) else None


RANK_SLIPS = {words: guarded(formula) for words, formula in PERCENTILE_SLIPS.items()}
FEW_SLIPS = {"same_minimum_for_each_q": lambda s, q: right_percentile(s, q) if len(s) >= 100 else None}


FLEET_SLIPS = {
    "mean_of_percentiles": lambda servers, q: average(
        [p for own in servers if (p := right_guarded(own, q)) is not None]
    ),
    "weighted_mean_of_percentiles": lambda servers, q: (
        sum(right_percentile(own, q) * len(own) for own in servers if own) / sum(map(len, servers))
    ),
    "worst_server": lambda servers, q: max(right_percentile(own, q) for own in servers if own),
    "fleet_nearest_rank": lambda servers, q: RANK_SLIPS["nearest_rank"]([*itertools.chain(*servers)], q),
}


ATTAINMENT_SLIPS = {
    "counted_answered_only": met(lambda r: bool(deliveries(r))),
    "counted_not_failed_only": met(lambda r: not r["failed"]),
    "limit_taken_for_seconds": met(is_met=lambda ttft, limit: ttft <= limit),
    "exactly_the_limit_missed": met(is_met=lambda ttft, limit: ttft * 1000 < limit),
    "failed_request_met_limit": met(ttft_of=broke_off_too(right_ttft)),
    "attainment_from_sent": met(ttft_of=TTFT_SLIPS["ttft_from_sent"]),
}


def some_request(rng: random.Random, kind: str = "usual") -> Request:
    """Stamps are multiples of 1/128 s, so that a limit can be met exactly."""
    due = rng.randrange(128 * 50) / 128
    sent = due + rng.choice((0, 0, rng.randrange(1, 200))) / 128
    moment = sent + rng.randrange(16, 128) / 128
    chunks = [(sent + rng.randrange(1, 12) / 128, 0)] if rng.random() < 0.5 else []
    deliver = {"usual": rng.randint(2, 12), "one": 1, "none": 0, "broke off": rng.randint(2, 5)}[kind]
    for _ in range(deliver):
        chunks.append((moment, 1 if kind == "one" else rng.choice((1, 1, 1, 2, 3, 5))))
        moment += rng.randrange(2, 40) / 128
    if rng.random() < 0.5 and kind == "usual":
        chunks.append((moment + rng.randrange(9) / 128, 0))
    failed = kind == "broke off" or (kind == "none" and rng.random() < 0.7)
    return {"due": due, "sent": sent, "chunks": chunks, "failed": failed}


def some_requests(rng: random.Random, count: int) -> list[Request]:
    return [some_request(rng, rng.choice(("usual",) * 6 + ("one", "none", "broke off"))) for _ in range(count)]
