"""Percentiles by linear interpolation, and the two numbers (TTFT, ITL) from raw stamps."""

import itertools
import math
import random
from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

from course.lab.grading.exercise import Answer, Exercise, Hint, Mistake, Part
from course.lab.grading.tools import compare, left_alone, listed, number

Request = tuple[float, list[float]]
"""Arrival, and the moments of delivery."""


def right_percentile(samples: Sequence[float], q: float) -> float | None:
    return at_rank(samples, (len(samples) - 1) * q / 100) if samples else None


def at_rank(samples: Sequence[float], rank: float) -> float:
    """Between the neighbours of a rank, which may lie outside: then it is the first or the last sample."""
    ranked = sorted(samples)
    rank = min(max(rank, 0.0), len(ranked) - 1.0)
    low = int(rank)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (rank - low) * (ranked[high] - ranked[low])


def one_of(rank: Callable[[int, float], float]) -> Callable[[Sequence[float], float], float]:
    """A percentile that is always one of the samples: the one at int(rank(n, q))."""

    def percentile(samples: Sequence[float], q: float) -> float:
        return sorted(samples)[min(max(int(rank(len(samples), q)), 0), len(samples) - 1)]

    return percentile


def not_sorted(samples: Sequence[float], q: float) -> float:
    rank = (len(samples) - 1) * q / 100
    low = int(rank)
    return samples[low] + (rank - low) * (samples[min(low + 1, len(samples) - 1)] - samples[low])


PERCENTILE_SLIPS = {
    "that is the nearest rank: always one of the samples. Linear interpolation lies between two of them": one_of(
        lambda n, q: math.ceil(n * q / 100) - 1
    ),
    "that is the sample below the rank, always one of the samples: the part of the rank after the point is lost": one_of(
        lambda n, q: (n - 1) * q / 100
    ),
    "that is the sample at int(n * q / 100): always one of the samples, and one place too far": one_of(
        lambda n, q: n * q / 100
    ),
    "that is the sample above the rank, always one of the samples": one_of(lambda n, q: math.ceil((n - 1) * q / 100)),
    "that is the neighbour above, always one of the samples: go only part of the way up to it": one_of(
        lambda n, q: int((n - 1) * q / 100) + 1
    ),
    "equal samples are counted once there: each counts": lambda s, q: right_percentile(list(set(s)), q),
    "that is the sample at the rounded rank: interpolate instead of rounding": one_of(
        lambda n, q: round((n - 1) * q / 100)
    ),
    "that is the middle between the two neighbours: weigh them by the part of the rank after the point": lambda s, q: (
        (one_of(lambda n, q: (n - 1) * q / 100)(s, q) + one_of(lambda n, q: math.ceil((n - 1) * q / 100))(s, q)) / 2
    ),
    "the samples are not sorted: sort them first": not_sorted,
    "the rank is n * q / 100 there: it is (n - 1) * q / 100, so that p100 is the last sample": lambda s, q: at_rank(
        s, len(s) * q / 100
    ),
    "the rank is (n + 1) * q / 100 - 1 there (other tools' definition): here it is (n - 1) * q / 100": lambda s, q: (
        at_rank(s, (len(s) + 1) * q / 100 - 1)
    ),
    "the rank is n * q / 100 - 1/2 there (Hazen's definition): here it is (n - 1) * q / 100": lambda s, q: at_rank(
        s, len(s) * q / 100 - 0.5
    ),
    "that is p(100 - q): sort from small to large": lambda s, q: right_percentile(s, 100 - q),
    "q is a number from 0 to 100, not from 0 to 1: divide it by 100": lambda s, q: at_rank(s, (len(s) - 1) * q),
    "the weights of the two neighbours are swapped": lambda s, q: at_rank(
        s, 2 * int((len(s) - 1) * q / 100) + 1 - (len(s) - 1) * q / 100
    ),
}  # fmt: skip


def asked(answer: Answer, questions: Sequence[tuple[list[float], float]]) -> list[tuple[tuple[Any, ...], Any]]:
    return [
        ((samples, q), number(answer.percentile(list(samples), q), f"percentile(samples, {q:g})"))
        for samples, q in questions
    ]


def describe(samples: Sequence[float], q: float) -> str:
    return f"p{q:g} of {[round(sample, 3) for sample in samples]}"


def between(answer: Answer, rng: random.Random) -> str:
    questions = [
        ([round(rng.expovariate(1), 3) for _ in range(n)], rng.choice((50, 75, 90, 95, 99)))
        for n in (4, 5, 7, 10, 12, 30, 80)
        for _ in range(2)
    ]
    compare("percentile", asked(answer, questions), right_percentile, PERCENTILE_SLIPS, describe)
    return "it interpolates between neighbours, whatever the order of the samples"


def edges(answer: Answer, rng: random.Random) -> str:
    a, b = sorted(rng.sample(range(1, 1000), 2))
    big = [rng.random() for _ in range(3000)]
    questions = [([a], q) for q in (0, 50, 99, 100)]
    questions += [([b, a], 0), ([b, a], 100), ([b, a], 25), ([a, a, a, b], 50), ([b, a, a], 100), ([-b, -a, 0], 50)]
    questions += [(big, 99.9), (big, 0.1), (big, 100), ([a * 1e12, b * 1e12], 50)]
    compare("percentile", asked(answer, questions), right_percentile, PERCENTILE_SLIPS)
    empty = answer.percentile([], 50)
    if empty is not None:
        raise Mistake(f"percentile([], 50) gave {empty!r}: with no samples there is no percentile, return None", 0.5)
    return "one sample, p0, p100, equal samples, none at all: right"


def alone(answer: Answer, rng: random.Random) -> str:
    samples = [rng.random() for _ in range(6)]
    left_alone(answer.percentile, samples, 90)
    as_tuple = number(answer.percentile(tuple(samples), 90), "percentile(a tuple, 90)")
    compare("percentile", [((samples, 90), as_tuple)], right_percentile, {})
    requests = some_requests(rng, 4)
    left_alone(answer.two_numbers, requests, 50)
    return "the callers' data stays as it was"


def some_requests(rng: random.Random, count: int) -> list[Request]:
    """Requests in any order; some get one token, some none."""
    made = []
    for i in range(count):
        moment = arrival = round(rng.uniform(100, 200), 3)
        deliveries = []
        moment += rng.expovariate(2)
        for _ in range((0, 1, 2, 9)[i] if i < 4 else rng.randint(2, 14)):
            deliveries.append(round(moment, 4))
            moment += 0.03 + (rng.expovariate(2) if rng.random() < 0.15 else rng.random() * 0.02)
        made.append((arrival, deliveries))
    rng.shuffle(made)
    return made


def gaps(deliveries: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(deliveries)]


def right_ttft(requests: Sequence[Request], q: float) -> float | None:
    return right_percentile([deliveries[0] - arrival for arrival, deliveries in requests if deliveries], q)


def right_itl(requests: Sequence[Request], q: float) -> float | None:
    return right_percentile([gap for _, deliveries in requests for gap in gaps(deliveries)], q)


TTFT_SLIPS = {
    "that is ITL: the pair begins with TTFT": right_itl,
    "that is E2E: TTFT ends at the first delivery, not at the last": lambda rs, q: right_percentile(
        [d[-1] - a for a, d in rs if d], q
    ),
    "a request without a token has no TTFT: leave it out, instead of counting a zero": lambda rs, q: right_percentile(
        [d[0] - a if d else 0.0 for a, d in rs], q
    ),
    "that is a moment, not a duration: subtract each request's own arrival": lambda rs, q: right_percentile(
        [d[0] for a, d in rs if d], q
    ),
    "that is measured from the first arrival of all: subtract each request's own": lambda rs, q: right_percentile(
        [d[0] - min(a for a, _ in rs) for _, d in rs if d], q
    ),
    "a request of one token has a TTFT too": lambda rs, q: right_percentile(
        [d[0] - a for a, d in rs if len(d) > 1], q
    ),
}  # fmt: skip
ITL_SLIPS = {
    "that is TTFT: the pair ends with ITL": right_ttft,
    "that is a percentile of each request's average gap (its TPOT): pool the raw gaps instead, or one stall "
    "disappears in an average": lambda rs, q: right_percentile([mean(gaps(d)) for _, d in rs if len(d) > 1], q),
    "that is an average of percentiles, which is the percentile of nothing: pool the raw gaps, then rank once":
        lambda rs, q: mean(right_percentile(gaps(d), q) for _, d in rs if len(d) > 1),
    "that is a percentile of percentiles: pool the raw gaps, then rank once":
        lambda rs, q: right_percentile([right_percentile(gaps(d), q) for _, d in rs if len(d) > 1], q),
    "the wait for the first token is among the gaps: that is TTFT, and belongs to the other number":
        lambda rs, q: right_percentile([gap for a, d in rs for gap in gaps([a, *d])], q),
    "there are gaps between the last token of one request and the first of the next: nobody waits for those":
        lambda rs, q: right_percentile(gaps([moment for _, d in rs for moment in d]), q),
    "there are gaps between different requests' tokens: take each request's own":
        lambda rs, q: right_percentile(gaps(sorted(moment for _, d in rs for moment in d)), q),
    "that is each request's largest gap: all gaps count": lambda rs, q: right_percentile(
        [max(gaps(d)) for _, d in rs if len(d) > 1], q
    ),
    "that is E2E divided by the tokens, first token included: take the raw gaps": lambda rs, q: right_percentile(
        [(d[-1] - a) / len(d) for a, d in rs if d], q
    ),
    "a zero is counted for requests without a gap: leave them out": lambda rs, q: right_percentile(
        [gap for _, d in rs for gap in gaps(d) or [0.0]], q
    ),
}  # fmt: skip


def two(answer: Answer, requests: list[Request], q: float) -> list[Any]:
    return listed(answer.two_numbers([(a, list(d)) for a, d in requests], q), f"two_numbers(requests, {q:g})", 2)


def judge_number(place: int, name: str, right: Callable[..., Any], slips: dict[str, Callable[..., Any]]) -> Callable:
    def judge(answer: Answer, rng: random.Random) -> str:
        cases = []
        for count in (6, 9, 15, 5):
            requests, q = some_requests(rng, count), rng.choice((50, 90, 95, 99))
            cases.append(((requests, q), number(two(answer, requests, q)[place], f"{name} of two_numbers")))
        compare(name, cases, right, slips, lambda requests, q: f"p{q:g} of {name} over {len(requests)} requests")
        return "right, also with requests of one token and of none"

    return judge


def nothing(answer: Answer, rng: random.Random) -> str:
    arrival = round(rng.uniform(0, 9), 2)
    cases = {"no requests": [], "one request without a token": [(arrival, [])]}
    for name, requests in cases.items():
        found = two(answer, requests, 50)
        if any(value is not None for value in found):
            raise Mistake(f"{name}: gave {found}; expected (None, None): where nothing was measured, say so")
    ttft, itl = two(answer, [(arrival, [arrival + 2])], 50)
    if itl is not None:
        raise Mistake(f"one request of one token has no gap: ITL gave {itl!r}, expected None")
    number(ttft, "TTFT of a request of one token")
    return "None where nothing was measured"


EXERCISE = Exercise(
    id="percentiles",
    title="Percentiles, and the two numbers from raw stamps",
    lesson=1,
    difficulty=1,
    minutes=20,
    entry_points=("percentile", "two_numbers"),
    parts=(
        Part("between two samples", 3, between),
        Part("edges", 2, edges),
        Part("TTFT", 2, judge_number(0, "TTFT", right_ttft, TTFT_SLIPS)),
        Part("ITL", 3, judge_number(1, "ITL", right_itl, ITL_SLIPS)),
        Part("nothing measured", 1, nothing),
        Part("inputs left alone", 1, alone),
    ),
    hints=(
        Hint("The rank (n - 1) * q / 100 is rarely whole. Its whole part names the lower neighbour.", 0.1),
        Hint("Pool: one list of gaps for all requests together, made of `later - earlier` within each request.", 0.1),
    ),
)
