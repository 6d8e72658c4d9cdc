"""The claims of lesson 08."""

import statistics
from collections.abc import Callable, Mapping, Sequence

from course.lab.claims import ANATOMY, LAYERS, TECHNIQUES, Claim
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
        "For work dominated by decoding, reach for speculation before quantization, which helps only indirectly.",
        ANATOMY,
        f"speed of decoding, one request at a time: {found}.",
        _a14_verdict(wins, losses, len(kinds)) + _a14_reason([gains[kind, INT8] for kind in kinds]),
    )


def _a14_verdict(wins: Sequence[str], losses: Sequence[str], total: int) -> str:
    if len(wins) == total:
        return "holds in these runs: drafts gained more than half the bytes did, and they are lossless."
    if not wins and not losses:
        return "not shown by these runs: the two are too close together."
    if not wins:
        return "wrong for these requests: the text could not be guessed well enough; int8 weights do not depend on it."
    return (
        "holds only when the text can be guessed. Speculation's gain depends on the text, and is lossless; that of "
        "int8 weights does not depend on it, and has to pass a check of quality."
    )


def _a14_reason(gains: Sequence[float]) -> str:
    if min(gains) <= NOISE:
        return ""
    return (
        " The reason given does not hold: int8 weights help a lone request directly, for a step reads half the bytes. "
        "Nothing forbids both."
    )


def d4(measured: VerifyCosts) -> Claim:
    """Is 50% acceptance the border between gain and loss?"""
    alone, crowd = measured.batches[0], measured.batches[-1]
    borders = {(k, c): break_even(k, c, measured.relative(alone, k)) for k in KS for c in PRICES}
    crowded = {(k, c): break_even(k, c, measured.relative(crowd, k)) for k in KS for c in PRICES}
    paper = speedup(0.8, 4, 0.1)
    return Claim(
        "D4",
        "Speculation promises 2 to 3 times, gives 1.5 times, and loses below 50% acceptance.",
        TECHNIQUES,
        f"acceptance at which it breaks even here, at batch {alone}: {_listed(borders)}; at batch {crowd}: "
        f"{_range(crowded)}. On paper (checking as cheap as a step, α = 0.8, k = 4, c = 0.1): ×{paper:.2f}; with what "
        f"checking cost here at batch {alone}: ×{costs.gain(measured, alone, 4, 0.8, 0.1):.2f}.",
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
        return "not shown: the machine did something else, too, while the steps were measured."
    values = [1.0 if each is None else each for each in borders]
    if all(abs(value - HALF) <= NEAR_HALF for value in values):
        return "holds on this machine: its borders are all near 50%. They follow from k, c and the cost of checking."
    right = (
        "the border is where the tokens of a verification, 1 + α + … + α^k, are as many as the steps that it costs: "
        "the verification's and k guesses'. So it depends on k, on the price of a guess and on what checking costs, "
        "which grows with the batch. With free drafts and free checking it never loses."
    )
    if min(values) > HALF or max(values) < HALF:
        return f"wrong for this machine: {right}"
    return f"holds only when k, the price of a guess and the cost of checking happen to put the border there: {right}"


def d5(told: Mapping[str, tuple[Story, Story]]) -> Claim:
    """What happens to a draft in which a guess fails?"""
    failed = sum(story.corrections for story, _ in told.values())
    kept = sum(step.passed for story, _ in told.values() for step in story.steps if step.corrects)
    fewer = "; ".join(f"{name}: {len(s.steps)} steps instead of {len(p.steps)}" for name, (s, p) in told.items())
    same = sum(story.token_ids == plain.token_ids for story, plain in told.values())
    return Claim(
        "D5",
        "When a draft is rejected, its text has to be generated again from scratch.",
        TECHNIQUES,
        f"in {failed} verifications a guess failed. Each of them yielded the right token in its place, in that very "
        f"step, and {kept} guesses before it stayed. {fewer}. {same} of {len(told)} answers have the very tokens of "
        "plain decoding.",
        _d5_verdict(told, failed),
    )


def _d5_verdict(told: Mapping[str, tuple[Story, Story]], failed: int) -> str:
    if not failed:
        return "not shown: no guess failed in these answers."
    if any(len(story.steps) > len(plain.steps) for story, plain in told.values()):
        return "holds here: some answer took more steps than without drafts."
    return (
        "wrong: the step that rejects a guess has computed what belongs in its place. It costs the rows that were "
        "computed for nothing, and their keys and values are written over. No answer needs a step more than without."
    )


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
        "Speculation costs 15% on short outputs: switch it on from 50 tokens.",
        TECHNIQUES,
        f"E2E with drafts looked up and no gates, over that without: {found}. A 1B draft model for a 70B one "
        f"(simulated) must read the prompt first; its gains have paid for that after: {paid}.",
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
        return "not shown: the longest answers lost and the shortest did not, which only a restless machine explains."
    right = (
        "what is lost on a short answer is what drafting costs up front, such as a draft model's reading of the "
        "prompt, and guesses that fail. So the border is that cost over what a token gains: it grows with the prompt, "
        "and there is none for drafts that are looked up. Gate on acceptance; a length can only be guessed beforehand."
    )
    lost = lost_at[0]
    early = [tokens is not None and tokens < SHORTEST_GATE for tokens in paid]
    if not lost and all(early):
        return f"wrong as a rule: {right}"
    if lost and not any(early):
        return f"holds here: short answers lost, and long ones are needed to gain it back. In general, {right}"
    return f"holds only when there is such a cost: {right}"


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
        "Speculation speeds up by k x acceptance rate, and saturates at 3 to 4 times.",
        LAYERS,
        f"tokens per verification: {found}. Mean error of k × α {wrong:.0%}, of the sum {right:.0%}. α = 0.9, a guess "
        f"at 0.02 steps, free checking: ×{speedup(0.9, best, 0.02):.1f} at k = {best}, on paper.",
        _f2_verdict(wrong, right),
    )


def _f2_verdict(wrong: float, right: float) -> str:
    if wrong < max(CLEAR, right):
        return "not shown by these runs: both formulas are about as far from what was measured."
    return (
        "wrong: a guess counts only if all before it passed, so a verification yields 1 + α + … + α^k tokens: more "
        "than k × α where few guesses pass, since the model's own token comes on top, and less where k is long. That "
        "is tokens, not speed: divide by what checking and drafting cost. The ceiling is 1 / (1 - α) tokens, which no "
        "fixed 3 or 4 is."
    )


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
