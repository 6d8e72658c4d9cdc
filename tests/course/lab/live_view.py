"""What the dashboard costs the engine: `python tests/course/lab/live_view.py`. The same traffic with it and without it.

The median duration of equal decode steps, and the total; nothing else should run meanwhile.
"""

import statistics
import sys

from course.lab import Dashboard, Lab
from course.lab.run import Run


def decode_step_s(run: Run) -> float:
    """Median of the steps that only decode, for as many requests as there are slots."""
    full = [step.end - step.start for step in run.steps if not step.num_prefill_tokens and len(step.shares) == 4]
    return statistics.median(full)


def main(rounds: int = 9) -> None:
    lab = Lab()
    dashboard = Dashboard(lab, "burst")
    taken: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(rounds + 1):
        taken["without"].append(decode_step_s(lab.run("burst")))
        dashboard.start()
        dashboard.wait()
        taken["with"].append(decode_step_s(dashboard.run))
    ratios = sorted(one / other for one, other in zip(taken["with"][1:], taken["without"][1:]))
    middle = {name: 1000 * statistics.median(each[1:]) for name, each in taken.items()}
    print(f"a decode step: {middle['without']:.2f} ms without, {middle['with']:.2f} ms with the dashboard")
    print(f"ratio of pairs: median {statistics.median(ratios):.3f}, from {ratios[0]:.3f} to {ratios[-1]:.3f}")
    lab.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
