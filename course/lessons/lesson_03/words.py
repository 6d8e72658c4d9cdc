"""What the runs of lesson 03 showed: its findings and its claims."""

from collections.abc import Callable, Mapping, Sequence

from course.lab import simulated_70b
from course.lab.bend import Bend, bend_on_paper
from course.lab.claims import Claim, conclude, say
from course.lab.display import Html
from course.lab.finding import Finding, tell
from course.lab.know_cold import know_cold
from course.lab.lab import Lab
from course.lab.run import Run
from course.lab.style import change, seconds
from course.lessons.lesson_03 import simulated
from course.lessons.lesson_03.pictures import envelope_seconds
from course.lessons.lesson_03.run import (
    BIG,
    FUSED,
    MOST_LOST,
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
    slope_of_flops,
    trade,
)
from course.simulator.cost.sizes import DTYPE_BYTES
from minillm.model.config import ModelConfig

# ---------------------------------------------------------------- findings

STRAIGHT = (0.9, 1.05)
"""Powers between these are called straight growth."""
MOSTLY = 0.4
"""Where reading the weights takes at least this share of the shortest prompt's TTFT, it's what keeps the curve flat."""
SLACK = 0.1
"""A measured power so far above the counted one is still explained by it."""
SLIGHT = 0.1
"""A smaller share of a TTFT is not worth a sentence."""
HELD_UP = 2.0
"""Times the usual gap that others have to wait for a long prompt before it counts as holding them up."""
BENT = 1.3
"""A chunk that makes the long prompt's TTFT longer by no more than this factor is right of the bend."""


def ladder(found: Ladder, reading_s: float, shape: ModelConfig) -> Finding:
    """How TTFT grew over the two lengths of the bet, and at the short end.

    Args:
        reading_s: seconds to read the weights once.
        shape: of the model, for what attention's part of the work is.
    """
    shorter, longer = found.four_apart
    power = found.exponent(shorter, longer)
    first, second = sorted(found.best)[:2]
    straight_from, straight_to = STRAIGHT
    start, counted = found.exponent(first, second), slope_of_flops(shape, shorter, longer)
    if power < straight_from:
        is_reading = reading_s >= MOSTLY * found.best[first]
        outcome = "less_as_weights_are_read" if is_reading else "less_than_proportional"
    elif power <= straight_to:
        outcome = "proportional" if start > straight_from else "proportional_but_flat_at_first"
    else:
        outcome = "more_than_proportional" if power < counted + SLACK else "more_than_counted"
    told = {"shorter": shorter, "longer": longer, "ratio": found.ratio(shorter, longer), "power": power}
    told |= {"share": attention_share(shape, longer), "counted": counted, "reading": reading_s}
    return tell("03", "ladder", outcome, first=first, second=second, start=start, short=found.best[first], **told)


def square(points: Sequence[AttentionPoint], shape: ModelConfig, bandwidth: float) -> Finding:
    """Textbook against fused: memory, and time.

    Args:
        bandwidth: bytes per second that memory reaches here: what moving the scores takes at least.
    """
    short, long = points[0], points[-1]
    grows = {name: slope((short.tokens, short.peak[name]), (long.tokens, long.peak[name])) for name in long.peak}
    moving = eager_seconds(shape, long.tokens, bandwidth, long.dtype) / shape.num_layers
    saved = long.seconds[TEXTBOOK] - long.seconds[FUSED]
    outcome = "saves_time_too" if long.speedup > 1.1 else "saves_memory_only"
    figures = {"moving": moving, "saved": saved, "textbook": grows[TEXTBOOK], "fused": grows[FUSED]}
    return tell("03", "square", outcome, tokens=long.tokens, memory=1 / long.memory, long=long, short=short, **figures)


def request(both: Mapping[str, Ladder], shape: ModelConfig) -> Finding:
    """What fused attention takes off a request's TTFT, by length."""
    lengths = next(iter(both.values())).best
    short, long = min(lengths), max(lengths)
    saved_short, saved_long = saving(both, short), saving(both, long)
    is_slight = abs(saved_short) < SLIGHT
    if saved_long < SLIGHT:
        outcome = "long_saves_little"
    else:
        outcome = "short_saves_nothing" if is_slight else "short_saves_too" if saved_short > 0 else "short_loses"
    figures = {"saved_short": saved_short, "saved_long": saved_long, "moved_short": change(1.0, 1 - saved_short)}
    return tell("03", "request", outcome, short=short, long=long, share=attention_share(shape, short), **figures)


def chunks(swept: Mapping[int, Run], reading_s: float) -> Finding:
    """Who gained from small chunks, and who paid.

    Args:
        reading_s: seconds to read the weights once.
    """
    small, whole = trade(swept[min(swept)]), trade(swept[max(swept)])
    ratio = small.ttft / whole.ttft
    own = "same" if abs(ratio - 1) <= TIE else "longer" if ratio > 1 else "shorter"
    if small.worst_gap > (1 - TIE) * whole.worst_gap:
        held_nobody = whole.worst_gap < HELD_UP * whole.usual_gap
        others = "others_same" if held_nobody and small.worst_gap < (1 + TIE) * whole.worst_gap else "others_longer"
        outcome = others if own != "shorter" else "shorter"
    else:
        outcome = own
    figures = {"gap": change(whole.worst_gap, small.worst_gap), "ttft": change(whole.ttft, small.ttft)}
    return tell(
        "03",
        "chunks",
        outcome,
        chunk=min(swept),
        small=small,
        whole=whole,
        reading=small.steps * reading_s,
        **figures,
    )


def bend(here: Bend) -> Finding:
    """The smallest chunk that a machine's two numbers allow, and where the simulated curve of a 70B bends.

    Args:
        here: this machine's.
    """
    paper = bend_on_paper()
    trades = simulated.trades(LONG)
    whole = trades[-1].ttft
    enough = next(each.chunk for each in trades if each.ttft <= BENT * whole)
    before = max((each.chunk for each in trades if each.chunk < enough), default=enough)
    ttft = {each.chunk: each.ttft for each in trades}
    is_same = round(here.tokens) == round(paper.tokens)
    return tell(
        "03",
        "bend",
        "an_h100" if is_same else "elsewhere",
        paper=paper,
        here=here,
        source="measured" if here.mfu == 1 else "by its data sheet",
        width=DTYPE_BYTES[here.weight_dtype],
        enough=enough,
        before=before,
        ttft=ttft[enough],
        ttft_before=ttft[before],
        whole=whole,
    )


# ---------------------------------------------------------------- three numbers

GPUS, MFU = 4, 0.5
"""What the envelope assumes."""


def three_numbers() -> Html:
    paper, seventy_b = bend_on_paper(), shape_of(BIG)
    enveloped = envelope_seconds(1000, GPUS, MFU, attention=False)
    return know_cold(
        (
            f"about {round(paper.tokens, -1):.0f} tokens",
            "the bend on an H100: steps with shorter chunks mostly read weights",
            f"{paper.told}, weights in 16 bits",
        ),
        (
            f"about {round(crossover(seventy_b), -3):,.0f} tokens",
            "the prompt at which a 70B's attention is as much work as its matrices",
            "P / (L H d), from the model's shape",
        ),
        (
            f"about {1e3 * enveloped:.0f} ms",
            f"prefill of 1,000 tokens: 70B, {GPUS} H100s",
            f"2 P n over {GPUS} × 989 TFLOP/s × {MFU}",
        ),
    )


# ---------------------------------------------------------------- claims

FOUR_K = 4096
LONG = 32768
NEAR_TWO = 1.6
"""Growth with at least this power counts as the square: two lengths of a small head are never on it exactly."""


def a3(ladder: Ladder, points: Sequence[AttentionPoint], shape: ModelConfig) -> Claim:
    """Attention is quadratic; TTFT is not, until attention is most of it."""
    first, last = points[max(0, len(points) - 3)], points[-1]
    alone, fused = (
        slope((first.tokens, first.seconds[way]), (last.tokens, last.seconds[way])) for way in (TEXTBOOK, FUSED)
    )
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
        fused=fused,
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
    luck = 2 * (whole.right * (1 - whole.right / whole.asked)) ** 0.5
    passing = [name for name in cuts if scores[name].passes(whole)]
    broken = [name for name in cuts if whole.right - scores[name].right > max(luck, MOST_LOST)]
    unclear = [name for name in cuts if name not in (*passing, *broken)]
    if is_too_few := whole.right <= MOST_LOST or whole.right <= whole.asked / 3:
        verdict = "model_answers_too_few"
    elif unclear:
        verdict = "too_few_questions"
    elif not passing:
        verdict = "no_cut_passes"
    else:
        verdict = "only_when_validated" if broken else "every_cut_passes"
    return conclude(
        "D7",
        verdict,
        saved=", ".join(f"{seconds(value)} on {name}" for name, value in halved.items()),
        answers="; ".join(f"{name} {score.right} of {score.asked}" for name, score in scores.items()),
        luck="" if is_too_few else say("D7.luck", luck=luck),
        most_lost=MOST_LOST,
        asked=whole.asked,
        passing=", ".join(passing),
        broken=", ".join(broken),
        unclear=", ".join(unclear),
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
    speedups = [point.speedup for point in points]
    figures = {"low": min(speedups), "high": max(speedups)}
    return conclude("D17", verdict, first=first, last=last, exact=exact, longest=longest, ttft=ttft, **figures)


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
        "without_a_length" if grows and modest else "saving_did_not_grow",
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
