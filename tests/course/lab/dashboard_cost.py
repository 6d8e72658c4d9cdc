"""What the dashboard costs the engine, in CPU time: `python tests/course/lab/dashboard_cost.py`.

Beside the engine works one thread, which tells the browser what is new. Its share of one core is what it can take from
the engine at most: it is measured on a real run, JSON and all.
"""

import json
import time
from typing import Any

from course.lab import Dashboard, Lab
from course.lab.dashboard import FRAME_S


class MeteredDashboard(Dashboard):
    """Keeps what its publisher used."""

    def __init__(self, *given: Any, **fields: Any) -> None:
        super().__init__(*given, **fields)
        self.news: list[int] = []
        """Characters of each."""
        self.cpu_s = self.wall_s = 0.0
        self.widget.send = lambda content: self.news.append(len(json.dumps(content)))  # as a kernel would

    def _publish_until_done(self, session: Any) -> None:
        cpu, wall = time.thread_time(), time.perf_counter()
        super()._publish_until_done(session)
        self.cpu_s += time.thread_time() - cpu
        self.wall_s += time.perf_counter() - wall


def main() -> None:
    lab = Lab()
    dashboard = MeteredDashboard(lab, "burst")
    for traffic in ("burst", "rag", "long document"):
        dashboard.news, dashboard.cpu_s, dashboard.wall_s = [], 0.0, 0.0
        dashboard.set(traffic=traffic)
        dashboard.start()
        dashboard.wait()
        each = dashboard.cpu_s / len(dashboard.news)
        told = f"{len(dashboard.news)} news in {dashboard.wall_s:.1f} s, {max(dashboard.news)} characters at most"
        print(f"{traffic}: {told}; {1000 * each:.2f} ms of CPU each, {each / FRAME_S:.2%} of a core")
    lab.close()


if __name__ == "__main__":
    main()
