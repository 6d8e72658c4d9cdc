# ruff: noqa: E501 (words for the learner)
"""The definitions of the metrics bug hunt, the bugs of published tools, and requests that tell them apart."""

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import Any

from course.lab.grading.exercises.percentiles import PERCENTILE_SLIPS, right_percentile

Request = Mapping[str, Any]
"""due and sent (s), chunks (pairs of a moment in s and a number of tokens), failed."""
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


def right_attainment(requests: Sequence[Request], limit_ms: float) -> float | None:
    if not requests:
        return None
    return mean(float((ttft := right_ttft(request)) is not None and ttft * 1000 <= limit_ms) for request in requests)


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
    "that is measured from the moment the client sent it. A client that was late hides its own queue so (coordinated "
    "omission): measure from `due`": lambda r: deliveries(r)[0][0] - r["sent"] if deliveries(r) else None,
    "that is the first chunk, which may hold no token: an opening chunk is nothing to read": lambda r: (
        every_chunk(r)[0][0] - r["due"] if every_chunk(r) else None
    ),
    "that is the last delivery: TTFT ends at the first": lambda r: deliveries(r)[-1][0] - r["due"] if deliveries(r) else None,
    "a failed request, or one without a token, has no TTFT: return None": lambda r: right_ttft(r) or 0.0,
    "a request that failed has no latency, even if a few chunks came": broke_off_too(right_ttft),
    "that is in milliseconds: stamps and results are in seconds": lambda r: 1000 * right_ttft(r) if deliveries(r) else None,
}  # fmt: skip
TPOT_SLIPS = {
    "the wait for the first token is inside: that is E2E / tokens. TPOT starts at the first delivery": per_token(
        lambda r: deliveries(r)[-1][0] - r["due"], 0
    ),
    "the wait for the first token is inside, from the moment it was sent: TPOT starts at the first delivery": per_token(
        lambda r: deliveries(r)[-1][0] - r["sent"], 0
    ),
    "the wait for the first token is inside: subtract the first delivery, not the arrival": per_token(
        lambda r: deliveries(r)[-1][0] - r["due"], 1
    ),
    "the wait for the first token is inside, from `sent`: subtract the first delivery": per_token(
        lambda r: deliveries(r)[-1][0] - r["sent"], 1
    ),
    "that divides by the tokens: the first of them is TTFT's, so there is one interval less": per_token(writing, 0),
    "that divides by chunks: a chunk may hold several tokens": lambda r: (
        writing(r) / (len(deliveries(r)) - 1) if len(deliveries(r)) > 1 else None
    ),
    "that counts chunks without a token: the time ends with the last token": lambda r: (
        (every_chunk(r)[-1][0] - every_chunk(r)[0][0]) / (sum(n for _, n in deliveries(r)) - 1)
        if sum(n for _, n in deliveries(r)) > 1
        else None
    ),
    "one token, or none, has no time per token: return None": lambda r: right_tpot(r) or 0.0,
    "a request that failed has no latency, even if a few chunks came": broke_off_too(right_tpot),
}  # fmt: skip
GAP_SLIPS = {
    "there is a gap of zero for each token that came along in a chunk. Nobody wrote a token in no time: they were sent "
    "together (coalesced), and the median of such gaps flatters. A chunk is one delivery": lambda r: gaps_of(
        [at for at, tokens in deliveries(r) for _ in range(tokens)]
    ),
    "a gap is spread over the tokens of its chunk there: that is how they were computed, but not how they arrived": lambda r: [
        gap / tokens for gap, (_, tokens) in zip(right_gaps(r), deliveries(r)[1:]) for _ in range(tokens)
    ],
    "each gap is divided by the tokens of its chunk: the reader waited for all of it": lambda r: [
        gap / tokens for gap, (_, tokens) in zip(right_gaps(r), deliveries(r)[1:])
    ],
    "chunks without a token are counted: nothing was delivered there": lambda r: gaps_of([at for at, _ in every_chunk(r)]),
    "the wait for the first token is among the gaps: that is TTFT": lambda r: (
        gaps_of([r["due"], *(at for at, _ in deliveries(r))])
    ),
    "the wait for the first token is among the gaps, from `sent`: that is TTFT": lambda r: (
        gaps_of([r["sent"], *(at for at, _ in deliveries(r))])
    ),
    "a request that failed has no gaps, even if a few chunks came": broke_off_too(right_gaps),
}  # fmt: skip


def guarded(formula: Numbers) -> Numbers:
    return lambda samples, q: formula(samples, q) if enough(samples, q) else None


RANK_SLIPS = {words: guarded(formula) for words, formula in PERCENTILE_SLIPS.items()}
FEW_SLIPS = {
    "that needs more than 100 / (100 - q) samples: with exactly as many there is a number": lambda s, q: (
        right_percentile(s, q) if len(s) * (100 - q) > 100 else None
    ),
    "that is the same number of samples for each q: a p50 needs 2, a p95 needs 20": lambda s, q: (
        right_percentile(s, q) if len(s) >= 100 else None
    ),
}  # fmt: skip
FLEET_SLIPS = {
    "that is a mean of percentiles, which is the percentile of nothing: a quiet server counts as much as a busy one. Pool "
    "the samples, then rank once": lambda servers, q: average([p for own in servers if (p := right_guarded(own, q)) is not None]),
    "that is a mean of percentiles, which is the percentile of nothing. Pool the samples, then rank once": lambda servers, q: (
        average([right_percentile(own, q) for own in servers if own])
    ),
    "that is a mean of percentiles, weighted by the requests: still the percentile of nothing. Pool the samples": lambda servers, q: (
        sum(right_percentile(own, q) * len(own) for own in servers if own) / sum(map(len, servers))
    ),
    "that is the worst server's percentile: pool the samples of all": lambda servers, q: max(
        right_percentile(own, q) for own in servers if own
    ),
    "that is a percentile of percentiles: pool the samples": lambda servers, q: right_percentile(
        [right_percentile(own, q) for own in servers if own], q
    ),
    "that is the nearest rank": lambda servers, q: RANK_SLIPS[next(iter(RANK_SLIPS))](
        [sample for own in servers for sample in own], q
    ),
}  # fmt: skip


def average(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


def met(counted: Callable[[Request], bool], limit: Callable[[float, float], bool]) -> Callable[..., float | None]:
    """The share of those counted whose TTFT is within the limit."""

    def attainment(requests: Sequence[Request], limit_ms: float) -> float | None:
        of = [right_ttft(request) for request in requests if counted(request)]
        return average([float(ttft is not None and limit(ttft, limit_ms)) for ttft in of])

    return attainment


def in_ms(ttft: float, limit_ms: float) -> bool:
    return ttft * 1000 <= limit_ms


def everyone(request: Request) -> bool:
    return True


def answered(request: Request) -> bool:
    return bool(deliveries(request))


ATTAINMENT_SLIPS = {
    "failed requests are left out of the count: then a server looks better the more it drops. They count, as missed": met(
        answered, in_ms
    ),
    "failed requests are left out of the count. They count, as missed": met(lambda r: not r["failed"], in_ms),
    "the limit is in milliseconds, the stamps are in seconds: so everything that got an answer met it": met(
        everyone, lambda ttft, limit: ttft <= limit
    ),
    "failed requests are left out of the count, and seconds are compared with milliseconds": met(
        answered, lambda ttft, limit: ttft <= limit
    ),
    "a TTFT of exactly the limit has met it": met(everyone, lambda ttft, limit: ttft * 1000 < limit),
    "a request that failed has not met anything, even if its first chunk was quick": lambda requests, limit_ms: average(
        [float((t := broke_off_too(right_ttft)(r)) is not None and t * 1000 <= limit_ms) for r in requests]
    ),
    "that is a percentage: give a share between 0 and 1": lambda rs, limit: 100 * right_attainment(rs, limit) if rs else None,
    "that is the share that missed": lambda rs, limit: 1 - right_attainment(rs, limit) if rs else None,
    "TTFT counts from `due`: from `sent`, the client's own queue is hidden": lambda rs, limit: average(
        [float(bool(deliveries(r)) and (deliveries(r)[0][0] - r["sent"]) * 1000 <= limit) for r in rs]
    ),
}  # fmt: skip


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
