"""The roofline, live: choose a batch and a context, run the real engine, and see where its steps fall."""

from collections.abc import Iterator, Sequence

from course.lab.explorer import Explorer, buttons, choices
from course.lab.lab import Lab
from course.lab.lesson_06.pictures import draw_roofline
from course.lab.lesson_06.roofline import Roof
from course.lab.lesson_06.steps import Dot, measure
from course.lab.svg import Picture

BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = {"a few words": 0, "about 250 tokens": 250, "about 500": 500, "about 1000": 1000}
MOST_TOKENS = 8000
"""Of prompts in all: reading more of them takes too long on a CPU."""


class RooflineLab(Explorer):
    """Every press is a run, and a dot. Earlier dots stay, hollow.

    Args:
        dots: to begin with.
    """

    def __init__(self, lab: Lab, roof: Roof, dots: Sequence[Dot]) -> None:
        self.lab, self.roof, self.dots = lab, roof, list(dots)
        super().__init__(
            self._measure,
            button="Run these",
            batch=choices("batch, requests", BATCHES, 4),
            context=buttons("context of each", list(CONTEXTS)),
        )
        self.showing(draw_roofline(roof, self.dots))

    def _measure(self, batch: int, context: str) -> Iterator[Picture]:
        tokens = batch * CONTEXTS[context]
        if tokens > MOST_TOKENS:
            words = f"{tokens} tokens of prompts take long to read: keep batch x context below {MOST_TOKENS}"
            raise ValueError(words)
        yield draw_roofline(
            self.roof, [], self.dots, title=f"Reading {batch} prompts, then writing: wait for the dot …"
        )
        dot = measure(self.lab, batch, CONTEXTS[context])
        before, self.dots = self.dots, [*self.dots, dot]
        yield draw_roofline(self.roof, [dot], before)
