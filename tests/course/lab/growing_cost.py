"""What the growing picture of a run costs the engine's steps: `python tests/course/lab/growing_cost.py`.

Pairs of equal runs, one with a picture and one without, in changing order. Of each pair: by how much the median step
with decoding alone differs, and the CPU time of the whole process, which is steadier where the machine does other
work; and the picture's own CPU time as a share of one core, the most that it can take away.
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

    def play(is_seen: bool) -> tuple[Run, float]:
        """The run, and what it took of the CPU, seconds."""
        line.put, line.picture = (shown, picture) if is_seen else (None, None)
        waiting._now = line
        began = time.process_time()
        return lab.run(TRAFFIC), time.process_time() - began

    play(True)
    picture.cpu_s, picture.num_news, seen_s, steps, cpu = 0.0, 0, 0.0, [], []
    for i in range(pairs):
        played = {is_seen: play(is_seen) for is_seen in ((True, False) if i % 2 else (False, True))}
        (seen, seen_cpu), (unseen, unseen_cpu) = played[True], played[False]
        steps.append(step_s(seen) / step_s(unseen))
        cpu.append(seen_cpu / unseen_cpu)
        seen_s += seen.duration
    lab.close()
    for what, ratios in (("median step", steps), ("CPU time", cpu)):
        low, median, high = statistics.quantiles(ratios, n=4)
        print(f"{pairs} pairs of {TRAFFIC}, {what} with over without: {median:.4f} ({low:.4f} to {high:.4f})")
    print(
        f"{picture.num_news} news, {1000 * picture.cpu_s / picture.num_news:.2f} ms of CPU each: "
        f"{picture.cpu_s / seen_s:.2%} of a core"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 12)
