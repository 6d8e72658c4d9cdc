"""The on-call desk: the incident console in a notebook. What it does is a session's (console.py); the browser draws it
(course/lab/view/console.js).
"""

from collections.abc import Callable
from html import escape

import anywidget
import traitlets

from course.incidents.console import ConsoleSession
from course.incidents.generate import IncidentError
from course.incidents.incident import Incident
from course.lab.display import ActionPanel
from course.lab.view import bundle


class ConsoleView(anywidget.AnyWidget):
    """The state that the browser shows; its actions come as messages."""

    _esm = bundle.widget_script("renderConsole", bundle.CONSOLE)
    _css = bundle.styles("console")
    state = traitlets.Dict().tag(sync=True)


class IncidentDesk(ActionPanel):
    """An incident to play: alarm, evidence, actions, and the debrief. Without a browser it works the same way:
    `act({"do": "ask", "question": "ttft_itl"})`.

    Args:
        incident: played by this desk from here on.
        on_graded: called once, when it has its grade.
    """

    refusal = IncidentError

    def __init__(self, incident: Incident, on_graded: Callable[[], None] = lambda: None) -> None:
        self.incident = incident
        self.session = ConsoleSession(incident, on_graded)
        self.listen(ConsoleView(state=self.session.state()))

    def static_html(self) -> str:
        asked = "".join(f"<li>{escape(question.text)}</li>" for question in self.incident.questions())
        return f"{self.incident.page._repr_html_()}<p>What can be asked:</p><ul>{asked}</ul>"
