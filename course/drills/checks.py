"""Grader 1, numbers and statements: what was committed to, numbers and sums of the prose, and what it says plainly."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from course.drills.amounts import COUNT, RATIO, Amount, Sum, Written, amounts_in, sums_in
from course.drills.drill import Commit, DrawnDrill, FollowUp
from course.drills.falsehoods import FalseStatement, against_itself, falsehoods_in
from course.drills.stated import LONGEST, around, asserted, declared_innocent, menu, named_in, sentences, table
from minillm.core.errors import MinillmError

JUDGES = (
    "Can tell: whether what you committed to is right, whether numbers and written-out sums work out, and whether "
    "plain statements on techniques are true. Cannot tell: whether one thing follows from another, whether it is "
    "clear, or whether a sentence that it doesn't recognise is true."
)
RANKS = (1, 2 / 3, 1 / 3)
"""What a fix at each rank counts."""
ENOUGH = 2
"""Numbers of one's own."""
MOST_FOLLOW_UPS = 3


class CommitError(MinillmError):
    """A commit names what there isn't."""


@dataclass(frozen=True)
class CheckedItem:
    """One thing that was looked at. Where `most` is 0, it can only cost."""

    key: str
    criterion: str
    """The criterion that it is evidence for."""
    points: float
    most: float
    says: str
    quotes: tuple[str, ...] = ()


def verified(commit: Commit) -> Commit:
    """The same. Raises CommitError: it has an id that isn't in its menu, or more fixes than are ranked."""
    unknown = [("causes", each) for each in (commit.dominant, commit.second) if each and each not in menu("causes")]
    unknown += [("techniques", each) for each in commit.fixes if each not in menu("techniques")]
    for group, name in unknown:
        raise CommitError(f"there is no {name!r} among the {group}: {', '.join(menu(group))}")
    if len(commit.fixes) > len(RANKS) or len(set(commit.fixes)) < len(commit.fixes):
        raise CommitError(f"rank at most {len(RANKS)} fixes, each once")
    return commit


def check(drill: DrawnDrill, text: str, commit: Commit) -> tuple[CheckedItem, ...]:
    """Everything that can be told without a reader. Never raises, whatever is written."""
    text = text[:LONGEST]
    return (
        _cause("dominant", "diagnosis", 2, commit.dominant, drill.rubric.commit.dominant),
        _cause("second", "secondary", 1, commit.second, drill.rubric.commit.second),
        _number(drill, text, commit),
        _fixes(commit.fixes, drill.rubric.commit.fixes),
        _arithmetic(drill, text),
        *prose_faults(drill, text, commit),
    )


def prose_faults(drill: DrawnDrill, text: str, commit: Commit) -> Iterator[CheckedItem]:
    """What can only cost: sums that don't come out, false statements, contradictions."""
    for wrong in (each for each in _sums(text) if not each.holds):
        yield CheckedItem("sum", "evidence", -1, 0, f"It gives {wrong.readings[0]:.3g}, in base units.", (wrong.words,))
    for false in false_statements(drill, text):
        yield CheckedItem("false", "interventions", -1, 0, false.right, (false.quote,))
    if quote := declared_innocent(text).get(commit.dominant):
        says = f"You committed to {menu('causes')[commit.dominant]!r}."
        yield CheckedItem("contradiction", "diagnosis", -1, 0, says, (quote,))
    for quotes in against_itself(text):
        yield CheckedItem("contradiction", "interventions", -1, 0, "One of the two denies the other.", quotes)
    if stray := _stray_result(drill, text, commit):
        yield CheckedItem("contradiction", "evidence", -1, 0, f"What was asked for comes to {drill.asked}.", (stray,))


def false_statements(drill: DrawnDrill, text: str) -> list[FalseStatement]:
    """What is false in a text, as far as it is recognised; what the drill's rubric says holds."""
    told = drill.rubric.must_not_say
    facts = "\n\n".join([drill.impossible, *drill.rubric.must_say, *(each.right for each in told)])
    return falsehoods_in(text, [(f.says, f.right) for f in told], facts, [(f.like, f.right) for f in told if f.like])


def total(checks: Sequence[CheckedItem]) -> float:
    """Points of what is computed; faults cost."""
    return max(sum(each.points for each in checks), 0.0)


def share(checks: Sequence[CheckedItem]) -> float:
    """The share of the possible points that was earned."""
    return total(checks) / sum(each.most for each in checks)


def number_state(drill: DrawnDrill, text: str, commit: Commit) -> str:
    """right, wrong or missing: the asked-for number, as committed or else as the prose has it."""
    if written := _committed(commit):
        return "right" if any(each.is_about(drill.asked) for each in written) else "wrong"
    return "right" if _mentioned(drill.asked, _amounts(text)) else "missing"


def follow_ups(drill: DrawnDrill, text: str, commit: Commit) -> tuple[str, ...]:
    """What an interviewer asks after this answer: the drill's own questions first, then general ones."""
    general = [FollowUp.model_validate(each) for each in table()["follow_ups"]]
    state, says = number_state(drill, text, commit), named_in(text)
    asked = [
        each.asks
        for each in (*drill.rubric.follow_ups, *general)
        if each.number in ("", state)
        and _meets(each.if_dominant, each.unless_dominant, {commit.dominant})
        and _meets(each.if_second, each.unless_second, {commit.second})
        and _meets(each.if_fix, each.unless_fix, set(commit.fixes))
        and _meets(each.if_says, each.unless_says, says)
    ]
    return tuple(dict.fromkeys(asked))[:MOST_FOLLOW_UPS]


def _meets(wanted: Sequence[str], unwanted: Sequence[str], present: set[str]) -> bool:
    return (not wanted or bool(present & set(wanted))) and not present & set(unwanted)


def _cause(key: str, criterion: str, most: float, committed: str, right: dict[str, float]) -> CheckedItem:
    if not committed:
        return CheckedItem(key, criterion, 0, most, "Nothing committed.")
    labels, points = menu("causes"), most * right.get(committed, 0)
    best = " or ".join([labels[name] for name, worth in right.items() if worth == max(right.values())][:2])
    verdict = "right" if points == most else f"half of it, rather {best}" if points else f"no, {best}"
    return CheckedItem(key, criterion, points, most, f"{labels[committed]}: {verdict}.")


def _number(drill: DrawnDrill, text: str, commit: Commit) -> CheckedItem:
    asked, state, written = drill.asked, number_state(drill, text, commit), _committed(commit)
    points, says = 2.0, f"{commit.number}: right."
    if state != "right":
        points, says = 0.0, f"{commit.number or 'The number'}: {state}, it's {asked}."
    elif not written:
        points, says = 1.0, f"{asked} is in your text; commit to it."
    elif {each.unit for each in written} == {COUNT} and asked.unit not in (COUNT, RATIO):
        points, says = 1.0, f"{commit.number}: right, except for its unit: it's {asked}."
    return CheckedItem("number", "evidence", points, 2, says)


def _fixes(ranked: Sequence[str], worth: dict[str, float]) -> CheckedItem:
    if not ranked:
        return CheckedItem("fixes", "interventions", 0, 2, "Nothing committed.")
    best = sum(rank * points for rank, points in zip(RANKS, sorted(worth.values(), reverse=True)) if points > 0)
    points = sum(rank * worth.get(name, 0) for rank, name in zip(RANKS, ranked))
    labels = menu("techniques")
    first = sorted((name for name in worth if worth[name] > 0), key=lambda name: -worth[name])[: len(RANKS)]
    says = "; ".join(f"{labels[name]}: {_effect(worth.get(name, 0))}" for name in ranked)
    more = f". Worth most: {', '.join(labels[name] for name in first)}." if points < 0.95 * best else "."
    return CheckedItem("fixes", "interventions", 2 * max(points, 0) / best, 2, says + more)


def _effect(worth: float) -> str:
    return "harms, or does nothing" if worth < 0 else "helps" if worth > 0 else "not the matter here"


def _arithmetic(drill: DrawnDrill, text: str) -> CheckedItem:
    given = [*drill.numbers.given.values(), *(Amount(w.low, w.unit) for w in _amounts(drill.prompt))]
    found: dict[str, str] = {}
    for sentence in sentences(text):
        own = [w for w in _amounts(sentence) if not any(w.unit == a.unit and w.is_about(a, 0.01) for a in given)]
        for name in (name for name, amount in drill.numbers.derived.items() if _mentioned(amount, own)):
            found.setdefault(name, sentence)
    says = f"{len(found)} right of your own." if found else "No number that isn't in the prompt."
    quotes = tuple(dict.fromkeys(found.values()))[:ENOUGH]
    return CheckedItem("numbers", "evidence", min(len(found), ENOUGH), ENOUGH, says, quotes)


def _mentioned(amount: Amount, written: Sequence[Written]) -> bool:
    """A number without its unit only counts where it is no chance, and "three" is one of anything."""
    return any(
        w.is_about(amount) and not w.is_worded and (w.unit != COUNT or amount.unit == COUNT or w.may_lack_its_unit)
        for w in written
    )


def _amounts(text: str) -> list[Written]:
    return amounts_in(text[:LONGEST].lower())


def _committed(commit: Commit) -> list[Written]:
    """Its first number, and what a right sum in it gives."""
    return [*_amounts(commit.number)[:1], *(each.result for each in _sums(commit.number) if each.holds)]


def _sums(text: str) -> list[Sum]:
    return list(sums_in(text[:LONGEST].lower(), _amounts(text)))


def _stray_result(drill: DrawnDrill, text: str, commit: Commit) -> str:
    """A sentence such as "so we need 7 replicas": no number of drill or commit, and the right one is nowhere."""
    called = "|".join(map(re.escape, drill.rubric.commit.number.called))
    if not called or _mentioned(drill.asked, _amounts(text)):
        return ""
    known = [each for each in drill.numbers.by_name.values() if each.unit in (COUNT, RATIO)]
    known += [Amount(w.low, w.unit) for w in _committed(commit)]
    known += [Amount(each.readings[0]) for each in _sums(text) if each.holds]
    for sentence, low in asserted(text):
        for w in _amounts(low):
            is_it = re.match(rf"\s*(?:\w+ )?(?:{called})\b", low[w.end :]) and around("concludes", low, w.start, w.end)
            if is_it and not any(w.is_about(each) for each in known):
                return sentence
    return ""
