"""Explorers that are arithmetic: each against a closed form, and each draws."""

import math

import pytest
from asserting import shows

from course.lab.simulated_70b import TODAY
from course.lab.speculation_gain import break_even
from course.lessons.lesson_03 import envelope
from course.lessons.lesson_04 import hosted
from course.lessons.lesson_08 import pictures as lesson_08_pictures
from course.lessons.lesson_11b import anatomy
from course.lessons.lesson_11c import adapters


def test_ttft_on_an_envelope() -> None:
    linear = envelope.seconds_of(4096, 4, 0.5, attention=False)
    assert linear == pytest.approx(2 * envelope.MODEL.layer_params * 4096 / (4 * 989.4e12 * 0.5))
    assert envelope.seconds_of(8192, 4, 0.5, attention=False) == 2 * linear > envelope.seconds_of(4096, 8, 0.5)
    assert envelope.seconds_of(4096, 4, 0.5) / linear == pytest.approx(1.04, abs=0.01), "attention, at 4k"
    shows(envelope.draw(4096, 4, 0.5), "simulated")


@pytest.mark.parametrize("rate", hosted.RATES.values())
def test_a_hosted_cache_pays_from_its_break_even_on(rate: hosted.Rate) -> None:
    assert rate.cost(rate.break_even) == pytest.approx(1)
    assert rate.cost(0.9 * rate.break_even) > 1 > rate.cost(1.1 * rate.break_even)
    assert rate.cost(1e6) == pytest.approx(rate.read) and rate.cost(1e-9) == pytest.approx(rate.write)
    assert rate.hit_rate(3600 / rate.ttl_s) == pytest.approx(1 - 1 / math.e)


def test_drafters_break_even_by_their_bytes() -> None:
    lookup, model, eagle, mtp = lesson_08_pictures.TODAYS_DRAFTERS.values()
    assert lookup.c == 0 and eagle.c < mtp.c and model.c == pytest.approx(0.018, abs=0.002)
    assert str(lesson_08_pictures.drafters_table()).count("\n") == 4 and "1.85 to 1.90" in lesson_08_pictures.mtp()


def test_the_gain_map_marks_where_it_breaks_even() -> None:
    rounds = lesson_08_pictures.map_rounds(4, 1024, "a 1B model", TODAY)
    each = rounds[1]
    alpha = break_even(4, each.c, each.verify / each.plain)
    assert each.gain(alpha, 4) == pytest.approx(1, abs=1e-6) and each.gain(1.0, 4) > 2
    shows(lesson_08_pictures.draw_gain_map(4, 1024, "a 1B model", TODAY), "breaks even", f"batch 1: above {alpha:.2f}")


def test_a_cold_start_is_the_sum_of_its_pieces() -> None:
    setting = {"machine_s": 60.0, "image_gb": 15.0, "image_cached": False, "source": "network disk, 3 GB/s",
               "compile_s": 45.0, "compile_cached": False, "graphs_s": 15.0, "asleep": False}  # fmt: skip
    cold = sum(anatomy.pieces(**setting).values())
    assert cold == pytest.approx(60 + 15 + anatomy.WEIGHTS_GB / 3 + 45 + 15 + 2)
    assert sum(anatomy.pieces(**{**setting, "asleep": True}).values()) == pytest.approx(anatomy.WEIGHTS_GB / 50 + 1)
    assert sum(anatomy.pieces(**{**setting, "image_cached": True, "compile_cached": True}).values()) == cold - 15 - 40.5
    shows(anatomy.draw(30.0, **setting), "patience")
    assert "43.5%  1.75 s  4 s" in str(anatomy.idle_table(10, 300.0, "sleep mode, 4 s"))  # exp(-300 / 360)
    assert "43.5%  97.8 s  180 s" in str(anatomy.idle_table(10, 300.0, "cold start, 180 s"))


def test_a_step_reads_the_adapters_that_occur_in_it() -> None:
    model = "Llama-3.1 8B on one H100"
    plain, one, many = (adapters.itl(model, 32, n) for n in (0, 1, 64))
    expected = 64 * (1 - (1 - 1 / 64) ** 32)
    assert (many - plain) / (one - plain) == pytest.approx(expected, rel=0.01)
    shows(adapters.draw(model, 32, 16, 64), "64 adapters: a step takes")
    assert "64" in str(adapters.bill(model, 16, 64)) and "0.0 GB" in str(adapters.bill(model, 16, 64))
