"""Which questions convict, derived from the data: something in their answers differs materially from last week, and
does not in the look-alike; or it would there, and does not here. And which rule another cause out.
"""

import functools
import math
from collections.abc import Iterable
from dataclasses import replace

from course.incidents.causes import CAUSES, Draw
from course.incidents.evidence import EvidenceQuestion, IncidentScene
from course.incidents.generate import PAGED_AT, Hidden
from course.incidents.questions import BY_ID, QUESTIONS
from course.incidents.service import play

MATERIAL, ALIKE = math.log(2), math.log(1.3)
"""A number has changed from a factor of two on; below 1.3 it has not."""
FLOOR_SMALL, FLOOR = 0.02, 1.0
"""Added to both before they are compared: to seconds and shares under one, and to all others. Offered load has
the small one, or twice a load of less than one request a second would be no change."""
IN_WORDS = ("versions",)
"""Questions whose words show by themselves whether something changed: there, one replica differs from the others."""
Cells = dict[tuple[str, str, str], float]


def changed(scene: IncidentScene, questions: Iterable[EvidenceQuestion] = QUESTIONS) -> Cells:
    """Log of now over last week, of each number in each answer: by question, row and column. A hash or a dtype that
    is another one now has changed materially. Broken panels say nothing.
    """
    healthy = replace(scene, now=scene.before)
    found = {}
    for question in questions:
        if question.id in scene.missing | scene.stale:
            continue
        was = question.look(healthy).rows
        for row, cells in question.look(scene).rows.items():
            for column, value in cells.items():
                old = was.get(row, {}).get(column)
                if question.id in IN_WORDS and isinstance(value, str):
                    found[question.id, str(row), column] = 0.0 if value == old else MATERIAL
                if isinstance(value, (int, float)) and isinstance(old, (int, float)):
                    is_load = (question.id, row) == ("arrivals", "offered")
                    is_share = column.endswith(", share")  # a whole one, such as a full clock, too
                    floor = FLOOR_SMALL if is_load or is_share or max(old, value) < 1 else FLOOR
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
    here, other = changed(hidden.scene), look_alike(hidden.cause.looks_like)
    apart = {cell[0] for cell, log in here.items() if cell in other and _tell_apart(log, other[cell])}
    return apart, {cell[0] for cell, log in here.items() if abs(log) >= MATERIAL}


def rules_out(hidden: Hidden, question: str, cause: str) -> bool:
    """Whether a question's answer rules a cause out: some number there would have changed materially with it, and has
    not; or has changed, and wouldn't have. Of the look-alike, the question that tells the two apart always does.
    """
    if question in hidden.scene.missing | hidden.scene.stale:
        return False
    if (question, cause) == (hidden.cause.told_apart_by, hidden.cause.looks_like):
        return True
    here = changed(hidden.scene, [BY_ID[question]])
    there = {cell: log for cell, log in look_alike(cause).items() if cell[0] == question and cell in here}
    return any(_tell_apart(here[cell], log) for cell, log in there.items())


def _tell_apart(one: float, other: float) -> bool:
    """Whether one of the two has changed materially, and the other hasn't."""
    return _differ(one, other) or _differ(other, one)


def _differ(one: float, other: float) -> bool:
    """Whether the first has changed materially, and the second not, or the other way."""
    return abs(one) >= MATERIAL and math.copysign(1, one) * other < ALIKE
