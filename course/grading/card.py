"""A lesson's check as one card: a field for each question, a ring that fills, and at the end the line to say.

A first wrong answer is told what's wrong with it, not what is right: that comes with the second.
"""

import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from course.grading.question import Question
from course.lab.display import LivePanel
from course.lab.json_store import lesson_here
from course.lab.progress import FILE
from course.lab.style import ALARM

if TYPE_CHECKING:
    from course.grading import Criterion, Result

COURSE = Path(__file__).parents[1]
LINE = re.compile(r"^# ## (?:In the|Say it in an) interview$(.*?)^# ##? ", re.MULTILINE | re.DOTALL)
GOOD = "#009E73"
FEW = 5
"""With more options than this, the field is a dropdown."""
TRIES = 2
"""After this many wrong answers, the right one is shown."""


class CheckCard(LivePanel):
    """The questions of a lesson under each other.

    Args:
        grade: grades an answer to the question of a name, and keeps the points.
        questions: by name, in their order.
    """

    def __init__(self, grade: Callable[[str, Any], "Result"], questions: Mapping[str, Question]) -> None:
        self._grade, self.questions = grade, dict(questions)
        self._tries = dict.fromkeys(questions, 0)
        self.shares = _kept(questions)
        """Points of the best answer to each so far, as a share of what there is; from earlier sessions, too."""
        self.fields = {name: _field(question) for name, question in questions.items()}
        self.told = {name: widgets.HTML() for name in questions}
        self._head, self._end = widgets.HTML(), widgets.HTML()
        rows = [self._row(number, name) for number, name in enumerate(questions, 1)]
        self.widget = widgets.VBox([self._head, *rows, self._end])
        self._draw()

    def _row(self, number: int, name: str) -> widgets.Widget:
        question, field = self.questions[name], self.fields[name]
        button = widgets.Button(description="Check", layout=widgets.Layout(width="84px"))
        button.on_click(lambda _: self.answer(name))
        if isinstance(field, widgets.Text):
            field.on_msg(lambda _, content, __: content.get("event") == "submit" and self.answer(name))
        asks = widgets.HTML(f'<div style="line-height:1.45"><b>{number}.</b> {escape(question.asks)}</div>')
        unit = [widgets.HTML(escape(question.unit))] if question.unit else []
        line = widgets.HBox([field, *unit, button], layout=widgets.Layout(align_items="center", flex_flow="row wrap"))
        return widgets.VBox([asks, line, self.told[name]], layout=widgets.Layout(margin="6px 0"))

    def answer(self, name: str) -> "Result | None":
        """Grade what stands in the field of a question. None: nothing does."""
        if not (written := self.fields[name].value):
            self.told[name].value = "<em>Answer first.</em>"
            return None
        result = self._grade(name, self.questions[name].read(written))
        share = result.score / result.max_score
        self._tries[name] += share < 1 and any(each.reveal for each in result.criteria)
        self.shares[name] = max(share, self.shares[name])
        self.told[name].value = _told(result, reveal=share == 1 or self._tries[name] >= TRIES)
        self._draw()
        return result

    def _draw(self) -> None:
        num, right = len(self.questions), sum(share == 1 for share in self.shares.values())
        told = f"<b>{right} of {num}</b> right. The best answer counts; a second wrong one shows what's right."
        row = f'<span style="display:flex;align-items:center;gap:12px">{ring(sum(self.shares.values()) / num)}'
        self._head.value = f"{row}<span>{told}</span></span>"
        line = interview_line(lesson_here() or "")
        self._end.value = _done(line) if right == num and line else ""

    def static_html(self) -> str:
        items = "".join(f"<li>{escape(question.asks)}{_choices(question)}</li>" for question in self.questions.values())
        return f"<ol>{items}</ol>"


def _choices(question: Question) -> str:
    told = ", ".join(question.options) or question.unit
    return f' <span style="opacity:.75">({escape(told)})</span>' if told else ""


def _field(question: Question) -> widgets.ValueWidget:
    if not question.options:
        words = "one, two, ..." if question.many else ""
        return widgets.Text(placeholder=words, layout=widgets.Layout(width="360px" if question.many else "160px"))
    if len(question.options) > FEW:
        return widgets.Dropdown(options=[("choose", ""), *((each, each) for each in question.options)])
    return widgets.ToggleButtons(options=question.options, value=None, style={"button_width": "auto"})


def _kept(questions: Mapping[str, Question]) -> dict[str, float]:
    """Shares of the points from earlier sessions."""
    lesson = FILE.read().lessons.get(lesson_here() or "")
    best = lesson.checks if lesson else {}
    return {name: best[name].score / best[name].possible if name in best else 0.0 for name in questions}


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
    told = f"<b>{mark}</b>{of}. {escape(words[:1].upper() + words[1:])}{then}"
    return f'<div style="border-left:5px solid {colour};padding:2px 10px;line-height:1.45">{told}</div>'


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


def _done(line: str) -> str:
    copy = "navigator.clipboard.writeText(this.parentNode.querySelector('q').textContent);this.textContent='Copied'"
    return (
        f'<div style="border:1px solid {GOOD};border-radius:6px;padding:8px 12px;margin:6px 0;line-height:1.5">'
        f"<b>All right.</b> In the interview: <q>{escape(line)}</q> "
        f'<button onclick="{escape(copy)}">Copy</button></div>'
    )
