"""A lesson's check while it's answered: what is told of each answer, and of all of them, as HTML.

A first wrong answer is told what's wrong with it, not what is right: that comes with the second.
"""

import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course.grading.question import Question
from course.lab.style import ALARM

if TYPE_CHECKING:
    from course.grading import Criterion, Result

COURSE = Path(__file__).parents[1]
LINE = re.compile(r"^# ## (?:In the|Say it in an) interview$(.*?)^# ##? ", re.MULTILINE | re.DOTALL)
GOOD = "#009E73"
TRIES = 2
"""After this many wrong answers, the right one is shown."""


class CheckSession:
    """One learner's answers.

    Args:
        grade: grades an answer to the question of a name, and keeps the points.
        questions: by name, in their order.
        shares: points of earlier answers, as a share of what there is.
    """

    def __init__(
        self,
        grade: Callable[[str, Any], "Result"],
        questions: Mapping[str, Question],
        shares: Mapping[str, float] | None = None,
    ) -> None:
        self._grade, self.questions = grade, dict(questions)
        self._tries = dict.fromkeys(questions, 0)
        self.shares = dict.fromkeys(questions, 0.0) | dict(shares or {})
        """Points of the best answer to each so far, as a share of what there is."""

    def answer(self, name: str, written: str) -> tuple["Result", str]:
        """The graded answer to a question, and what is told of it."""
        result = self._grade(name, self.questions[name].read(written))
        share = result.score / result.max_score
        self._tries[name] += share < 1 and any(each.reveal for each in result.criteria)
        self.shares[name] = max(share, self.shares[name])
        return result, _told(result, reveal=share == 1 or self._tries[name] >= TRIES)

    @property
    def num_right(self) -> int:
        return sum(share == 1 for share in self.shares.values())

    @property
    def is_done(self) -> bool:
        return self.num_right == len(self.questions)

    @property
    def head(self) -> str:
        """How far it is."""
        told = f"<b>{self.num_right} of {len(self.questions)}</b> right. The best answer counts; a second wrong one "
        told += "shows what's right."
        row = '<span style="display:flex;align-items:center;gap:12px">'
        return f"{row}{ring(sum(self.shares.values()) / len(self.questions))}<span>{told}</span></span>"


def _told(result: "Result", reveal: bool) -> str:
    several = len(result.criteria) > 1
    return "".join(_line(criterion, reveal, several) for criterion in result.criteria)


def _line(criterion: "Criterion", reveal: bool, named: bool) -> str:
    """One criterion: its colour says how well it was met, its words what to make of it; `named`: which it is."""
    right, half = criterion.earned == criterion.possible, criterion.earned > 0
    colour, mark = (GOOD, "Right") if right else ("#E69F00", "Partly") if half else (ALARM, "Not this")
    words = criterion.words if reveal else criterion.feedback
    then = "" if right or reveal or not criterion.reveal else " <em>Try once more; after that it's shown.</em>"
    of = f" ({escape(criterion.name)})" if named else ""
    told = f"<b>{mark}</b>{of}. {escape(_sentence(words))}{then}"
    return f'<div style="border-left:5px solid {colour};padding:2px 10px;line-height:1.45">{told}</div>'


def _sentence(words: str) -> str:
    """Words of feedback, with a capital and a full stop."""
    is_ended = not words or words[-1] in ".!?"
    return words[:1].upper() + words[1:] + ("" if is_ended else ".")


def ring(share: float, size: int = 34) -> str:
    """A ring that is filled by a share, as SVG."""
    radius = size / 2 - 4
    whole = 2 * math.pi * radius
    place = f'cx="{size / 2}" cy="{size / 2}" r="{radius}" fill="none" stroke-width="6"'
    return (
        f'<svg width="{size}" height="{size}" role="img" aria-label="{share:.0%} of the points">'
        f'<circle {place} stroke="currentColor" stroke-opacity=".18"/>'
        f'<circle {place} stroke="{GOOD}" stroke-dasharray="{share * whole:.2f} {whole:.2f}" '
        f'transform="rotate(-90 {size / 2} {size / 2})"/></svg>'
    )


@cache
def interview_line(lesson: str) -> str:
    """What a lesson ("06") offers to say in an interview, from its source; empty where it offers nothing."""
    for source in COURSE.glob(f"{lesson}_*.py") if lesson else ():
        if found := LINE.search(source.read_text()):
            lines = (line[4:] for line in found.group(1).splitlines() if line.startswith("# > "))
            return re.sub("[`*]", "", " ".join(lines)).strip().strip('"')
    return ""


def all_right(line: str) -> str:
    copy = "navigator.clipboard.writeText(this.parentNode.querySelector('q').textContent);this.textContent='Copied'"
    return (
        f'<div style="border:1px solid {GOOD};border-radius:6px;padding:8px 12px;margin:6px 0;line-height:1.5">'
        f"<b>All right.</b> In the interview: <q>{escape(line)}</q> "
        f'<button onclick="{escape(copy)}">Copy</button></div>'
    )
