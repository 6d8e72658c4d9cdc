"""The claims of lesson 03."""

from collections.abc import Callable, Mapping, Sequence

from course.lab import simulated_70b
from course.lab.claims import Claim, conclude
from course.lab.lab import Lab
from course.lab.style import seconds
from course.lessons.lesson_03 import costs, reading, sim_70b
from course.lessons.lesson_03.attention import FUSED, TEXTBOOK, Point, compare
from course.lessons.lesson_03.measured import Ladder, both_ways, ladder_run, saving, slope
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
    return conclude(
        "A3", "not_shown" if alone < NEAR_TWO else "holds" if whole >= NEAR_TWO else "only_when", alone=alone,
        first=first, last=last, whole=whole, shorter=shorter, longer=longer, counted=counted,
        crossover=costs.crossover(shape), crossover_70b=costs.crossover(seventy_b),
    )  # fmt: skip


def d7(halved: Mapping[str, float], scores: Mapping[str, reading.Score]) -> Claim:
    """Half the prompt, and what is left of the answers.

    Args:
        halved: hardware -> seconds saved by halving a 4k prompt of a 70B.
        scores: way of cutting -> score; the first is the whole text.
    """
    first, *cuts = scores
    whole = scores[first]
    passing = [name for name in cuts if scores[name].passes(whole)]
    broken = [name for name in cuts if name not in passing]
    if whole.right <= reading.FLOOR or whole.right <= whole.asked / 3:
        verdict = "not_shown"
    else:
        verdict = "wrong" if not passing else "only_when" if broken else "holds"
    return conclude(
        "D7",
        verdict,
        saved=", ".join(f"{seconds(value)} on {name}" for name, value in halved.items()),
        answers="; ".join(f"{name} {score.right} of {score.asked}" for name, score in scores.items()),
        luck=2 * (whole.right * (1 - whole.right / whole.asked)) ** 0.5,
        passing=", ".join(passing),
        broken=", ".join(broken),
    )


def d11(ladder: Ladder) -> Claim:
    """Four times the prompt, four times the time?"""
    shorter, longer = ladder.four_apart
    on = sim_70b.deployment()
    usual, far = (sim_70b.prefill_seconds(on, 4 * n) / sim_70b.prefill_seconds(on, n) for n in (1024, LONG // 2))
    is_usual = 3.5 <= usual <= 4.7
    return conclude(
        "D11", "wrong" if not is_usual else "only_when" if far > 4.7 else "holds", here=ladder.ratio(shorter, longer),
        shorter=shorter, longer=longer, usual=usual,
        flops_ratio=costs.flops_ratio(costs.shape_of(costs.BIG), 1024, FOUR_K), far=far,
    )  # fmt: skip


def d17(points: Sequence[Point], ladders: Mapping[str, Ladder]) -> Claim:
    """Fused attention: faster, smaller, the same."""
    first, last = points[0], points[-1]
    longest = next(iter(ladders.values())).longest
    exact = max(point.difference for point in points)
    saves_memory = last.memory <= 0.5 and last.memory < first.memory
    verdict = "wrong" if exact > 0.02 else "only_when" if saves_memory else "not_shown"
    ttft = 1 / (1 - saving(ladders, longest))
    return conclude("D17", verdict, first=first, last=last, exact=exact, longest=longest, ttft=ttft)


def d18(points: Sequence[Point], ladder: Ladder, shape: ModelConfig, name: str) -> Claim:
    """Attention's share of the compute, counted and timed."""
    shapes = {name: shape, costs.BIG: costs.shape_of(costs.BIG)}
    counted = {n: costs.attention_share(each, FOUR_K) for n, each in shapes.items()}
    sixty = {n: costs.length_with_share(each, 0.6) for n, each in shapes.items()}
    timed = ""
    if common := [point for point in points if point.tokens in ladder.best]:
        point = common[-1]
        share = point.seconds[FUSED] * shape.num_layers / ladder.best[point.tokens]
        timed = f" Timed on the engine at {point.tokens} tokens: {share:.0%} of the TTFT."
    return conclude(
        "D18",
        "wrong" if counted[costs.BIG] < 0.3 else "only_when",
        counted=", ".join(f"{n} {value:.1%}" for n, value in counted.items()),
        timed=timed,
        sixty=", ".join(f"{value:,.0f} tokens for {n}" for n, value in sixty.items()),
        projection_share=costs.projection_share(shapes[costs.BIG]),
    )


def f4(ladders: Mapping[str, Ladder], big_savings: Mapping[int, float]) -> Claim:
    """How much of the TTFT fused attention saves, by length.

    Args:
        big_savings: tokens -> share of the TTFT of a 70B, counted.
    """
    shortest, *_, longest = next(iter(ladders.values())).best
    short, long = (saving(ladders, tokens) for tokens in (shortest, longest))
    grows = long > short + 0.1 and long > 0.1
    modest = big_savings[min(big_savings)] < 0.5 <= big_savings[max(big_savings)]
    return conclude(
        "F4",
        "only_when" if grows and modest else "not_shown",
        here=f"{short:.0%} at {shortest} tokens, {long:.0%} at {longest} tokens",
        counted=", ".join(f"{value:.0%} at {tokens // 1024}k" for tokens, value in big_savings.items()),
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
