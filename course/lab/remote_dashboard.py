"""The dashboard, pointed at another server: the same pictures, without what cannot be seen from outside."""

from html import escape

import ipywidgets as widgets

from course.lab.dashboard import Dashboard, frame
from course.lab.pictures.distribution import draw_distributions
from course.lab.pictures.timeline import draw_timeline
from course.lab.remote import RemoteLab
from course.lab.run import Run
from course.lab.summary import headline, phase_table
from course.lab.workloads import Workload


class RemoteDashboard(Dashboard):
    """Plays traffic to a server and watches. Its techniques are set where it runs, so there are no controls.

    Args:
        lab: which server.
        name: the workload to start with, by name, or a Workload of your own.
    """

    def __init__(self, lab: RemoteLab, name: str | Workload = "chat") -> None:
        super().__init__(lab, name)
        where = f"<b>{escape(lab.endpoint.url)}</b>, seen from outside: no steps, no KV blocks, no controls."
        bar, _controls, view = self.widget.children
        self.widget.children = (bar, widgets.HTML(where), view)

    def render(self, run: Run, ghost: Run | None, status: str) -> str:
        """One frame: the timeline, then how the two numbers are spread, and the phases as a table."""
        right = f"{draw_distributions(run, ghost).svg()}{phase_table(run, ghost).html}"
        return frame(status, headline(run, ghost), draw_timeline(run, ghost).svg(), right)
