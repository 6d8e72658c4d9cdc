"""A lesson's check as one card: a field for each question, a ring that fills, and at the end the line to say."""

from collections.abc import Callable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from course.grading.check_session import CheckSession, all_right, interview_line
from course.grading.question import Question
from course.lab.display import LivePanel
from course.lab.json_store import lesson_here
from course.lab.live_view import ENTER_PRESSES, LiveView
from course.lab.progress import FILE

if TYPE_CHECKING:
    from course.grading import Result

FEW = 5
"""With more options than this, the field is a dropdown."""


class CheckCard(LivePanel):
    """The questions of a lesson under each other.

    Args:
        grade: grades an answer to the question of a name, and keeps the points.
        questions: by name, in their order.
    """

    def __init__(self, grade: Callable[[str, Any], "Result"], questions: Mapping[str, Question]) -> None:
        self.questions = dict(questions)
        self.session = CheckSession(grade, questions, _kept(questions))
        self.fields = {name: _field(question) for name, question in questions.items()}
        self.told = {name: LiveView() for name in questions}
        self._head, self._end = widgets.HTML(), widgets.HTML()
        rows = [self._row(number, name) for number, name in enumerate(questions, 1)]
        self.widget = widgets.VBox([self._head, *rows, self._end])
        self._draw()

    def _row(self, number: int, name: str) -> widgets.Widget:
        question, field = self.questions[name], self.fields[name]
        button = widgets.Button(description="Check", layout=widgets.Layout(width="84px"))
        button.on_click(lambda _: self.answer(name))
        asks = widgets.HTML(f'<div style="line-height:1.45"><b>{number}.</b> {escape(question.asks)}</div>')
        unit = [widgets.HTML(escape(question.unit))] if question.unit else []
        line = widgets.HBox([field, *unit, button], layout=widgets.Layout(align_items="center", flex_flow="row wrap"))
        line.add_class(ENTER_PRESSES)
        return widgets.VBox([asks, line, self.told[name]], layout=widgets.Layout(margin="6px 0"))

    def answer(self, name: str) -> "Result | None":
        """Grade what stands in the field of a question. None: nothing does."""
        if not (written := self.fields[name].value):
            self.told[name].value = "<em>Answer first.</em>"
            return None
        result, self.told[name].value = self.session.answer(name, written)
        self._draw()
        return result

    def _draw(self) -> None:
        self._head.value = self.session.head
        line = interview_line(lesson_here() or "")
        self._end.value = all_right(line) if self.session.is_done and line else ""

    def static_html(self) -> str:
        items = "".join(f"<li>{escape(question.asks)}{_choices(question)}</li>" for question in self.questions.values())
        return f"<ol>{items}</ol>"


def _choices(question: Question) -> str:
    told = ", ".join(question.options) or question.unit
    return f' <span style="opacity:.75">({escape(told)})</span>' if told else ""


def _field(question: Question) -> widgets.ValueWidget:
    if not question.options:
        words = "one, two, ..." if question.many else ""
        layout = widgets.Layout(width="360px" if question.many else "160px")
        return widgets.Text(placeholder=words, continuous_update=False, layout=layout)
    if len(question.options) > FEW:
        return widgets.Dropdown(options=[("choose", ""), *((each, each) for each in question.options)])
    return widgets.ToggleButtons(options=question.options, value=None, style={"button_width": "auto"})


def _kept(questions: Mapping[str, Question]) -> dict[str, float]:
    """Shares of the points from earlier sessions."""
    lesson = FILE.read().lessons.get(lesson_here() or "")
    best = lesson.checks if lesson else {}
    return {name: best[name].score / best[name].possible if name in best else 0.0 for name in questions}
