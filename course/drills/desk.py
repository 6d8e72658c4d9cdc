"""A drill in a notebook: ask, write under the clock, commit, take pushback, judge statements, grade two samples, then
yourself.

The clock runs in the browser, from its wall clock: a busy kernel cannot slow it down, and it does not keep the kernel
from anything. The kernel notes the moments of Start and Hand in for itself.
"""

import functools
import os
import re
import time
from collections.abc import Callable, Mapping
from html import escape
from uuid import uuid4

import ipywidgets as widgets
from IPython.display import display

from course.drills.attempts import attempt_of, keep
from course.drills.clock import clock_html, written
from course.drills.drill import DrawnDrill
from course.drills.interviewer import QUESTIONS
from course.drills.library import find_drill, number_of
from course.drills.mock import MINUTES, debrief, plan
from course.drills.recorder import recorder_html
from course.drills.sitting import Sitting, solution_text
from course.drills.stages import Field, Stages, stages
from course.drills.talk import talk_of
from course.lab.display import Html, LivePanel, fold

MENU = widgets.Layout(width="560px", max_width="calc(100% - 4px)")
WIDE = widgets.Layout(width="calc(100% - 4px)", max_width="900px")  # beside its margins
NAMED = {"description_width": "170px"}


class DrillDesk(LivePanel):
    """A drill to sit. Show it as the last thing of a cell; press Start, write, hand in, and go on from stage to stage.

    Args:
        drill: its id, as the list of drills names it, or one that is drawn already.
        seed: which numbers; 0 is the classic.
        is_graded: by the learner, too; else it is over after the statements.
        judge_url: of a judge model's OpenAI API, asked at the end; None = that of MINILLM_JUDGE_URL, if it's set.
        now: seconds, from a clock that only goes forward.
    """

    def __init__(
        self,
        drill: str | DrawnDrill,
        seed: int = 0,
        is_graded: bool = True,
        now: Callable[[], float] = time.monotonic,
        judge_url: str | None = None,
    ) -> None:
        drawn = drill if isinstance(drill, DrawnDrill) else find_drill(drill).drawn(seed)
        self.sitting, self.is_over = Sitting(drawn), False
        self.fields: dict[str, widgets.ValueWidget] = {}
        """The fields of the stage that is open, by key."""
        self._stages: Stages = stages(self.sitting, is_graded)
        self._now, self._began = now, None
        self._judge_url = judge_url
        self._name = f"drill-{uuid4().hex[:8]}"
        self.start = _button(f"Start {drawn.drill.minutes} minutes", self.begin)
        self.submit = self._on = _button("Hand in", self.hand_in)
        self.start.add_class(f"{self._name}-start")
        self.submit.add_class(f"{self._name}-stop")
        self.prompt = widgets.HTML("<p><em>The prompt appears when the clock starts.</em></p>", layout=WIDE)
        self.answer = widgets.Textarea(placeholder="Write as you would speak.", rows=16, layout=WIDE)
        self.question, self.ask = _menu("ask", {}), _button("Ask", self.put_question)
        self.told = widgets.HTML("", layout=WIDE)
        self.submit.disabled = self.answer.disabled = self.question.disabled = self.ask.disabled = True
        self.asked = widgets.VBox([])
        self.result = widgets.HTML("", layout=widgets.Layout(width="100%"))
        buttons = widgets.HBox([self.start, self.submit])
        asking = widgets.HBox([self.question, self.ask])
        self.widget = widgets.VBox([buttons, self.prompt, asking, self.told, self.answer, self.asked, self.result])

    def begin(self) -> None:
        """Start the clock and show the prompt; once."""
        if self._began is None:
            self._began = self._now()
            self.start.disabled, self.submit.disabled, self.answer.disabled = True, False, False
            self.prompt.value = f'<div style="font-size:15px">{_paragraphs(self.sitting.drill.prompt)}</div>'
            facts = talk_of(self.sitting.drill).facts
            self.question.options = _options({each.key: each.asks for each in facts})
            self.question.disabled = self.ask.disabled = not facts

    def put_question(self) -> None:
        """Ask the interviewer what is chosen in the menu, while the clock runs; so many times."""
        key, asked = self.question.value, self.sitting.asked
        if self._began is None or self.sitting.text or not key or key in asked or len(asked) == QUESTIONS:
            return
        self.sitting.asked = (*asked, key)
        self.told.value = "".join(f"<p><b>{escape(e.asks)}</b> {escape(e.says)}</p>" for e in self.sitting.facts)
        self.told.value += f"<p><em>{QUESTIONS - len(self.sitting.asked)} more you may ask.</em></p>"

    def hand_in(self) -> None:
        """Stop the clock, and open the first stage; once."""
        if self._began is None or self.sitting.text:
            return
        if not self.answer.value.strip():
            self.result.value = "<p>Nothing is written yet, so there's nothing to grade. The clock's running.</p>"
            return
        self.sitting.text, self.sitting.seconds = self.answer.value, self._now() - self._began
        self.submit.disabled, self.answer.disabled, self.answer.rows = True, True, 5
        self.question.disabled = self.ask.disabled = True
        self.result.value = f"<p>You took {written(self.sitting.seconds)} of {self.sitting.drill.drill.minutes}:00.</p>"
        self.go_on()

    def go_on(self, stage_number: int | None = None) -> None:
        """Take what is filled in, and open the next stage; after the last, keep the attempt and show everything.

        Args:
            stage_number: of the button that was pressed; one of a stage that is done does nothing.
        """
        place = len(self.asked.children)
        if not self.sitting.text or self.is_over or stage_number not in (None, place):
            return
        filled = {key: (widget.value or "").strip() for key, widget in self.fields.items()}
        if place == 1 and not any(filled.values()):
            self._on.description = "Commit first"
            return
        for each in (*self.fields.values(), self._on):
            each.disabled = True
        try:
            stage = self._stages.send(filled) if place else next(self._stages)
        except StopIteration:
            self.is_over = True
            self._hear_a_judge()
            keep(attempt_of(self.sitting))
            self.result.value += self.sitting.html() + solution(self).html
            return
        self.fields = {field.key: _widget(field) for field in stage.fields}
        rows = [part for field in stage.fields for part in (_about(field), self.fields[field.key])]
        head = widgets.HTML(f"<h4>{escape(stage.title)}</h4>{_paragraphs(stage.text)}", layout=WIDE)
        self._on = _button("Go on", functools.partial(self.go_on, place + 1))
        self.asked.children = (*self.asked.children, widgets.VBox([head, *rows, self._on]))

    def _hear_a_judge(self) -> None:
        """If there is one; it grades the samples first, so this takes a while."""
        from course.drills import judge  # an HTTP client takes long to import, and few have a judge

        if url := self._judge_url or os.environ.get(judge.URL):
            model = os.environ.get(judge.MODEL, judge.DEFAULT)
            self.sitting.heard = judge.hear(self.sitting.drill, self.sitting.text, url, model)

    def _ipython_display_(self) -> None:
        """The clock is HTML with a script of its own; the rest is a widget."""
        clock = clock_html(self._name, 60 * self.sitting.drill.drill.minutes) + recorder_html(self._name)
        display({"text/html": clock, "text/plain": "a clock and a recorder"}, raw=True)
        display(self._repr_mimebundle_(), raw=True)

    def static_html(self) -> str:
        drill = self.sitting.drill.drill
        return f"<p><b>Drill {number_of(drill)}</b>, {drill.minutes} minutes: run this cell to sit it.</p>"


class MockInterview(LivePanel):
    """45 minutes: drills that fill them, pushback and statements after each, and a debrief.

    Args:
        seed: which drills, and which numbers.
    """

    def __init__(self, seed: int = 0, now: Callable[[], float] = time.monotonic) -> None:
        self.desks = [DrillDesk(drill, is_graded=False, now=now) for drill in plan(seed)]
        self.told, end = widgets.HTML("", layout=WIDE), _button("Debrief", self.finish)
        self._name = f"mock-{uuid4().hex[:8]}"
        self.desks[0].start.add_class(f"{self._name}-start")
        end.add_class(f"{self._name}-stop")
        self.widget = widgets.VBox([end, self.told])

    def finish(self) -> None:
        """The debrief of what has been gone through so far."""
        self.told.value = _paragraphs(debrief([desk.sitting for desk in self.desks if desk.is_over]))

    def _ipython_display_(self) -> None:
        display({"text/html": clock_html(self._name, 60 * MINUTES), "text/plain": "a clock"}, raw=True)
        for each in self.desks:
            display(each)
        display(self._repr_mimebundle_(), raw=True)

    def static_html(self) -> str:
        return "<p>Then the debrief: run this cell for a mock interview.</p>"


def solution(desk: DrillDesk) -> Html:
    """What the numbers imply, and the model answers. Nothing of it before the end."""
    if not desk.is_over:
        words = "Hand in and grade first: the model answers are shown afterwards."
        return Html(f"<p><em>{words}</em></p>", words)
    text = solution_text(desk.sitting.drill)
    return Html(fold("What the numbers imply, and the model answers", _paragraphs(text)), text)


def _button(name: str, press: Callable[[], None]) -> widgets.Button:
    button = widgets.Button(description=name, button_style="primary")
    button.on_click(lambda _: press())
    return button


def _widget(field: Field) -> widgets.ValueWidget:
    if field.options is not None:
        return _menu(field.label, field.options)
    if field.is_long:
        return widgets.Textarea(description=field.label, rows=4, style=NAMED, layout=WIDE)
    return widgets.Text(description=field.label, style=NAMED, layout=WIDE)


def _menu(label: str, options: Mapping[str, str]) -> widgets.Dropdown:
    return widgets.Dropdown(description=label, options=_options(options), style=NAMED, layout=MENU)


def _options(options: Mapping[str, str]) -> list[tuple[str, str]]:
    """What can be chosen, as ipywidgets wants it; the first is nothing."""
    return [("–", ""), *((label, key) for key, label in options.items())]


def _about(field: Field) -> widgets.HTML:
    """A short one in full, a long one folded."""
    first, _, rest = field.about.partition("\n")
    return widgets.HTML(fold(first, _paragraphs(rest)) if rest else escape(first), layout=WIDE)


def _paragraphs(text: str) -> str:
    """Plain text as HTML; bold as Markdown writes it, and lists line by line."""
    bold = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escape(text))
    return "".join(f"<p>{part}</p>" for part in re.sub(r"\n(?=[-\d]|\w+[,:])", "<br>", bold).split("\n\n"))
