"""What the growing picture of a run costs the engine's steps.

    OMP_NUM_THREADS=1 python tests/course/lab/growing_cost.py

It's asked of CPU time: other work on the machine lengthens that less than it does the clock's. There are two ways in
which a picture can slow a step:

- **it evicts what the engine's thread had in its caches**: CPU time of a step in that thread. Each pair is two equal
  runs, one with a picture and one without, in changing order; what drifts in between drifts for both.
- **it holds the interpreter's lock**: no longer than it works itself, which is the CPU time of the thread that waits
  for the run beyond what that takes without a picture.

Their sum is the most that the engine's steps can lose.
"""

import json
import math
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from course.lab import Lab, waiting
from course.lab.growing import GrowingPicture
from course.lab.waiting import WaitingLine

TRAFFIC = "burst"
PAIRS = 20
ENGINE = "minillm-engine"
"""Name of its thread. With one OpenMP thread all of a step's arithmetic is done there."""


def shown(view: Any) -> None:
    if view is not None:
        view.send = lambda content: json.dumps(content)


def cpu_of(name: str) -> float:
    """CPU seconds of the threads of this name so far."""
    idents = [thread.ident for thread in threading.enumerate() if thread.name == name]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in idents if ident is not None)


def told(what: str, values: Sequence[float]) -> tuple[float, float]:
    """Prints, and returns, the mean and its standard error."""
    mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
    quartiles = ", ".join(f"{each:+.2%}" for each in statistics.quantiles(values))
    print(f"{what}: {mean:+.2%} ± {error:.2%} (quartiles {quartiles})")
    return mean, error


def main(pairs: int) -> None:
    lab, line = Lab(), WaitingLine(lambda *_: None)
    waiting._now = line

    def play(is_seen: bool) -> tuple[float, float, float]:
        """CPU seconds of a step in the engine's thread, those of this thread, and the run's seconds."""
        line.put, line.picture = (shown, GrowingPicture(shown)) if is_seen else (None, None)
        engine, own = cpu_of(ENGINE), time.thread_time()
        run = lab.run(TRAFFIC)
        return (cpu_of(ENGINE) - engine) / len(run.steps), time.thread_time() - own, run.duration

    play(True)
    steps, own = [], []
    for i in range(pairs):
        played = {is_seen: play(is_seen) for is_seen in ((True, False) if i % 2 else (False, True))}
        (seen_step, seen_own, duration), (step, unseen_own, _) = played[True], played[False]
        steps.append(seen_step / step - 1)
        own.append((seen_own - unseen_own) / duration)
    lab.close()
    print(f"{pairs} pairs of {TRAFFIC}: mean ± its standard error")
    (slower, error), (lock, lock_error) = told("a step's CPU time", steps), told("its own work, of a core", own)
    print(f"together at most {slower + lock:+.2%} ± {math.hypot(error, lock_error):.2%} of a step")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS)
