"""Napkin sums: each one's prompt has all it takes, its working is true line by line, and known figures come out."""

import json
import math
import re
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from typing import Any

import pytest

from course.drills.amounts import BYTES, RATIO, SECONDS, TOKENS
from course.napkin.desk import NapkinDesk
from course.napkin.library import TEMPLATES, napkin_of, napkin_of_day
from course.napkin.napkin import Napkin, Nearness
from course.napkin.quantity import NapkinError, Quantity

Run = Callable[..., tuple[int, str, str]]
SEEDS = range(300)
ROUNDED = 0.03
"""The numbers of a question have three digits, and a line of the working has up to five of them."""
CONSTANTS = (1, 2, 8, 24, 30, 60, 3600, 1e6)
"""What nobody needs to be told: a key and a value, bits of a byte, hours of a day, ..."""

# ---------------------------------------------------------------- the working, read anew

SIZES = {"µs": 1e-6, "ms": 1e-3, "s": 1, "hours": 3600, "%": 0.01, "Gbit/s": 1e9}
SIZES |= {"million": 1e6, "billion": 1e9, "trillion": 1e12, "quadrillion": 1e15}
SIZES |= {f"{p}{u}": size for p, size in zip("kMGTP", (1e3, 1e6, 1e9, 1e12, 1e15)) for u in ("B", "B/s", "FLOP/s")}
UNIT = "|".join(sorted(map(re.escape, SIZES), key=len, reverse=True))
AMOUNT = re.compile(rf"(?<![\w.-])\$?(\d[\d,]*(?:\.\d+)?) ?({UNIT})?(?![A-Za-z/])")


def amounts(text: str) -> list[float]:
    return [_value(found) for found in AMOUNT.finditer(text)]


def _value(found: re.Match[str]) -> float:
    return float(found[1].rstrip(",").replace(",", "")) * SIZES.get(found[2], 1)


def calculations(napkin: Napkin) -> Iterator[tuple[str, float]]:
    """The left side of each line that has two, and what it says on the right."""
    for line in napkin.working:
        left, equals, right = line.rpartition(" = ")
        if equals:
            yield re.sub(r"^.*: ", "", left), amounts(right)[0]


def worked_out(left: str) -> float:
    expression = AMOUNT.sub(lambda found: f" {_value(found)!r} ", left).replace("^", "**")
    symbols = re.sub(r"requests/s|tokens/s|(?!x\b|e[+-]\d)\b[a-zA-Z]+|,", " ", expression).replace(" x ", " * ")
    return float(eval(symbols))


def near(one: float, other: float, share: float = ROUNDED) -> bool:
    return math.isclose(one, other, rel_tol=share)


@pytest.mark.parametrize("seed", range(0, len(SEEDS), 30))
def test_a_question_has_all_numbers_and_the_working_is_true(seed: int) -> None:
    for napkin in map(napkin_of, SEEDS[seed : seed + 30]):
        known = [*CONSTANTS, *amounts(napkin.question)]
        results = [math.nan]
        for left, result in calculations(napkin):
            strange = [each for each in amounts(left) if not any(near(each, other, 0.01) for other in known)]
            assert not strange, f"{left!r} takes {strange}, which nothing says: {napkin.question}"
            assert near(worked_out(left), result), f"{left!r} is {worked_out(left)}, not {result}"
            known.append(result)
            results.append(result)
        assert 0 < napkin.answer.value < math.inf
        assert near(results[-1], napkin.answer.value) or napkin.counted in ("replicas", "splits")  # whole ones
        assert f"{napkin.answer}" in napkin.working[-1]
        assert napkin.judge(f"{napkin.answer}") is Nearness.RIGHT, napkin


def test_hundreds_of_different_sums_and_each_template_in_turn() -> None:
    assert len({napkin_of(seed).question for seed in SEEDS}) > 250
    first = {napkin_of(seed).question.partition(" ")[2] for seed in range(len(TEMPLATES))}
    assert len(TEMPLATES) >= 15 and len(first) == len(TEMPLATES)
    today = date(2026, 11, 27)
    assert napkin_of_day(today) == napkin_of_day(today) != napkin_of_day(today - timedelta(days=1))
    assert napkin_of(-1).answer.value > 0


# ---------------------------------------------------------------- each template against an independent sum

H100, H100_READS, H200_READS, BILLION = 989.4e12, 3.35e12, 4.8e12, 1e9
SEVENTY = {"model": "llama-3.1-70b", "card": "h100-sxm", "cards": 4}
LAYERS_70B = 80 * (8192 * (8192 + 2 * 1024) + 8192 * 8192 + 3 * 8192 * 28672)
READ_70B = 2 * (LAYERS_70B + 128256 * 8192)
KNOWN: dict[str, tuple[dict[str, Any], float]] = {
    "kv_per_token": ({"model": "llama-3.1-70b"}, 320 * 1024),
    "kv_of_context": ({"model": "llama-3.1-8b", "tokens": 8_000, "requests": 50}, 128 * 1024 * 8_000 * 50),
    "latent_kv": ({"model": "deepseek-v3", "tokens": 32_000}, 61 * (512 + 64) * 2 * 32_000),
    "requests_that_fit": (
        {**SEVENTY, "tokens": 3_000},
        (4 * 79.1 * 2**30 - 70.55 * 2 * BILLION) / (327_680 * 3_000),
    ),
    "kv_transfer": ({"model": "llama-3.1-70b", "tokens": 16_000, "gigabits": 400, "share": 0.8}, 327_680 * 16e3 / 40e9),
    "swap_or_recompute": (
        {**SEVENTY, "tokens": 4_000, "mfu": 0.5},
        (2 * LAYERS_70B / (4 * H100 * 0.5)) / (327_680 / (4 * 64e9)),
    ),
    "weights_to_a_node": (
        {"model": "llama-3.1-70b", "dtype": "bfloat16", "gigabits": 25, "share": 0.8},
        141.1 / 2.5,
    ),
    "weights_to_a_fleet": ({"model": "deepseek-v3", "nodes": 100, "egress": 25}, 100 * 671 / 25),
    "prefill_time": ({**SEVENTY, "tokens": 2_000, "mfu": 0.5}, 2 * LAYERS_70B * 2_000 / (4 * H100 * 0.5)),
    "decode_floor": (SEVENTY, READ_70B / (4 * H100_READS)),
    "sparse_decode_floor": ({"model": "qwen3-235b-a22b", "card": "h200", "cards": 8}, 2 * 21.6e9 / (8 * H200_READS)),
    "decode_rate": (
        {**SEVENTY, "batch": 32, "context": 2_000},
        32 / ((READ_70B + 32 * 2_000 * 327_680) / (4 * H100_READS)),
    ),
    "mbu": ({**SEVENTY, "share": 0.6}, 0.6),
    "mfu": ({**SEVENTY, "share": 0.5}, 0.5),
    "bend": ({"card": "h100-sxm", "dtype": "bfloat16", "mfu": 0.5, "mbu": 0.7}, 211),
    "chunk_for_itl": ({**SEVENTY, "limit": 40, "mfu": 0.5}, 0.04 * 4 * H100 * 0.5 / (2 * LAYERS_70B)),
    "experts_read": ({"model": "qwen3-30b-a3b", "batch": 16}, 128 * (1 - (15 / 16) ** 16)),
    "all_reduces": ({"model": "llama-3.1-70b", "microseconds": 12}, 160 * 12e-6),
    "tokens_per_verification": ({"k": 4, "alpha": 0.6}, 1 + 0.6 + 0.36 + 0.216 + 0.1296),
    "speculation_speedup": (
        {"k": 3, "alpha": 0.8, "draft": 0.1, "verify": 1.1},
        (1 + 0.8 + 0.64 + 0.512) / 1.4,
    ),
    "dashboards_acceptance": ({"k": 4, "alpha": 0.6}, (0.6 + 0.36 + 0.216 + 0.1296) / 4),
    "context_splits": ({"card": "an H100", "heads": 8, "requests": 1}, 17),
    "in_flight": ({"rate": 12, "tokens": 300, "ttft": 0.5, "itl": 25}, 96),
    "most_requests": ({"slots": 128, "tokens": 300, "itl": 25, "prefill": 0.5}, 16),
    "ttft_from_queue": ({"slots": 32, "queued": 40, "stay": 16, "prefill": 0.4}, 20.4),
    "wait_for_prefill": ({"service": 100, "load": 0.9}, 0.45),
    "wait_with_long_tails": ({"load": 0.8, "spread": 2, "service": 400}, 5 * 2 * 0.4),  # five times M/D/1's two
    "fan_out": ({"many": 20, "each": 0.95}, 0.3585),
    "knee": ({"before": 0.8, "after": 0.95}, 4.75),
    "drain": ({"can": 50, "usual": 30, "spike": 80, "minutes": 2}, 180),
    "replicas_for_prefill": ({"rate": 80, "tokens": 3_000, "can": 20_000, "busy": 0.7}, 18),
    "replicas_for_decode": ({"rate": 100, "slots": 64, "tokens": 400, "itl": 30, "busy": 0.8}, 24),
    "prefill_after_hits": ({"rate": 20, "tokens": 6_000, "shared": 3_000, "hits": 0.9}, 66_000),
    "tokens_per_dollar": ({"card": "h100-sxm", "speed": 1_000, "full": 0.5}, 1.8e6 / 2.69),
    "price_of_a_million": ({"card": "h100-sxm", "cards": 4, "speed": 2_000}, 4 * 2.69 / 7.2),
    "agents_tokens": ({"turns": 4, "first": 2_000, "grown": 1_000, "price": 3.0}, (2 + 3 + 4 + 5) * 3e-3),
    "bill_of_a_month": ({"replicas": 10, "cards": 8, "card": "h100-sxm"}, 80 * 2.69 * 720),
}


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.__name__)
def test_a_template_agrees_with_a_sum_of_its_own(template: Callable[..., Napkin]) -> None:
    chosen, expected = KNOWN[template.__name__]
    assert template(lambda name, *options: chosen[name]).answer.value == pytest.approx(expected, rel=0.005)


# ---------------------------------------------------------------- answers


@pytest.mark.parametrize(
    ("unit", "typed", "read"),
    [
        (SECONDS, "~25ms", 0.025),
        (BYTES, "2.5 GiB", 2.5 * 2**30),
        (RATIO, "60%", 0.6),
        (RATIO, "4.8x", 4.8),
        (TOKENS, "0.2k", 200.0),
        (TOKENS, "2.4M", 2.4e6),
        ("", "96 requests", 96.0),
        ("requests/s", "~2.5 requests a second", 2.5),
    ],
)
def test_an_answer_is_read_in_its_own_unit(unit: str, typed: str, read: float) -> None:
    """How numbers are written is held with the drills', which read them."""
    assert Quantity(1.0, unit).read(typed) == pytest.approx(read)


@pytest.mark.parametrize(
    ("unit", "typed"),
    [
        (SECONDS, "25"),
        (SECONDS, "25 GB"),
        (BYTES, "25 GB/s"),
        (BYTES, "25 GB per second"),
        ("", "25 ms"),
        ("", "1,5"),
        (RATIO, "0.6"),
        (SECONDS, "-3 s"),
        (SECONDS, "0 s"),
        (SECONDS, "5 m"),
        (SECONDS, ""),
    ],
)
def test_what_is_no_answer_is_told(unit: str, typed: str) -> None:
    with pytest.raises(NapkinError):
        Quantity(10.0, unit).read(typed)


def test_what_counts_something_else_is_no_answer() -> None:
    napkin = Napkin("11", "?", Quantity(7.0), (), counted="replicas")
    assert {napkin.judge(typed) for typed in ("7", "7 replicas", "about 7 servers", "7 of them")} == {Nearness.RIGHT}
    with pytest.raises(NapkinError, match="counts replicas"):
        napkin.judge("7 requests")


def test_near_is_right_and_half_to_double_is_the_right_order() -> None:
    napkin = Napkin("06", "?", Quantity(0.1, SECONDS), ())
    verdicts = {typed: napkin.judge(typed) for typed in ("81 ms", "119 ms", "51 ms", "0.19 s", "49 ms", "0.21 s")}
    assert list(verdicts.values()) == [Nearness.RIGHT] * 2 + [Nearness.RIGHT_ORDER] * 2 + [Nearness.OFF] * 2
    assert napkin.debrief("1 s", 75)[0] == "Off: too high by a factor of 10. You took 75 s of 60, which costs nothing."


# ---------------------------------------------------------------- in a terminal, and in a notebook


def test_in_a_terminal(run: Run) -> None:
    napkin = napkin_of(7)
    status, out, _ = run("napkin", "--seed", "7", stdin=f"many\n{napkin.told}\n")
    assert status == 0 and "one number above 0, please" in out and "Right. You took" in out
    assert napkin.question in out and napkin.working[-1] in out
    status, out, _ = run("napkin", "--date", "2026-01-05", stdin="\n")
    assert status == 0 and f"It's {napkin_of_day(date(2026, 1, 5)).told}." in out and "Right" not in out
    asked = json.loads(run("napkin", "--seed", "7", "--json")[1])
    judged = json.loads(run("napkin", "--seed", "7", "--json", "--answer", napkin.told)[1])
    assert asked == {"question": napkin.question, "units": list(napkin.units)} and judged.items() >= asked.items()
    assert (judged["verdict"], judged["told"], judged["lesson"]) == ("Right", napkin.told, napkin.lesson)
    for words in (
        ("--date", "2999-01-01"),
        ("--date", "soon"),
        ("--answer", "many"),
        ("--date", "2026-01-05", "--seed", "1"),
    ):
        status, out, err = run("napkin", *words)
        assert (status, out) == (2, "") and err


def test_at_a_desk() -> None:
    seed = next(seed for seed in SEEDS if napkin_of(seed).answer.unit == SECONDS)
    thousandths = f"{1e3 * napkin_of(seed).answer.value:.0f}"
    desk = NapkinDesk(seed, now=iter((100.0, 130.0, 135.0, 141.0)).__next__)
    assert desk.napkin.question not in desk.view.value
    desk.start.click()
    assert desk.napkin.answer.value > 0 and desk.number in desk.fields.children
    desk.number.value = "many"
    desk.submit.click()
    assert "please" in desk.result.value and not desk.submit.disabled
    desk.number.value = thousandths
    desk.submit.click()
    assert "has none" in desk.result.value, "a unit isn't chosen for you"
    desk.number.value, desk.unit.value = f"about {thousandths} s", "ms"
    desk.submit.click()
    assert "Off" in desk.result.value, "a unit that is typed counts"
    desk = NapkinDesk(seed, now=iter((100.0, 130.0, 135.0, 141.0)).__next__)
    desk.start.click()
    desk.number.value, desk.unit.value = f"at most {thousandths}.", "ms"
    desk.submit.click()
    assert "Right." in desk.result.value
    desk = NapkinDesk(seed, now=iter((100.0, 141.0)).__next__)
    desk.start.click()
    desk.number.value = desk.napkin.told
    desk.submit.click()
    assert "Right. You took 41 s of 60." in desk.result.value and desk.submit.disabled
