"""What a drill asks after the writing, stage by stage: the same in a notebook and in a terminal."""

import sys
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

from course.drills import calibrate
from course.drills.amounts import UNITS, AmountError
from course.drills.checks import RANKS, verified
from course.drills.clock import written
from course.drills.drill import LEVELS, Commit
from course.drills.interviewer import PUSHBACKS, QUESTIONS, press, questions
from course.drills.library import number_of
from course.drills.sitting import MOST_DISPUTED, Sitting, off_text
from course.drills.stated import menu
from course.drills.statements import RULE, SURE, read_answers
from course.drills.talk import talk_of
from course.terminal import fitted
from minillm.frontend.terminal import Lines

END, ASK = ".", "?"
"""A line with nothing else ends an answer; one that begins so asks the interviewer something."""


@dataclass(frozen=True)
class Field:
    """One thing to fill in; empty is left out."""

    key: str
    label: str
    options: Mapping[str, str] | None = None
    """What can be chosen, by what it is called; None = free text."""
    about: str = ""
    is_long: bool = False
    """Free text of more than a line."""


@dataclass(frozen=True)
class DrillStage:
    """Some text, and what is asked about it."""

    part: str
    """One of PARTS."""
    title: str
    text: str
    fields: Sequence[Field]


PARTS = ("Commit", "Pushback", "Statements", "Calibration", "Yourself", "Disputes", "Once more")
"""The steps that come after the writing, in order."""
OF_ONESELF = ("Calibration", "Yourself", "Once more")
"""Those that are left out where the learner doesn't grade."""
Stages = Generator[DrillStage, dict[str, str], None]


def stages(sitting: Sitting, is_graded: bool = True) -> Stages:
    """Commit, pushback, statements; then two samples, oneself, disputes, and a paragraph written again.

    Each stage is sent what was filled in, by key.

    Args:
        is_graded: by the learner, too; else it is over after the statements.
    """
    if sitting.commit == Commit():
        yield from _commit(sitting)
    yield from _pushback(sitting)
    yield from _statements(sitting)
    if is_graded:
        yield from _samples(sitting)
        yield from _own(sitting)
    if sitting.costly:
        yield from _disputes(sitting)
    if is_graded and (again := sitting.verdict.again):
        wanted = sitting.verdict.with_this
        text = f"{sitting.verdict.says}\n\n“{again}”" + (f"\n\nThis time, say: {wanted}" if wanted else "")
        said = yield DrillStage(
            "Once more", "Write this paragraph again", text, [Field("again", "again", is_long=True)]
        )
        sitting.rewritten = said["again"]


def _commit(sitting: Sitting) -> Stages:
    """Menus, and a number beside its unit; asked again if the number can't be read."""
    drill, causes, fixes = sitting.drill, menu("causes"), menu("techniques")
    ranks = [Field(f"fix {rank}", f"fix {rank}", fixes) for rank in range(1, len(RANKS) + 1)]
    fields = [Field("dominant", "what dominates", causes), Field("second", "the second problem", causes)]
    fields.append(Field("number", "the number", about=drill.rubric.commit.number.asks))
    fields += [Field("unit", "its unit, if it isn't written with it", dict(zip(UNITS, UNITS))), *ranks]
    open_questions = {each.key: each.asks for each in talk_of(drill).facts if each.key not in sitting.asked}
    if open_questions:
        about = "What would change your mind? A finding that is still open, and what you'd put first then."
        fields += [Field("finding", "the finding", open_questions, about), Field("then", "first then", fixes)]
    problem = ""
    while True:
        said = yield DrillStage("Commit", "Commit", problem, fields)
        ranked = tuple(dict.fromkeys(said[each.key] for each in ranks if said[each.key]))
        plain = {key: said.get(key, "") for key in ("dominant", "second", "number", "unit", "finding", "then")}
        commit = Commit(**plain, fixes=ranked)
        try:
            sitting.commit = verified(commit, drill)
            return
        except AmountError as error:
            problem = f"{error}."


def _pushback(sitting: Sitting) -> Stages:
    """One question at a time, and one asked back; what the answer has said is pointed at, and the next one comes."""
    drill, replies, pressed = sitting.drill, dict(sitting.replies), list[str]()
    for each in questions(drill, sitting.commit, sitting.checks):
        if len(pressed) == PUSHBACKS:
            break
        told = f"{each.asks}\n\nIf your answer has said it, quote those words: {calibrate.LEAST_WORDS} or more."
        said = yield DrillStage("Pushback", "The interviewer asks", told, [Field("reply", "you", is_long=True)])
        replies[each.asks] = said["reply"]
        if not calibrate.stands_in(said["reply"], sitting.text):
            back = press(each, said["reply"], pressed)
            pressed.append(back)
            said = yield DrillStage(
                "Pushback", "The interviewer asks back", back, [Field("reply", "you", is_long=True)]
            )
            replies[f"{each.asks} / {back}"] = said["reply"]
    sitting.replies = {asks: reply for asks, reply in replies.items() if reply}


def _statements(sitting: Sitting) -> Stages:
    """All at once: agree or disagree, and how sure."""
    if not sitting.put:
        return
    choice = {
        f"{word} {percent}": f"{word}, {name} ({percent}%)"
        for word in ("agree", "disagree")
        for name, percent in SURE.items()
        if percent > 50
    }
    fields = [
        Field(f"statement {place}", f"{place}", choice, f"{place}. {each.says}")
        for place, each in enumerate(sitting.put, 1)
    ]
    said = yield DrillStage("Statements", "Statements on the table", RULE, fields)
    sitting.answers = read_answers([said[each.key] for each in fields], len(sitting.put))


def _samples(sitting: Sitting) -> Stages:
    drill, grades = sitting.drill, {}
    choice = dict(zip(LEVELS, LEVELS))
    levels = [Field(each.key, each.name, choice, each.with_anchors()) for each in drill.rubric.criteria]
    for label, name in calibrate.samples(drill).items():
        said = yield DrillStage("Calibration", f"Grade this first: answer {label}", drill.answers[name], levels)
        grades[label] = {key: level for key, level in said.items() if level}
    sitting.samples = grades


def _own(sitting: Sitting) -> Stages:
    """A level for each criterion with a quote, and what a strong answer says, ticked off by quotes."""
    drill, choice = sitting.drill, dict(zip(LEVELS, LEVELS))
    levels = [Field(each.key, each.name, choice, each.with_anchors()) for each in drill.rubric.criteria]
    quote = f"your words for it, {calibrate.LEAST_WORDS} or more"
    own = [part for each in levels for part in (each, Field(f"{each.key} quote", quote))]
    facts = list(enumerate(drill.rubric.must_say, 1))
    ticks = [Field(f"fact {n}", "you say it here", about=f"A strong answer says: {fact}") for n, fact in facts]
    said = yield DrillStage(
        "Yourself", "Now your own, each time with words of yours", off_text(sitting.calibration), [*own, *ticks]
    )
    sitting.own_written = {each.key: (said[each.key], said[f"{each.key} quote"]) for each in levels if said[each.key]}
    sitting.ticks = {n: said[f"fact {n}"] for n, _ in facts if said[f"fact {n}"]}


def _disputes(sitting: Sitting) -> Stages:
    """What cost points, and room for a reason."""
    fields = [Field(key, "why it's wrong", about=says) for key, says in sitting.costly.items()]
    text = (
        f"What cost you points. If one is wrong, say why: it's shown as disputed, and costs nothing. "
        f"{MOST_DISPUTED} at most; leave the others empty."
    )
    said = yield DrillStage("Disputes", "Any of these you dispute?", text, fields)
    reasons = {key: reason for key, reason in said.items() if reason}
    sitting.disputed = dict(list(reasons.items())[:MOST_DISPUTED])


class Terminal:
    """Asks for all of it in a terminal, or of a script's standard input.

    Args:
        is_quiet: standard output is kept for JSON; prompts go to standard error.
    """

    def __init__(self, is_quiet: bool = False) -> None:
        self._screen = sys.stderr if is_quiet else sys.stdout
        self._lines = Lines("drill", [*menu("causes"), *menu("techniques"), *LEVELS], self._screen)

    def say(self, text: str) -> None:
        print(fitted(text, self._screen), file=self._screen, flush=True)

    def write(self, sitting: Sitting) -> None:
        """Show the prompt, start the clock, tell what is asked for, and read an answer."""
        drill, began, lines = sitting.drill, time.monotonic(), []
        self.say(f"Drill {number_of(drill.drill)} ({drill.drill.minutes} minutes)\n\n{drill.prompt}\n")
        if facts := talk_of(drill).facts:
            asks = "\n".join(f"{ASK}{place} {each.asks}" for place, each in enumerate(facts, 1))
            self.say(f"You may ask {QUESTIONS} of these, each on a line of its own, such as {ASK}1:\n{asks}\n")
        self.say(f"The clock runs. Write your answer; a line with nothing but {END!r} ends it.")
        while (line := self._lines.read("")) is not None and line.strip() != END:
            if facts and line.startswith(ASK):
                self._ask(sitting, line.removeprefix(ASK).strip())
            else:
                lines.append(line.rstrip("\n"))
        sitting.text, sitting.seconds = "\n".join(lines), time.monotonic() - began
        self.say(f"On the clock: {written(sitting.seconds)} of {written(60 * drill.drill.minutes)}.")

    def _ask(self, sitting: Sitting, wanted: str) -> None:
        """Tell one fact, by its number or key; what can't be asked is said."""
        facts = talk_of(sitting.drill).facts
        keys = {each.key: each for each in facts} | {f"{n}": each for n, each in enumerate(facts, 1)}
        if wanted not in keys:
            self.say(f"There is no question {wanted!r}: {ASK}1 to {ASK}{len(facts)}.")
        elif keys[wanted].key not in sitting.asked and len(sitting.asked) == QUESTIONS:
            self.say(f"That was your {QUESTIONS}th question already.")
        else:
            sitting.asked = tuple(dict.fromkeys((*sitting.asked, keys[wanted].key)))
            self.say(f"Interviewer: {keys[wanted].says}")

    def go_through(self, asked: Stages) -> None:
        """All stages, to the end."""
        filled: dict[str, str] | None = None
        menus: set[str] = set()
        while True:
            try:
                stage = next(asked) if filled is None else asked.send(filled)
            except StopIteration:
                return
            self.say(f"\n{stage.title}\n{stage.text}")
            filled = {field.key: self._fill_in(field, menus) for field in stage.fields}

    def _fill_in(self, field: Field, menus: set[str]) -> str:
        """Ask until it is a number of the menu, an id, or empty. A menu is shown once."""
        if field.about:
            self.say(f"\n{field.about}")
        options = field.options or {}
        names = ", ".join(options)
        is_plain = all(key == text for key, text in options.items())
        choose = f"one of {names}" if is_plain else f"a number from 1 to {len(options)}"
        if options and names not in menus:
            menus.add(names)
            rows = [f"{number:3}  {text}" for number, text in enumerate(options.values(), 1)]
            self.say(choose if is_plain else "\n".join(rows))
        by_word = {key: key for key in options}
        if not is_plain:
            by_word |= {f"{number}": key for number, key in enumerate(options, 1)}
        asks = f"{field.label} (1 to {len(options)}): " if options and not is_plain else f"{field.label}: "
        while typed := (self._lines.read(asks) or "").strip():
            if field.options is None or typed in by_word:
                return by_word.get(typed, typed)
            self.say(f"no {typed!r} here: {choose}, or nothing")
        return ""
