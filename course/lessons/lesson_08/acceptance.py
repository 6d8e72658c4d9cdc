"""How many tokens a verification yields: drafts with a chosen acceptance, measured, beside two formulas."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from course.lab.explorer import Explorer, choices
from course.lab.lab import Lab
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.run import Run
from course.lab.style import COLOURS, number
from course.lab.svg import Picture
from course.lessons.lesson_08 import traffic
from course.lessons.lesson_08.formulas import emitted, popular
from minillm.core.brief import brief

SWEEP = ((0.3, 4), (0.3, 8), (0.6, 8), (0.9, 8))
SHORT_SWEEP = ((0.3, 2), (0.6, 4), (0.9, 4))
ALPHAS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
KS = (1, 2, 4, 6, 8)
START_K = 8
"""Long enough for the two formulas to part."""


@dataclass(frozen=True)
class Point:
    """Verifications of drafts of k tokens, each of which was made to pass with a chance of alpha."""

    alpha: float
    k: int
    passed: tuple[int, ...]
    """Guesses that passed, of each verification."""

    __repr__ = brief

    @classmethod
    def of(cls, run: Run) -> "Point":
        """From a run of `traffic.made_up`. Drafts that were cut short, at an answer's end, are left out.

        Raises:
            LookupError: there was no draft of full length.
        """
        wanted = run.config.speculative
        shares = [share for step in run.steps for share in step.shares if share.num_drafts == wanted.k]
        if not shares:
            raise LookupError("no draft of full length was checked: was the run stopped?")
        return cls(wanted.acceptance_rate, wanted.k, tuple(share.num_accepted for share in shares))

    @property
    def emitted(self) -> float:
        """Tokens a verification yielded, in the mean."""
        return 1 + sum(self.passed) / len(self.passed)

    @property
    def by_place(self) -> list[float]:
        """Of all drafts, the share whose first, second, ... guess passed."""
        return [sum(passed > place for passed in self.passed) / len(self.passed) for place in range(self.k)]

    @property
    def formula(self) -> float:
        return emitted(self.alpha, self.k)

    @property
    def popular(self) -> float:
        return popular(self.alpha, self.k)


def measure(lab: Lab, alpha: float, k: int) -> Point:
    return Point.of(traffic.made_up(lab, alpha, k))


def sweep(lab: Lab) -> list[Point]:
    return [measure(lab, alpha, k) for alpha, k in (SWEEP if lab.scale == 1 else SHORT_SWEEP)]


def longest(points: Sequence[Point]) -> Point:
    """The one with the longest drafts; of several, that of the highest acceptance."""
    return max(points, key=lambda point: (point.k, point.alpha))


def draw_places(points: Sequence[Point]) -> Picture:
    """How often is each place of a draft reached and passed? Measured, beside alpha to the power of the place."""
    curves = []
    for point, colour in zip(points, COLOURS):
        places, powers = list(range(1, point.k + 1)), [point.alpha**p for p in range(1, point.k + 1)]
        curves.append(Curve(f"α = {point.alpha:g}, measured", places, point.by_place, colour=colour))
        curves.append(Curve(f"α^position, α = {point.alpha:g}", places, powers, "dashes", colour))
    told = "; ".join(
        f"α = {p.alpha:g}: {', '.join(f'{share:.0%}' for share in p.by_place)}, by the formula "
        f"{', '.join(f'{p.alpha**place:.0%}' for place in range(1, p.k + 1))}"
        for p in points
    )
    return draw_chart(
        "How often does each position of a draft pass?",
        curves,
        Axis("position in the draft (1 = the first guess)"),
        Axis("share of drafts in which it passed", low=0, high=1.02),
        description=told,
    )


def draw_emitted(points: Sequence[Point], k: int, newest: Point | None = None) -> Picture:
    """Tokens a verification yields, by acceptance: two formulas for one k, and what was measured.

    Args:
        points: those of this k are shown.
        newest: to be ringed.
    """
    alphas = [i / 40 for i in range(41)]
    sparse = [i / 8 for i in range(9)]
    mine = [point for point in points if point.k == k]
    curves = [
        Curve("1 + α + α² + … + α^k", alphas, [emitted(a, k) for a in alphas], "dashes"),
        Curve("k × α, never below 1", sparse, [popular(a, k) for a in sparse], "line"),
        Curve("measured", [p.alpha for p in mine], [p.emitted for p in mine], "points"),
    ]
    marks = [Mark(f"{number(newest.emitted)}", newest.alpha, newest.emitted)] if newest and newest.k == k else []
    found = "; ".join(
        f"α = {p.alpha:g}: measured {number(p.emitted)}, the sum says {number(p.formula)}, k × α {number(p.popular)}"
        for p in mine
    )
    return draw_chart(
        f"Drafts of {k}: how many tokens does a verification yield?",
        curves,
        Axis("α: probability that a guess passes", low=0, high=1.02),
        Axis("tokens per verification", low=0.8, high=k + 1.2),
        marks,
        description=found or "Nothing measured for this k yet.",
    )


class AcceptanceLab(Explorer):
    """Every press makes drafts that pass with a chosen chance, and the real engine checks them.

    Args:
        points: to begin with.
    """

    def __init__(self, lab: Lab, points: Sequence[Point]) -> None:
        self.lab, self.points = lab, list(points)
        super().__init__(
            self._measure,
            button="Draft and verify",
            alpha=choices("α, acceptance", ALPHAS, 0.6),
            k=choices("k, guesses in a draft", KS, START_K),
        )
        self.showing(draw_emitted(self.points, START_K))

    def _measure(self, alpha: float, k: int) -> Iterator[Picture]:
        yield draw_emitted(self.points, k)
        point = measure(self.lab, alpha, k)
        self.points.append(point)
        yield draw_emitted(self.points, k, point)
