"""The interviewer: tells facts when asked, pushes back one question at a time, and asks back once."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from course.drills.calibrate import stands_in
from course.drills.checks import CheckedItem, pushback
from course.drills.drill import Commit, DrawnDrill, FollowUp
from course.drills.stated import table
from course.drills.talk import Fact, talk_of
from minillm.core.errors import MinillmError

QUESTIONS = 5
"""That a candidate may ask: an interview has time for no more, so idle ones cost useful ones."""
PUSHBACKS = 3
"""That the interviewer takes to the end; what the answer has said already isn't counted."""


class QuestionError(MinillmError):
    """There is no such question, or too many were asked."""


@dataclass(frozen=True)
class InterviewTurn:
    """One question of the interviewer's, and how it went on."""

    asks: str
    reply: str = ""
    said: str = ""
    """Words of the answer that had answered it; then nothing is asked back."""
    press: str = ""
    """What was asked back."""
    then: str = ""
    """The reply to that."""


def ask(drill: DrawnDrill, keys: tuple[str, ...]) -> tuple[Fact, ...]:
    """What the interviewer answers to these questions, in order. Raises QuestionError or TalkError."""
    if len(keys) > QUESTIONS or len(set(keys)) < len(keys):
        raise QuestionError(f"ask at most {QUESTIONS} questions, each once")
    talk = talk_of(drill)
    return tuple(talk.fact(key) for key in keys)


def asked_well(drill: DrawnDrill, keys: tuple[str, ...]) -> str:
    """How many of the questions bore on the case, in words; empty where there are none to ask."""
    facts = talk_of(drill).facts
    if not facts:
        return ""
    asked = [each for each in facts if each.key in keys]
    useful = [each for each in asked if each.use == "useful"]
    missed = [f"“{each.asks}”" for each in facts if each.use == "useful" and each not in asked][:2]
    more = f" You didn't ask: {' '.join(missed)}" if missed and len(useful) < 3 else ""
    bear = "bears" if len(useful) == 1 else "bear"
    return f"You asked {len(asked)} of {QUESTIONS} questions; {len(useful)} of them {bear} on this case.{more}"


def questions(drill: DrawnDrill, commit: Commit, found: tuple[CheckedItem, ...]) -> tuple[FollowUp, ...]:
    """All that could be pushed back on, what went wrong first.

    Args:
        found: what was checked of the commit.
    """
    wrong = {each.key: each.about for each in found if not each.points or each.about}

    def aims_at_a_flaw(each: FollowUp) -> bool:
        return (
            each.number in ("wrong", "missing")
            or (bool(wrong.get("dominant")) and wrong["dominant"] in each.if_dominant)
            or (bool(wrong.get("fixes")) and wrong["fixes"] in each.if_fix)
        )

    return tuple(sorted(pushback(drill, commit), key=lambda each: not aims_at_a_flaw(each)))


def press(each: FollowUp, reply: str, asked: Collection[str] = ()) -> str:
    """What is asked back after a reply: to a silence, to words without a number, or deeper into the same matter.

    Args:
        asked: what was asked back before, and isn't asked again.
    """
    if not reply.strip():
        kind = "silent"
    elif not re.search(r"\d", reply):
        kind = "bare"
    else:
        kind = "number" if each.number in ("wrong", "missing") else "fix" if each.if_fix or each.unless_fix else "cause"
    words: list[str] = table()["presses"][kind]
    return next((each for each in words if each not in asked), words[-1])


def scripted(
    drill: DrawnDrill,
    text: str,
    commit: Commit,
    found: tuple[CheckedItem, ...],
    replies: Mapping[str, str],
) -> Iterator[InterviewTurn]:
    """The conversation as it goes with these replies, by question, as often as there is something to ask.

    A reply that quotes eight words of the answer or more says that it was said already.
    """
    pressed: list[str] = []
    for each in questions(drill, commit, found):
        if len(pressed) == PUSHBACKS:
            return
        reply = replies.get(each.asks, "").strip()
        if stands_in(reply, text):
            yield InterviewTurn(each.asks, said=reply)
            continue
        back = press(each, reply, pressed)
        pressed.append(back)
        yield InterviewTurn(each.asks, reply, press=back, then=replies.get(f"{each.asks} / {back}", "").strip())
