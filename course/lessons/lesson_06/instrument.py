"""The roofline, live: choose a batch and a context, run the real engine, and see where its steps fall."""

from collections.abc import Iterator, Sequence

from course.lab.explorer import Explorer, buttons, choices
from course.lab.lab import Lab
from course.lab.svg import Picture
from course.lessons.lesson_06.pictures import draw_roofline
from course.lessons.lesson_06.roofline import Roof
from course.lessons.lesson_06.steps import Dot, measure

BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = {"a few words": 0, "about 250 tokens": 250, "about 500": 500, "about 1000": 1000}
MOST_TOKENS = 8000
"""Of prompts in all: prefilling more of them takes too long on a CPU."""


def roofline_lab(lab: Lab, roof: Roof, dots: Sequence[Dot]) -> Explorer:
    """Every press is a run, and a dot. Earlier dots stay, without names."""
    seen = list(dots)

    def run(batch: int, context: str) -> Iterator[Picture]:
        if batch * CONTEXTS[context] > MOST_TOKENS:
            raise ValueError(f"that's a long prefill: keep batch x context below {MOST_TOKENS} tokens")
        yield draw_roofline(roof, [], seen, title=f"Prefilling {batch} prompts, then decoding: wait for the dot …")
        dot = measure(lab, batch, CONTEXTS[context])
        yield draw_roofline(roof, [dot], seen)
        seen.append(dot)

    batches, contexts = choices("batch, requests", BATCHES, 4), buttons("context of each", list(CONTEXTS))
    return Explorer(run, button="Run these", batch=batches, context=contexts).showing(draw_roofline(roof, seen))
