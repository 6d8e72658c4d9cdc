"""One drill in a notebook: prompt, clock, a place to write, milestones, and the grade after submitting.

The clock runs in the browser, from its wall clock: a busy kernel cannot slow it down, and it does not keep the kernel
from anything. The kernel notes the moments of Start and Submit for itself.
"""

import re
import time
from collections.abc import Callable, Mapping
from html import escape
from uuid import uuid4

import ipywidgets as widgets
from IPython.display import display

from course.lab.display import Html, LivePanel
from course.lab.drills.attempts import attempt_of, keep
from course.lab.drills.clock import clock_html, written
from course.lab.drills.drill import DIMENSIONS, LEVELS
from course.lab.drills.grade import Grade, grade
from course.lab.drills.library import find_drill

WIDE = widgets.Layout(width="100%", max_width="900px")
MILESTONES: Mapping[str, tuple[str, str, float]] = {
    "two": (
        "both numbers asked for or named: TTFT and ITL",
        r"\A(?=.*(?:ttft|first token))(?=.*(?:itl|inter[- ]?token|tpot|per (?:output )?token))",
        60,
    ),
    "number": ("a number of your own", r"(?:=|≈|\bis about\b|\bso\b).{0,40}\d", 240),
    "question": ("a question asked", r"\?", 480),
}
"""By key: what it is, the text that reaches it, and by when, in seconds of a twelve-minute drill. They are searched at
every key press: what looks at the whole text does so from its beginning only.
"""
FULL_MINUTES = 12


class Desk(LivePanel):
    """A drill to sit. Show it as the last thing of a cell; press Start, write, press Submit.

    Args:
        drill_id: as the list of drills names it.
        seed: which numbers; 0 is the classic.
        now: seconds, from a clock that only goes forward.
    """

    def __init__(self, drill_id: str, seed: int = 0, now: Callable[[], float] = time.monotonic) -> None:
        self.drill = find_drill(drill_id).drawn(seed)
        self.grade: Grade | None = None
        self.reached: dict[str, float] = {}
        """Seconds after the start, by milestone."""
        self._now, self._began, self._took = now, None, None
        self._name = f"drill-{uuid4().hex[:8]}"
        minutes = self.drill.drill.minutes
        self.start = widgets.Button(description=f"Start {minutes} minutes", icon="play", button_style="primary")
        self.submit = widgets.Button(description="Submit", icon="check", disabled=True)
        self.start.add_class(f"{self._name}-start")
        self.submit.add_class(f"{self._name}-stop")
        self.prompt = widgets.HTML("<p><em>The prompt appears when the clock starts.</em></p>", layout=WIDE)
        self.answer = widgets.Textarea(
            placeholder="Write here, in Markdown or plain text.",
            rows=16,
            layout=WIDE,
            disabled=True,
            continuous_update=True,
        )
        self.progress = widgets.HTML("")
        self.own = {
            key: widgets.Dropdown(description=name, options=["–", *LEVELS], style={"description_width": "170px"})
            for key, name in DIMENSIONS.items()
            if key != "secondary" or self.drill.rubric.secondary
        }
        scores = widgets.Accordion(
            [widgets.VBox(list(self.own.values()))], titles=("Score yourself before you submit",)
        )
        self.result = widgets.HTML("", layout=widgets.Layout(width="100%"))
        self.start.on_click(lambda _: self.begin())
        self.submit.on_click(lambda _: self.hand_in())
        self.answer.observe(lambda _: self._note_milestones(), names="value")
        buttons = widgets.HBox([self.start, self.submit])
        self.widget = widgets.VBox([buttons, self.prompt, self.answer, self.progress, scores, self.result])

    def begin(self) -> None:
        """Start the clock and show the prompt; once."""
        if self._began is None:
            self._began = self._now()
            self.start.disabled, self.submit.disabled, self.answer.disabled = True, False, False
            self.prompt.value = f'<div style="font-size:15px;line-height:1.5">{_paragraphs(self.drill.prompt)}</div>'
            self._note_milestones()

    def hand_in(self) -> None:
        """Stop the clock, grade, keep the attempt, and show the model answers; once."""
        if self._began is None or self.grade is not None:
            return
        if not self.answer.value.strip():
            self.result.value = "<p>Nothing is written yet, so there's nothing to grade. The clock runs on.</p>"
            return
        self._took = self._now() - self._began
        self.submit.disabled = self.answer.disabled = True
        self.grade = grade(self.drill, self.answer.value)
        keep(attempt_of(self.grade, self.answer.value, self.self_score, self._took, self.reached))
        took = f"<p>On the clock: {written(self._took)} of {written(60 * self.drill.drill.minutes)}.</p>"
        self.result.value = took + self.grade.html(self.self_score) + solution(self).html

    @property
    def self_score(self) -> dict[str, str]:
        return {key: picker.value for key, picker in self.own.items() if picker.value in LEVELS}

    def _note_milestones(self) -> None:
        if self._began is None:
            return
        text, share = self.answer.value.lower(), self.drill.drill.minutes / FULL_MINUTES
        for key, (_, sign, _) in MILESTONES.items():
            if key not in self.reached and re.search(sign, text, re.S):
                self.reached[key] = self._now() - self._began
        lines = [
            f"{'✓' if key in self.reached else '○'} {what}, by {written(_due(key, due, share))}"
            + (f": at {written(self.reached[key])}" if key in self.reached else "")
            for key, (what, _, due) in MILESTONES.items()
        ]
        self.progress.value = "<br>".join(lines)

    def _ipython_display_(self) -> None:
        """The clock is HTML with a script of its own; the rest is a widget."""
        clock = clock_html(self._name, 60 * self.drill.drill.minutes)
        display({"text/html": clock, "text/plain": "a clock"}, raw=True)
        display(self._repr_mimebundle_(), raw=True)

    def static_html(self) -> str:
        title, minutes = self.drill.drill.title, self.drill.drill.minutes
        return f"<p><b>{escape(title)}</b>, {minutes} minutes: run this cell to sit the drill.</p>"


def _due(key: str, due: float, share: float) -> float:
    """The two numbers are due within a minute of any drill; the rest in proportion to its length."""
    return due if key == "two" else due * share


def solution(desk: Desk) -> Html:
    """What the numbers imply, and the four model answers. Nothing of it before submitting."""
    if desk.grade is None:
        words = "Submit first: the model answers are shown afterwards."
        return Html(f"<p><em>{words}</em></p>", words)
    folded = "".join(
        f"<details><summary>A {level} answer</summary>{_paragraphs(answer)}</details>"
        for level, answer in desk.drill.answers.items()
    )
    html = f"<h4>What the prompt's own numbers imply</h4>{_paragraphs(desk.drill.impossible)}{folded}"
    return Html(html, f"{desk.drill.impossible}\n\n" + "\n\n".join(desk.drill.answers.values()))


def _paragraphs(text: str) -> str:
    """Plain text as HTML; bold as Markdown writes it."""
    bold = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escape(text))
    return "".join(f"<p>{part}</p>" for part in bold.split("\n\n"))
