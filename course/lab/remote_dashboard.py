"""The dashboard, pointed at another server: the same pictures, without what cannot be seen from outside."""

from html import escape

import ipywidgets as widgets

from course.lab.dashboard import TALL, WIDTH, Dashboard, frame
from course.lab.pictures.distribution import draw_distributions
from course.lab.pictures.timeline import draw_timeline
from course.lab.remote import RemoteLab
from course.lab.summary import Comparison
from course.lab.workloads import LabWorkload


class RemoteDashboard(Dashboard):
    """Plays traffic to a server and watches. Its techniques are set where it runs, so there are no controls.

    Args:
        lab: which server.
        name: the workload to start with, by name, or a LabWorkload of your own.
    """

    extra_traffic = ()

    def __init__(self, lab: RemoteLab, name: str | LabWorkload = "chat") -> None:
        super().__init__(lab, name)
        where = f"<b>{escape(lab.endpoint.url)}</b>, seen from outside: no steps, no KV blocks, no controls."
        bar, _controls, view = self.widget.children
        self.widget.children = (bar, widgets.HTML(where), view)

    def render(self, compared: Comparison, status: str) -> str:
        """One frame: the phases, the timeline, and how the two numbers are spread."""
        run, ghost = compared.run, compared.before
        left = draw_timeline(run, ghost, size=(WIDTH, TALL)).svg()
        return frame(compared, status, self.pinned, left, draw_distributions(run, ghost).svg())
