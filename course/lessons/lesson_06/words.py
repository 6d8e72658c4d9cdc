"""What the runs of lesson 06 showed: its findings and its claim."""

from collections.abc import Callable, Sequence

from course.lab.claims import Claim, conclude, say
from course.lab.finding import Finding, tell
from course.lab.lab import Lab
from course.lab.model_shape import ModelShape, three
from course.lab.roof import Roof
from course.lessons.lesson_06 import run
from course.lessons.lesson_06.run import Dot, StepProfile, largest_within

# ---------------------------------------------------------------- findings

ALIKE = 1.15
"""Factors closer than this aren't told apart."""


def clocks(dot: Dot, roof: Roof) -> Finding:
    """What a lone request's step waits for: reading, multiplying, or neither."""
    shares = {"mbu": dot.mbu(roof), "mfu": dot.mfu(roof), "rest": dot.rest(roof) / dot.itl}
    outcome = (
        "more_than_possible"
        if shares["mbu"] > 1
        else "mostly_overhead"
        if shares["rest"] > shares["mbu"]
        else "memory_wall"
    )
    return tell("06", "clocks", outcome, **shares)


def doublings(dots: Sequence[Dot]) -> Finding:
    """Which doubling was free."""
    early, late = run.two_doublings(dots)
    free, steep = early < run.BORDER, late >= run.BORDER
    outcome = "free_then_paid" if free and steep else "both_free" if free else "not_even_the_first"
    return tell("06", "doublings", outcome, early=early, late=late)


def slo(sweep: Sequence[Dot]) -> Finding:
    """What lies beyond the SLO: the last doublings."""
    before, last = sweep[-2:]
    kept = largest_within(sweep, run.SLO * sweep[0].itl)
    more, longer = last.tokens_per_s / before.tokens_per_s, last.itl / before.itl
    outcome = "kept_by_all" if kept == last.batch else "past_the_knee" if longer > more else "before_the_knee"
    ends = {"first": before.batch, "last": last.batch}
    return tell("06", "slo", outcome, kept=kept, times=run.SLO, more=more, longer=longer, **ends)


def launches(whole: Sequence[Dot], apart: Sequence[Dot]) -> Finding:
    """Where one call for all layers helps."""
    small, large = (one.itl / other.itl for one, other in ((apart[0], whole[0]), (apart[-1], whole[-1])))
    outcome = (
        "pays_at_small_batches"
        if small > large * 1.05
        else "pays_at_all_batches"
        if small > ALIKE
        else "hardly_matters"
    )
    more, more_large = apart[0].itl - whole[0].itl, apart[-1].itl - whole[-1].itl
    told = {"small": small, "large": large, "more": more, "more_large": more_large, "batch": whole[-1].batch}
    return tell("06", "launches", outcome, **told)


def profiled(found: StepProfile) -> Finding:
    """What a step does besides products."""
    share = {part: spent / found.total for part, spent in found.seconds.items()}
    told = {"products": share[run.PRODUCT], "attention": share[run.ATTENTION]}
    told |= {"other": share[run.OTHER], "python": share[run.PYTHON]}
    outcome = "mostly_products" if told["products"] >= 0.5 else "mostly_overhead"
    calls = sum(found.calls.values())
    return tell("06", "profiled", outcome, calls=calls, **told)


def growth(dots: Sequence[Dot]) -> Finding:
    """ITL against bytes, as contexts grow."""
    short, long = dots[0], dots[-1]
    itl, read = long.itl / short.itl, long.bytes / short.bytes
    outcome = "more_than_bytes" if itl > ALIKE * read else "less_than_bytes" if itl * ALIKE < read else "as_bytes"
    return tell("06", "growth", outcome, itl=itl, read=read, share=long.kv_bytes / long.bytes)


# ---------------------------------------------------------------- the claim

GROWS = 1.02
"""Less than that is no growth that could be told from noise."""


def a4(dots: Sequence[Dot], shapes: Sequence[ModelShape]) -> Claim:
    """Is it the KV cache that decoding reads most?

    Args:
        dots: steps of one batch, by length of context; the shortest first.
        shapes: models whose crossover to state.
    """
    short, long = dots[0], dots[-1]
    shares = [dot.kv_bytes / dot.bytes for dot in dots]
    with_room = [shape for shape in shapes if (shape.room_tokens() or 0) > shape.crossover_tokens]
    if long.itl < GROWS * short.itl or short.is_restless or long.is_restless:
        verdict = "context_made_no_difference"
    elif min(shares) >= 0.5:
        verdict = "kv_is_most_even_when_short"
    else:
        verdict = "no_room_for_enough_kv" if max(shares) < 0.5 and not with_room else "only_past_the_crossover"
    return conclude(
        "A4",
        verdict,
        short=short,
        long=long,
        in_bytes=", ".join(f"{share:.0%} at a context of {dot.context:.0f}" for dot, share in zip(dots, shares)),
        most_added=max(1 - short.itl / long.itl, 0),
        borders="; ".join(f"{shape.name} ({shape.kind}) {shape.crossover_tokens:,.0f}" for shape in shapes),
        above=say("A4.crossed_in_this_run" if max(shares) >= 0.5 else "A4.crossover_by_shape_only"),
    )


def _measure_a4(lab: Lab) -> Claim:
    """A small experiment: one batch, short and longer contexts."""
    runs = [lab.run(each, **run.room(each)) for each in run.longer_and_longer(lab)]
    return a4(run.dots(lab, runs), list(three(lab).values()))


EXPERIMENT = ("lab/model_shape.py", "lab/roof.py")
MEASURE: dict[str, Callable[[Lab], Claim]] = {"A4": _measure_a4}
