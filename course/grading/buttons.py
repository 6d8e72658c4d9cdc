"""Buttons under an exercise: the next hint with its price, and the model served with the learner's own part."""

from collections.abc import Callable
from html import escape

import ipywidgets as widgets

from course.grading.attempt import next_hint
from course.grading.exercise import Exercise
from course.grading.history import History
from course.lab.display import LivePanel, trouble, words_of


class HintButton(LivePanel):
    """Opens hints one after the other; each says its price before."""

    def __init__(self, exercise: Exercise, history: History) -> None:
        self._exercise, self._history = exercise, history
        self.button = widgets.Button(icon="lightbulb-o", layout=widgets.Layout(width="auto"))
        self.button.on_click(lambda _: self.open())
        self.shown = widgets.HTML()
        self.widget = widgets.VBox([self.button, self.shown])
        self._price()

    def _price(self) -> None:
        hints, num_read = self._exercise.hints, self._history.hints_read(self._exercise)
        self.button.layout.display = "none" if num_read == len(hints) else None
        if num_read < len(hints):
            cost = hints[num_read].cost * self._exercise.max_score
            self.button.description = f"Hint {num_read + 1} of {len(hints)} (costs {cost:g} points)"

    def open(self) -> None:
        """Show the next one, and note that it was read."""
        self.shown.value += f"<p>{escape(next_hint(self._exercise, None, self._history))}</p>"
        self._price()

    def static_html(self) -> str:
        return ""


class ServeYours(LivePanel):
    """A button that serves the traffic with the learner's part, and shows that run beside the engine's own.

    Args:
        serve: runs it, and gives what to show, as HTML. What it raises is shown.
    """

    def __init__(self, serve: Callable[[], str]) -> None:
        self._serve = serve
        self.button = widgets.Button(
            description="Serve the model with mine", icon="play", button_style="primary", layout={"width": "auto"}
        )
        self.button.on_click(lambda _: self.run())
        self.shown = widgets.HTML()
        self.widget = widgets.VBox([self.button, self.shown])

    def run(self) -> None:
        """Some seconds, in which the button says so."""
        self.button.disabled, self.button.description = True, "Serving ..."
        try:
            self.shown.value = self._serve()
        except Exception as error:  # a learner's code may raise anything
            self.shown.value = trouble(words_of(error))
        finally:
            self.button.disabled, self.button.description = False, "Serve the model with mine again"

    def static_html(self) -> str:
        return "<p>Run this cell for a button that serves the model with your part.</p>"
