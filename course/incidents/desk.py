"""The on-call desk: the incident console in a notebook. What it does is a session's (console.py); the browser draws it
(course/lab/view/console.js).
"""

from collections.abc import Callable
from html import escape
from typing import Any

import anywidget
import traitlets

from course.incidents.console import ConsoleSession
from course.incidents.generate import IncidentError
from course.incidents.incident import Incident
from course.lab.display import LivePanel, words_of
from course.lab.view import bundle


class ConsoleView(anywidget.AnyWidget):
    """The state that the browser shows; its actions come as messages."""

    _esm = bundle.widget_script("renderConsole", bundle.CONSOLE)
    _css = bundle.styles("console")
    state = traitlets.Dict().tag(sync=True)


class IncidentDesk(LivePanel):
    """An incident to play: alarm, evidence, actions, and the debrief. Without a browser it works the same way:
    `act({"do": "ask", "question": "ttft_itl"})`.

    Args:
        incident: played by this desk from here on.
        on_graded: called once, when it has its grade.
    """

    def __init__(self, incident: Incident, on_graded: Callable[[], None] = lambda: None) -> None:
        self.incident = incident
        self.session = ConsoleSession(incident, on_graded)
        self.widget = ConsoleView(state=self.session.state())
        self.widget.on_msg(self._hear)

    def act(self, action: object) -> None:
        """One action, as ConsoleSession takes it; the view shows what came of it.

        Raises:
            IncidentError: it comes out of turn, or names what doesn't exist.
        """
        self.widget.state = self.session.act(action)

    def static_html(self) -> str:
        asked = "".join(f"<li>{escape(question.text)}</li>" for question in self.incident.questions())
        return f"{self.incident.page._repr_html_()}<p>What can be asked:</p><ul>{asked}</ul>"

    def _hear(self, _: object, message: dict[str, Any], __: object) -> None:
        """What comes out of turn is told where it was pressed, not raised."""
        refused = ""
        try:
            self.act(message.get("action"))
        except IncidentError as error:
            refused = str(error)
        except Exception as error:
            refused = f"that failed: {words_of(error)}"
            raise
        finally:
            self.widget.send({"id": message.get("id"), "refused": refused})
