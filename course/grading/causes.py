"""What lies behind a mistake, or behind results that only look right, beyond what the judge asked."""

from collections.abc import Sequence
from typing import Any

from course.grading.blame import explain, shown
from course.grading.remote import Answer, AnswerEndedError, CallLog, ChildReply, RemoteValue, identical, raised
from course.grading.wire import unpacked

LOOKED_AT, RECHECKED = 6, 5
"""Questions that are repeated to find what lies behind a mistake, and after each part that was right."""
KEEPS = (
    "Something is kept between calls or shared between objects (a global, a default argument, an attribute of the "
    "class): keep it in `self`, or make it anew"
)
ALIASED = (
    "A list that it was given, or that it handed out, is kept and was changed afterwards by its owner: keep a copy"
)
LOADED_ONCE = "What lies behind it can't be told, for your code can't be loaded a second time"


def afterthought(answer: Answer) -> str | None:
    """What was not asked and shows all the same: arguments that were changed, and results that depend on more than the
    arguments."""
    if answer.changed:
        return changed(answer)
    for session in [each for each in answer.sessions.values() if len(each.calls) == 1][:RECHECKED]:
        if different := repeated(answer, session):
            what, before, now = different
            return f"Asked the same again, {what} gave {now}; before, it gave {before}. {KEEPS}"
    return None


def changed(answer: Answer) -> str:
    return f"It changes what it is given: {answer.changed}. Work on a copy"


def cause(answer: Answer, is_named: bool = False) -> str | None:
    """What may lie behind a mistake: nothing returned, something kept between calls, or one result for all.

    Args:
        is_named: the mistake has a name already, so that one result for all needn't be guessed at.
    """
    if answer.changed:
        return changed(answer)
    if answer.printed:
        return f"It printed {shown(answer.printed.strip())} and gave back None: return it instead"
    try:
        other = answer.elsewhere()
        noted = [each for each in answer.sessions.values() if each.calls]
        for session in [*noted[:-LOOKED_AT][:LOOKED_AT], *noted[-LOOKED_AT:]]:
            for spoils, words in ((True, KEEPS), (False, ALIASED)):
                other.spoils = spoils
                other.again()
                if different := repeated(other, session):
                    what, before, now = different
                    return f"But asked by itself, in a fresh process, {what} gives {now}, not {before}. {words}"
    except AnswerEndedError:
        answer.give_up_elsewhere()
    except Exception as error:  # what its top level does, such as making a folder, can't be done twice
        answer.give_up_elsewhere()
        return f"{LOADED_ONCE}: {explain(error)}"
    return None if is_named else one_for_all(list(answer.sessions.values()))


def one_for_all(sessions: Sequence[CallLog]) -> str | None:
    """The same result whatever was asked, as where the worked example was written into it."""
    first: dict[str, list[tuple[bytes, ChildReply]]] = {}
    for session in sessions:
        if len(session.calls) == 1:
            first.setdefault(session.name, []).extend(session.calls)
    for name, asked in first.items():
        questions, replies = {data for data, _ in asked}, [reply for _, reply in asked]
        is_plain = all(reply.is_right and not isinstance(reply.value, RemoteValue) for reply in replies)
        if len(questions) > 3 and is_plain and all(identical(replies[0].value, each.value) for each in replies):
            said = shown(replies[0].value)
            return f"`{name}` gives {said} for every question: was the worked example written into it?"
    return None


def repeated(answer: Answer, session: CallLog) -> tuple[str, str, str] | None:
    """Ask the same again: the first act that gives something else, what it gave, and what now."""
    for (act, reply), again in zip(session.calls, answer.repeat(session)):
        before, now = outcome(reply), outcome(again)
        if not identical(before, now):
            name, arguments, _ = unpacked(act, answer.remote)
            called = (name or session.name).strip("_")  # len(...) is __len__()
            what = called if arguments is None else f"{called}({', '.join(map(shown, arguments))})"
            return what, shown(before), shown(now)
    return None


def outcome(reply: ChildReply) -> Any:
    """The result, or the type of what was raised."""
    return reply.value if reply.is_right else type(raised(*reply.value))
