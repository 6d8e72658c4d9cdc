"""What the runs of lesson 02 showed: its findings and its claim."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from course.lab.claims import Claim, conclude, say
from course.lab.display import Html
from course.lab.finding import Finding, tell
from course.lab.know_cold import know_cold
from course.lab.lab import Lab
from course.lab.queueing import md1_wait, mg1_wait
from course.lab.run import Run, percentile
from course.lab.scale import enough
from course.lab.style import seconds
from course.lab.visits import mean, visits_of, waits
from course.lessons.lesson_02 import simulated
from course.lessons.lesson_02.run import (
    LOADS,
    LONG_RUN,
    OFF,
    REPEATS,
    at_loads,
    capacity,
    load_of,
    long_growths,
    short_growth,
    short_scatter,
)
from course.simulator.workload.lengths import LogNormal

# ---------------------------------------------------------------- findings

NEARLY_TWICE, FEW = 1.6, 0.1
"""A second slot that multiplies capacity by more than the first nearly doubles it; one that adds less than the second
adds nothing."""
FLAT = 0.5
"""A second slot count whose wait is below this share of the first one's has flattened the curve."""


def growth(runs: Mapping[str, Run]) -> Finding:
    """The growth of the wait, and how little a short run says of it."""
    low, high = short_scatter(runs)
    short, found = short_growth(runs), long_growths(runs)
    waited = ", ".join(f"{seconds(mean(waits(visits_of(run))))} at {load}" for load, run in runs.items())
    formula = mg1_wait(LOADS[-1], 0) / mg1_wait(LOADS[0], 0)
    actual = [load_of(run) for run in runs.values()]
    if any(abs(found - load) > OFF for found, load in zip(actual, LOADS)):
        outcome = "load_missed"
    else:
        outcome = "within_usual_scatter" if low <= short <= high else "outside_usual_scatter"
    return tell(
        "02",
        "growth",
        outcome,
        actual=", ".join(f"{load:.0%}" for load in actual),
        waited=waited,
        short=short,
        count=len(next(iter(runs.values())).rows),
        low=low,
        high=high,
        total=REPEATS * LONG_RUN,
        long=mean(found),
        long_low=min(found),
        long_high=max(found),
        formula=formula,
    )


def second_slot(one: Run, two: Run) -> Finding:
    """What a second slot does to capacity, and to the step that both share.

    Args:
        one, two: all questions sent together, on one slot and on two.
    """
    gain = capacity(two) / capacity(one)
    alone, both = (percentile([step.end - step.start for step in run.steps if step.shares], 50) for run in (one, two))
    outcome = "nearly_doubles" if gain > NEARLY_TWICE else "adds_something" if gain > 1 + FEW else "adds_nothing"
    tokens = mean([view.num_prompt_tokens for view in one.views])
    told = {"one": capacity(one), "two": capacity(two), "alone": alone, "both": both}
    return tell("02", "second_slot", outcome, gain=gain, half=1 / gain, tokens=tokens, **told)


def slots(curves: Mapping[int, Sequence[tuple[float, float]]]) -> Finding:
    """What more slots do to the curve."""
    (few, first), *_, (many, last) = curves.items()
    middle, full = (tuple(points[i][1] for points in (first, last)) for i in (1, -1))
    grew = [late / max(early, 1e-9) for early, late in zip(middle, full)]
    flat = middle[1] < FLAT * middle[0] and grew[1] > grew[0]
    return tell(
        "02",
        "slots",
        "flat_for_longer" if flat else "too_short_to_tell",
        few=few,
        many=many,
        low=first[1][0],
        high=first[-1][0],
        middle=middle,
        full=full,
        grew=grew,
    )


def overload(waited: Mapping[str, Sequence[tuple[float, float]]]) -> Finding:
    """Whether the wait went on growing above capacity: its last quarter against its second."""
    grew = {}
    for name, points in waited.items():
        ys = [y for _, y in points]
        quarter = len(ys) // 4
        grew[name] = mean(ys[-quarter:]) / max(mean(ys[quarter : 2 * quarter]), 1e-9)
    below, *_, above = grew
    outcome = "keeps_growing" if grew[above] > 1.5 and grew[above] > grew[below] else "too_short_to_tell"
    last = {name: points[-1][1] for name, points in waited.items()}
    return tell("02", "overload", outcome, above=above, below=below, last=last[above], calm=last[below])


# ---------------------------------------------------------------- three numbers


def spread_of(lengths: LogNormal) -> float:
    """Coefficient of variation of such lengths, if they weren't cut off."""
    return math.sqrt(math.exp(lengths.sigma**2) - 1)


def three_numbers() -> Html:
    waits_of_equals = ", ".join(f"{md1_wait(load):g}" for load in (0.5, 0.8, 0.95))
    answers = spread_of(simulated.CHAT.output)
    return know_cold(
        (
            f"{waits_of_equals} service times",
            "the mean wait at 50, 80 and 95% load: one slot, random arrivals, equal requests",
            "M/D/1: ρ / (1 - ρ) / 2",
        ),
        (f"× {md1_wait(0.9) / md1_wait(0.8):.3g}", "growth of the wait from 80 to 90%", "(9 / 1) / (8 / 2)"),
        (
            f"× {1 + answers**2:.1f}",
            "how much longer that wait gets when answers are as uneven as in a chat",
            f"1 + c²; c = {answers:.1f} for log-normal lengths with σ = {simulated.CHAT.output.sigma:g}",
        ),
    )


# ---------------------------------------------------------------- the claim

HALF = 0.5
"""A wait that falls below half has improved, whatever the noise."""


def a2(runs: Mapping[str, Run], quantized: Mapping[str, Mapping[str, float]]) -> Claim:
    """The wait grows faster than the load; quantization and the queue.

    Args:
        runs: real runs by load, lowest first.
        quantized: by case and format of the weights, the mean wait in seconds.
    """
    loads = [load_of(run) for run in runs.values()]
    waited = [mean(waits(visits_of(run))) for run in runs.values()]
    more_load, longer = loads[-1] / loads[0], waited[-1] / max(waited[0], 1e-9)
    faster = longer > 1.5 * more_load
    helped = {case: min(by["int8"], by["fp8"]) / by["bf16"] for case, by in quantized.items()}
    cured = [case for case, ratio in helped.items() if ratio < HALF]
    harmed = [f"int8 in '{case}'" for case, by in quantized.items() if by["int8"] > 1.05 * by["bf16"]]
    formula = mg1_wait(LOADS[-1], 0) / mg1_wait(LOADS[0], 0)
    first = say(
        "A2.wait_outgrew_load" if faster else "A2.growth_not_seen",
        more_load=more_load,
        longer=longer,
        formula=formula,
    )
    claim = conclude(
        "A2",
        "some_queues_cured" if cured else "no_queue_halved" if faster else "not_shown",
        waited=", ".join(f"{seconds(w)} at {x:.0%}" for w, x in zip(waited, loads)),
        told="; ".join(f"{case}: {_listed(by)}" for case, by in quantized.items()),
        first=first,
        count=enough(simulated.OVERLOADED, simulated.ENOUGH_FOR_A_QUEUE),
        num_cured=len(cured),
        num_helped=len(helped),
        cured="" if len(cured) == len(helped) else f" ({'; '.join(cured)})",
        least_helped=min(helped, key=helped.get),
    )
    if cured and harmed:
        return replace(claim, verdict=f"{claim.verdict} {say('A2.int8_can_lengthen_it', harmed=', '.join(harmed))}")
    return claim


def _listed(by_name: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {seconds(value)}" for name, value in by_name.items())


EXPERIMENT = ("lab/visits.py", "lab/queueing.py")
MEASURE: dict[str, Callable[[Lab], Claim]] = {
    "A2": lambda lab: a2(at_loads(lab, (LOADS[0], LOADS[-1])), simulated.quantized_waits()),
}
