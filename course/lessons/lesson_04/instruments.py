"""The lesson's pictures with sliders, put together."""

from course.lab.display import Html, stack
from course.lab.explorer import Explorer, choices, slider
from course.lab.lab import Lab
from course.lab.texts import MANUAL
from course.lessons.lesson_04 import policies
from course.lessons.lesson_04.beads import draw_chains
from course.lessons.lesson_04.chain import chain_of
from course.lessons.lesson_04.radix import draw_tree
from course.lessons.lesson_04.traffic import stamp

SENTENCES = [sentence.strip() + "." for page in MANUAL[:3] for sentence in page.strip(".").split(". ")]
"""What stands in both prompts of the bead picture."""


def with_time(place: int, number: int) -> str:
    """The sentences, with the time of request `number` behind the first `place` of them."""
    return " ".join([*SENTENCES[:place], stamp(number), *SENTENCES[place:]])


def bead_explorer(lab: Lab) -> Explorer:
    """Two prompts that differ in a time only: drag it through the text."""

    def draw(place: int, block: int) -> Html:
        texts = [with_time(place, number) for number in (0, 1)]
        chains = [chain_of(lab, each, block) for each in texts]
        return stack(draw_chains(*chains, block), draw_tree(lab, *texts, block))

    return Explorer(
        draw,
        place=slider("sentences before the time", 0, len(SENTENCES), 4),
        block=choices("tokens per block", [8, 16, 32, 64], 16),
    )


def policy_explorer() -> Explorer:
    """Returning users, a cache, and four eviction policies."""
    return Explorer(
        policies.explore,
        users=slider("users", 2, 12, 6),
        turns=slider("turns each", 2, 8, 5),
        gap_s=choices("mean gap between turns, s", [30.0, 60.0, 180.0, 600.0, 1800.0], 180.0),
        limit_s=choices("time limit, s", [60.0, 300.0, 900.0, 3600.0], 300.0),
    )
