"""What runs of prompts of several lengths come to."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from course.lab.lab import Lab
from course.lab.predict import Outcome
from course.lab.run import Run
from course.lab.style import seconds
from course.lessons.lesson_03 import traffic
from course.lessons.lesson_03.attention import BACKEND_OF
from minillm.core.brief import brief

FOUR = 4


@dataclass(frozen=True)
class Ladder:
    """TTFT by prompt length."""

    best: dict[int, float]
    """Tokens -> seconds, of the fastest round: whatever disturbs a machine can only slow it down. Ascending."""

    __repr__ = brief

    @classmethod
    def of(cls, *runs: Run) -> "Ladder":
        """Of runs of prompts that had the machine to themselves, taken together."""
        taken: dict[int, list[float]] = {}
        for view in (view for run in runs for view in run.finished):
            taken.setdefault(view.num_prompt_tokens, []).append(view.deliveries[0] - view.borders[0])
        return cls({tokens: min(taken[tokens]) for tokens in sorted(taken)})

    @property
    def longest(self) -> int:
        return max(self.best)

    @property
    def four_apart(self) -> tuple[int, int]:
        """The longest two lengths of which one is four times the other."""
        return next((n // FOUR, n) for n in sorted(self.best, reverse=True) if n // FOUR in self.best)

    def ratio(self, shorter: int, longer: int) -> float:
        return self.best[longer] / self.best[shorter]

    def exponent(self, shorter: int, longer: int) -> float:
        """The p in TTFT ~ length^p between two lengths."""
        return slope((shorter, self.best[shorter]), (longer, self.best[longer]))


def slope(first: tuple[float, float], second: tuple[float, float]) -> float:
    """The p in y ~ x^p through two points."""
    return math.log(second[1] / first[1]) / math.log(second[0] / first[0])


def four_times(ladder: Ladder) -> Outcome:
    """How many times as long the longest prompt takes as one a quarter as long."""
    shorter, longer = ladder.four_apart
    ratio = ladder.ratio(shorter, longer)
    times = f"{seconds(ladder.best[shorter])} to {seconds(ladder.best[longer])}"
    return Outcome(ratio, f"{shorter} to {longer} tokens: TTFT {times}, {ratio:.1f} times")


def both_ways(lab: Lab, rounds: int = traffic.ROUNDS) -> dict[str, Ladder]:
    """The ladder on the real engine with each kind of attention. They take turns, in the same number format."""
    runs: dict[str, list[Run]] = {name: [] for name in BACKEND_OF}
    for _ in range(rounds):
        for name, backend in BACKEND_OF.items():
            runs[name].append(ladder_run(lab, 1, attention_backend=backend))
    return {name: Ladder.of(*taken) for name, taken in runs.items()}


def ladder_run(lab: Lab, rounds: int = traffic.ROUNDS, **fields: object) -> Run:
    """Prompts of all lengths, one at a time, each in one step."""
    return lab.run(traffic.ladder(lab, rounds), **{**traffic.fields(lab, traffic.lengths(lab)[-1]), **fields})


def saving(ladders: Mapping[str, Ladder], tokens: int) -> float:
    """The share of the TTFT that fused attention takes off, at this length."""
    before, after = (ladders[name].best[tokens] for name in BACKEND_OF)
    return 1 - after / before
