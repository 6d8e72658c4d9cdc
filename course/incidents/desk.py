"""The on-call desk: the incident console in a notebook. What it does is a session's (console.py); the browser draws it
(course/lab/view/console.js).
"""

from collections.abc import Callable
from html import escape

from course.incidents.console import ConsoleSession
from course.incidents.generate import IncidentError
from course.incidents.incident import Incident
from course.lab.view import bundle
from course.lab.view.ported import PortPanel, PortView


class ConsoleView(PortView):
    _esm = bundle.widget_script("renderConsole", bundle.CONSOLE)
    _css = bundle.styles("console")


class IncidentDesk(PortPanel):
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
        super().__init__(self.session, ConsoleView(state=self.session.state()), IncidentError)

    def static_html(self) -> str:
        asked = "".join(f"<li>{escape(question.text)}</li>" for question in self.incident.questions())
        return f"{self.incident.page._repr_html_()}<p>What can be asked:</p><ul>{asked}</ul>"
