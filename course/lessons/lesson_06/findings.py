"""What the runs of lesson 06 showed, in words."""

from collections.abc import Sequence

from course.lab.finding import Finding, tell
from course.lessons.lesson_06 import bets, profiling
from course.lessons.lesson_06.profiling import StepProfile
from course.lessons.lesson_06.roofline import Roof
from course.lessons.lesson_06.steps import Dot, largest_within

ALIKE = 1.15
"""Factors closer than this aren't told apart."""


def clocks(dot: Dot, roof: Roof) -> Finding:
    """Of a lone request's step: reading, multiplying, neither."""
    shares = {"mbu": dot.mbu(roof), "mfu": dot.mfu(roof), "rest": dot.rest(roof) / dot.itl}
    outcome = "beyond" if shares["mbu"] > 1 else "neither" if shares["rest"] > shares["mbu"] else "reading"
    return tell("06", "clocks", outcome, **shares)


def doublings(dots: Sequence[Dot]) -> Finding:
    """Which doubling was free."""
    early, late = bets.two_doublings(dots)
    free, steep = early < bets.BORDER, late >= bets.BORDER
    outcome = "both" if free and steep else "flat" if free else "noisy"
    return tell("06", "doublings", outcome, early=early, late=late)


def slo(sweep: Sequence[Dot]) -> Finding:
    """What lies beyond the SLO: the last doublings."""
    before, last = sweep[-2:]
    kept = largest_within(sweep, bets.SLO * sweep[0].itl)
    more, longer = last.tokens_per_s / before.tokens_per_s, last.itl / before.itl
    outcome = "all" if kept == last.batch else "past" if longer > more else "before"
    ends = {"first": before.batch, "last": last.batch}
    return tell("06", "slo", outcome, kept=kept, times=bets.SLO, more=more, longer=longer, **ends)


def launches(whole: Sequence[Dot], apart: Sequence[Dot]) -> Finding:
    """Where one call for all layers helps."""
    small, large = (one.itl / other.itl for one, other in ((apart[0], whole[0]), (apart[-1], whole[-1])))
    outcome = "shrinks" if small > large * 1.05 else "stays" if small > ALIKE else "none"
    more, more_large = apart[0].itl - whole[0].itl, apart[-1].itl - whole[-1].itl
    told = {"small": small, "large": large, "more": more, "more_large": more_large, "batch": whole[-1].batch}
    return tell("06", "launches", outcome, **told)


def profiled(found: StepProfile) -> Finding:
    """What a step does besides products."""
    share = {part: spent / found.total for part, spent in found.seconds.items()}
    told = {"products": share[profiling.PRODUCT], "attention": share[profiling.ATTENTION]}
    told |= {"other": share[profiling.OTHER], "python": share[profiling.PYTHON]}
    outcome = "products" if told["products"] >= 0.5 else "overhead"
    calls = sum(found.calls.values())
    return tell("06", "profiled", outcome, calls=calls, **told)


def growth(dots: Sequence[Dot]) -> Finding:
    """ITL against bytes, as contexts grow."""
    short, long = dots[0], dots[-1]
    itl, read = long.itl / short.itl, long.bytes / short.bytes
    outcome = "more" if itl > ALIKE * read else "less" if itl * ALIKE < read else "alike"
    return tell("06", "growth", outcome, itl=itl, read=read, share=long.kv_bytes / long.bytes)
