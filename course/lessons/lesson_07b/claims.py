"""The claim of lesson 07b: what a sliding window frees."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from course.lab.claims import Claim, conclude, say
from course.lab.lab import Lab
from course.lessons.lesson_07 import bets, kv_bytes, traffic
from course.lessons.lesson_07.kv_bytes import Account
from course.lessons.lesson_07.needle import Found
from course.lessons.lesson_07.trace import Trace

D14_SAVED, D14_WINDOW = 0.7, 2048
D14_LENGTHS = (1500, 4096, 8192, 32768)


def d14(model: Account, windowed: Trace, window: int, found: Mapping[str, Mapping[int, Found]]) -> Claim:
    """What a window frees, by length; that the engine really gives it back; what is lost.

    Args:
        windowed: a trace of one long request; `window` its size.
        found: needles, by name of the configuration: all in sight first, the window with sinks last.
    """
    cut, uncut = replace(model, window=D14_WINDOW), replace(model, window=None)
    frees = {n: 1 - cut.chat_bytes_at(n) / uncut.chat_bytes_at(n) for n in D14_LENGTHS}
    tokens, held = windowed.blocks_of(0)[-1]
    back = -(-tokens // windowed.block_size) - held
    whole, *_, with_window = found.values()
    far = max(with_window)
    before, after = bets.recalled(whole, far), bets.recalled({**whole, far: with_window[far]}, far)
    price = "price" if before - after <= bets.SOME else "price_2" if after < bets.SOME else "price_3"
    return conclude(
        "D14", "only_when" if back > 0 else "not_shown", d14_window=D14_WINDOW,
        told=", ".join(f"{n:,} tokens: {share:.0%}" for n, share in frees.items()), window=window, tokens=tokens,
        back=back, held=held, far=far, share_whole=whole[far].share, share_cut=with_window[far].share,
        sinks=traffic.SINKS, even=D14_WINDOW / (1 - D14_SAVED), price=say(f"D14.{price}"),
    )  # fmt: skip


def measure_d14(lab: Lab) -> Claim:
    window, _ = traffic.probe(lab)
    *_, with_sinks = traffic.windows(lab).values()
    grown = traffic.growing(lab, **with_sinks)
    return d14(kv_bytes.large(kv_bytes.accounts(lab)), grown, window, traffic.looking(lab))


EXPERIMENT = (
    "lessons/lesson_07/bets.py",
    "lessons/lesson_07/kv_bytes.py",
    "lessons/lesson_07/needle.py",
    "lessons/lesson_07/trace.py",
    "lessons/lesson_07/traffic.py",
)
MEASURE: dict[str, Callable[[Lab], Claim]] = {"D14": measure_d14}
