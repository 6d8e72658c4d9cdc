"""One answer on its way through the graders, and how what they found is shown: by criterion, with its evidence."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

from course.drills import calibrate, checks
from course.drills.calibrate import Calibration, Grades, Own
from course.drills.checks import CheckedItem
from course.drills.drill import LEVELS, Commit, DrawnDrill

if TYPE_CHECKING:
    from course.drills.judge import Opinion  # its HTTP client takes long to import

CELL = "text-align:left;vertical-align:top;padding:4px 14px 4px 0;line-height:1.35;white-space:normal"
SHOWN = 160
"""Characters of a quote, at most."""


@dataclass
class Sitting:
    """What was written, committed to and graded. Fields are filled in step by step."""

    drill: DrawnDrill
    text: str = ""
    commit: Commit = field(default_factory=Commit)
    seconds: float | None = None
    """On the clock; None = without one."""
    replies: dict[str, str] = field(default_factory=dict)
    """To the interviewer's pushback, by question."""
    samples: Mapping[str, Grades] = field(default_factory=dict)
    """The learner's grades of the two samples, by label."""
    own_written: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """The learner's level and quote, by criterion."""
    opinions: "Mapping[str, Opinion]" = field(default_factory=dict)

    @cached_property
    def checks(self) -> tuple[CheckedItem, ...]:
        """To be read once text and commit are final."""
        return checks.check(self.drill, self.text, self.commit)

    @cached_property
    def follow_ups(self) -> tuple[str, ...]:
        return checks.follow_ups(self.drill, self.text, self.commit)

    @property
    def calibration(self) -> Calibration:
        return calibrate.calibrate(self.drill, self.samples)

    @property
    def own(self) -> dict[str, Own]:
        return calibrate.own_grades(self.drill, self.text, self.own_written)

    def faults(self, reply: str) -> tuple[CheckedItem, ...]:
        """What is wrong in a reply to pushback, as far as it can be told."""
        return tuple(checks.prose_faults(self.drill, reply, self.commit))

    @property
    def computed(self) -> str:
        """What grader 1 found, as points of those that it can give."""
        most = sum(each.most for each in self.checks)
        return f"{checks.total(self.checks):.1f} of {most:g} points that can be computed"

    def judges(self) -> dict[str, str]:
        """What each grader that was used can tell, and what it can't."""
        said = {"numbers and claims": checks.JUDGES, "you, calibrated": calibrate.JUDGES}
        if self.opinions:
            from course.drills import judge

            said["judge model"] = judge.JUDGES
        return said

    # ---------------------------------------------------------------- shown

    def to_dict(self) -> dict[str, Any]:
        calibration, own = self.calibration, self.own
        parts: list[tuple[str, Mapping[str, Any]]] = [("own", own), ("judge", self.opinions)]
        return {
            "drill": self.drill.id,
            "seed": self.drill.seed,
            "commit": self.commit.model_dump(include=set(Commit.model_fields)),
            "computed": {"points": checks.total(self.checks), "most": sum(each.most for each in self.checks)},
            "calibration": {**asdict(calibration), "weight": calibration.weight, "bias": calibration.bias},
            "criteria": [
                {
                    **each.model_dump(),
                    "checks": [asdict(found) for found in self.evidence(each.key)],
                    **{name: asdict(by_key[each.key]) if each.key in by_key else None for name, by_key in parts},
                }
                for each in self.drill.rubric.criteria
            ],
            "follow_ups": [
                {"asks": asks, "reply": reply, "faults": [asdict(each) for each in self.faults(reply)]}
                for asks, reply in ((asks, self.replies.get(asks, "")) for asks in self.follow_ups)
            ],
            "graders": self.judges(),
            "samples": {label: self.drill.answers[name] for label, name in calibrate.samples(self.drill).items()},
        }

    def evidence(self, key: str) -> list[CheckedItem]:
        """What is computed for a criterion; for the first also what belongs to none of this drill's."""
        keys = [each.key for each in self.drill.rubric.criteria]
        return [c for c in self.checks if c.criterion == key or (key == keys[0] and c.criterion not in keys)]

    def rows(self) -> list[tuple[str, list[str]]]:
        """Criterion by criterion: what is computed, the learner's own grade and what it weighs, and the judge's."""
        shown = []
        for each in self.drill.rubric.criteria:
            lines = [f"{_points(c)} {c.says}{_quoted(*c.quotes)}" for c in self.evidence(each.key)]
            lines.append(f"you: {self._grade(each.key)}")
            if opinion := self.opinions.get(each.key):
                lines.append(f"judge model: {opinion}{_quoted(*opinion.quotes[:1])}")
            shown.append((each.name, lines))
        replies = [f"{asks} {fault.says}" for asks, text in self.replies.items() for fault in self.faults(text)]
        return [*shown, ("your replies", replies)] if replies else shown

    def __str__(self) -> str:
        parts = ["\n  ".join([f"{name}:", *lines]) for name, lines in self.rows()]
        return "\n\n".join(
            [f"{self.drill.drill.title}: {self.computed}", *parts, *map(". ".join, self.judges().items())]
        )

    def html(self) -> str:
        rows = "".join(
            f'<tr><th scope="row" style="{CELL}">{name}</th>'
            f'<td style="{CELL}">{"<br>".join(map(escape, lines))}</td></tr>'
            for name, lines in self.rows()
        )
        told = "".join(f"<li><b>{name}.</b> {escape(said)}</li>" for name, said in self.judges().items())
        head = f"<h4>{escape(self.drill.drill.title)}: {self.computed}</h4>"
        return f'{head}<table style="border-collapse:collapse;font-size:13px">{rows}</table><ul>{told}</ul>'

    def _grade(self, key: str) -> str:
        if (own := self.own.get(key)) is None:
            return "not graded"
        if not own.counts:
            return f"{own.level}, which doesn't count: no sentence of yours is quoted for it"
        return f"{own.level}, weighs {self.calibration.weight:.0%}{_quoted(own.quote)}"


def solution_text(drill: DrawnDrill) -> str:
    """What the numbers imply, what a strong answer says, and the model answers. For after grading only."""
    facts = "\n".join(f"- {fact}" for fact in drill.rubric.must_say)
    false = "\n".join(f"- {each.says} {each.right}" for each in drill.rubric.must_not_say)
    answers = [f"A {level} answer\n{drill.answers[level]}" for level in LEVELS]
    head = f"What the prompt's own numbers imply\n{drill.impossible}"
    return "\n\n".join([head, f"A strong answer says\n{facts}", f"And doesn't say\n{false}", *answers])


def off_text(calibration: Calibration) -> str:
    """Where the grades of the samples were off."""
    if not calibration.graded:
        return "No sample graded, so your own grade counts for nothing."
    lines = [
        f"{each.label}, {each.criterion}: you said {each.given}, it is {each.right}. {each.why}"
        for each in calibration.off
    ]
    return "\n".join([*lines, f"So your own grade weighs {calibration.weight:.0%}."])


def _points(found: CheckedItem) -> str:
    return f"{found.points:.2g}/{found.most:g}" if found.most else f"{found.points:g}"


def _quoted(*quotes: str) -> str:
    return "".join(f" “{q if len(q) <= SHOWN else q[: SHOWN - 1].rstrip() + '…'}”" for q in quotes if q)
