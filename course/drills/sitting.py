"""One answer on its way to a verdict, and how what was found is shown: by part and by criterion, with its evidence.

result = sit("dump-13b", seed=3, text=answer, commit=Commit(dominant="queue", number="5.4", unit="times"),
             statements={1: "agree 80", 2: "disagree, sure"})
print(result.headline, result.verdict.says)      # result.standing.value orders two answers to the same drill
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from course.drills import calibrate, checks
from course.drills import statements as on_the_table
from course.drills.calibrate import Calibration, Grades, Own
from course.drills.checks import CheckedItem
from course.drills.drill import LEVELS, Commit, DrawnDrill
from course.drills.interviewer import InterviewTurn, ask, asked_well, scripted
from course.drills.library import find_drill
from course.drills.statements import JudgedStatement, StatementAnswer, read_answers
from course.drills.talk import DrawnStatement, Fact, talk_of
from course.drills.verdict import AnswersCompared, Pointed, Verdict, standing, verdict
from course.lab.style import with_minus
from minillm.core.errors import MinillmError

if TYPE_CHECKING:
    from course.drills.judge import JudgeOpinion  # its HTTP client takes long to import

SHOWN = 160
"""Characters of a quote, at most."""
LOOK_AGAIN = "Look at it again"
"""Said of a sentence that may have hurt: prose isn't judged."""
MOST_DISPUTED = 2
"""Statements and fixes that can be disputed in one sitting: with more, a bluff would cost nothing."""


class DisputeError(MinillmError):
    """What is disputed isn't there, has no reason, or is too much."""


@dataclass
class Sitting:
    """What was written, committed to and answered. Fields are filled in step by step."""

    drill: DrawnDrill
    text: str = ""
    commit: Commit = field(default_factory=Commit)
    asked: tuple[str, ...] = ()
    """Facts that were asked for, by key, in order."""
    answers: Mapping[int, StatementAnswer] = field(default_factory=dict)
    """To the statements on the table, by place from 1."""
    disputed: Mapping[str, str] = field(default_factory=dict)
    """Reasons, by the statement's place ("3") or the technique's id: what is disputed is shown, and costs nothing."""
    seconds: float | None = None
    """On the clock; None = without one."""
    replies: Mapping[str, str] = field(default_factory=dict)
    """To the interviewer's pushback, by question; to what is asked back, by "question / asked back"."""
    samples: Mapping[str, Grades] = field(default_factory=dict)
    """The learner's grades of the two samples, by label."""
    own_written: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """The learner's level and quote, by criterion."""
    ticks: Mapping[int, str] = field(default_factory=dict)
    """The learner's words for what a strong answer says, by its number from 1."""
    rewritten: str = ""
    """The paragraph that was written again."""
    heard: "JudgeOpinion | None" = None
    """A judge model, and what it may say."""

    # ---------------------------------------------------------------- found

    @property
    def checks(self) -> tuple[CheckedItem, ...]:
        """What was committed to."""
        return checks.check(self.drill, self.commit, self.disputed)

    @cached_property
    def put(self) -> tuple[DrawnStatement, ...]:
        """The statements on the table; none where the drill has none."""
        return talk_of(self.drill).put()

    @property
    def judged(self) -> tuple[JudgedStatement, ...]:
        return on_the_table.judged(self.put, self.answers, [int(key) for key in self.disputed if key.isdigit()])

    @property
    def facts(self) -> tuple[Fact, ...]:
        """What the interviewer told."""
        return ask(self.drill, self.asked)

    @property
    def turns(self) -> tuple[InterviewTurn, ...]:
        """The pushback, question by question, as it went with the replies there are."""
        return tuple(scripted(self.drill, self.text, self.commit, self.checks, self.replies))

    @property
    def calibration(self) -> Calibration:
        return calibrate.calibrate(self.drill, self.samples)

    @property
    def own(self) -> dict[str, Own]:
        return calibrate.own_grades(self.drill, self.text, self.own_written)

    @property
    def ticked(self) -> dict[int, str]:
        return calibrate.ticked(self.drill, self.text, self.ticks)

    @property
    def standing(self) -> AnswersCompared:
        """What two answers to one drill are compared by; no total, and shown as none."""
        return standing(self.checks, self.judged)

    @property
    def verdict(self) -> Verdict:
        return verdict(self.drill, self.text, self.checks, self.judged, self.ticked)

    @property
    def headline(self) -> str:
        """Part by part: what was right, and what nobody has read."""
        points, most = (sum(getattr(each, name) for each in self.checks) for name in ("points", "most"))
        parts = [f"commitments {points:.2g} of {most:g}"]
        if self.judged:
            right, disputed = (sum(getattr(each, name) for each in self.judged) for name in ("is_right", "is_disputed"))
            told = f"score {with_minus(f'{on_the_table.score(self.judged):+.2f}')}; guessing scores 0"
            told += f"; {disputed} disputed" * bool(disputed)
            parts.append(f"statements {right} of {len(self.judged)} ({told})")
        weight = self.calibration.weight
        return ", ".join(
            [*parts, f"your own grades for the argument (they count {weight:.0%}; no program has read it)"]
        )

    def check(self) -> None:
        """Raises QuestionError, GradesError or DisputeError: something names what there isn't."""
        self.facts, self.calibration, self.own, self.ticked  # noqa: B018 - each looks its names up
        if len(self.disputed) > MOST_DISPUTED:
            raise DisputeError(f"dispute at most {MOST_DISPUTED}: with more, a bluff would cost nothing")
        for key, reason in self.disputed.items():
            if not reason.strip():
                raise DisputeError(f"say why you dispute {key!r}")
            if key not in self.commit.fixes and not (key.isdigit() and int(key) in self.answers):
                raise DisputeError(f"{key!r} is no statement that you answered, and no fix of yours")

    @property
    def costly(self) -> dict[str, str]:
        """What can be disputed, by key: statements that cost points, and fixes that are said to do harm."""
        harm = self.drill.rubric.commit.fixes
        found = {f"{each.place}": each.says for each in self.judged if each.points < 0 or each.is_disputed}
        return found | {
            each: f"{each}: does nothing here, or does harm" for each in self.commit.fixes if harm.get(each, 0) < 0
        }

    # ---------------------------------------------------------------- shown

    def graders(self) -> dict[str, str]:
        """What each part that was used can tell, and what it can't."""
        said = {"commitments": checks.JUDGES}
        if self.put:
            said["statements"] = on_the_table.JUDGES
        said["you, calibrated"] = calibrate.JUDGES
        if self.heard is not None:
            from course.drills import judge

            said["judge model"] = f"{judge.JUDGES} Here: {self.heard.agreement}."
        return said

    def to_dict(self) -> dict[str, Any]:
        calibration, own, found = self.calibration, self.own, self.verdict
        opinions = self.heard.opinions if self.heard else {}
        return {
            "drill": self.drill.id,
            "tags": self.drill.drill.tags,
            "seed": self.drill.seed,
            "headline": self.headline,
            "commit": self.commit.model_dump(include=set(Commit.model_fields)),
            "commitments": [asdict(each) for each in self.checks],
            "statements": [{**asdict(each), "points": each.points, "is_right": each.is_right} for each in self.judged],
            "disputed": dict(self.disputed),
            "standing": {
                "answer": self.standing.answer,
                "understanding": self.standing.understanding,
                "value": self.standing.value,
            },
            "verdict": {**asdict(found), "level": self.standing.level},
            "asked": [each.model_dump(include={"key", "asks", "says", "use"}) for each in self.facts],
            "turns": [asdict(each) for each in self.turns],
            "calibration": {**asdict(calibration), "weight": calibration.weight, "bias": calibration.bias},
            "must_say": [
                {"says": says, "quote": self.ticked.get(number, "")}
                for number, says in enumerate(self.drill.rubric.must_say, 1)
            ],
            "criteria": [
                {
                    **each.model_dump(),
                    "own": {**asdict(own[each.key]), "counts": own[each.key].counts} if each.key in own else None,
                    "judge": asdict(opinions[each.key]) if each.key in opinions else None,
                }
                for each in self.drill.rubric.criteria
            ],
            "graders": self.graders(),
            "judge_agreement": f"{self.heard.agreement}" if self.heard else "",
            "samples": {label: self.drill.answers[name] for label, name in calibrate.samples(self.drill).items()},
        }

    def rows(self) -> list[tuple[str, list[str]]]:
        """Part by part, as lines."""
        found = self.verdict
        told = [found.says, *_pointed("It helped", found.helped), *_pointed(LOOK_AGAIN, found.hurt)]
        if found.again:
            missing = f" Say in it: {found.with_this}" if found.with_this else ""
            told.append(f"Write this again: “{found.again}”{missing}")
        shown = [("verdict", told), ("commitments", [f"{_points(each)} {each.says}" for each in self.checks])]
        if self.put:
            shown.append(("statements", [f"[{each.points:+.1f}] {each.says}" for each in self.judged]))
        shown += [("disputed", [f"{key}: {reason}" for key, reason in self.disputed.items()])] * bool(self.disputed)
        if well := asked_well(self.drill, self.asked):
            shown.append(("your questions", [well, *(f"{each.asks} {each.says}" for each in self.facts)]))
        facts = enumerate(self.drill.rubric.must_say, 1)
        said = [f"{'✓' if n in self.ticked else '–'} {fact}{_quoted(self.ticked.get(n, ''))}" for n, fact in facts]
        shown.append((f"a strong answer says ({len(self.ticked)} ticked by you)", said))
        if not self.own and not (self.heard and self.heard.opinions):
            return [*shown, ("your own grade", ["not given"])]
        for each in self.drill.rubric.criteria:
            lines = [f"you: {self._grade(each.key)}"]
            if self.heard and (opinion := self.heard.opinions.get(each.key)):
                lines.append(f"judge model: {opinion}{_quoted(*opinion.quotes[:1])}")
            shown.append((each.name, lines))
        return shown

    def __str__(self) -> str:
        parts = ["\n  ".join([f"{name}:", *lines]) for name, lines in self.rows()]
        told = [f"{name}. {said}" for name, said in self.graders().items()]
        return "\n\n".join([self.drill.drill.tags, self.headline, *parts, *told])

    def _grade(self, key: str) -> str:
        if (own := self.own.get(key)) is None:
            return "not graded"
        if not own.counts:
            return f"{own.level}, which doesn't count: {own.problem}"
        return f"{own.level}, weighs {self.calibration.weight:.0%}{_quoted(own.quote)}"


def sit(
    drill: str | DrawnDrill,
    seed: int = 0,
    text: str = "",
    commit: Commit | Mapping[str, Any] | None = None,
    statements: Mapping[int, object] | Sequence[object] = (),
    *,
    asked: Sequence[str] = (),
    disputed: Mapping[str, str] | None = None,
    replies: Mapping[str, str] | None = None,
    samples: Mapping[str, Grades] | None = None,
    own: Mapping[str, tuple[str, str]] | None = None,
    ticks: Mapping[int, str] | None = None,
    seconds: float | None = None,
) -> Sitting:
    """Sit a drill in one call, from a script or the terminal. Everything but the drill may be left out.

    Args:
        drill: its id or its number in the list, or one that is drawn already.
        seed: which numbers and which statements; 0 is the classic. Of a drawn one, its own.
        text: the prose. No program judges it; quotes are looked up in it.
        commit: a Commit, or its fields.
        statements: answers to the eight on the table (`talk_of(drawn).put()`), by place from 1 or in order: "agree 80",
            "disagree, sure", or pairs such as (True, 65).
        asked: keys of facts that the interviewer was asked for.
        disputed: see Sitting; as for `replies`, `samples`, `ticks` and `seconds`.
        own: the learner's (level, quote) by criterion.
    Raises:
        UnknownDrillError, CommitError, AmountError, StatementError, QuestionError, DisputeError, GradesError:
            something names what there isn't, or can't be read; the words say what.
    """
    drawn = drill if isinstance(drill, DrawnDrill) else find_drill(drill).drawn(seed)
    handed_in = commit if isinstance(commit, Commit) else checks.read_commit(commit or {})
    put = talk_of(drawn).put()
    sitting = Sitting(
        drawn,
        text,
        checks.verified(handed_in, drawn),
        tuple(asked),
        read_answers(statements, len(put)),
        disputed or {},
        seconds,
        replies or {},
        samples or {},
        own or {},
        ticks or {},
    )
    sitting.check()
    return sitting


def off_text(calibration: Calibration) -> str:
    """How the samples were graded, sample by sample: before the learner grades themselves."""
    if not calibration.graded:
        return "You graded no sample, so your own grade weighs nothing."
    lines = [
        f"Answer {off.label}, {off.criterion}: you said {off.given}, it is {off.right}. {off.why}"
        for off in calibration.off
    ]
    right = calibration.graded - len(calibration.off)
    left = calibration.possible - calibration.graded
    told = f"{right} of {calibration.graded} grades as they should be{f', {left} not given' * bool(left)}, so your own "
    told += f"weigh {calibration.weight:.0%}."
    return "\n\n".join([*lines, told])


def solution_text(drill: DrawnDrill) -> str:
    """What the numbers imply, what a strong answer says, and the model answers. For after grading only."""
    facts = "\n".join(f"- {fact}" for fact in drill.rubric.must_say)
    answers = [f"A {level} answer\n{drill.answers[level]}" for level in LEVELS]
    head = f"What the prompt's own numbers imply\n{drill.impossible}"
    return "\n\n".join([head, f"A strong answer says\n{facts}", *answers])


def _pointed(what: str, pointed: Sequence[Pointed]) -> list[str]:
    return [f"{what}: “{each.sentence}” {each.why}" for each in pointed]


def _points(item: CheckedItem) -> str:
    return f"[{item.points:.1f} of {item.most:g}]"


def _quoted(*quotes: str) -> str:
    return "".join(f" “{q if len(q) <= SHOWN else q[: SHOWN - 1].rstrip() + '…'}”" for q in quotes if q)
