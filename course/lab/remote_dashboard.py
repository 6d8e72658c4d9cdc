"""The dashboard, pointed at another server: the same pictures, without what cannot be seen from outside."""

from html import escape

from course.lab.dashboard import Dashboard
from course.lab.pictures.distribution import draw_distributions
from course.lab.pictures.timeline import draw_timeline
from course.lab.printed import TALL, WIDTH, frame
from course.lab.remote import RemoteLab
from course.lab.workloads import LabWorkload


class RemoteDashboard(Dashboard):
    """Plays traffic to a server and watches. Its techniques are set where it runs, so there are no controls.

    Args:
        lab: which server.
        name: the workload to start with, by name, or a LabWorkload of your own.
    """

    lab: RemoteLab
    extra_traffic = {}  # noqa: RUF012
    controls = ()

    def __init__(self, lab: RemoteLab, name: str | LabWorkload = "chat") -> None:
        super().__init__(lab, name)

    @property
    def where(self) -> str:
        return f"{self.lab.endpoint.url}, seen from outside: no steps, no KV blocks, no controls."

    def printed(self, status: str) -> str:
        """The phases, the timeline, and how the two numbers are spread."""
        compared = self.compared()
        left = draw_timeline(compared.run, compared.before, size=(WIDTH, TALL)).svg()
        right = draw_distributions(compared.run, compared.before).svg()
        return frame(compared, escape(status), self.pinned, left, right)
