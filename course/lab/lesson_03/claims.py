"""The claims of lesson 03."""

from collections.abc import Callable, Mapping, Sequence

from course.lab import simulated_70b
from course.lab.claims import Claim, say
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
        verdict = say("A3.not_shown")
    elif whole >= NEAR_TWO:
        verdict = say("A3.holds")
    else:
        verdict = say("A3.only_when", crossover=costs.crossover(shape), crossover_70b=costs.crossover(seventy_b))
    return Claim(
        "A3",
        say(
            "A3.measured",
            alone=alone,
            first=first,
            last=last,
            whole=whole,
            shorter=shorter,
            longer=longer,
            counted=counted,
        ),
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
        verdict = say("D7.not_shown")
    elif passing and broken:
        verdict = say("D7.only_when", passing=", ".join(passing), broken=", ".join(broken))
    elif passing:
        verdict = say("D7.holds")
    else:
        verdict = say("D7.wrong")
    return Claim("D7", say("D7.measured", saved=saved, answers=answers), verdict)


def d11(ladder: Ladder) -> Claim:
    """Four times the prompt, four times the time?"""
    shorter, longer = ladder.four_apart
    on = sim_70b.deployment()
    here = ladder.ratio(shorter, longer)
    usual, far = (sim_70b.prefill_seconds(on, 4 * n) / sim_70b.prefill_seconds(on, n) for n in (1024, LONG // 2))
    shape = costs.shape_of(costs.BIG)
    if 3.5 <= usual <= 4.7 and far > 4.7:
        verdict = say("D11.only_when")
    else:
        verdict = say("D11.holds") if 3.5 <= usual <= 4.7 else say("D11.wrong")
    return Claim(
        "D11",
        say(
            "D11.measured",
            here=here,
            shorter=shorter,
            longer=longer,
            usual=usual,
            flops_ratio=costs.flops_ratio(shape, 1024, FOUR_K),
            far=far,
        ),
        verdict,
    )


def d17(points: Sequence[Point], ladders: Mapping[str, Ladder]) -> Claim:
    """Fused attention: faster, smaller, the same."""
    first, last = points[0], points[-1]
    longest = next(iter(ladders.values())).longest
    ttft = 1 / (1 - saving(ladders, longest))
    exact = max(point.difference for point in points)
    found = say("D17.found", first=first, last=last, exact=exact, longest=longest, ttft=ttft)
    if exact > 0.02:
        verdict = say("D17.wrong")
    elif last.memory > 0.5 or last.memory >= first.memory:
        verdict = say("D17.not_shown")
    else:
        verdict = say("D17.only_when")
    return Claim("D17", found, verdict)


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
        say(
            "D18.measured",
            counted=", ".join((f"{n} {value:.1%}" for n, value in counted.items())),
            timed=timed,
            sixty=", ".join((f"{value:,.0f} tokens for {n}" for n, value in sixty.items())),
        ),
        say("D18.wrong", projection_share=costs.projection_share(big_shape)) if wrong else say("D18.only_when"),
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
        say(
            "F4.measured",
            here=", ".join((f"{value:.0%} at {tokens} tokens" for tokens, value in here.items())),
            counted=counted,
        ),
        say("F4.only_when") if grows and modest else say("F4.not_shown"),
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
