"""What the runs of lesson 08 showed, in words."""

from collections.abc import Mapping, Sequence

from course.lab.finding import Finding, tell
from course.lab.noise import CEILING, ratio_of
from course.lessons.lesson_08.bets import CROWDED
from course.lessons.lesson_08.bets import crowded as crowded_outcome
from course.lessons.lesson_08.costs import VerifyCosts
from course.lessons.lesson_08.formulas import break_even, emitted
from course.lessons.lesson_08.served import WITHOUT, Served, base_of, faster
from course.lessons.lesson_08.watch import Story

K, ORDINARY = 4, 0.6
"""A draft's length, and the acceptance of text that isn't a copy."""
AS_MANY = 0.1
"""Two ways whose shares of steps with a draft differ by no more drafted in about as many."""


def watched(told: Mapping[str, tuple[Story, Story]]) -> Finding:
    """How many steps each watched answer took, with and without drafts."""
    lines = [
        f"*{name}*: {len(plain.steps)} steps without, {len(story.steps)} with" for name, (story, plain) in told.items()
    ]
    return tell("08", "watched", "here", told="; ".join(lines))


def checking(costs: VerifyCosts) -> Finding:
    """How free checking is here, alone and at the largest batch."""
    small, large = costs.batches[0], costs.batches[-1]
    ratios = {"alone": costs.relative(small, K), "crowd": costs.relative(large, K)}
    border = break_even(K, 0.0, ratios["crowd"])
    outcome = "restless" if costs.is_restless else "never" if border is None else "border"
    return tell("08", "checking", outcome, batch=large, k=K, border=border or 1.0, **ratios)


def kinds(every: Sequence[Served]) -> Finding:
    """What drafting gained on each kind of text: always, and with the gates. Equal work differs by noise at most."""
    lines, by_noise = [], [1.0]
    for one in every:
        if one.way == "always":
            gates = next(each for each in every if each.workload == one.workload and each.way == "gates")
            base = base_of(one, every)
            passed = f"{one.acceptance or 0:.0%} of tested guesses passed"
            gains = f"always ×{faster(one, base):.2f}, gates ×{faster(gates, base):.2f}"
            if abs(one.drafting_share - gates.drafting_share) <= AS_MANY:
                by_noise.append(ratio_of(one.decode_s, gates.decode_s))
            lines.append(f"**{one.workload.partition(',')[0]}**: {passed}, {gains}")
    outcome = "disturbed" if max(by_noise) > CEILING else "here"
    return tell("08", "kinds", outcome, told="; ".join(lines), most=max(by_noise))


def crowd(every: Sequence[Served], costs: VerifyCosts) -> Finding:
    """Many copying at once, gates open, against one at a time; and what an ordinary acceptance would give."""
    outcome = dict(zip(CROWDED, ("faster", "same", "slower")))[crowded_outcome(every).answer]
    always, gates = (next(each for each in every if each.way == way) for way in ("always", "gates"))
    base = next(each for each in every if each.way == WITHOUT)
    told = {"share": ORDINARY, "yields": emitted(ORDINARY, K), "takes": costs.relative(costs.batches[-1], K)}
    gains = {"gain": faster(always, base), "gates": faster(gates, base), "ordinary": told["yields"] / told["takes"]}
    return tell("08", "crowd", outcome, passed=always.acceptance or 0.0, **gains, **told)
