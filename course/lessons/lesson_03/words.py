"""What the runs of lesson 03 showed: its findings and its claims."""

from collections.abc import Callable, Mapping, Sequence

from course.lab import simulated_70b
from course.lab.claims import Claim, conclude
from course.lab.finding import Finding, tell
from course.lab.lab import Lab
from course.lab.run import Run
from course.lab.style import seconds
from course.lessons.lesson_03 import simulated
from course.lessons.lesson_03.run import (
    BIG,
    FLOOR,
    FUSED,
    TEXTBOOK,
    TIE,
    AttentionPoint,
    Ladder,
    ReadingScore,
    attention_share,
    both_ways,
    compare_attention,
    compare_cuts,
    crossover,
    eager_seconds,
    exponent,
    flops_ratio,
    lab_shape,
    ladder_run,
    length_with_share,
    projection_share,
    saving,
    shape_of,
    short_name,
    slope,
    trade,
)
from minillm.model.config import ModelConfig

# ---------------------------------------------------------------- findings

STRAIGHT = (0.9, 1.15)
"""Powers between these are called straight growth."""


def ladder(found: Ladder) -> Finding:
    """How TTFT grew over the two lengths of the bet, and at the short end."""
    shorter, longer = found.four_apart
    power = found.exponent(shorter, longer)
    first, second = sorted(found.best)[:2]
    straight_from, straight_to = STRAIGHT
    if power < straight_from:
        outcome = "less_than_proportional"
    else:
        outcome = "proportional" if power <= straight_to else "more_than_proportional"
    told = {"shorter": shorter, "longer": longer, "ratio": found.ratio(shorter, longer), "power": power}
    start = found.exponent(first, second)
    return tell("03", "ladder", outcome, first=first, second=second, start=start, **told)


def square(points: Sequence[AttentionPoint]) -> Finding:
    """Textbook against fused: memory, and time."""
    short, long = points[0], points[-1]
    outcome = "saves_time_too" if long.speedup > 1.1 else "saves_memory_only"
    return tell("03", "square", outcome, tokens=long.tokens, memory=1 / long.memory, long=long, short=short)


def request(both: Mapping[str, Ladder]) -> Finding:
    """What fused attention takes off a request's TTFT, by length."""
    lengths = next(iter(both.values())).best
    short, long = min(lengths), max(lengths)
    saved = {"saved_short": saving(both, short), "saved_long": saving(both, long)}
    return tell("03", "request", "always", short=short, long=long, **saved)


def chunks(swept: Mapping[int, Run]) -> Finding:
    """Who gained from small chunks, and who paid."""
    small, whole = trade(swept[min(swept)]), trade(swept[max(swept)])
    ratio = small.ttft / whole.ttft
    outcome = "same" if abs(ratio - 1) <= TIE else "longer" if ratio > 1 else "shorter"
    return tell("03", "chunks", outcome, chunk=min(swept), small=small, whole=whole)


# ---------------------------------------------------------------- claims

FOUR_K = 4096
LONG = 32768
NEAR_TWO = 1.6
"""Growth with at least this power counts as the square: two lengths of a small head are never on it exactly."""


def a3(ladder: Ladder, points: Sequence[AttentionPoint], shape: ModelConfig) -> Claim:
    """Attention is quadratic; TTFT is not, until attention is most of it."""
    first, last = points[max(0, len(points) - 3)], points[-1]
    alone = slope((first.tokens, first.seconds[TEXTBOOK]), (last.tokens, last.seconds[TEXTBOOK]))
    shorter, longer = ladder.four_apart
    whole = ladder.exponent(shorter, longer)
    seventy_b = shape_of(BIG)
    counted = ", ".join(f"{exponent(seventy_b, n):.2f} at {n // 1024}k" for n in (FOUR_K, LONG, 4 * LONG))
    if alone < NEAR_TWO:
        verdict = "attention_alone_not_quadratic"
    else:
        verdict = "attention_is_most_of_it" if whole >= NEAR_TWO else "only_past_the_crossover"
    return conclude(
        "A3",
        verdict,
        alone=alone,
        first=first,
        last=last,
        whole=whole,
        shorter=shorter,
        longer=longer,
        counted=counted,
        crossover=crossover(shape),
        crossover_70b=crossover(seventy_b),
    )


def d7(halved: Mapping[str, float], scores: Mapping[str, ReadingScore]) -> Claim:
    """Half the prompt, and what is left of the answers.

    Args:
        halved: hardware -> seconds saved by halving a 4k prompt of a 70B.
        scores: way of cutting -> score; the first is the whole text.
    """
    first, *cuts = scores
    whole = scores[first]
    passing = [name for name in cuts if scores[name].passes(whole)]
    broken = [name for name in cuts if name not in passing]
    if whole.right <= FLOOR or whole.right <= whole.asked / 3:
        verdict = "model_answers_too_few"
    elif not passing:
        verdict = "no_cut_keeps_the_floor"
    else:
        verdict = "only_when_validated" if broken else "every_cut_keeps_the_floor"
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
    on = simulated.deployment()
    usual, far = (
        simulated_70b.prefill_seconds(on, 4 * n) / simulated_70b.prefill_seconds(on, n) for n in (1024, LONG // 2)
    )
    is_usual = 3.5 <= usual <= 4.7
    return conclude(
        "D11",
        "ratio_is_another" if not is_usual else "only_at_middle_lengths" if far > 4.7 else "holds",
        here=ladder.ratio(shorter, longer),
        shorter=shorter,
        longer=longer,
        usual=usual,
        flops_ratio=flops_ratio(shape_of(BIG), 1024, FOUR_K),
        far=far,
    )


def d17(points: Sequence[AttentionPoint], ladders: Mapping[str, Ladder]) -> Claim:
    """Fused attention: faster, smaller, the same."""
    first, last = points[0], points[-1]
    longest = next(iter(ladders.values())).longest
    exact = max(point.difference for point in points)
    saves_memory = last.memory <= 0.5 and last.memory < first.memory
    if exact > 0.02:
        verdict = "outputs_differ"
    else:
        verdict = "only_for_what_each_figure_means" if saves_memory else "memory_hardly_differs"
    ttft = 1 / (1 - saving(ladders, longest))
    return conclude("D17", verdict, first=first, last=last, exact=exact, longest=longest, ttft=ttft)


def d18(points: Sequence[AttentionPoint], ladder: Ladder, shape: ModelConfig, name: str) -> Claim:
    """Attention's share of the compute, counted and timed."""
    shapes = {name: shape, BIG: shape_of(BIG)}
    counted = {n: attention_share(each, FOUR_K) for n, each in shapes.items()}
    sixty = {n: length_with_share(each, 0.6) for n, each in shapes.items()}
    timed = ""
    if common := [point for point in points if point.tokens in ladder.best]:
        point = common[-1]
        share = point.seconds[FUSED] * shape.num_layers / ladder.best[point.tokens]
        timed = f" Timed on the engine at {point.tokens} tokens: {share:.0%} of the TTFT."
    return conclude(
        "D18",
        "wrong_at_4k" if counted[BIG] < 0.3 else "only_at_this_length",
        counted=", ".join(f"{n} {value:.1%}" for n, value in counted.items()),
        timed=timed,
        sixty=", ".join(f"{value:,.0f} tokens for {n}" for n, value in sixty.items()),
        projection_share=projection_share(shapes[BIG]),
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
        "only_as_a_trend" if grows and modest else "saving_did_not_grow",
        here=f"{short:.0%} at {shortest} tokens, {long:.0%} at {longest} tokens",
        counted=", ".join(f"{value:.0%} at {tokens // 1024}k" for tokens, value in big_savings.items()),
    )


def halved_4k() -> dict[str, float]:
    """Seconds that halving a 4k prompt saves a 70B, alone on a replica: hardware -> seconds."""
    fleet = {"four H100s": simulated.deployment(), "two A100s": simulated_70b.deployment(profile="a100-80gb", tp=2)}
    return {
        name: simulated_70b.prefill_seconds(on, FOUR_K) - simulated_70b.prefill_seconds(on, FOUR_K // 2)
        for name, on in fleet.items()
    }


def big_savings(lengths: Sequence[int] = (1024, FOUR_K, LONG)) -> dict[int, float]:
    """The share of a 70B's TTFT that fused attention saves: what moving the score matrices would take, counted."""
    on, shape = simulated.deployment(), shape_of(BIG)
    reach = on.placement.tp * on.profile.hardware.bandwidth * on.profile.constants.kv_bandwidth
    found = {}
    for tokens in lengths:
        moving = eager_seconds(shape, tokens, reach)
        found[tokens] = moving / (moving + simulated_70b.prefill_seconds(on, tokens))
    return found


EXPERIMENT = ("lab/prompt_pruning.py", "lab/peak_bytes.py")
MEASURE: dict[str, Callable[[Lab], Claim]] = {
    "A3": lambda lab: a3(Ladder.of(ladder_run(lab, 1)), compare_attention(lab), lab_shape(lab)),
    "D7": lambda lab: d7(halved_4k(), compare_cuts(lab)),
    "D11": lambda lab: d11(Ladder.of(ladder_run(lab, 1))),
    "D17": lambda lab: d17(compare_attention(lab), both_ways(lab)),
    "D18": lambda lab: d18(compare_attention(lab), Ladder.of(ladder_run(lab, 1)), lab_shape(lab), short_name(lab)),
    "F4": lambda lab: f4(both_ways(lab), big_savings()),
}
