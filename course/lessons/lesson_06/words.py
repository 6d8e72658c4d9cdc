"""What the runs of lesson 06 showed: its findings and its claim."""

import itertools
from collections.abc import Callable, Mapping, Sequence

from course.lab.claims import Claim, conclude, say
from course.lab.display import Html
from course.lab.finding import Finding, tell
from course.lab.know_cold import know_cold
from course.lab.lab import Lab
from course.lab.model_shape import LLAMA_70B, ModelShape, three
from course.lab.roof import Roof, on_paper, this_machine
from course.lab.style import seconds, told_seconds
from course.lessons.lesson_06 import run
from course.lessons.lesson_06.run import Dot, StepProfile, largest_within
from course.simulator.cost.models import find_model

# ---------------------------------------------------------------- findings

ALIKE = 1.15
"""Factors closer than this aren't told apart on a machine whose steps scatter."""
Parts = Mapping[str, float]
"""What a simulated step's price is made of, seconds by cause; empty for a step that was measured."""
SMALL_PART = 0.03
"""Parts that are a smaller share aren't named."""


def clocks(dot: Dot, roof: Roof, parts: Parts) -> Finding:
    """What a single request's step waits for: reading, multiplying, or neither."""
    mbu, mfu = dot.mbu(roof), dot.mfu(roof)
    least, most = (dot.bytes / bandwidth / dot.itl for bandwidth in (roof.fastest, roof.slowest))
    outcome = (
        "priced"
        if parts
        else "restless"
        if dot.is_restless
        else "more_than_possible"
        if least > 1
        else "as_long"
        if least < 0.5 <= most
        else "memory_wall"
        if mbu >= 0.5
        else "mostly_overhead"
    )
    told = {"mbu": mbu, "mfu": mfu, "least": least, "most": most, "rest": dot.rest(roof) / dot.itl}
    ends = f"{least:.0%}", f"{most:.0%}"
    told["range"] = (
        "" if ends[0] == ends[1] else " ({} to {} by the fastest and the slowest bandwidth measured)".format(*ends)
    )
    return tell("06", "clocks", outcome, parts=_named(parts), **told)


def doublings(dots: Sequence[Dot], roof: Roof, before: Parts, after: Parts) -> Finding:
    """Which doubling was free.

    Args:
        before, after: the parts of the last two.
    """
    early, late = run.two_doublings(dots)
    free, steep = early < run.BORDER, late >= run.BORDER
    outcome = (
        "restless"
        if not before and any(dot.is_restless for dot in dots)
        else "free_then_paid"
        if free and steep
        else "both_free"
        if free
        else "not_even_the_first"
    )
    told = {"early": early, "late": late, "many": dots[2].batch, "twice": dots[3].batch}
    why = _why_longer(dots[2], dots[3], roof, before, after) if steep else ""
    return tell("06", "doublings", outcome, why=why, knee=roof.knee(dots[0].shape), **told)


def _why_longer(fewer: Dot, more: Dot, roof: Roof, before: Parts, after: Parts) -> str:
    """What's known of the seconds that a larger batch adds to a step."""
    added = more.itl - fewer.itl
    grown = _named({cause: after[cause] - before[cause] for cause in after})
    work = roof.multiplying(more.flops - fewer.flops)
    told = {"added": added, "work": work, "share": work / added, "knee": roof.knee(more.shape), "parts": grown}
    return tell("06", "added", "priced" if after else "at_peak", **told).here


def _named(parts: Parts) -> str:
    """`weights 6.40 ms, communication 1.95 ms`; the largest first."""
    whole = sum(parts.values())
    some = sorted((item for item in parts.items() if item[1] >= SMALL_PART * whole), key=lambda item: -item[1])
    return "; ".join(f"{cause}: {seconds(spent)}" for cause, spent in some)


UNEVEN = 1.3
"""By this factor a single request may be slower than it was before, or a batch slower than a larger one."""


def slo(sweep: Sequence[Dot], single: Sequence[Dot]) -> Finding:
    """What lies beyond the SLO: the last step of the sweep."""
    before, last = sweep[-2:]
    limit = run.slo_seconds(single)
    kept = largest_within(sweep, limit)
    more, longer = last.tokens_per_s / before.tokens_per_s, last.itl / before.itl
    faster = max(left.itl / right.itl for left, right in itertools.pairwise(sweep))  # with more requests
    outcome = (
        "restless"
        if max(faster, sweep[0].itl * run.SLO / limit) > UNEVEN
        else "kept_by_all"
        if kept == last.batch
        else "past_the_knee"
        if longer > more
        else "before_the_knee"
    )
    told = {"first": before.batch, "last": last.batch, "limit": limit, "more": more, "longer": longer}
    around = [dot for pair in itertools.pairwise(sweep) if pair[0].itl <= limit < pair[1].itl for dot in pair]
    told["sure"] = (
        " (steps around it scattered widely: run the sweep again to be sure)"
        if any(dot.is_restless for dot in around)
        else ""
    )
    told["alarm"] = tell("06", "alarm", "only_itl" if more >= 1 else "throughput_too")
    return tell("06", "slo", outcome, kept=kept, times=run.SLO, **told)


LESS, MORE = 0.8, 1.3
"""Shares of the seconds that separate launches add at batch 1: what counts as fewer at a large batch, and as more."""


def launches(whole: Sequence[Dot], apart: Sequence[Dot]) -> Finding:
    """Where one call for all layers helps."""
    small, large = (one.itl / other.itl for one, other in ((apart[0], whole[0]), (apart[-1], whole[-1])))
    more, more_large = apart[0].itl - whole[0].itl, apart[-1].itl - whole[-1].itl
    outcome = (
        "restless"
        if any(dot.is_restless for dot in (*whole, *apart))
        else "hardly_matters"
        if small < ALIKE
        else "hidden_at_large_batches"
        if more_large < LESS * more
        else "grows_with_the_batch"
        if more_large > MORE * more
        else "same_at_all_batches"
    )
    told = {"small": small, "large": large, "more": more, "more_large": more_large, "batch": whole[-1].batch}
    return tell("06", "launches", outcome, **told)


def profiled(found: StepProfile, single: Dot) -> Finding:
    """What a step does besides products, where Python launches each operation."""
    share = {part: spent / found.total for part, spent in found.seconds.items()}
    told = {"products": share[run.PRODUCT], "attention": share[run.ATTENTION], "other": share[run.OTHER]}
    between = share.get(run.IDLE, share.get(run.PYTHON, 0.0))
    outcome = {
        run.LAUNCHING: "launch_times",
        run.GPU: "gpu_waits" if between >= 0.5 else "gpu_works",
        run.COMPUTING: "mostly_products" if told["products"] >= 0.5 else "mostly_overhead",
    }[found.clock]
    calls = sum(found.calls.values())
    return tell("06", "profiled", outcome, calls=calls, between=between, total=found.total, itl=single.itl, **told)


TOO_LITTLE, FULL_SPEED, HIDDEN = 0.15, 1.5, 0.9
"""A share of KV in the bytes below which nothing is said of its speed. The seconds that KV adds, over those it would
take at full bandwidth: up to the first it is read at about full speed, below the second something else hid it."""


def growth(dots: Sequence[Dot], roof: Roof) -> Finding:
    """ITL against bytes, as contexts grow."""
    short, long = dots[0], dots[-1]
    added, more = long.itl - short.itl, long.bytes - short.bytes
    least, share = roof.reading(more), long.kv_bytes / long.bytes
    times = added / least
    outcome = (
        "restless"
        if short.is_restless or long.is_restless
        else "too_little"
        if share < TOO_LITTLE
        else "hidden"
        if times < HIDDEN
        else "full_speed"
        if times <= FULL_SPEED
        else "slower"
    )
    told = {"itl": long.itl / short.itl, "read": long.bytes / short.bytes, "share": share}
    told |= {"added": added, "least": least, "speed": min(least / added, 1.0) if added else 0.0, "mbu": short.mbu(roof)}
    return tell("06", "growth", outcome, by_byte=added / more * short.bytes / short.itl, **told)


# ---------------------------------------------------------------- the claim

GROWS = 1.02
"""Less than that is no growth that could be told from noise."""


# ---------------------------------------------------------------- three numbers


def three_numbers() -> Html:
    card, eight_b = on_paper(), ModelShape("Llama-3-8B", find_model("llama-3-8b"), gpus=1)
    floor = card.reading(eight_b.weight_bytes)
    return know_cold(
        (
            f"about {round(card.ridge, -1):.0f} FLOP per byte",
            "an H100's ridge point (the roofline's bend): from that batch on, 16-bit linear layers are compute-bound",
            f"{card.flops / 1e12:.0f} TFLOP/s over {card.bandwidth / 1e12:.2f} TB/s",
        ),
        (
            f"at least {told_seconds(floor)}",
            "a step of an 8B in 16 bits on one H100",
            "weight bytes over bandwidth; this engine took 6.2 ms (docs/measured.md)",
        ),
        (
            f"about {round(LLAMA_70B.crossover_tokens, -3):,.0f} tokens",
            "of context over all requests at which a 70B's KV takes as many bytes as its weights",
            "weights / KV per token, both in 16 bits",
        ),
    )


def a4(dots: Sequence[Dot], shapes: Sequence[ModelShape]) -> Claim:
    """Is it the KV cache that decoding reads most?

    Args:
        dots: steps of one batch, by length of context; the shortest first.
        shapes: models whose crossover to state.
    """
    short, long = dots[0], dots[-1]
    shares = [dot.kv_bytes / dot.bytes for dot in dots]
    with_room = [shape for shape in shapes if (shape.room_tokens() or 0) > shape.crossover_tokens]
    if short.is_restless or long.is_restless:
        verdict = "machine_was_restless"
    elif long.itl < GROWS * short.itl:
        verdict = "context_made_no_difference"
    elif min(shares) >= 0.5:
        verdict = "kv_is_most_even_when_short"
    else:
        verdict = "no_room_for_enough_kv" if max(shares) < 0.5 and not with_room else "only_past_the_crossover"
    crossovers = dict.fromkeys(f"{each.name} ({each.kind}) {each.crossover_tokens:,.0f}" for each in shapes)
    return conclude(
        "A4",
        verdict,
        short=short,
        long=long,
        in_bytes=", ".join(f"{share:.0%} at a context of {dot.context:.0f}" for dot, share in zip(dots, shares)),
        most=max(shares),
        most_added=max(1 - short.itl / long.itl, 0),
        borders="; ".join(crossovers),
        above=say("A4.crossed_in_this_run" if max(shares) >= 0.5 else "A4.crossover_by_shape_only"),
    )


def _measure_a4(lab: Lab) -> Claim:
    """A small experiment: one batch, short and longer contexts."""
    runs = [lab.run(each, **run.room(each)) for each in run.longer_and_longer(lab, this_machine(lab))]
    return a4(run.dots(lab, runs), list(three(lab).values()))


EXPERIMENT = ("lab/model_shape.py", "lab/roof.py")
MEASURE: dict[str, Callable[[Lab], Claim]] = {"A4": _measure_a4}
