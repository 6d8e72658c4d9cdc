"""A mock interview of 45 minutes: the dump, two short drills, pushback after each, and a debrief."""

import random
from collections.abc import Sequence

from course.drills.clock import written
from course.drills.drill import DIMENSIONS, DrawnDrill
from course.drills.library import ALL, FLAGSHIP, find_drill
from course.drills.sitting import Sitting

MINUTES = 45
SHORT = 6
"""Minutes of a short drill, at most."""
NUM_SHORT = 2


def plan(seed: int) -> tuple[DrawnDrill, ...]:
    """The dump, and two short drills; the seed draws which, and their numbers."""
    short = [drill for drill in ALL if drill.minutes <= SHORT]
    chosen = random.Random(seed).sample(short, min(NUM_SHORT, len(short)))
    return tuple(drill.drawn(seed) for drill in (find_drill(FLAGSHIP), *chosen))


def debrief(rounds: Sequence[Sitting]) -> str:
    """What the rounds had in common: time, what was right, and what to practise."""
    if not rounds:
        return "No round is over yet."
    lines = [
        f"{each.drill.drill.title}: {each.computed}, {written(each.seconds or 0)} of "
        f"{written(60 * each.drill.drill.minutes)}, {len(each.replies)} of {len(each.follow_ups)} questions answered"
        for each in rounds
    ]
    lost: dict[str, float] = {}
    faults = []
    for each in rounds:
        for found in each.checks:
            lost[found.criterion] = lost.get(found.criterion, 0) + found.most - found.points
            faults += [found] if not found.most else []
        faults += [fault for reply in each.replies.values() for fault in each.faults(reply)]
    worst = max(lost, key=lost.get)
    lines += [f"Wrong: “{fault.quotes[0]}” {fault.says}" for fault in faults]
    lines.append(f"Most points were lost on {DIMENSIONS[worst]}." if lost[worst] else "Nothing computed was wrong.")
    return "\n\n".join(lines)
