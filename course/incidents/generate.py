"""Draws incidents, and keeps only those that deserve the name: the sick service misses its SLO, the true fix restores
it on held-out traffic, and neither the tempting one nor twice the machines do (unless twice the machines are the fix).
"""

import difflib
import gc
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from course.incidents.causes import CAUSES, Case, Cause, Draw
from course.incidents.causes.base import LEAST_BREACH, LONGEST_TTFT, TARGETS, breach_of, slo_for, with_slo
from course.incidents.disguise import AILMENTS, ODDITIES, Ailment, broken_panels, change_log
from course.incidents.evidence import IncidentScene
from course.incidents.interventions import AT_ONCE, BY_ID, Intervention, applied
from course.incidents.numbers import answered
from course.incidents.outcome import ServiceTrials, bill_of, effect_of, most_relief
from course.incidents.questions import BY_ID as QUESTIONS
from course.incidents.service import SimulatedService, play
from minillm.core.errors import MinillmError

T = TypeVar("T")
DIFFICULTIES = (1, 2, 3)
TRIES = 20
BITES = 0.1
"""A sick service is at least so far below its target; and what is late is late by a factor, or never comes."""
NUM_HELD_OUT = 2
PAGED_AT, RUN_MINUTES, LONGEST_RUN = 0.5, 60, 1.5
"""You are paged when so much of the run is over. A whole run is an hour on the incident clock: time is compressed. What
comes after, up to so many runs, goes by while you work.
"""
BRUTE_FORCE = "double_fleet"
NUM_SUSPECTS = 10
"""Causes for beginners to choose from."""
ALWAYS = ("ttft_itl", "phases", "arrivals", "gpu", "changes", "config")
"""Questions that everyone is shown."""


class IncidentError(MinillmError, ValueError):
    """What was asked of an incident does not exist, or comes out of turn."""


@dataclass(frozen=True)
class BestAtOnce:
    """The quick change that helps most, and how much; see `Effect.relief`."""

    id: str
    relief: float


@dataclass(frozen=True)
class Hidden:
    """All there is to know about an incident."""

    cause: Cause
    case: Case
    also: Ailment | None
    scene: IncidentScene
    held_out: tuple[int, ...]
    """Seeds of traffic on which changes are judged."""
    asks: tuple[str, ...]
    menu: tuple[str, ...]
    """Ids of questions and of changes that are enough here, and a few more: what beginners are shown."""
    suspects: tuple[str, ...]
    """Ids of causes for beginners to choose from, the true one among them."""
    fixes: tuple[str, ...]
    """What was tried out and restores the SLO here; all of it together."""

    def scene_at(self, minute: int) -> IncidentScene:
        """What there is to be looked at so many minutes after the page: all traffic since the onset, in full."""
        share = min(PAGED_AT + minute / RUN_MINUTES, LONGEST_RUN)
        now = play(self.case.now.during(share), self.scene.now.seed, watched=True) if minute else self.scene.now
        return replace(self.scene, now=now)


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


def generate(seed: int, difficulty: int, cause: str | None = None) -> tuple[Hidden, ServiceTrials]:
    """An incident, with the trials already made.

    Raises:
        IncidentError: no such difficulty or cause, or no draw of TRIES deserved the name.
    """
    if difficulty not in DIFFICULTIES:
        raise IncidentError(f"difficulty is one of {', '.join(map(str, DIFFICULTIES))}, not {difficulty!r}")
    if cause is not None:
        return generate_of(look_up("cause", cause, CAUSES), seed, difficulty)
    for each in drawn_order(seed):
        try:
            return generate_of(each, seed, difficulty)
        except IncidentError:
            continue
    raise IncidentError(f"no cause comes out of seed {seed}: take another seed")


def drawn_order(seed: int) -> list[Cause]:
    """All causes, shuffled by the seed: the first that comes out of it is the incident's. Each is the first for as many
    seeds, and a cause that is added takes its share from all others and moves no other seed.
    """
    return sorted(CAUSES.values(), key=lambda cause: Draw(f"{cause.name} at {seed}").random())


def generate_of(cause: Cause, seed: int, difficulty: int) -> tuple[Hidden, ServiceTrials]:
    """The same, of a cause that need not be in the list."""
    for attempt in range(TRIES):
        # The last tries go without a disguise: a plain incident is better than none.
        disguise = difficulty if attempt < TRIES // 2 else 1
        found = _try(cause, Draw(f"{cause.name} {seed} {difficulty} {attempt}"), difficulty, disguise)
        if found is not None:
            gc.collect()  # plays put it off, and what they leave behind would add up from incident to incident
            return found
    raise IncidentError(f"{cause.name} does not come out of seed {seed}: take another seed")


def _try(cause: Cause, draw: Draw, difficulty: int, disguise: int) -> tuple[Hidden, ServiceTrials] | None:
    case, also = disguised(cause, cause.make(draw), draw, disguise)
    page_seed, *held_out = (draw.randint(1, 2**30) for _ in range(1 + NUM_HELD_OUT))
    before = play(case.before, page_seed, watched=True)
    now = play(case.now.during(PAGED_AT), page_seed, watched=True)
    target = draw.choice(TARGETS)
    slo = slo_for(before, target)
    if slo.ttft is None or slo.ttft > LONGEST_TTFT:
        return None
    case = with_slo(replace(case, target=target), slo)
    before, now = replace(before, service=case.before), replace(now, service=case.now.during(PAGED_AT))
    if not before.holds or now.attainment > case.target - BITES:
        return None
    if breach_of(now)[1] < LEAST_BREACH and len(answered(now)) > (case.target - BITES) * len(now.run.records):
        return None
    trials = ServiceTrials(tuple(held_out), case.before)

    def restores(*names: str) -> bool:
        return trials.reach(apply(names, case.now), case.target)

    case = replace(case, now=replace(case.now, released=case.before if cause.ours else None))
    fixes = cause.fixes if cause.together else cause.fixes[:1]
    if not restores(*fixes) or (cause.together and any(map(restores, fixes))):
        return None
    if any(restores(name) for name in {cause.tempting, BRUTE_FORCE}.difference(cause.fixes)):
        return None
    panels = [question.id for question in QUESTIONS.values() if question.group != "records"]
    broken = broken_panels(draw, cause, disguise, panels)
    scene = IncidentScene(before, now, change_log(draw, case.change, difficulty, case.before), *broken)
    twin = CAUSES[cause.looks_like]
    told = {*cause.convicting, cause.told_apart_by, *twin.convicting, *(also.convicting if also else ()), *ALWAYS}
    changes = {*cause.fixes, cause.tempting, cause.mitigation, *twin.fixes, BRUTE_FORCE, *(one.id for one in AT_ONCE)}
    asks, menu = shortlist(draw, QUESTIONS, told, 14), shortlist(draw, BY_ID, changes, 18)
    named = {name for name in (cause.name, *cause.names) if name in CAUSES}
    suspects = shortlist(draw, CAUSES, {*named, cause.looks_like, twin.looks_like}, NUM_SUSPECTS)
    return Hidden(cause, case, also, scene, tuple(held_out), asks, menu, suspects, fixes), trials


def bill_of_cure(hidden: Hidden, trials: ServiceTrials) -> float:
    """Dollars an hour with the most expensive of the cause's cures."""
    cures = [hidden.fixes] if hidden.cause.together else [(name,) for name in hidden.cause.fixes]
    return max(bill_of(trials.of(apply(cure, hidden.case.now))) for cure in cures)


def best_at_once(hidden: Hidden, trials: ServiceTrials) -> BestAtOnce:
    """The best quick change by itself: of what can be done at once, and what is known to help. Of those that are worth
    the same, the cause's own. One that can't be better than the best so far isn't tried to the end.
    """
    own, now = hidden.cause.mitigation, hidden.case.now
    known = (name for name in hidden.cause.fixes if BY_ID[name].is_quick)
    best = BestAtOnce(own, effect_of([BY_ID[own]], now, trials).relief)
    for name in dict.fromkeys((*known, *(one.id for one in AT_ONCE))):
        change = BY_ID[name]
        if round(most_relief(change, now, trials), 2) > round(best.relief, 2):
            relief = effect_of([change], now, trials).relief
            best = max(best, BestAtOnce(name, relief), key=lambda each: round(each.relief, 2))
    return best


def shortlist(draw: Draw, among: Mapping[str, object], needed: Collection[str], num: int) -> tuple[str, ...]:
    """What is needed and some others, in their usual order."""
    others = [name for name in among if name not in needed]
    chosen = {*needed, *draw.sample(others, max(num - len(needed), 0))}
    return tuple(name for name in among if name in chosen)


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


def apply(names: Sequence[str], service: SimulatedService) -> SimulatedService:
    """The service after some interventions, by their ids."""
    return applied(service, [find_intervention(name) for name in names])
