"""A drill in a notebook, one step at a time. What it does is a session's (console.py); the browser draws it
(course/lab/view/drill.js), the clock included: a busy kernel can't slow it down. The session notes the moments of Start
and Hand in for itself.
"""

import re
import time
from collections.abc import Callable
from html import escape
from uuid import uuid4

import ipywidgets as widgets
import traitlets
from IPython.display import display

from course.drills.clock import clock_html
from course.drills.console import DrillError, DrillSession
from course.drills.drill import DrawnDrill
from course.drills.library import find_drill, number_of
from course.drills.mock import MINUTES, debrief, plan
from course.drills.recorder import recorder_html
from course.drills.sitting import Sitting, solution_text
from course.lab.display import Html, LivePanel, fold
from course.lab.view import bundle
from course.lab.view.ported import PortPanel, PortView

WIDE = widgets.Layout(width="calc(100% - 4px)", max_width="900px")  # beside its margins


class DrillView(PortView):
    _esm = bundle.widget_script("renderDrill", bundle.DRILL)
    _css = bundle.styles("drill")
    start_class = traitlets.Unicode("").tag(sync=True)
    """CSS class of the button that starts the clock: another clock of the page may listen to it."""


class DrillDesk(PortPanel):
    """A drill to sit. Without a browser it works the same way: `act({"do": "start"})`.

    Args:
        drill: its id, as the list of drills names it, or one that is drawn already.
        seed: which numbers; 0 is the classic.
        is_graded, now, judge_url: see DrillSession.
    """

    widget: DrillView

    def __init__(
        self,
        drill: str | DrawnDrill,
        seed: int = 0,
        is_graded: bool = True,
        now: Callable[[], float] = time.monotonic,
        judge_url: str | None = None,
    ) -> None:
        drawn = drill if isinstance(drill, DrawnDrill) else find_drill(drill).drawn(seed)
        self.session = DrillSession(drawn, is_graded, now, judge_url)
        self._name = f"drill-{uuid4().hex[:8]}"
        super().__init__(self.session, DrillView(state=self.session.state()), DrillError)

    @property
    def sitting(self) -> Sitting:
        return self.session.sitting

    @property
    def is_over(self) -> bool:
        return self.session.is_over

    def _ipython_display_(self) -> None:
        """The recorder is HTML with a script of its own; the rest is a widget."""
        display({"text/html": recorder_html(self._name), "text/plain": "a recorder"}, raw=True)
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
        self.told, end = widgets.HTML("", layout=WIDE), widgets.Button(description="Debrief", button_style="primary")
        end.on_click(lambda _: self.finish())
        self._name = f"mock-{uuid4().hex[:8]}"
        self.desks[0].widget.start_class = f"{self._name}-start"
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


def _paragraphs(text: str) -> str:
    """Plain text as HTML; bold as Markdown writes it, and lists line by line."""
    bold = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escape(text))
    return "".join(f"<p>{part}</p>" for part in re.sub(r"\n(?=[-\d]|\w+[,:])", "<br>", bold).split("\n\n"))
