"""The claims of lesson 08."""

import statistics
from collections.abc import Callable, Mapping, Sequence

from course.lab.claims import Claim, say
from course.lab.lab import Lab
from course.lab.lesson_08 import acceptance, costs, served, short, sim_70b, traffic, watch
from course.lab.lesson_08.acceptance import Point
from course.lab.lesson_08.costs import VerifyCosts
from course.lab.lesson_08.formulas import best_k, break_even, speedup
from course.lab.lesson_08.served import ALWAYS, NOISE, WITHOUT, Served, base_of, faster, is_apart
from course.lab.lesson_08.short import PayBack
from course.lab.lesson_08.watch import Story
from course.lab.style import number

NGRAM, INT8 = "drafts looked up", "int8 weights"
KS, PRICES = (2, 4, 8), (0.0, 0.1, 0.3)
HALF, NEAR_HALF = 0.5, 0.1
SHORTEST_GATE = 50
"""Tokens below which the claim would switch speculation off."""
CLEAR = 0.05
"""A formula that is off by less than this is not called wrong."""


def a14(every: Sequence[Served]) -> Claim:
    """Speculation or quantization first?

    Args:
        every: workloads one request at a time, each WITHOUT, with NGRAM and with INT8.
    """
    gains = {(one.workload, one.way): faster(one, base_of(one, every)) for one in every if one.way != WITHOUT}
    kinds = list(dict.fromkeys(one.workload for one in every))
    found = "; ".join(
        f"{kind.split(',')[0]}: drafts ×{gains[kind, NGRAM]:.2f}, int8 ×{gains[kind, INT8]:.2f}" for kind in kinds
    )
    apart = {kind: is_apart(_of(every, kind, NGRAM), _of(every, kind, INT8)) for kind in kinds}
    wins = [kind for kind in kinds if apart[kind] and gains[kind, NGRAM] > NOISE * gains[kind, INT8]]
    losses = [kind for kind in kinds if apart[kind] and gains[kind, INT8] > NOISE * gains[kind, NGRAM]]
    return Claim(
        "A14",
        say("A14.measured", found=found),
        _a14_verdict(wins, losses, len(kinds)) + _a14_reason([gains[kind, INT8] for kind in kinds]),
    )


def _a14_verdict(wins: Sequence[str], losses: Sequence[str], total: int) -> str:
    if len(wins) == total:
        return say("A14.holds")
    if not wins and not losses:
        return say("A14.not_shown")
    if not wins:
        return say("A14.wrong")
    return say("A14.only_when")


def _a14_reason(gains: Sequence[float]) -> str:
    if min(gains) <= NOISE:
        return ""
    return say("A14.why")


def d4(measured: VerifyCosts) -> Claim:
    """Is 50% acceptance the border between gain and loss?"""
    alone, crowd = measured.batches[0], measured.batches[-1]
    borders = {(k, c): break_even(k, c, measured.relative(alone, k)) for k in KS for c in PRICES}
    crowded = {(k, c): break_even(k, c, measured.relative(crowd, k)) for k in KS for c in PRICES}
    paper = speedup(0.8, 4, 0.1)
    return Claim(
        "D4",
        say(
            "D4.measured",
            alone=alone,
            listed=_listed(borders),
            crowd=crowd,
            range=_range(crowded),
            paper=paper,
            gain=costs.gain(measured, alone, 4, 0.8, 0.1),
        ),
        _d4_verdict(list(borders.values()), measured.is_restless),
    )


def _listed(borders: Mapping[tuple[int, float], float | None]) -> str:
    parts = [f"{'never' if a is None else f'{a:.0%}'} (k = {k}, c = {c:g})" for (k, c), a in borders.items()]
    return ", ".join(parts)


def _range(borders: Mapping[tuple[int, float], float | None]) -> str:
    gains = [each for each in borders.values() if each is not None]
    if not gains:
        return "never, at any of these"
    often = "" if len(gains) == len(borders) else f", and never at {len(borders) - len(gains)} of {len(borders)}"
    return f"{min(gains):.0%} to {max(gains):.0%}{often}"


def _d4_verdict(borders: Sequence[float | None], is_restless: bool) -> str:
    if is_restless:
        return say("D4.not_shown")
    values = [1.0 if each is None else each for each in borders]
    if all(abs(value - HALF) <= NEAR_HALF for value in values):
        return say("D4.holds")
    right = say("D4.right")
    if min(values) > HALF or max(values) < HALF:
        return say("D4.wrong", right=right)
    return say("D4.only_when", right=right)


def d5(told: Mapping[str, tuple[Story, Story]]) -> Claim:
    """What happens to a draft in which a guess fails?"""
    failed = sum(story.corrections for story, _ in told.values())
    kept = sum(step.passed for story, _ in told.values() for step in story.steps if step.corrects)
    fewer = "; ".join(f"{name}: {len(s.steps)} steps instead of {len(p.steps)}" for name, (s, p) in told.items())
    same = sum(story.token_ids == plain.token_ids for story, plain in told.values())
    return Claim(
        "D5",
        say("D5.measured", failed=failed, kept=kept, fewer=fewer, same=same, num_told=len(told)),
        _d5_verdict(told, failed),
    )


def _d5_verdict(told: Mapping[str, tuple[Story, Story]], failed: int) -> str:
    if not failed:
        return say("D5.not_shown")
    if any(len(story.steps) > len(plain.steps) for story, plain in told.values()):
        return say("D5.holds")
    return say("D5.wrong")


def d6(every: Sequence[Served], pay_backs: Sequence[PayBack]) -> Claim:
    """Does speculation cost on short answers, and is 50 tokens the border?

    Args:
        every: short answers, WITHOUT and always drafting; the shortest first.
        pay_backs: of a draft model that has to read the prompt.
    """
    lengths = list(dict.fromkeys(one.workload for one in every))
    ratios = {name: _of(every, name, ALWAYS).e2e_s / _of(every, name, WITHOUT).e2e_s for name in lengths}
    found = "; ".join(f"{name}: ×{ratio:.2f} the time" for name, ratio in ratios.items())
    paid = "; ".join(f"{p.prompt} tokens of prompt: {p.words}" for p in pay_backs)
    return Claim(
        "D6",
        say("D6.measured", found=found, paid=paid),
        _d6_verdict([_lost(every, name) for name in lengths], [p.tokens for p in pay_backs]),
    )


def _of(every: Sequence[Served], workload: str, way: str) -> Served:
    return next(one for one in every if one.workload == workload and one.way == way)


def _lost(every: Sequence[Served], name: str) -> bool:
    """Even the quickest run with drafts took longer than the slowest one without, and not by a hair."""
    drafted, plain = (_of(every, name, way) for way in (ALWAYS, WITHOUT))
    return min(drafted.each_e2e_s) > max(plain.each_e2e_s) and drafted.e2e_s > NOISE * plain.e2e_s


def _d6_verdict(lost_at: Sequence[bool], paid: Sequence[float | None]) -> str:
    """Args: lost_at: by length, the shortest first; paid: tokens after which a draft model has paid."""
    if lost_at[-1] and not lost_at[0]:
        return say("D6.not_shown")
    right = say("D6.right")
    lost = lost_at[0]
    early = [tokens is not None and tokens < SHORTEST_GATE for tokens in paid]
    if not lost and all(early):
        return say("D6.wrong", right=right)
    if lost and not any(early):
        return say("D6.holds", right=right)
    return say("D6.only_when", right=right)


def f2(points: Sequence[Point]) -> Claim:
    """Is the gain k x acceptance, with a ceiling at 3 or 4?"""
    wrong = statistics.fmean(abs(p.popular / p.emitted - 1) for p in points)
    right = statistics.fmean(abs(p.formula / p.emitted - 1) for p in points)
    found = "; ".join(
        f"α = {p.alpha:g}, k = {p.k}: {number(p.emitted)} (the sum {number(p.formula)}, k × α {number(p.popular)})"
        for p in points
    )
    best = best_k(0.9, 0.02, lambda k: 1.0)
    return Claim(
        "F2",
        say("F2.measured", found=found, wrong=wrong, right=right, speedup=speedup(0.9, best, 0.02), best=best),
        _f2_verdict(wrong, right),
    )


def _f2_verdict(wrong: float, right: float) -> str:
    if wrong < max(CLEAR, right):
        return say("F2.not_shown")
    return say("F2.wrong")


# ---------------------------------------------------------------- small experiments


def quantized_or_drafted(lab: Lab) -> list[Served]:
    """Copying and chat, one at a time: without, with drafts looked up, with int8 weights."""
    work = [traffic.one_by_one(lab, kind) for kind in (traffic.COPYING, traffic.CHAT)]
    int8 = {**traffic.OFF, "quantization": "int8"}
    return served.compare(lab, work, {WITHOUT: traffic.OFF, NGRAM: traffic.SHIPPED, INT8: int8})


def measure_a14(lab: Lab) -> Claim:
    return a14(quantized_or_drafted(lab))


def measure_d4(lab: Lab) -> Claim:
    return d4(costs.measure(lab, (1, 8)))


def measure_d5(lab: Lab) -> Claim:
    return d5(watch.stories(lab))


def measure_d6(lab: Lab) -> Claim:
    return d6(short.measure(lab), short.pay_backs(sim_70b.stack("CUDA graphs, typical")))


def measure_f2(lab: Lab) -> Claim:
    return f2(acceptance.sweep(lab))


MEASURE: dict[str, Callable[[Lab], Claim]] = {
    "A14": measure_a14,
    "D4": measure_d4,
    "D5": measure_d5,
    "D6": measure_d6,
    "F2": measure_f2,
}
