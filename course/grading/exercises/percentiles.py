"""Percentiles by linear interpolation, and the two numbers (TTFT, ITL) from raw stamps."""

import itertools
import math
import random
from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

from course.grading.tools import Answer, Slips, compare, expect, hold, listed, number

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
    "nearest_rank": one_of(lambda n, q: math.ceil(n * q / 100) - 1),
    "sample_below_rank": one_of(lambda n, q: (n - 1) * q / 100),
    "sample_past_rank": one_of(lambda n, q: n * q / 100),
    "sample_at_rounded_rank": one_of(lambda n, q: round((n - 1) * q / 100)),
    "not_sorted": not_sorted,
    "rank_of_n": lambda s, q: at_rank(s, len(s) * q / 100),
    "rank_of_n_plus_1": lambda s, q: at_rank(s, (len(s) + 1) * q / 100 - 1),
    "q_as_fraction": lambda s, q: at_rank(s, (len(s) - 1) * q),
}


def between(answer: Answer, rng: random.Random) -> None:
    questions = [
        ([round(rng.expovariate(1), 3) for _ in range(n)], rng.choice((50, 75, 90, 95, 99)))
        for n in (4, 5, 7, 10, 12, 30, 80)
        for _ in range(2)
    ]
    hold(answer.percentile, questions, right_percentile, PERCENTILE_SLIPS)


def edges(answer: Answer, rng: random.Random) -> None:
    a, b = sorted(rng.sample(range(1, 1000), 2))
    big = [rng.random() for _ in range(3000)]
    questions = [([a], q) for q in (0, 50, 99, 100)]
    questions += [([b, a], 0), ([b, a], 100), ([b, a], 25), ([a, a, a, b], 50), ([b, a, a], 100), ([-b, -a, 0], 50)]
    questions += [(big, 99.9), (big, 0.1), (big, 100), ([a * 1e12, b * 1e12], 50)]
    hold(answer.percentile, questions, right_percentile, PERCENTILE_SLIPS)
    empty = answer.percentile([], 50)
    expect(empty is None, "percentile_of_nothing", 0.5, empty=empty)


def alone(answer: Answer, rng: random.Random) -> None:
    samples = [rng.random() for _ in range(6)]
    hold(answer.percentile, [(samples, 90), (tuple(samples), 90)], right_percentile, {})
    two(answer, some_requests(rng, 4), 50)


def some_requests(rng: random.Random, count: int) -> list[Request]:
    """Requests in any order; some get one token, some none, some two at once."""
    made = []
    for i in range(count):
        moment = arrival = 0.0 if i == 3 else round(rng.uniform(100, 200), 3)
        deliveries = []
        moment += rng.expovariate(2)
        for _ in range((0, 1, 2, 9)[i] if i < 4 else rng.randint(2, 14)):
            deliveries.append(round(moment, 4))
            gap = 0.03 + (rng.expovariate(2) if rng.random() < 0.15 else rng.random() * 0.02)
            moment += rng.choice((0.0, gap, gap, gap))
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
    "itl_for_ttft": right_itl,
    "e2e_for_ttft": lambda rs, q: right_percentile([d[-1] - a for a, d in rs if d], q),
    "no_ttft_of_one_token": lambda rs, q: right_percentile([d[0] - a for a, d in rs if len(d) > 1], q),
    "zero_ttft_without_token": lambda rs, q: right_percentile([d[0] - a if d else 0.0 for a, d in rs], q),
}
ITL_SLIPS = {
    "ttft_for_itl": right_ttft,
    "percentile_of_tpot": lambda rs, q: right_percentile([mean(gaps(d)) for _, d in rs if len(d) > 1], q),
    "mean_of_percentiles": lambda rs, q: mean(right_percentile(gaps(d), q) for _, d in rs if len(d) > 1),
    "percentile_of_percentiles": lambda rs, q: right_percentile(
        [right_percentile(gaps(d), q) for _, d in rs if len(d) > 1], q
    ),
    "gaps_include_ttft": lambda rs, q: right_percentile([gap for a, d in rs for gap in gaps([a, *d])], q),
    "gaps_between_requests": lambda rs, q: right_percentile(gaps(sorted(moment for _, d in rs for moment in d)), q),
    "zero_gap_without_gaps": lambda rs, q: right_percentile([gap for _, d in rs for gap in gaps(d) or [0.0]], q),
}
NUMBERS: dict[str, tuple[int, Callable[..., Any], Slips]] = {
    "TTFT": (0, right_ttft, TTFT_SLIPS),
    "ITL": (1, right_itl, ITL_SLIPS),
}


def two(answer: Answer, requests: list[Request], q: float) -> list[Any]:
    return listed(answer.two_numbers([(a, list(d)) for a, d in requests], q), f"two_numbers(requests, {q:g})", 2)


def judge_number(answer: Answer, rng: random.Random, name: str) -> None:
    place, right, slips = NUMBERS[name]
    cases = []
    for count in (6, 9, 15, 5):
        requests, q = some_requests(rng, count), rng.choice((50, 90, 95, 99))
        cases.append(((requests, q), number(two(answer, requests, q)[place], f"{name} of two_numbers")))
    compare(name, cases, right, slips, describe=lambda requests, q: f"p{q:g} of {name} over {len(requests)} requests")


def nothing(answer: Answer, rng: random.Random) -> None:
    arrival = round(rng.uniform(0, 9), 2)
    cases = {"no requests": [], "one request without a token": [(arrival, [])]}
    for name, requests in cases.items():
        found = two(answer, requests, 50)
        expect(not any(value is not None for value in found), "pair_of_nothing", name=name, found=found)
    ttft, itl = two(answer, [(arrival, [arrival + 2])], 50)
    expect(itl is None, f"one request of one token has no gap: ITL gave {itl!r}, expected None")
    expect(ttft is not None, "no_ttft_of_one_token")
    number(ttft, "TTFT of a request of one token")
