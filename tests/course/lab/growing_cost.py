"""What the growing picture of a run costs the engine's steps: `python tests/course/lab/growing_cost.py`.

Pairs of equal runs, one with a picture and one without, in changing order. Of each pair: by how much the median step
with decoding alone differs; and the picture's own CPU time as a share of one core, the most that it can take away.
"""

import json
import statistics
import sys
import time
from typing import Any

from course.lab import Lab, waiting
from course.lab.growing import GrowingPicture
from course.lab.run import Run
from course.lab.waiting import WaitingLine
from course.lab.workloads import LabWorkload

TRAFFIC = "burst"


class MeteredPicture(GrowingPicture):
    """Sends to nobody, as a kernel would, and keeps what that took."""

    cpu_s = 0.0
    num_news = 0

    def grow(self, run: Run, traffic: LabWorkload) -> None:
        began = time.thread_time()
        super().grow(run, traffic)
        self.cpu_s += time.thread_time() - began
        self.num_news += 1


def shown(view: Any) -> None:
    if view is not None:
        view.send = lambda content: json.dumps(content)


def step_s(run: Run) -> float:
    """Of the steps in which the most requests decode and nothing else happens."""
    decoding = [step for step in run.steps if not any(share.is_prefill for share in step.shares)]
    most = max(step.num_running for step in decoding)
    return statistics.median(step.end - step.start for step in decoding if step.num_running == most)


def main(pairs: int) -> None:
    lab, picture = Lab(), MeteredPicture(shown)
    line = WaitingLine(lambda *_: None)

    def play(is_seen: bool) -> Run:
        line.put, line.picture = (shown, picture) if is_seen else (None, None)
        waiting._now = line
        return lab.run(TRAFFIC)

    play(True)
    picture.cpu_s, picture.num_news, seen_s, ratios = 0.0, 0, 0.0, []
    for i in range(pairs):
        runs = {is_seen: play(is_seen) for is_seen in ((True, False) if i % 2 else (False, True))}
        ratios.append(step_s(runs[True]) / step_s(runs[False]))
        seen_s += runs[True].duration
    lab.close()
    spread = statistics.quantiles(ratios, n=4) if pairs > 1 else ratios
    print(f"{pairs} pairs of {TRAFFIC}: step with a picture over step without, median {statistics.median(ratios):.4f}")
    print(f"quartiles {', '.join(f'{each:.4f}' for each in spread)}")
    print(
        f"{picture.num_news} news, {1000 * picture.cpu_s / picture.num_news:.2f} ms of CPU each: "
        f"{picture.cpu_s / seen_s:.2%} of a core"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 12)
