"""What was committed to: cause, second problem, number, fixes in order, and what would change the candidate's mind."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from course.drills.amounts import BYTE_RATE, BYTES, SECONDS, Amount, Committed, read_amount
from course.drills.drill import Commit, DrawnDrill, FollowUp, Key
from course.drills.stated import acts_on, label, menu, table
from course.drills.talk import Fact, TalkError, has_talk, talk_of
from minillm.core.errors import MinillmError

JUDGES = (
    "Can tell: whether what you committed to is right for these numbers. Cannot tell: why you chose it. A menu can be "
    "guessed, so it counts only as far as your answers to the statements bear it out."
)
OTHER_ORDER = 0.5
"""What the second problem is worth to one who takes it for the first."""
RANKS = (1, 2 / 3, 1 / 3)
"""What a fix at each rank counts."""
BITS = dict.fromkeys((8, 1 / 8), "It's off by a factor of eight: bits for bytes?")
THOUSANDS = dict.fromkeys(
    (1e-9, 1e-6, 1e-3, 1e3, 1e6, 1e9), "The figures are right, the power of a thousand isn't: look at the unit."
)
"""What a number may have been multiplied by to come out wrong, by the factor that mends it."""
FROM_BYTES = (BYTES, BYTE_RATE, SECONDS)
"""What may be reckoned from bytes."""
SLIP_ROOM = 0.03
NO_NUMBER, NO_FIX = "You gave no number.", "You ranked no fix."
MEASURE = "measure"
"""The technique that is worth nothing to one who would look for what changes nothing."""


class CommitError(MinillmError):
    """A commit names what there isn't."""


@dataclass(frozen=True)
class CheckedItem:
    """One thing that was looked at."""

    key: str
    criterion: str
    """The criterion that it is evidence for."""
    points: float
    most: float
    says: str
    about: str = ""
    """The cause or technique that it is about, if it went wrong."""
    cost: str = ""
    """What of it cost points; empty = all that it says."""


def read_commit(fields: Mapping[str, Any]) -> Commit:
    """A commit from its fields by name. Raises CommitError: there is no such field, or it isn't text."""
    try:
        return Commit.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        raise CommitError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def verified(commit: Commit, drill: DrawnDrill | None = None) -> Commit:
    """The same.

    Args:
        drill: whose facts `finding` names; None = it is not looked up.
    Raises:
        CommitError: it has an id that isn't in its menu, more fixes than are ranked, or a finding without a fix.
        AmountError: its number can't be read.
    """
    unknown = [("causes", each) for each in (commit.dominant, commit.second) if each and each not in menu("causes")]
    unknown += [
        ("techniques", each) for each in (*commit.fixes, commit.then) if each and each not in menu("techniques")
    ]
    for group, name in unknown:
        raise CommitError(f"there is no {name!r} among the {group}: {', '.join(menu(group))}")
    if len(commit.fixes) > len(RANKS) or len(set(commit.fixes)) < len(commit.fixes):
        raise CommitError(f"rank at most {len(RANKS)} fixes, each once")
    read_amount(commit.number, commit.unit)
    if commit.finding and drill is not None:
        if not has_talk(drill.id):
            raise CommitError(f"{drill.id} has no findings to choose from: leave `finding` out")
        try:
            talk_of(drill).fact(commit.finding)
        except TalkError as error:
            raise CommitError(str(error)) from error
    return commit


def check(drill: DrawnDrill, commit: Commit, disputed: Collection[str] = ()) -> tuple[CheckedItem, ...]:
    """Everything that a commit can be right in.

    Args:
        disputed: techniques among the fixes whose harm is disputed: they cost nothing.
    """
    right = drill.rubric.commit
    mind = _mind(drill, commit)
    worth = {name: max(points, 0) if name in disputed else points for name, points in right.fixes.items()}
    if commit.finding and not mind.points:
        worth[MEASURE] = min(worth.get(MEASURE, 0), 0)
    found = (
        _dominant(commit.dominant, right),
        _second(commit, right),
        _number(drill, commit),
        _fixes(commit.fixes, worth, right.fixes, disputed),
    )
    return (*found, mind) if has_talk(drill.id) else found


def share(checks: Sequence[CheckedItem]) -> float:
    """The share of the possible points that was earned."""
    return sum(each.points for each in checks) / sum(each.most for each in checks)


def number_state(drill: DrawnDrill, commit: Commit) -> str:
    """right, wrong or missing."""
    given = read_amount(commit.number, commit.unit)
    if given is None:
        return "missing"
    return "right" if _fits(drill, given) or given.lacks_its_unit(drill.asked, drill.room) else "wrong"


def pushback(drill: DrawnDrill, commit: Commit) -> tuple[FollowUp, ...]:
    """What an interviewer could ask after this commit: the drill's own questions first, then general ones."""
    general = [FollowUp.model_validate(each) for each in table()["follow_ups"]]
    state = number_state(drill, commit)
    found = {
        each.asks: each
        for each in reversed((*drill.rubric.follow_ups, *general))
        if each.number in ("", state)
        and _meets(each.if_dominant, each.unless_dominant, {commit.dominant})
        and _meets(each.if_second, each.unless_second, {commit.second})
        and _meets(each.if_fix, each.unless_fix, set(commit.fixes))
    }
    return tuple(reversed(found.values()))


def _meets(wanted: Sequence[str], unwanted: Sequence[str], present: set[str]) -> bool:
    return (not wanted or bool(present & set(wanted))) and not present & set(unwanted)


def _dominant(committed: str, right: Key) -> CheckedItem:
    """What is the second problem is partly right here: named, and not yet weighed against the first."""
    also = {name: OTHER_ORDER * worth for name, worth in right.second.items() if worth > 0}
    return _cause("dominant", "diagnosis", 2, committed, also | right.dominant)


def _second(commit: Commit, right: Key) -> CheckedItem:
    """Where two causes dominate by the key, one may be named first and the other second; none counts twice."""
    if commit.second and commit.second == commit.dominant:
        says = f"{menu('causes')[commit.second]}: you named it as what dominates; which problem is left when it's gone?"
        return CheckedItem("second", "secondary", 0, 1, says, commit.second)
    others = {name: worth for name, worth in right.dominant.items() if name != commit.dominant}
    worth = others.get(commit.second, 0) if commit.second not in right.second else right.second[commit.second]
    return _cause("second", "secondary", 1, commit.second, right.second | {commit.second: worth})


def _cause(key: str, criterion: str, most: float, committed: str, right: dict[str, float]) -> CheckedItem:
    labels = menu("causes")
    best = " or ".join([labels[name] for name, worth in right.items() if worth == max(right.values())][:2])
    if not committed:
        return CheckedItem(key, criterion, 0, most, f"You committed to nothing. It's {best}.")
    points = most * right.get(committed, 0)
    verdict = "right" if points == most else f"partly; {best} is closer" if points else f"no, it's {best}"
    return CheckedItem(key, criterion, points, most, f"{labels[committed]}: {verdict}.", "" if points else committed)


def _number(drill: DrawnDrill, commit: Commit) -> CheckedItem:
    asked, given, most = drill.asked, read_amount(commit.number, commit.unit), 2.0
    if given is None:
        return CheckedItem("number", "evidence", 0, most, f"{NO_NUMBER} It's {asked}.")
    said = f"{commit.number} {commit.unit if asked.unit else ''}".strip()
    if _fits(drill, given):
        return CheckedItem("number", "evidence", most, most, f"{said}: right.")
    if given.lacks_its_unit(asked, drill.room):
        lacking = "its unit is missing" if given.unit is None else "it doesn't say per what"
        words = f"{said}: the number is right, but {lacking}. It's {asked}."
        return CheckedItem("number", "evidence", most / 2, most, words)
    if not given.counts(drill.rubric.commit.number.asks, asked.unit):
        return CheckedItem("number", "evidence", 0, most, f"{said}: no, that counts something else. It's {asked}.")
    return CheckedItem("number", "evidence", 0, most, f"{said}: no, it's {asked}.{_mixed_up(drill, given.value)}")


def _fits(drill: DrawnDrill, given: Committed) -> bool:
    """It's the number that is asked for, of the same things, as it stands or in the unit that the question names."""
    asks = drill.rubric.commit.number.asks
    read = (given, given.as_asked(drill.asked, asks))
    return given.counts(asks, drill.asked.unit) and any(each.is_(drill.asked, drill.room) for each in read)


def _mixed_up(drill: DrawnDrill, value: float) -> str:
    """Which other number of the drill was taken for it, or by what factor it's off, where that tells the mistake."""
    numbers = drill.numbers
    for name, amount in numbers.tempting.items():
        if _same(amount, value):
            return f" {drill.rubric.tempting[name]}"
    if any(_same(each, value) for each in numbers.given.values()):
        return " That number is in the prompt."
    known = THOUSANDS | (BITS if drill.asked.unit in FROM_BYTES else {})
    slips = (says for factor, says in known.items() if _same(drill.asked, value * factor, SLIP_ROOM))
    return f" {says}" if (says := next(slips, "")) else ""


def _same(amount: Amount, value: float, room: float = 0.01) -> bool:
    return amount.off_by(value) < room


def _fixes(
    ranked: Sequence[str], worth: dict[str, float], written: dict[str, float], disputed: Collection[str]
) -> CheckedItem:
    labels, most = menu("techniques"), 2.0
    best = sum(rank * points for rank, points in zip(RANKS, sorted(written.values(), reverse=True)) if points > 0)
    first = sorted((name for name in written if written[name] > 0), key=lambda name: -written[name])[: len(RANKS)]
    more = f"Worth most: {'; '.join(labels[name] for name in first)}."
    if not ranked:
        return CheckedItem("fixes", "interventions", 0, most, f"{NO_FIX} {more}")
    points = sum(rank * worth.get(name, 0) for rank, name in zip(RANKS, ranked))
    effects, cost = [], []
    for name in ranked:
        effect = _effect(worth.get(name, 0), written.get(name, 0))
        effects.append(f"{labels[name]}: {effect}{' (disputed: costs nothing)' if name in disputed else ''}")
        cost += effects[-1:] if worth.get(name, 0) <= 0 else []
    says = "; ".join(effects) + (f". {more}" if points < 0.95 * best else ".")
    worst = min(ranked, key=lambda name: worth.get(name, 0))
    about = worst if worth.get(worst, 0) < 0 else ""
    return CheckedItem(
        "fixes", "interventions", most * max(points, 0) / best, most, says, about, "; ".join(cost) or more
    )


def _effect(worth: float, written: float) -> str:
    if written > worth == 0:
        return "but not for a finding that changes nothing"
    return "does nothing here, or does harm" if written < 0 else "helps" if written > 0 else "beside the point here"


def _mind(drill: DrawnDrill, commit: Commit) -> CheckedItem:
    """A finding that bears on this case, and a fix that acts on it and wasn't first anyway: a point each. Where the
    finding may rule the first fix out, another one that helps is as good.
    """
    key, criterion, most = "mind", "questions", 2.0
    if not commit.finding or not has_talk(drill.id):
        return CheckedItem(key, criterion, 0, most, "You named no finding.")
    fact: Fact = talk_of(drill).fact(commit.finding)
    if fact.use == "idle":
        return CheckedItem(key, criterion, 0, most, f"“{fact.asks}” changes nothing here, whatever the answer.")
    bears = f"“{fact.asks}” bears on {label(fact.changes)}"
    first = next(iter(commit.fixes), "")
    if first and fact.changes == first and drill.rubric.commit.fixes.get(commit.then, 0) > 0 and commit.then != first:
        says = f"{bears}, your first fix; if it's ruled out, {menu('techniques')[commit.then]} takes its place."
        return CheckedItem(key, criterion, 2, most, says)
    if commit.then == fact.changes != first:
        return CheckedItem(key, criterion, 2, most, f"{bears}, which you'd put first then.")
    if not commit.then:
        return CheckedItem(key, criterion, 1, most, f"{bears}; you didn't say what you'd do then.")
    then = menu("techniques")[commit.then]
    if commit.then == first:
        return CheckedItem(key, criterion, 1, most, f"{bears}; but you'd put {then} first anyway, so nothing changes.")
    if not acts_on(commit.then, fact.changes):
        return CheckedItem(key, criterion, 1, most, f"{bears}; {then} doesn't act on that.", commit.then)
    return CheckedItem(key, criterion, 2, most, f"{bears}, and {then} acts on that.")
