"""One answer on its way through the graders, and how what they found is shown: by criterion, with its evidence."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

from course.lab.drills import calibrate, checks
from course.lab.drills.calibrate import Calibration, Grades, Own
from course.lab.drills.checks import Check
from course.lab.drills.drill import LEVELS, Commit, DrawnDrill

if TYPE_CHECKING:
    from course.lab.drills.judge import Opinion  # its HTTP client takes long to import

CELL = "text-align:left;vertical-align:top;padding:4px 14px 4px 0;line-height:1.35;white-space:normal"
MARKS = dict(zip(LEVELS, ("○○○", "●○○", "●●○", "●●●")))


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
    def checks(self) -> tuple[Check, ...]:
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

    def faults(self, reply: str) -> tuple[Check, ...]:
        """What is wrong in a reply to pushback, as far as it can be told."""
        return tuple(checks.prose_faults(self.drill, reply, self.commit))

    @property
    def computed(self) -> str:
        """What grader 1 found, as points of those that it can give."""
        most = sum(each.most for each in self.checks)
        return f"{checks.share(self.checks) * most:.1f} of {most:g} points that can be computed"

    def judges(self) -> dict[str, str]:
        """What each grader that was used can tell, and what it can't."""
        said = {"numbers and claims": checks.JUDGES, "you, calibrated": calibrate.JUDGES}
        if self.opinions:
            from course.lab.drills import judge

            said["judge model"] = judge.JUDGES
        return said

    # ---------------------------------------------------------------- shown

    def to_dict(self) -> dict[str, Any]:
        drill, calibration, own = self.drill, self.calibration, self.own
        return {
            "drill": drill.id,
            "seed": drill.seed,
            "commit": self.commit.model_dump(include=set(Commit.model_fields)),
            "computed": {"points": checks.share(self.checks) * sum(c.most for c in self.checks),
                         "most": sum(c.most for c in self.checks)},
            "calibration": {"graded": calibration.graded, "weight": calibration.weight, "bias": calibration.bias,
                            "off": [asdict(each) for each in calibration.off]},
            "criteria": [
                {
                    "criterion": each.key,
                    "asks": each.asks,
                    "anchors": dict(zip(LEVELS, each.anchors)),
                    "checks": [asdict(found) for found in self.checks if found.criterion == each.key],
                    "own": asdict(own[each.key]) if each.key in own else None,
                    "judge": asdict(self.opinions[each.key]) if each.key in self.opinions else None,
                }
                for each in drill.rubric.criteria
            ],
            "follow_ups": [
                {"asks": asks, "reply": reply, "faults": [asdict(each) for each in self.faults(reply)]}
                for asks, reply in ((asks, self.replies.get(asks, "")) for asks in self.follow_ups)
            ],
            "graders": self.judges(),
            "samples": {label: drill.answers[name] for label, name in calibrate.samples(drill).items()},
        }  # fmt: skip

    def __str__(self) -> str:
        lines = [f"{self.drill.drill.title}: {self.computed}"]
        for each in self.drill.rubric.criteria:
            lines.append(f"\n{each.name}: {self._grade(each.key)}")
            for found in self._checks(each.key):
                lines.append(f"  {_points(found)}  {found.says} {' / '.join(f'“{quote}”' for quote in found.quotes)}")
            if each.key in self.opinions:
                lines.append(f"  judge model: {self.opinions[each.key]}")
        lines += [f"\n{name}. {said}" for name, said in self.judges().items()]
        return "\n".join(lines)

    def html(self) -> str:
        """By criterion: what is computed, the learner's own grade and what it weighs, and the judge's."""
        names = ("criterion", "computed", "your own grade", *(("judge model",) if self.opinions else ()))
        header = "".join(f'<th scope="col" style="{CELL};font-weight:bold">{name}</th>' for name in names)
        rows = ""
        for each in self.drill.rubric.criteria:
            found = "".join(
                f"<div>{_points(c)} {escape(c.says)} {_quoted(*c.quotes)}</div>" for c in self._checks(each.key)
            )
            own, opinion = self.own.get(each.key), self.opinions.get(each.key)
            cells = [
                found or "nothing here can be computed",
                escape(self._grade(each.key)) + _quoted(own.quote if own else ""),
            ]
            cells += [escape(str(opinion)) + _quoted(*opinion.quotes[:1])] if opinion else []
            rows += f'<tr><th scope="row" style="{CELL}">{each.name}</th>'
            rows += "".join(f'<td style="{CELL}">{cell}</td>' for cell in cells) + "</tr>"
        told = "".join(f"<li><b>{name}.</b> {escape(said)}</li>" for name, said in self.judges().items())
        return (
            f"<h4>{escape(self.drill.drill.title)}: {self.computed}</h4>"
            f'<table style="border-collapse:collapse;font-size:13px"><thead><tr>{header}</tr></thead>'
            f"<tbody>{rows}</tbody></table><ul>{told}</ul>"
        )

    def _checks(self, key: str) -> list[Check]:
        """Evidence for a criterion; what belongs to none of the drill's goes to the first."""
        keys = [each.key for each in self.drill.rubric.criteria]
        return [c for c in self.checks if c.criterion == key or (c.criterion not in keys and key == keys[0])]

    def _grade(self, key: str) -> str:
        own = self.own.get(key)
        if own is None:
            return "not graded"
        if not own.counts:
            return f"{own.level}, which doesn't count: no sentence of yours is quoted for it"
        return f"{MARKS[own.level]} {own.level}, weighs {self.calibration.weight:.0%}"


def solution_text(drill: DrawnDrill) -> str:
    """What the numbers imply, what a strong answer says, and the model answers. For after grading only."""
    facts = "\n".join(f"- {fact}" for fact in drill.rubric.must_say)
    false = "\n".join(f"- {each.says} {each.right}" for each in drill.rubric.must_not_say)
    answers = [f"A {level} answer\n{drill.answers[level]}" for level in LEVELS]
    head = f"What the prompt's own numbers imply\n{drill.impossible}"
    return "\n\n".join([head, f"A strong answer says\n{facts}", f"And none says\n{false}", *answers])


def off_text(calibration: Calibration) -> str:
    """Where the grades of the samples were off."""
    if not calibration.graded:
        return "No sample graded, so your own grade weighs nothing."
    lines = [
        f"{each.label}, {each.criterion}: you said {each.given}, it is {each.right}. {each.why}"
        for each in calibration.off
    ]
    return "\n".join([*lines, f"So your own grade weighs {calibration.weight:.0%}."])


def _points(found: Check) -> str:
    return f"{found.points:.2g}/{found.most:g}" if found.most else f"{found.points:g}"


def _quoted(*quotes: str, most: int = 160) -> str:
    short = (q if len(q) <= most else q[: most - 1].rstrip() + "…" for q in quotes if q)
    return "".join(f" <i>“{escape(quote)}”</i>" for quote in short)
