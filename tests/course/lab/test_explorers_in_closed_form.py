"""Explorers that are arithmetic: each against a closed form, and each draws."""

import math

import pytest
from asserting import shows

from course.lab.simulated_70b import TODAY
from course.lab.speculation_gain import break_even
from course.lessons.lesson_03 import pictures
from course.lessons.lesson_04 import explorer
from course.lessons.lesson_08 import pictures as lesson_08_pictures


def test_ttft_on_an_envelope() -> None:
    linear = pictures.envelope_seconds(4096, 4, 0.5, attention=False)
    assert linear == pytest.approx(2 * pictures.ENVELOPE_MODEL.layer_params * 4096 / (4 * 989.4e12 * 0.5))
    assert (
        pictures.envelope_seconds(8192, 4, 0.5, attention=False) == 2 * linear > pictures.envelope_seconds(4096, 8, 0.5)
    )
    assert pictures.envelope_seconds(4096, 4, 0.5) / linear == pytest.approx(1.04, abs=0.01), "attention, at 4k"
    shows(pictures.draw_envelope(4096, 4, 0.5), "simulated")


@pytest.mark.parametrize("rate", explorer.PRICE_LISTS.values())
def test_a_hosted_cache_pays_from_its_break_even_on(rate: explorer.CachePrice) -> None:
    assert rate.cost(rate.break_even) == pytest.approx(1)
    assert rate.cost(0.9 * rate.break_even) > 1 > rate.cost(1.1 * rate.break_even)
    assert rate.cost(1e6) == pytest.approx(rate.read) and rate.cost(1e-9) == pytest.approx(rate.write)
    assert rate.hit_rate(3600 / rate.ttl_s) == pytest.approx(1 - 1 / math.e)


def test_drafters_break_even_by_their_bytes() -> None:
    lookup, model, eagle, mtp = lesson_08_pictures.TODAYS_DRAFTERS.values()
    assert lookup.c == 0 and eagle.c < mtp.c and model.c == pytest.approx(0.018, abs=0.002)
    assert str(lesson_08_pictures.drafters_table()).count("\n") == 4


def test_the_gain_map_marks_where_it_breaks_even() -> None:
    rounds = lesson_08_pictures.map_rounds(4, 1024, "a 1B model", TODAY)
    each = rounds[1]
    alpha = break_even(4, each.c, each.verify / each.plain)
    assert each.gain(alpha, 4) == pytest.approx(1, abs=1e-6) and each.gain(1.0, 4) > 2
    shows(lesson_08_pictures.draw_gain_map(4, 1024, "a 1B model", TODAY), "breaks even", f"batch 1: above {alpha:.2f}")
