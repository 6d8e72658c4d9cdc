"""What the growing picture of a run costs the engine's steps: `python tests/course/lab/growing_cost.py`.

Pairs of equal runs, one with a picture and one without, in changing order. Of each pair: by how much the median step
with decoding alone differs, and the CPU time of the whole process, which is steadier where the machine does other
work. And what the picture takes itself: the CPU time of the thread that waits for the run, beyond what it takes without
a picture, as a share of one core. The engine can't lose more than that.
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

TRAFFIC = "burst"


def shown(view: Any) -> None:
    if view is not None:
        view.send = lambda content: json.dumps(content)


def step_s(run: Run) -> float:
    """Median seconds of the steps in which the most requests decode and nothing else happens."""
    decoding = [step for step in run.steps if not any(share.is_prefill for share in step.shares)]
    most = max(step.num_running for step in decoding)
    return statistics.median(step.end - step.start for step in decoding if step.num_running == most)


def main(pairs: int) -> None:
    lab, line = Lab(), WaitingLine(lambda *_: None)
    waiting._now = line

    def play(is_seen: bool) -> tuple[Run, float, float]:
        """The run, and CPU seconds of the process and of this thread."""
        line.put, line.picture = (shown, GrowingPicture(shown)) if is_seen else (None, None)
        process, thread = time.process_time(), time.thread_time()
        run = lab.run(TRAFFIC)
        return run, time.process_time() - process, time.thread_time() - thread

    play(True)
    steps, cpu, own = [], [], []
    for i in range(pairs):
        played = {is_seen: play(is_seen) for is_seen in ((True, False) if i % 2 else (False, True))}
        (seen, seen_cpu, seen_own), (unseen, unseen_cpu, unseen_own) = played[True], played[False]
        steps.append(step_s(seen) / step_s(unseen))
        cpu.append(seen_cpu / unseen_cpu)
        own.append((seen_own - unseen_own) / seen.duration)
    lab.close()
    print(f"{pairs} pairs of {TRAFFIC}: median (quartiles)")
    for what, values in (("median step, ratio", steps), ("CPU time, ratio", cpu), ("its own, of a core", own)):
        low, median, high = statistics.quantiles(values, n=4)
        print(f"{what}: {median:.4f} ({low:.4f} to {high:.4f})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 12)
