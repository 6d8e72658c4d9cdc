"""Lesson 02, the queue: experiments on the real engine, sized from what this machine measures."""

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise

from course.lab.lab import Lab
from course.lab.predict import MeasuredAnswer
from course.lab.queueing import replay
from course.lab.run import Run, percentile
from course.lab.style import number
from course.lab.texts import CHAT_QUESTIONS
from course.lab.visits import Visit, mean, visits_of, waits
from course.lab.workloads import LabWorkload, PromptArrival

LOADS = (0.5, 0.8, 0.95)
OFF = 0.06
"""How far a run may be from its target load."""
A_TYPICAL_ONE = 1025
"""A seed whose 80 arrivals wait about as long as the median of such short runs. No score depends on it."""
LONG_RUN, REPEATS = 40_000, 8
"""Arrivals of a replay that is long enough for a mean near capacity, and how often it is repeated."""


def question(number: int) -> str:
    """Equally long, never the same: the number in front keeps the prefix cache out of the experiment."""
    return f"({number:03d}) {CHAT_QUESTIONS[0]}"


def one_token_each(lab: Lab, offsets: Sequence[float], name: str) -> LabWorkload:
    """Questions that want one token: one step each, so all service times are about equal."""
    arrivals = tuple(PromptArrival(offset, question(i), 1) for i, offset in enumerate(offsets))
    return LabWorkload(name, "Equal questions, each answered with one token.", arrivals)


def measure_capacity(lab: Lab, slots: int = 1) -> Run:
    """All sent together: the server is never idle, so it serves as many a second as it can. The faster of two runs,
    since a disturbance can only slow one down.
    """
    together = one_token_each(lab, [0.0] * (24 if lab.scale == 1 else 8), "all at once")
    return max((lab.run(together, max_num_seqs=slots) for _ in range(2)), key=capacity)


def capacity(run: Run) -> float:
    """Requests a second that a run without idle moments served."""
    return len(run.finished) / run.duration


def moments(rate: float, count: int, seed: int = A_TYPICAL_ONE) -> list[float]:
    """Independent arrivals: exponential gaps, stretched to a mean of exactly 1 / rate."""
    rng = random.Random(seed)
    gaps = [rng.expovariate(1.0) for _ in range(count - 1)]
    stretch = (count - 1) / (rate * sum(gaps))
    times = [0.0]
    for gap in gaps:
        times.append(times[-1] + gap * stretch)
    return times


def at_load(lab: Lab, per_second: float, load: float, count: int | None = None) -> LabWorkload:
    """The same requests in the same rhythm, so fast that they fill this share of the capacity."""
    count = count or (80 if lab.scale == 1 else 16)
    return one_token_each(lab, moments(load * per_second, count), f"load {load:.0%}")


def at_loads(lab: Lab, loads: Sequence[float] = LOADS) -> dict[str, Run]:
    """One run for each of `loads`, one slot. The capacity is measured again before each; a run whose load came out
    wrong, because this machine had something else to do, is repeated once.
    """
    runs = {}
    for load in loads:
        for _ in range(2):
            run = lab.run(at_load(lab, capacity(measure_capacity(lab)), load), max_num_seqs=1)
            if abs(load_of(run) - load) < OFF:
                break
        runs[f"{load:.0%}"] = run
    return runs


def load_of(run: Run) -> float:
    """The load that was really offered: arrivals a second x the mean service time."""
    visits = visits_of(run)
    return service_of(run) * (len(visits) - 1) / (visits[-1].arrival - visits[0].arrival)


def services_of(visits: Sequence[Visit]) -> list[float]:
    """How long each request kept the only slot busy: from one departure to the next while another waited, so that what
    the engine does between two steps counts. If none waited: the time in the slot.
    """
    done = [visit for visit in visits if visit.ending == "answered"]
    busy = [b.left - a.left for a, b in pairwise(done) if b.arrival < a.left]
    return busy or [visit.left - visit.scheduled for visit in done]


def service_of(run: Run) -> float:
    """Mean service time."""
    return mean(services_of(visits_of(run)))


def mean_wait(run: Run) -> float:
    """In service times."""
    return mean(waits(visits_of(run))) / service_of(run)


def expected_wait(run: Run) -> float:
    """Theory's mean wait for these very arrivals, in service times."""
    service, arrivals = service_of(run), [visit.arrival for visit in visits_of(run)]
    return mean(replay(arrivals, [service] * len(arrivals))) / service


def growths(services: Sequence[float], count: int, repeats: int, low: float = LOADS[0], high: float = LOADS[-1]):
    """By what factor the mean wait grows between two loads: `repeats` replays of `count` arrivals each, service times
    drawn from these."""
    found = []
    for seed in range(repeats):
        rng, rate = random.Random(f"services/{seed}"), 1 / mean(services)  # not the stream that drew the gaps
        drawn = rng.choices(services, k=count)
        slow, fast = (mean(replay(moments(load * rate, count, seed), drawn)) for load in (low, high))
        found.append(fast / max(slow, 1e-9))
    return found


def long_growths(runs: Mapping[str, Run]) -> list[float]:
    """The growth factor in replays long enough to have one, with the service times measured in these runs."""
    services = [each for run in runs.values() for each in services_of(visits_of(run))]
    return growths(services, LONG_RUN, REPEATS)


def short_growth(runs: Mapping[str, Run]) -> float:
    """What the few arrivals of the real runs say."""
    lowest, *_, highest = (mean(waits(visits_of(run))) for run in runs.values())
    return highest / max(lowest, 1e-9)


def short_scatter(runs: Mapping[str, Run], repeats: int = 200) -> tuple[float, float]:
    """The two factors between which nine in ten runs as short as these end up."""
    first, *_ = runs.values()
    found = growths(services_of(visits_of(first)), len(first.rows), repeats)
    return percentile(found, 5), percentile(found, 95)


def growth(runs: Mapping[str, Run]) -> MeasuredAnswer:
    """By what factor the mean wait grew from the lowest load to the highest, over a run long enough to say."""
    found = long_growths(runs)
    told = (
        f"{number(mean(found))} times as long: {REPEATS} replays of {LONG_RUN:,} arrivals on this machine's service "
        f"times, {number(min(found))} to {number(max(found))}"
    )
    return MeasuredAnswer(mean(found), told)
