"""How many tokens a verify yields, what that is worth, and how many to draft."""

import random

from course.grading.tools import Answer, Mistake, close, compare, expect, hold, number, whole


def right_tokens(alpha: float, k: int) -> float:
    """By adding up: the token after i accepted drafts comes out with probability alpha^i."""
    return sum(alpha**i for i in range(k + 1))


def right_speedup(alpha: float, k: int, cost: float) -> float:
    return right_tokens(alpha, k) / (k * cost + 1)


def right_best(alpha: float, cost: float, largest: int) -> int:
    return max(range(largest + 1), key=lambda k: (round(right_speedup(alpha, k, cost), 12), -k))


TOKENS_SLIPS = {
    "bonus_forgotten": lambda a, k: right_tokens(a, k - 1) if k else 0.0,
    "counted_accepted_drafts_only": lambda a, k: right_tokens(a, k) - 1,
    "drafts_independent_plus_one": lambda a, k: a * k + 1,
    "drafts_independent": lambda a, k: a * (k + 1),
}
SPEEDUP_SLIPS = {
    "verify_is_free": lambda a, k, c: right_tokens(a, k) / (k * c),
    "drafts_are_free": lambda a, k, c: right_tokens(a, k),
    "verify_costs_each_token": lambda a, k, c: right_tokens(a, k) / (k * c + k + 1),
    "speedup_without_own_token": lambda a, k, c: (right_tokens(a, k) - 1) / (k * c + 1),
}
BEST_SLIPS = {
    "maximized_tokens": lambda a, c, n: n,
    "k_zero_not_tried": lambda a, c, n: max(range(1, n + 1), key=lambda k: right_speedup(a, k, c), default=0),
    "largest_k_not_tried": lambda a, c, n: right_best(a, c, max(n - 1, 0)),
}


def usual(rng: random.Random) -> list[tuple[float, int]]:
    return [(round(rng.uniform(0.1, 0.95), 3), k) for k in (1, 2, 3, 4, 5, 8)]


def tokens(answer: Answer, rng: random.Random) -> None:
    hold(answer.expected_tokens, usual(rng), right_tokens, TOKENS_SLIPS)


def speedups(answer: Answer, rng: random.Random) -> None:
    questions = [(alpha, k, round(rng.uniform(0.02, 0.6), 3)) for alpha, k in usual(rng)]
    hold(answer.speedup, questions, right_speedup, SPEEDUP_SLIPS)


def edges(answer: Answer, rng: random.Random) -> None:
    k = rng.randint(2, 9)
    near_one = [(1.0, k), (1, k), (0.999999, k)]
    at_zero = [(0.0, k), (0, k), (round(rng.random(), 3), 0), (0.0, 0), (1.0, 0)]
    for args in near_one:
        try:
            found = number(answer.expected_tokens(*args), f"expected_tokens{args}")
        except ZeroDivisionError:
            raise Mistake(f"expected_tokens{args} divides by zero: with alpha = 1 the sum is k + 1") from None
        if not close(found, right_tokens(*args), 1e-5):
            raise Mistake(
                f"expected_tokens{args} gave {found:.6g}; when all drafts are accepted it's k + 1 = {k + 1}", 0.5
            )
    for args in at_zero:
        found = number(answer.expected_tokens(*args), f"expected_tokens{args}")
        if not close(found, right_tokens(*args)):
            raise Mistake("tokens_without_draft", 0.5, args=args, found=found, right_tokens=right_tokens(*args))
    found = number(answer.speedup(0.5, 0, 0.3), "speedup(0.5, 0, 0.3)")
    expect(close(found, 1.0), f"speedup(0.5, 0, 0.3) gave {found:.6g}: without drafts nothing changes, so 1", 0.5)


def best(answer: Answer, rng: random.Random) -> None:
    asked = [(0.2, 0.5, 5), (0.0, 0.1, 4), (0.9, 1.5, 6), (0.95, 0.001, 4), (1.0, 0.01, 7), (0.8, 0.1, 0)]
    for _ in range(6):
        asked.append((round(rng.uniform(0.5, 0.95), 2), round(rng.uniform(0.02, 0.2), 3), rng.randint(6, 12)))
    cases = [(args, whole(answer.best_k(*args), f"best_k{args}")) for args in [*asked[6:], *asked[:6]]]
    for (alpha, cost, largest), k in cases:
        expect(0 <= k <= largest, f"best_k({alpha}, {cost}, {largest}) gave {k}, which is not from 0 to {largest}")
    # Of ks that are equally good but for rounding any would do; the statement asks for the smallest.
    compare("best_k", [case for case in cases if not tied(*case)], right_best, BEST_SLIPS)
    for args in ((1.0, 1.0, rng.randint(3, 9)), (0.0, 0.0, rng.randint(3, 9))):  # exactly equal, in any arithmetic
        expect(whole(answer.best_k(*args), f"best_k{args}") == 0, "tie_not_smallest_k", 0.5, args=args)


def tied(arguments: tuple[float, float, int], found: int) -> bool:
    alpha, cost, _ = arguments
    wanted = right_best(*arguments)
    ratio = right_speedup(alpha, found, cost) / right_speedup(alpha, wanted, cost)
    return found != wanted and abs(ratio - 1) < 1e-12
