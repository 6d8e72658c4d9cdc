"""A control says how far two runs are apart between which nothing was changed."""

from types import SimpleNamespace

import pytest
from made_run import made_run, with_views

from course.lab.control import Control
from course.lab.marks import QUIET
from course.lab.run import Row, Run
from course.lessons.lesson_04 import words as lesson_04
from course.lessons.lesson_05 import words as lesson_05
from course.lessons.lesson_08 import words as lesson_08_words
from course.lessons.lesson_09.run import PhasePair, who_gained


def longer(run: Run, factor: float) -> Run:
    """The same, with every request taking `factor` times as long."""

    def change(row: Row) -> dict:
        first = row.view.borders[0]
        return {"borders": tuple(first + factor * (border - first) for border in row.view.borders)}

    return with_views(run, change)


def late(run: Run, factor: float) -> Run:
    """The same, with every TTFT `factor` times as long."""

    def change(row: Row) -> dict:
        arrival, first, *later = row.view.borders[0], *row.view.deliveries
        return {"deliveries": (arrival + factor * (first - arrival), *later)}

    return with_views(run, change)


@pytest.mark.parametrize("factor", [1 + QUIET / 2, 1 - QUIET / 2, 1 + 2 * QUIET, 1 - 2 * QUIET])
def test_it_says_how_far_it_moved_and_when_that_is_too_far(factor: float) -> None:
    control = Control("B as before", made_run(), longer(made_run(), factor))
    assert control.moved == pytest.approx(abs(factor - 1))
    assert str(control).startswith("B as before: p99 of E2E went from")
    assert ("too large" in str(control)) == (abs(factor - 1) > QUIET)


def test_what_is_too_far_apart_for_noise_is_not_called_noise() -> None:
    """By a control, by findings of lessons 00, 04 and 05, and where several runs of two kinds overlap (lesson 09)."""
    slow = longer(made_run(), 2.0)
    assert "isn't noise" in str(Control("B as before", made_run(), slow))
    for finding, outcome in (
        (lesson_04.nothing, {"on": made_run(), "off": late(made_run(), 2.0)}),
        (lesson_05.calm, {"mixed": made_run(), "prefill first": late(made_run(), 2.0)}),
    ):
        assert finding(outcome).is_disturbed and "busy" in str(finding(outcome))
        close = finding({name: made_run() for name in outcome})
        assert not close.is_disturbed and ("noise" in str(close) or "runs scatter" in str(close))
    doubtful = PhasePair("E2E", before=(1.0, 1.0, 2.5), after=(2.0, 2.0, 1.0))
    assert "not enough runs" in doubtful.told
    assert isinstance(who_gained({"E2E": doubtful}, {"E2E": doubtful}), str)
    close = PhasePair("E2E", before=(1.0, 1.0, 2.5), after=(1.1, 1.1, 0.9))
    assert "no clear difference" in close.told and not isinstance(who_gained({"E2E": close}, {"E2E": close}), str)


@pytest.mark.parametrize(
    ("share", "decode_s", "tokens", "is_disturbed"),
    [(0.9, 0.012, 2.5, False), (0.9, 0.02, 2.5, True), (0.9, 0.006, 2.5, True), (0.2, 0.02, 2.5, False)]
    + [(0.9, 0.01, 1.1, True)],
)
def test_drafts_that_gain_what_they_cannot_are_a_disturbed_run(
    share: float, decode_s: float, tokens: float, is_disturbed: bool
) -> None:
    """Lesson 08: always drafts in 90% of the turns and takes 10 ms a token, half of what it takes without. Gates that
    draft as often are as fast, and no drafts save more than the steps that they make superfluous."""
    ways = {"without": (0.0, 0.02), "always": (0.9, 0.01), "gates": (share, decode_s)}
    same = {"workload": "copy, alone", "draft_s": 0.0, "acceptance": 0.8, "plans_ahead": False}
    same["tokens_per_step"] = tokens
    every = [
        SimpleNamespace(way=way, drafting_share=drafting, decode_s=taken, **same)
        for way, (drafting, taken) in ways.items()
    ]
    assert lesson_08_words.kinds(every).is_disturbed == is_disturbed
