"""Draws incidents, and keeps only those that deserve the name: the sick service misses its SLO, the true fix
restores it on held-out traffic, and the tempting one does not.
"""

import difflib
import gc
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from course.lab.incidents.causes import CAUSES, Case, Cause, Draw
from course.lab.incidents.causes.base import slo_for, with_slo
from course.lab.incidents.disguise import AILMENTS, ODDITIES, Ailment, change_log
from course.lab.incidents.evidence import Scene
from course.lab.incidents.interventions import BY_ID, Intervention
from course.lab.incidents.outcome import Trials
from course.lab.incidents.service import Service, play
from minillm.core.errors import MinillmError

T = TypeVar("T")
DIFFICULTIES = (1, 2, 3)
TRIES = 12
BITES = 0.1
"""A sick service is at least so far below its target."""
NUM_HELD_OUT = 2


class IncidentError(MinillmError, ValueError):
    """What was asked of an incident does not exist, or comes out of turn."""


@dataclass(frozen=True)
class Hidden:
    """All there is to know about an incident."""

    cause: Cause
    case: Case
    also: Ailment | None
    scene: Scene
    held_out: tuple[int, ...]
    """Seeds of traffic on which changes are judged."""
    fixes: tuple[str, ...]
    """Of the cause's fixes, those that were tried out and restore the SLO here."""


def look_up(what: str, name: object, among: Mapping[str, T]) -> T:
    """The one of this name.

    Raises:
        IncidentError: there is none; the message says which one may be meant.
    """
    if not isinstance(name, str) or name not in among:
        close = difflib.get_close_matches(str(name), among, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(among)}"
        raise IncidentError(f"no {what} {name!r}: {hint}")
    return among[name]


def find_intervention(name: str) -> Intervention:
    """By its id. Raises IncidentError: there is none."""
    return look_up("intervention", name, BY_ID)


def generate(seed: int, difficulty: int, cause: str | None = None) -> tuple[Hidden, Trials]:
    """An incident, with the trials already made.

    Raises:
        IncidentError: no such difficulty or cause, or no draw of TRIES deserved the name.
    """
    if difficulty not in DIFFICULTIES:
        raise IncidentError(f"difficulty is one of {', '.join(map(str, DIFFICULTIES))}, not {difficulty!r}")
    drawn = Draw(f"cause {seed}").choice(list(CAUSES.values())) if cause is None else look_up("cause", cause, CAUSES)
    return generate_of(drawn, seed, difficulty)


def generate_of(cause: Cause, seed: int, difficulty: int) -> tuple[Hidden, Trials]:
    """The same, of a cause that need not be in the list."""
    for attempt in range(TRIES):
        # The last tries go without a disguise: a plain incident is better than none.
        disguise = difficulty if attempt < TRIES // 2 else 1
        found = _try(cause, Draw(f"{cause.name} {seed} {difficulty} {attempt}"), difficulty, disguise)
        if found is not None:
            gc.collect()  # plays put it off, and what they leave behind would add up from incident to incident
            return found
    raise IncidentError(f"{cause.name} does not come out of seed {seed}: take another seed")


def _try(cause: Cause, draw: Draw, difficulty: int, disguise: int) -> tuple[Hidden, Trials] | None:
    case, also = disguised(cause, cause.make(draw), draw, disguise)
    page_seed, *held_out = (draw.randint(1, 2**30) for _ in range(1 + NUM_HELD_OUT))
    before = play(case.before, page_seed, watched=True)
    case = with_slo(case, slo_for(before))
    before = replace(before, service=case.before)
    trials = Trials(tuple(held_out))
    if not before.holds or trials.attainment(case.now) > case.target - BITES:
        return None
    fixes = tuple(fix for fix in cause.fixes[:1] if trials.attainment(apply(fix, case.now)) >= case.target)
    if not fixes or trials.attainment(apply(cause.tempting, case.now)) >= case.target:
        return None
    now = play(case.now, page_seed, watched=True)
    if now.attainment > case.target - BITES:
        return None
    scene = Scene(before, now, change_log(draw, case.change, difficulty))
    return Hidden(cause, case, also, scene, tuple(held_out), fixes), trials


def disguised(cause: Cause, case: Case, draw: Draw, difficulty: int) -> tuple[Case, Ailment | None]:
    """The case with oddities in both weeks, and perhaps with a second ailment in this one."""
    before, now = case.before, case.now
    for odd in draw.sample(ODDITIES, difficulty - 1):
        # Only where neither week has something of its own there.
        if odd(before) != before and odd(now) != now:
            before, now = odd(before), odd(now)
    also = None
    if difficulty == DIFFICULTIES[-1]:
        also = draw.choice([ailment for ailment in AILMENTS if ailment.phase != cause.phase])
        now = also.change(now)
    return replace(case, before=before, now=now), also


def apply(name: str, service: Service) -> Service:
    """The service after one intervention, by its id."""
    return find_intervention(name).apply(service)
