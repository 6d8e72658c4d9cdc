"""Which questions convict, derived from the data: something in their answers differs materially from last week, and
does not in the look-alike.
"""

import functools
import math
from dataclasses import replace

from course.incidents.causes import CAUSES, Draw
from course.incidents.evidence import IncidentScene
from course.incidents.generate import PAGED_AT, Hidden
from course.incidents.questions import QUESTIONS
from course.incidents.service import play

MATERIAL, ALIKE = math.log(2), math.log(1.3)
"""A number has changed from a factor of two on; below 1.3 it has not."""
FLOOR_SMALL, FLOOR = 0.02, 1.0
"""Added to both before they are compared: to seconds and shares under one, and to all others."""
Cells = dict[tuple[str, str, str], float]


def changed(scene: IncidentScene) -> Cells:
    """Log of now over last week, of each number in each answer: by question, row and column."""
    healthy = replace(scene, now=scene.before)
    found = {}
    for question in QUESTIONS:
        was = question.look(healthy).rows
        for row, cells in question.look(scene).rows.items():
            for column, value in cells.items():
                old = was.get(row, {}).get(column)
                if isinstance(value, (int, float)) and isinstance(old, (int, float)):
                    floor = FLOOR_SMALL if max(old, value) < 1 else FLOOR
                    found[question.id, str(row), column] = math.log((value + floor) / (old + floor))
    return found


@functools.cache
def look_alike(cause: str) -> Cells:
    """What changes when it is the other one."""
    case = CAUSES[cause].make(Draw(f"look-alike {cause}"))
    before, now = play(case.before, 1, watched=True), play(case.now.during(PAGED_AT), 1, watched=True)
    return changed(IncidentScene(before, now, ()))


def read_off(hidden: Hidden) -> tuple[set[str], set[str]]:
    """The questions whose answers convict, and all whose answers have changed at all."""
    other = look_alike(hidden.cause.looks_like)
    material = {cell: log for cell, log in changed(hidden.scene).items() if abs(log) >= MATERIAL}
    apart = {cell[0] for cell, log in material.items() if cell in other and math.copysign(1, log) * other[cell] < ALIKE}
    return apart, {cell[0] for cell in material}
