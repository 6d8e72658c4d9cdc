"""What a guess is worth: the arithmetic of speculation, the right one and the popular one.

Everywhere: `alpha` is the chance of a guess to pass if those before it have; `k` is the length of a draft; `c` is what
one guess costs, in decode steps; `verify` is what a step with k + 1 rows per request takes, in decode steps.
Leviathan et al. 2023, equation (1) and theorem 3.8; there `verify` is 1.
"""

from collections.abc import Callable

HALVINGS = 40


def emitted(alpha: float, k: int) -> float:
    """Tokens that one verification yields: 1 + alpha + ... + alpha^k, which is (1 - alpha^(k+1)) / (1 - alpha)."""
    return sum(alpha**place for place in range(k + 1))


def popular(alpha: float, k: int) -> float:
    """What is often written instead: k x acceptance, and never below 1."""
    return max(1.0, k * alpha)


def accepted_share(alpha: float, k: int) -> float:
    """Accepted draft tokens over proposed ones, the "acceptance rate" of vLLM's log: those behind a rejected one count
    as proposed, though nothing tested them. So it falls with k, while alpha stays."""
    return (emitted(alpha, k) - 1) / k


def alpha_of(share: float, k: int) -> float:
    """The alpha whose `accepted_share` it is: what to put into the formulas here.

    Raises:
        ValueError: it is no share.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"a share lies between 0 and 1, not at {share:g}")
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if accepted_share(middle, k) < share else (low, middle)
    return (low + high) / 2


def speedup(alpha: float, k: int, c: float = 0.0, verify: float = 1.0) -> float:
    """Tokens per second over those without speculation."""
    return emitted(alpha, k) / (verify + k * c)


def break_even(k: int, c: float = 0.0, verify: float = 1.0) -> float | None:
    """The alpha at which speculation gains nothing; below it loses. None = it loses even if every guess passes."""
    if speedup(1.0, k, c, verify) <= 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if speedup(middle, k, c, verify) < 1 else (low, middle)
    return high


def best_k(alpha: float, c: float, verify: Callable[[int], float], longest: int = 16) -> int:
    """The draft length with the highest speedup; 0 = better not to draft.

    Args:
        verify: by k, what a verification takes, in decode steps.
    """
    return max(range(longest + 1), key=lambda k: speedup(alpha, k, c, verify(k)) if k else 1.0)
