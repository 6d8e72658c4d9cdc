"""Buttons under an exercise: check it again, the next hint with its price, the model served with one's own part."""

from collections.abc import Callable
from html import escape
from pathlib import Path

import anywidget
import ipywidgets as widgets
import traitlets

from course.grading import Result
from course.grading.attempt import next_hint
from course.grading.exercise import Exercise
from course.grading.history import History
from course.lab.display import LivePanel, trouble, words_of


class HintButton(LivePanel):
    """Opens hints one after the other; each says its price before."""

    def __init__(self, exercise: Exercise, history: History) -> None:
        self._exercise, self._history = exercise, history
        self.button = widgets.Button(icon="lightbulb-o", layout=widgets.Layout(width="max-content"))
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


class RunAbove(anywidget.AnyWidget):
    """Nothing to see. Runs the cells above whose source matches, and then sends `{"do": "done"}`; where the page can't
    run cells (VS Code, an older set-up), it only sends."""

    _esm = Path(__file__).with_name("run_above.js")
    asked = traitlets.Int(0).tag(sync=True)
    pattern = traitlets.Unicode("").tag(sync=True)
    """JavaScript's, of a line."""


class CheckButton(LivePanel):
    """Runs the learner's cells, grades what they define, and shows that in place of the result before.

    Args:
        check: grades what the notebook has by now.
        graded: is told of each result.
    """

    def __init__(self, exercise: Exercise, check: Callable[[], Result], graded: Callable[[Result], None]) -> None:
        self._check, self._graded = check, graded
        self.button = widgets.Button(description="Check again", icon="check", button_style="primary")
        self.button.on_click(lambda _: self.press())
        self.above = RunAbove(pattern=rf"^(class|def) ({'|'.join(exercise.entry_points)})\b")
        self.above.on_msg(lambda _widget, content, _buffers: content == {"do": "done"} and self.grade())
        self.shown = widgets.HTML()
        self.widget = widgets.VBox([widgets.HBox([self.button, self.above]), self.shown])

    def press(self) -> None:
        """Ask the page to run the cells; it answers when it has."""
        self.button.disabled, self.button.description = True, "Checking ..."
        self.above.asked += 1

    def grade(self) -> None:
        """Some seconds."""
        try:
            result = self._check()
            self.shown.value = result._repr_mimebundle_()["text/html"]
            self._graded(result)
        finally:
            self.button.disabled, self.button.description = False, "Check again"

    def static_html(self) -> str:
        return ""


class ExerciseCard(LivePanel):
    """What stands under a check that wasn't passed: check again, and hints while there are any."""

    def __init__(self, exercise: Exercise, check: Callable[[], Result], history: History) -> None:
        self.check = CheckButton(exercise, check, self._graded)
        self.hint = HintButton(exercise, history)
        self.widget = widgets.VBox([self.check.widget, self.hint.widget])

    def _graded(self, result: Result) -> None:
        """A learner who has passed needs no hints."""
        self.hint.widget.layout.display = "none" if result.score == result.max_score else None

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
            description="Serve the model with mine",
            icon="play",
            button_style="primary",
            layout={"width": "max-content"},
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
