"""The claims of lesson 03."""

from collections.abc import Callable, Mapping, Sequence

from course.lab import simulated_70b
from course.lab.claims import ANATOMY, LAYERS, TECHNIQUES, Claim
from course.lab.lab import Lab
from course.lab.lesson_03 import costs, reading, sim_70b
from course.lab.lesson_03.attention import FUSED, TEXTBOOK, Point, compare
from course.lab.lesson_03.measured import Ladder, both_ways, ladder_run, saving, slope
from course.lab.style import seconds
from minillm.model.config import ModelConfig

FOUR_K = 4096
LONG = 32768
NEAR_TWO = 1.6
"""Growth with at least this power counts as the square: two lengths of a small head are never on it exactly."""


def a3(ladder: Ladder, points: Sequence[Point], shape: ModelConfig) -> Claim:
    """Attention is quadratic; TTFT is not, until attention is most of it."""
    first, last = points[max(0, len(points) - 3)], points[-1]
    alone = slope((first.tokens, first.seconds[TEXTBOOK]), (last.tokens, last.seconds[TEXTBOOK]))
    shorter, longer = ladder.four_apart
    whole = ladder.exponent(shorter, longer)
    seventy_b = costs.shape_of(costs.BIG)
    counted = ", ".join(f"{costs.exponent(seventy_b, n):.2f} at {n // 1024}k" for n in (FOUR_K, LONG, 4 * LONG))
    if alone < NEAR_TWO:
        verdict = (
            "not shown by this run: attention alone did not grow with the square; short prompts, or a busy machine."
        )
    elif whole >= NEAR_TWO:
        verdict = "holds here: at these lengths attention is most of the TTFT."
    else:
        verdict = (
            f"holds only when the prompt is longer than the crossover, {costs.crossover(shape):,.0f} tokens for this "
            f"model and {costs.crossover(seventy_b):,.0f} for a 70B. The first half is right: attention is quadratic. "
            "But TTFT grows with the power 1 + attention's share of the work, and at the lengths that most services "
            "see that is near 1."
        )
    return Claim(
        "A3",
        "Prefill attention is O(n²), and TTFT grows roughly with the square of the prompt at long context.",
        ANATOMY,
        f"textbook attention alone grows with the power {alone:.2f} from {first.tokens} to {last.tokens} tokens; TTFT "
        f"with {whole:.2f} from {shorter} to {longer}. Counted for a 70B: {counted} tokens.",
        verdict,
    )


def d7(halved: Mapping[str, float], scores: Mapping[str, reading.Score]) -> Claim:
    """Half the prompt, and what is left of the answers.

    Args:
        halved: hardware -> seconds saved by halving a 4k prompt of a 70B.
        scores: way of cutting -> score; the first is the whole text.
    """
    names = list(scores)
    whole, cuts = scores[names[0]], {name: scores[name] for name in names[1:]}
    passing = [name for name, score in cuts.items() if score.passes(whole)]
    broken = [name for name in cuts if name not in passing]
    saved = ", ".join(f"{seconds(value)} on {name}" for name, value in halved.items())
    answers = "; ".join(f"{name} {score.right} of {score.asked}" for name, score in scores.items())
    if whole.right <= reading.FLOOR or whole.right <= whole.asked / 3:
        verdict = "not shown: this model answers too few of the questions even with the whole text."
    elif passing and broken:
        verdict = (
            f"holds only when the cut is validated. Keeps the floor: {', '.join(passing)}; does not: "
            f"{', '.join(broken)}; and all save about the same time. The milliseconds belong to the hardware; what "
            "carries over is that a long prompt's prefill shrinks about as the prompt does: a little more where "
            "attention weighs, a little less where a step's fixed costs do."
        )
    elif passing:
        verdict = (
            "holds: every way of cutting kept the floor on these few questions; try your own before you believe it."
        )
    else:
        verdict = "wrong, for these cuts: each lost more answers than the floor allows. That is what the gate is for."
    return Claim(
        "D7",
        "Halving a 4k prompt saves 800 ms; compression keeps the quality if it is validated.",
        TECHNIQUES,
        f"a 70B, 4096 tokens to 2048, priced: {saved}. Answers right on the real engine: {answers}.",
        verdict,
    )


def d11(ladder: Ladder) -> Claim:
    """Four times the prompt, four times the time?"""
    shorter, longer = ladder.four_apart
    on = sim_70b.deployment()
    here = ladder.ratio(shorter, longer)
    usual, far = (sim_70b.prefill_seconds(on, 4 * n) / sim_70b.prefill_seconds(on, n) for n in (1024, LONG // 2))
    shape = costs.shape_of(costs.BIG)
    if 3.5 <= usual <= 4.7 and far > 4.7:
        verdict = (
            "holds only when the prompt is long enough that a step's fixed costs vanish, and well short of the "
            "crossover. From 1k to 4k on a 70B both are so; beyond that attention makes it dearer, and very short "
            "prompts cheaper."
        )
    else:
        verdict = "holds here." if 3.5 <= usual <= 4.7 else "wrong, here: attention or fixed costs weigh too much."
    return Claim(
        "D11",
        "A 4k prompt takes four times as long as a 1k prompt.",
        TECHNIQUES,
        f"here {here:.1f} times from {shorter} to {longer} tokens. A 70B on four H100s, priced: {usual:.2f} times "
        f"from 1k to 4k ({costs.flops_ratio(shape, 1024, FOUR_K):.2f} in FLOPs), {far:.2f} from 16k to 64k.",
        verdict,
    )


def d17(points: Sequence[Point], ladders: Mapping[str, Ladder]) -> Claim:
    """Fused attention: faster, smaller, the same."""
    first, last = points[0], points[-1]
    longest = next(iter(ladders.values())).longest
    ttft = 1 / (1 - saving(ladders, longest))
    exact = max(point.difference for point in points)
    found = (
        f"one layer, {first.tokens} to {last.tokens} tokens: {first.speedup:.1f} to {last.speedup:.1f} times as fast, "
        f"{first.memory:.0%} to {last.memory:.0%} of the memory, outputs alike to {exact:.0e} of the largest. The "
        f"whole TTFT at {longest} tokens: {ttft:.1f} times as fast."
    )
    if exact > 0.02:
        verdict = "wrong, here: the outputs differ by more than rounding."
    elif last.memory > 0.5 or last.memory >= first.memory:
        verdict = "not shown at these lengths: the memory hardly differs."
    else:
        verdict = (
            "holds only when one says of what. No loss: right, to rounding. Memory: of attention's own working "
            "memory, and the share is no constant, since one grows with the square and the other does not; weights "
            "and KV cache stay as they are. Speed: of attention; a request's time gains as much as attention's share "
            "of it allows."
        )
    return Claim("D17", "FlashAttention: 2.3 times as fast, 70% less memory, no loss.", TECHNIQUES, found, verdict)


def d18(points: Sequence[Point], ladder: Ladder, shape: ModelConfig, name: str) -> Claim:
    """Attention's share of the compute, counted and timed."""
    big_shape = costs.shape_of(costs.BIG)
    counted = {name: costs.attention_share(shape, FOUR_K), costs.BIG: costs.attention_share(big_shape, FOUR_K)}
    common = [point for point in points if point.tokens in ladder.best]
    timed = ""
    if common:
        point = common[-1]
        share = point.seconds[FUSED] * shape.num_layers / ladder.best[point.tokens]
        timed = f" Timed on the engine at {point.tokens} tokens: {share:.0%} of the TTFT."
    sixty = {n: costs.length_with_share(s, 0.6) for n, s in ((name, shape), (costs.BIG, big_shape))}
    wrong = counted[costs.BIG] < 0.3
    return Claim(
        "D18",
        "Attention takes 60 to 70% of a transformer's compute.",
        TECHNIQUES,
        f"share of the FLOPs at 4k tokens: {', '.join(f'{n} {value:.1%}' for n, value in counted.items())}.{timed} "
        f"60% is reached at {', '.join(f'{value:,.0f} tokens for {n}' for n, value in sixty.items())}.",
        "wrong at the length it is said of, 4k: there the matrices take most of it. Attention's share is a matter of "
        "the prompt's length, and grows. Counting attention's own four matrices as attention, too, adds "
        f"{costs.projection_share(big_shape):.0%} of the rest on a 70B: still far from 60%."
        if wrong
        else "holds only when the prompt is this long.",
    )


def f4(ladders: Mapping[str, Ladder], big_savings: Mapping[int, float]) -> Claim:
    """How much of the TTFT fused attention saves, by length.

    Args:
        big_savings: tokens -> share of the TTFT of a 70B, counted.
    """
    lengths = list(next(iter(ladders.values())).best)
    here = {tokens: saving(ladders, tokens) for tokens in (lengths[0], lengths[-1])}
    grows = here[lengths[-1]] > here[lengths[0]] + 0.1 and here[lengths[-1]] > 0.1
    counted = ", ".join(f"{value:.0%} at {tokens // 1024}k" for tokens, value in big_savings.items())
    modest = big_savings[min(big_savings)] < 0.5 <= big_savings[max(big_savings)]
    return Claim(
        "F4",
        "FlashAttention helps modestly under 4k tokens, and takes 50% or more off the TTFT at long context.",
        LAYERS,
        f"saved of the TTFT here: {', '.join(f'{value:.0%} at {tokens} tokens' for tokens, value in here.items())}. A "
        f"70B on four H100s, counted from the bytes of the score matrix: {counted} tokens.",
        "holds only when read as a direction: the saving grows with the prompt. Where “long” begins is set by the "
        "model and the machine: the smaller the matrices, and the slower the memory, the sooner."
        if grows and modest
        else "not shown by this run: the saving did not grow with the prompt here; noise, or prompts too short.",
    )


def halved_4k() -> dict[str, float]:
    """Seconds that halving a 4k prompt saves a 70B, alone on a replica: hardware -> seconds."""
    fleet = {"four H100s": sim_70b.deployment(), "two A100s": simulated_70b.deployment(profile="a100-80gb", tp=2)}
    return {
        name: sim_70b.prefill_seconds(on, FOUR_K) - sim_70b.prefill_seconds(on, FOUR_K // 2)
        for name, on in fleet.items()
    }


def big_savings(lengths: Sequence[int] = (1024, FOUR_K, LONG)) -> dict[int, float]:
    """The share of a 70B's TTFT that fused attention saves: what moving the score matrices would take, counted."""
    on, shape = sim_70b.deployment(), costs.shape_of(costs.BIG)
    reach = on.placement.tp * on.profile.hardware.bandwidth * on.profile.constants.kv_bandwidth
    found = {}
    for tokens in lengths:
        moving = costs.eager_seconds(shape, tokens, reach)
        found[tokens] = moving / (moving + sim_70b.prefill_seconds(on, tokens))
    return found


def _d18(lab: Lab) -> Claim:
    return d18(compare(lab), Ladder.of(ladder_run(lab, 1)), costs.lab_shape(lab), costs.short_name(lab))


MEASURE: dict[str, Callable[[Lab], Claim]] = {
    "A3": lambda lab: a3(Ladder.of(ladder_run(lab, 1)), compare(lab), costs.lab_shape(lab)),
    "D7": lambda lab: d7(halved_4k(), reading.compare(lab)),
    "D11": lambda lab: d11(Ladder.of(ladder_run(lab, 1))),
    "D17": lambda lab: d17(compare(lab), both_ways(lab, 1)),
    "D18": _d18,
    "F4": lambda lab: f4(both_ways(lab, 1), big_savings()),
}
