"""README's picture of the dashboard shows what is said of it, and calls nothing noise that isn't."""

import pytest

from course.lab.hero import CHANGE, FALLS, FOLDER, PICTURE, RECORD, STEADY, TRAFFIC, Hero, HeroFigure
from course.lab.noise import CEILING, ratio_of
from course.lab.summary import SAME


def hero(**told: tuple[float, float, str]) -> Hero:
    """A good one, but for these figures."""
    good = {**dict.fromkeys(FALLS, (2.0, 0.5, "−75%")), "ITL p50": (0.034, 0.036, SAME), "tokens/s": (14, 30, "+114%")}
    shown = {name: HeroFigure(was=was, now=now, told=words) for name, (was, now, words) in {**good, **told}.items()}
    noise = {**dict.fromkeys(STEADY, 1.2), "first_token": 4.6}
    return Hero(date="", device="", traffic=TRAFFIC, changed=CHANGE, repeats=3, noise=noise, figures=shown)


def test_the_picture_and_its_figures_belong_together_and_nothing_speaks_against_them() -> None:
    recorded = Hero.model_validate_json((FOLDER / RECORD).read_text(encoding="utf-8"))
    assert recorded.shows(FOLDER / PICTURE), "record both anew: python -m tests.course.browser.record_hero"
    assert recorded.problems() == []
    for each in recorded.figures.values():
        assert each.told != SAME or ratio_of(each.was, each.now) <= CEILING
    for name in FALLS:
        assert recorded.figures[name].now < recorded.figures[name].was


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("ITL p50", (0.0343, 0.133, SAME)),  # as it stood in the README
        ("ITL p50", (0.0343, 0.133, "+288%")),
        ("tokens/s", (14.3, 18.7, "+31%?")),
        ("prefill", (1.0, 1.05, SAME)),
        ("TTFT p50", (1.0, 2.0, "+100%")),
    ],
)
def test_a_picture_that_contradicts_its_text_is_not_kept(name: str, shown: tuple[float, float, str]) -> None:
    assert hero().problems() == []
    assert name in " ".join(hero(**{name: shown}).problems())


@pytest.mark.parametrize("name", STEADY)
def test_a_picture_of_a_busy_machine_is_not_kept(name: str) -> None:
    good = hero()
    for limit in (1.01 * CEILING, None):
        (problem,) = good.model_copy(update={"noise": {**good.noise, name: limit}}).problems()
        assert name in problem
    assert good.model_copy(update={"noise": {}}).problems()


def test_other_traffic_or_another_change_is_not_the_hero() -> None:
    assert hero().model_copy(update={"traffic": "chat"}).problems()
    assert hero().model_copy(update={"changed": {}}).problems()
