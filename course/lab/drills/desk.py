"""A drill in a notebook: write and commit under the clock, take pushback, grade two samples, then yourself.

The clock runs in the browser, from its wall clock: a busy kernel cannot slow it down, and it does not keep the kernel
from anything. The kernel notes the moments of Start and Hand in for itself.
"""

import re
import time
from collections.abc import Callable, Mapping
from html import escape
from uuid import uuid4

import ipywidgets as widgets
from IPython.display import display

from course.lab.display import Html, LivePanel, fold
from course.lab.drills.attempts import attempt_of, keep
from course.lab.drills.calibrate import samples
from course.lab.drills.checks import RANKS
from course.lab.drills.claims import menu
from course.lab.drills.clock import clock_html, written
from course.lab.drills.drill import LEVELS, Commit, Criterion, DrawnDrill
from course.lab.drills.library import find_drill
from course.lab.drills.mock import debrief, plan
from course.lab.drills.sitting import Sitting, off_text, solution_text

WIDE = widgets.Layout(width="100%", max_width="900px")
NAMED = {"description_width": "170px"}
Rows = Mapping[str, widgets.Dropdown]


class Desk(LivePanel):
    """A drill to sit. Show it as the last thing of a cell; press Start, write, commit, hand in.

    Args:
        drill: its id, as the list of drills names it, or one that is drawn already.
        seed: which numbers; 0 is the classic.
        is_graded: by the learner, too; else it is over after the pushback.
        now: seconds, from a clock that only goes forward.
    """

    def __init__(
        self, drill: str | DrawnDrill, seed: int = 0, is_graded: bool = True, now: Callable[[], float] = time.monotonic
    ) -> None:
        drawn = drill if isinstance(drill, DrawnDrill) else find_drill(drill).drawn(seed)
        self.sitting, self.is_graded, self.is_over = Sitting(drawn), is_graded, False
        self._now, self._began = now, None
        self._name = f"drill-{uuid4().hex[:8]}"
        self.start = _button(f"Start {drawn.drill.minutes} minutes", "play", self.begin)
        self.submit = _button("Hand in", "check", self.hand_in, disabled=True)
        self.start.add_class(f"{self._name}-start")
        self.submit.add_class(f"{self._name}-stop")
        self.prompt = widgets.HTML("<p><em>The prompt appears when the clock starts.</em></p>", layout=WIDE)
        self.answer = widgets.Textarea(placeholder="Write as you would speak.", rows=16, layout=WIDE, disabled=True)
        causes, fixes = (
            [("–", ""), *((label, name) for name, label in menu(g).items())] for g in ("causes", "techniques")
        )
        self.dominant = _dropdown("what dominates", causes)
        self.second = _dropdown("the second problem", causes)
        self.number = widgets.Text(description="the number, with unit", style=NAMED, layout=WIDE)
        self.fixes = [_dropdown(f"fix {rank}", fixes) for rank in range(1, len(RANKS) + 1)]
        self._asked = widgets.HTML("", layout=WIDE)
        self._commit = widgets.VBox(
            [widgets.HTML("<b>Commit to</b>"), self.dominant, self.second, self._asked, self.number, *self.fixes]
        )
        self._commit.layout.display = "none"
        self.stages = widgets.VBox([])
        self.result = widgets.HTML("", layout=widgets.Layout(width="100%"))
        self.replies: dict[str, widgets.Textarea] = {}
        self.sample_rows: dict[str, Rows] = {}
        self.own_rows: Rows = {}
        self.quotes: dict[str, widgets.Text] = {}
        buttons = widgets.HBox([self.start, self.submit])
        self.widget = widgets.VBox([buttons, self.prompt, self.answer, self._commit, self.stages, self.result])

    def begin(self) -> None:
        """Start the clock and show the prompt; once."""
        if self._began is None:
            self._began = self._now()
            self.start.disabled, self.submit.disabled, self.answer.disabled = True, False, False
            drill = self.sitting.drill
            self.prompt.value = f'<div style="font-size:15px;line-height:1.5">{_paragraphs(drill.prompt)}</div>'
            self._asked.value = _paragraphs(drill.rubric.commit.number.asks)
            self._commit.layout.display = ""

    def hand_in(self) -> None:
        """Stop the clock, and ask back; once."""
        if self._began is None or self.sitting.text:
            return
        if not self.answer.value.strip():
            self.result.value = "<p>Nothing is written yet, so there's nothing to grade. The clock runs on.</p>"
            return
        self.sitting.text, self.sitting.seconds = self.answer.value, self._now() - self._began
        fixes = tuple(dict.fromkeys(each.value for each in self.fixes if each.value))
        self.sitting.commit = Commit(
            dominant=self.dominant.value, second=self.second.value, number=self.number.value, fixes=fixes
        )
        for each in (self.submit, self.answer, self.dominant, self.second, self.number, *self.fixes):
            each.disabled = True
        allowed = 60 * self.sitting.drill.drill.minutes
        self.result.value = f"<p>On the clock: {written(self.sitting.seconds)} of {written(allowed)}.</p>"
        self.replies = {asks: widgets.Textarea(rows=3, layout=WIDE) for asks in self.sitting.follow_ups}
        asked = [part for asks, box in self.replies.items() for part in (widgets.HTML(f"<b>{escape(asks)}</b>"), box)]
        self._add("The interviewer asks", *asked, _button("Reply", "reply", self.reply))

    def reply(self) -> None:
        """Keep the replies, and show two samples to grade; once."""
        if not self.replies or self.sitting.replies or self.sample_rows:
            return
        self.sitting.replies = {asks: box.value for asks, box in self.replies.items() if box.value.strip()}
        if not self.is_graded:
            self._finish()
            return
        drill = self.sitting.drill
        parts: list[widgets.Widget] = []
        for label, name in samples(drill).items():
            self.sample_rows[label] = _rows(drill.rubric.criteria)
            parts += [widgets.HTML(f"<h4>Answer {label}</h4>{_paragraphs(drill.answers[name])}", layout=WIDE)]
            parts += [widgets.HTML(_anchors(drill.rubric.criteria)), *self.sample_rows[label].values()]
        self._add("Grade these two first", *parts, _button("Compare", "balance-scale", self.compare))

    def compare(self) -> None:
        """Tell where the grades of the samples were off, and ask for the learner's own; once."""
        if not self.sample_rows or self.own_rows:
            return
        self.sitting.samples = {label: _chosen(rows) for label, rows in self.sample_rows.items()}
        criteria = self.sitting.drill.rubric.criteria
        self.own_rows = _rows(criteria)
        self.quotes = {
            each.key: widgets.Text(description="your sentence", style=NAMED, layout=WIDE) for each in criteria
        }
        pairs = [part for key, row in self.own_rows.items() for part in (row, self.quotes[key])]
        self._add("Where you were off", widgets.HTML(_paragraphs(off_text(self.sitting.calibration)), layout=WIDE))
        self._add("Now your own, with a sentence of yours for each", *pairs, _button("Grade", "check", self.grade))

    def grade(self) -> None:
        """Keep the attempt, and show what all graders found, and the model answers; once."""
        if self.own_rows and not self.is_over:
            levels = _chosen(self.own_rows)
            self.sitting.own_written = {key: (level, self.quotes[key].value) for key, level in levels.items()}
            self._finish()

    def _finish(self) -> None:
        self.is_over = True
        keep(attempt_of(self.sitting))
        faults = "".join(
            f"<p>{escape(asks)} {escape(fault.says)}</p>"
            for asks, text in self.sitting.replies.items()
            for fault in self.sitting.faults(text)
        )
        self.result.value += self.sitting.html() + faults + solution(self).html

    def _add(self, title: str, *parts: widgets.Widget) -> None:
        head = widgets.HTML(f"<h4>{title}</h4>")
        self.stages.children = (*self.stages.children, widgets.VBox([head, *parts], layout=WIDE))

    def _ipython_display_(self) -> None:
        """The clock is HTML with a script of its own; the rest is a widget."""
        clock = clock_html(self._name, 60 * self.sitting.drill.drill.minutes)
        display({"text/html": clock, "text/plain": "a clock"}, raw=True)
        display(self._repr_mimebundle_(), raw=True)

    def static_html(self) -> str:
        drill = self.sitting.drill.drill
        return f"<p><b>{escape(drill.title)}</b>, {drill.minutes} minutes: run this cell to sit the drill.</p>"


class MockInterview:
    """45 minutes: the dump, two short drills, pushback after each, and a debrief.

    Args:
        seed: which short drills, and which numbers.
    """

    def __init__(self, seed: int = 0, now: Callable[[], float] = time.monotonic) -> None:
        self.desks = [Desk(drill, is_graded=place == 0, now=now) for place, drill in enumerate(plan(seed))]
        self.told = widgets.HTML("", layout=WIDE)
        self.end = _button("Debrief", "flag-checkered", self.finish)

    def finish(self) -> None:
        """The debrief of what has been handed in so far."""
        self.told.value = _paragraphs(debrief([desk.sitting for desk in self.desks if desk.sitting.text]))

    def _ipython_display_(self) -> None:
        for each in (*self.desks, widgets.VBox([self.end, self.told])):
            display(each)


def solution(desk: Desk) -> Html:
    """What the numbers imply, and the model answers. Nothing of it before the end."""
    if not desk.is_over:
        words = "Hand in and grade first: the model answers are shown afterwards."
        return Html(f"<p><em>{words}</em></p>", words)
    text = solution_text(desk.sitting.drill)
    return Html(fold("What the numbers imply, and the model answers", _paragraphs(text)), text)


def _button(name: str, icon: str, press: Callable[[], None], disabled: bool = False) -> widgets.Button:
    button = widgets.Button(description=name, icon=icon, button_style="primary", disabled=disabled)
    button.on_click(lambda _: press())
    return button


def _dropdown(name: str, options: object) -> widgets.Dropdown:
    return widgets.Dropdown(description=name, options=options, style=NAMED, layout=widgets.Layout(width="560px"))


def _rows(criteria: tuple[Criterion, ...]) -> dict[str, widgets.Dropdown]:
    return {each.key: _dropdown(each.name, ["–", *LEVELS]) for each in criteria}


def _chosen(rows: Rows) -> dict[str, str]:
    return {key: row.value for key, row in rows.items() if row.value in LEVELS}


def _anchors(criteria: tuple[Criterion, ...]) -> str:
    """What an answer of each level does, folded away."""
    parts = (
        f"<p><b>{each.name}.</b> {escape(each.asks)}<br>"
        + "<br>".join(f"<i>{level}</i>: {escape(anchor)}" for level, anchor in zip(LEVELS, each.anchors))
        for each in criteria
    )
    return fold("What each level means here", "".join(parts))


def _paragraphs(text: str) -> str:
    """Plain text as HTML; bold as Markdown writes it."""
    bold = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escape(text))
    return "".join(f"<p>{part}</p>" for part in re.sub(r"\n(?=[-\d]|\w+, \w+:)", "<br>", bold).split("\n\n"))
