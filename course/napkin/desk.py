"""A napkin sum in a notebook: a question under a minute's clock, a number and its unit, then the working."""

import time
from collections.abc import Callable
from datetime import date
from html import escape
from uuid import uuid4

import ipywidgets as widgets
from IPython.display import display

from course.drills.clock import clock_html
from course.lab.display import LivePanel
from course.lab.live_view import ENTER_PRESSES, LiveView
from course.napkin import results
from course.napkin.library import napkin_of, napkin_of_day
from course.napkin.napkin import MINUTE_S
from course.napkin.quantity import NapkinError, with_unit

WIDE = widgets.Layout(width="calc(100% - 4px)", max_width="720px")  # beside its margins


class NapkinDesk(LivePanel):
    """One sum. The clock is for you alone: going over it costs nothing. Of today's sum the first answer is kept.

    Args:
        seed: which sum; None = today's.
        now: seconds, from a clock that only goes forward.
    """

    def __init__(self, seed: int | None = None, now: Callable[[], float] = time.monotonic) -> None:
        today = date.today()
        self.napkin = napkin_of_day(today) if seed is None else napkin_of(seed)
        self._day = today if seed is None else None
        self._now, self._began = now, 0.0
        self._name = f"napkin-{uuid4().hex[:8]}"
        self.view = LiveView(value="<p><em>The question appears when the clock starts.</em></p>", layout=WIDE)
        self.start = self._button("Start a minute", "start", self.begin)
        layout = widgets.Layout(width="130px")
        self.number = widgets.Text(placeholder="a number", continuous_update=False, layout=layout)
        units = [(unit, unit) for unit in self.napkin.units]
        unset = [("its unit", "")] if len(units) > 1 else []
        self.unit = widgets.Dropdown(options=[*unset, *units], tooltip="unit", layout=widgets.Layout(width="140px"))
        self.submit = self._button("Answer", "stop", self.answer)
        self.fields = widgets.HBox([self.start], layout=widgets.Layout(flex_flow="row wrap"))
        self.fields.add_class(ENTER_PRESSES)
        self.result = LiveView(layout=WIDE)
        self.widget = widgets.VBox([self.view, self.fields, self.result])

    def begin(self) -> None:
        """Show the question, and start the clock."""
        self._began = self._now()
        self.view.value = f'<p style="font-size:15px">{escape(self.napkin.question)}</p>'
        self.fields.children = (self.number, self.unit, self.submit)
        self.number.focus()

    def answer(self) -> None:
        """Judge what is filled in, and show the working. Without a number that's the working alone."""
        typed = with_unit(self.number.value, self.unit.value or "")
        try:
            verdict, *working = self.napkin.debrief(typed or None, self._now() - self._began)
        except NapkinError as error:
            self.result.value = f"<p>{escape(str(error))}</p>"
            return
        if typed and self._day is not None:
            results.keep(self._day, self.napkin.judge(typed), date.today())
        self.number.disabled = self.unit.disabled = self.submit.disabled = True
        rows = "<br>".join(escape(line) for line in working)
        self.result.value = f"<p><b>{escape(verdict)}</b><br>{rows}</p>"

    def _button(self, label: str, part: str, press: Callable[[], None]) -> widgets.Button:
        button = widgets.Button(description=label, button_style="primary", layout=widgets.Layout(width="auto"))
        button.add_class(f"{self._name}-{part}")
        button.on_click(lambda _: press())
        return button

    def _ipython_display_(self) -> None:
        """The clock is HTML with a script of its own; the rest is a widget."""
        display({"text/html": clock_html(self._name, MINUTE_S), "text/plain": "a clock"}, raw=True)
        display(self._repr_mimebundle_(), raw=True)

    def static_html(self) -> str:
        return "<p>There's a new one-minute sum each day. Run this cell for today's.</p>"
