"""A mock interview of 45 minutes: drills that fill it, pushback after each, and a debrief."""

import random
from collections.abc import Sequence

from course.drills.clock import written
from course.drills.drill import DrawnDrill
from course.drills.library import ALL, number_of
from course.drills.sitting import LOOK_AGAIN, Sitting

MINUTES = 45
AFTERWARDS = 4
"""Minutes after each answer: commitments, pushback, statements."""
DEBRIEF = 4
"""Minutes that the end takes."""


def plan(seed: int) -> tuple[DrawnDrill, ...]:
    """Drills that fill the time, the longest first; the seed draws which, the opening among them, and their numbers."""
    chance, left = random.Random(seed), MINUTES - DEBRIEF
    chosen = []
    rest = chance.sample(ALL, len(ALL))
    while fitting := [each for each in rest if each.minutes + AFTERWARDS <= left]:
        chosen.append(fitting[0])
        rest.remove(fitting[0])
        left -= fitting[0].minutes + AFTERWARDS
    opening, *others = sorted(chosen, key=lambda each: -each.minutes)
    return tuple(drill.drawn(seed) for drill in (opening, *others))


def minutes_of(rounds: Sequence[DrawnDrill]) -> int:
    """That these take, with what comes after each, and the debrief."""
    return sum(each.drill.minutes + AFTERWARDS for each in rounds) + DEBRIEF


def debrief(rounds: Sequence[Sitting]) -> str:
    """Round by round: time, what was right, the verdict, and the sentences it points at; then the level of them all."""
    if not rounds:
        return "No round is over yet."
    parts = []
    for place, each in enumerate(rounds, 1):
        drill, found = each.drill.drill, each.verdict
        clock = f"{written(each.seconds or 0)} of {written(60 * drill.minutes)}"
        lines = [f"Round {place}, drill {number_of(drill)}: {drill.title}. {clock}.", f"{each.headline}.", found.says]
        lines += [f"It helped: “{one.sentence}” {one.why}" for one in found.helped]
        lines += [f"{LOOK_AGAIN}: “{one.sentence}” {one.why}" for one in found.hurt]
        lines += [f"Write this again: “{found.again}”"] if found.again else []
        parts.append("\n".join(lines))
    lowest = min(rounds, key=lambda each: each.standing.value)
    level = sorted(rounds, key=lambda each: each.standing.value)[len(rounds) // 2].standing.level
    weakest = f"Practise next what “{lowest.drill.drill.title}” asks."
    return "\n\n".join([*parts, f"All in all: {f'hire at {level}' if level else 'no hire yet'}. {weakest}"])
