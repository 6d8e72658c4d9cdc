"""The claim of lesson 02."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from course.lab.claims import Claim, conclude, say
from course.lab.lab import Lab
from course.lab.run import Run
from course.lab.style import seconds
from course.lessons.lesson_02 import simulated, traffic
from course.lessons.lesson_02.visits import mean, visits_of, waits

HALF = 0.5
"""A wait that falls below half has improved, whatever the noise."""


def a2(runs: Mapping[str, Run], quantized: Mapping[str, Mapping[str, float]]) -> Claim:
    """The wait grows faster than the load; quantization and the queue.

    Args:
        runs: real runs by load, lowest first.
        quantized: by case and format of the weights, the mean wait in seconds.
    """
    loads = [traffic.load_of(run) for run in runs.values()]
    waited = [mean(waits(visits_of(run))) for run in runs.values()]
    more_load, longer = loads[-1] / loads[0], waited[-1] / max(waited[0], 1e-9)
    faster = longer > 1.5 * more_load
    helped = {case: min(by["int8"], by["fp8"]) / by["bf16"] for case, by in quantized.items()}
    cured = [case for case, ratio in helped.items() if ratio < HALF]
    harmed = [f"int8 in '{case}'" for case, by in quantized.items() if by["int8"] > 1.05 * by["bf16"]]
    first = say("A2.grew" if faster else "A2.first", more_load=more_load, longer=longer)
    claim = conclude(
        "A2",
        "only_when" if cured else "holds" if faster else "not_shown",
        waited=", ".join(f"{seconds(w)} at {x:.0%}" for w, x in zip(waited, loads)),
        told="; ".join(f"{case}: {_listed(by)}" for case, by in quantized.items()),
        first=first,
        num_cured=len(cured),
        num_helped=len(helped),
        cured="; ".join(cured),
        least_helped=min(helped, key=helped.get),
    )
    if cured and harmed:
        return replace(claim, verdict=claim.verdict + say("A2.why", harmed=", ".join(harmed)))
    return claim


def _listed(by_name: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {seconds(value)}" for name, value in by_name.items())


MEASURE: dict[str, Callable[[Lab], Claim]] = {
    "A2": lambda lab: a2(traffic.at_loads(lab, (traffic.LOADS[0], traffic.LOADS[-1])), simulated.quantized_waits()),
}
