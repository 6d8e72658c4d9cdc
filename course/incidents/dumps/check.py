"""Marks an answer to a dump. Nothing that is handed in raises; what cannot be read is told."""

import difflib
from collections.abc import Collection, Iterator, Mapping

from course.grading import Criterion, Result, WrongAnswerError, close_to
from course.grading.attempt import is_strict
from course.incidents.causes import CAUSES
from course.incidents.dumps.catalogue import Dump, drawn, find_dump
from course.incidents.dumps.sums import ASKED, Sums, slips
from course.incidents.generate import ALWAYS, Hidden, IncidentError, bill_of_cure, find_intervention
from course.incidents.incident import plain
from course.incidents.interventions import FOR_GOOD
from course.incidents.marking import Diagnosis, Rollout, mark
from course.incidents.outcome import effect_of
from course.incidents.questions import BY_ID as QUESTIONS

NUM_RANKED = 3
"""More are not read: a list of everything is no ranking."""
SUM_POINTS, OPEN_POINTS = 5, 5
TOLERANCE = 0.1


def check(
    name: object,
    *,
    dominant_phase: object = None,
    secondary: object = None,
    regime: object = None,
    evidence: object = (),
    ranked: object = (),
    open_questions: object = (),
    capacity: object = None,
) -> Result:
    """Grade an answer to a dump. The first change of the ranking is deployed, on held-out traffic.

    Args:
        dominant_phase: queue, prefill, first_token, decode, stream; or outside the engine.
        secondary: another phase with a problem; None = none worth naming.
        regime: "steady" or "spike".
        evidence: labels of the lines that convict.
        ranked: up to three ids of changes, the best first.
        open_questions: ids of what you would ask next; not what the dump tells.
        capacity: by the names in `ASKED`, numbers.
    Raises:
        WrongAnswerError: in a build, where every point must be earned.
    """
    try:
        dump = find_dump(name)
    except (IncidentError, TypeError) as error:
        return Result(str(name), (Criterion("dump", 0, 1, str(error)),))
    fields = (dominant_phase, evidence, ranked, capacity)
    if all(is_empty(field) for field in fields):
        words = "not answered yet: replace the dots, and run this cell again"
        return Result(dump.id, (Criterion("answer", 0, 1, words),))
    hidden, trials = drawn(dump.id)
    cited, unread = chosen(evidence, {*QUESTIONS}, "line")
    ids, unknown = chosen(ranked, {one.id for one in FOR_GOOD}, "change")
    ids = ids[:NUM_RANKED]
    answer = Diagnosis(as_name(dominant_phase), as_name(secondary), cited, ids, as_name(regime), dump.shown)
    now = hidden.case.now
    effects = {each: effect_of([find_intervention(each)], now, trials) for each in (*ids, *hidden.fixes)}
    values = {each: effect.value for each, effect in effects.items()}
    rollout = Rollout(effects[ids[0]] if ids else None, needed=bill_of_cure(hidden, trials))
    marked = mark(hidden, answer, rollout, values, dump.shown)
    criteria = (*marked.criteria, still_open(dump, hidden, open_questions), *sums_marked(dump, hidden, capacity))
    result = Result(dump.id, criteria, (*unread, *unknown))
    if is_strict() and result.score < result.max_score:
        raise WrongAnswerError(str(result))
    return result


def is_empty(field: object) -> bool:
    """Not answered: dots, nothing, or only such inside."""
    if isinstance(field, Mapping):
        return all(is_empty(value) for value in field.values())
    if isinstance(field, (list, tuple)):
        return all(is_empty(value) for value in field)
    return field is None or field is ...


def as_name(value: object) -> str | None:
    return plain(value) if isinstance(value, str) else None


def chosen(given: object, known: Collection[str], what: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The known names among what was given, each once, and words on the others."""
    listed = given if isinstance(given, (list, tuple, set, frozenset)) else [given]
    names, notes = [], []
    for each in listed:
        if isinstance(each, str) and each in known:
            names.append(each)
        elif not is_empty(each):
            close = difflib.get_close_matches(str(each)[:40], known, n=1)
            hint = f": did you mean {close[0]!r}?" if close else "."
            notes.append(f"There is no {what} {str(each)[:40]!r}{hint}")
    return tuple(dict.fromkeys(names)), tuple(notes)


def decisive(dump: Dump, hidden: Hidden) -> set[str]:
    """What the dump does not tell, and what would decide between its cause and the look-alike, or narrow it down."""
    cause, twin = hidden.cause, CAUSES[hidden.cause.looks_like]
    return {*cause.convicting, cause.told_apart_by, *twin.convicting, *ALWAYS} - {*dump.shown}


def still_open(dump: Dump, hidden: Hidden, given: object) -> Criterion:
    """Marks what would be asked next."""
    names, _ = chosen(given, {*QUESTIONS}, "question")
    wanted = decisive(dump, hidden)
    told = "; ".join(QUESTIONS[name].text for name in sorted(wanted))
    if not names:
        return Criterion("open questions", 0, OPEN_POINTS, f"Name what the dump leaves out. These would decide: {told}")
    if wanted & {*names}:
        return Criterion("open questions", OPEN_POINTS, OPEN_POINTS, "That would narrow it down.")
    if {*names} <= {*dump.shown}:
        return Criterion("open questions", 0, OPEN_POINTS, f"That is in the dump already. These are not: {told}")
    return Criterion("open questions", OPEN_POINTS / 2, OPEN_POINTS, f"Fair, but these would decide: {told}")


def sums_marked(dump: Dump, hidden: Hidden, capacity: object) -> Iterator[Criterion]:
    """One criterion for each number that the dump implies."""
    sums, given = dump.sums(hidden.scene.now), capacity if isinstance(capacity, Mapping) else {}
    for name, what in ASKED.items():
        yield _sum_marked(sums, name, what, given.get(name))


def _sum_marked(sums: Sums, name: str, what: str, value: object) -> Criterion:
    if is_empty(value):
        return Criterion(name, 0, SUM_POINTS, f"Not answered: {what}.")
    key, known = float(getattr(sums, name)), slips(sums)[name]
    try:
        near = close_to(value, key, what, 1e-6 if name == "servers" else TOLERANCE)
    except (TypeError, ValueError, OverflowError):
        return Criterion(name, 0, SUM_POINTS, f"A number is asked for: {what}.")
    said = float(value)
    slip = next((words for wrong, words in known.items() if near.earned < 1 and abs(said - wrong) <= 0.02 * wrong), "")
    words = f"{slip[0].upper()}{slip[1:]}. " if slip else ""
    earned = 0.0 if slip else near.earned
    return Criterion(name, SUM_POINTS * earned, SUM_POINTS, f"{words}{what}: {near.words}")
