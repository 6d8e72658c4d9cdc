"""Experiments on the real engine. Everything is sized from what this machine measures, so that any machine can
play."""

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise

from course.lab.lab import Lab
from course.lab.lesson_02.theory import waits_of_these
from course.lab.lesson_02.visits import mean, visits_of, waits
from course.lab.predict import Outcome
from course.lab.run import Run
from course.lab.style import number, seconds
from course.lab.texts import CHAT_QUESTIONS
from course.lab.workloads import Arrival, Workload, document

LOADS = (0.5, 0.8, 0.95)
OFF = 0.06
"""By so much a run may miss the load that was asked for."""
GROWTH = ("about as much as the load: 2 times", "about 4 times", "8 times or more")
PAYERS = ("the long one itself", "the three that share its batch", "the four in line behind them")


def question(number: int) -> str:
    """Always as long, and never the same: the number in front keeps the prefix cache out of the experiment."""
    return f"({number:03d}) {CHAT_QUESTIONS[0]}"


def one_word(lab: Lab, offsets: Sequence[float], name: str) -> Workload:
    """Questions that want one token: one step each, so everybody's service takes equally long."""
    arrivals = tuple(Arrival(offset, question(i), 1) for i, offset in enumerate(offsets))
    return Workload(name, "Equal questions with an answer of one token.", arrivals)


def measure_capacity(lab: Lab) -> Run:
    """Everybody at once, one seat: the server is never idle, so it serves as many a second as it can."""
    return lab.run(one_word(lab, [0.0] * (24 if lab.scale == 1 else 8), "all at once"), max_num_seqs=1)


def capacity(run: Run) -> float:
    """Requests a second that a run without idle moments served."""
    return len(run.finished) / run.duration


def moments(rate: float, count: int, seed: int = 46) -> list[float]:
    """Arrivals of people who do not know of each other: exponential gaps, stretched to a mean of exactly 1 / rate.

    The seed was chosen so that this short sample waits about as long as theory expects of an endless one.
    """
    rng = random.Random(seed)
    gaps = [rng.expovariate(1.0) for _ in range(count - 1)]
    stretch = (count - 1) / (rate * sum(gaps))
    times = [0.0]
    for gap in gaps:
        times.append(times[-1] + gap * stretch)
    return times


def at_load(lab: Lab, per_second: float, load: float, count: int | None = None) -> Workload:
    """The same people in the same rhythm, so fast that they fill this share of the capacity."""
    count = count or (80 if lab.scale == 1 else 16)
    return one_word(lab, moments(load * per_second, count), f"load {load:.0%}")


def at_loads(lab: Lab, loads: Sequence[float] = LOADS) -> dict[str, Run]:
    """One run for each of `loads`, one seat. The capacity is measured again before each; a run whose load came out
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
    """The load that was really offered: arrivals a second x the mean time of service."""
    visits = visits_of(run)
    return service_of(run) * (len(visits) - 1) / (visits[-1].arrival - visits[0].arrival)


def service_of(run: Run) -> float:
    """Mean seconds that one visit keeps the only seat busy: from one departure to the next while somebody waits, so
    that what the engine does between two steps counts. Nobody waited: the mean time in the seat.
    """
    visits = [visit for visit in visits_of(run) if visit.ending == "answered"]
    busy = [b.left - a.left for a, b in pairwise(visits) if b.arrival < a.left]
    return mean(busy or [visit.left - visit.seated for visit in visits])


def mean_wait(run: Run) -> float:
    """Of everybody who got a seat, in service times."""
    return mean(waits(visits_of(run))) / service_of(run)


def expected_wait(run: Run) -> float:
    """Theory's mean wait for these very arrivals, in service times."""
    service = service_of(run)
    return mean(waits_of_these([visit.arrival for visit in visits_of(run)], service)) / service


def growth(runs: Mapping[str, Run]) -> Outcome:
    """By what factor the mean wait grew from the lowest load to the highest."""
    waited = {load: mean(waits(visits_of(run))) for load, run in runs.items()}
    first, *_, last = waited.values()
    factor = last / max(first, 1e-9)
    answer = GROWTH[0] if factor < 3 else GROWTH[1] if factor < 7 else GROWTH[2]
    told = ", ".join(f"{seconds(value)} at {load}" for load, value in waited.items())
    came_out = ", ".join(f"{load_of(run):.0%}" for run in runs.values())
    return Outcome(answer, f"mean wait {told}: {number(factor)} times as long (the loads came out as {came_out})")


def straggler(lab: Lab, times: int = 8) -> Workload:
    """Eight at once; the first wants an answer `times` as long as everybody else's."""
    output = 8 if lab.scale == 1 else 4
    arrivals = tuple(Arrival(0.0, question(i), output * times if i == 0 else output) for i in range(8))
    return Workload("straggler", "Eight at once, one long answer.", arrivals)


def who_pays(static: Run, continuous: Run) -> Outcome:
    """Whose E2E grew the most, from continuous to static batching."""
    groups = dict(zip(PAYERS, (range(1), range(1, 4), range(4, 8))))
    e2e = [{i: run.row_of(i).borders[-1] - run.row_of(i).borders[0] for i in range(8)} for run in (continuous, static)]
    grew = {name: mean([e2e[1][i] - e2e[0][i] for i in group]) for name, group in groups.items()}
    winner = max(grew, key=grew.get)
    told = "; ".join(f"{name} {'+' if value >= 0 else '−'}{seconds(abs(value))}" for name, value in grew.items())
    return Outcome(winner, f"end to end, on average, {told}")


def mixed_crowd(lab: Lab) -> Workload:
    """Short questions with answers of very different lengths, in a quick rhythm; a long document comes in between."""
    rng, scale = random.Random(2), lab.scale
    lengths = [6, 40, 8, 6, 10, 32, 6, 8, 12, 6, 24, 8]
    arrivals = []
    for i, length in enumerate(lengths):
        prompt = question(i) if i != 5 else f"{document(rng, 9 if scale == 1 else 3)}\n\nWhich rule is the oddest?"
        arrivals.append(Arrival(0.06 * i * scale, prompt, max(3, round(length * scale))))
    return Workload("mixed crowd", "Answers of all lengths, and one document.", tuple(arrivals))


WAYS = {
    "static": {"batching": "static", "enable_chunked_prefill": False},
    "continuous": {"enable_chunked_prefill": False},
    "continuous, chunked": {"long_prefill_token_threshold": 64},
}
"""Three ways to fill the seats. All else is the same: model, seats, arrivals."""


def three_ways(lab: Lab, traffic: Workload) -> dict[str, Run]:
    """The very same arrivals under each of WAYS, with room in a step for the whole document."""
    return {name: lab.run(traffic, max_num_batched_tokens=1024, **fields) for name, fields in WAYS.items()}


def seven_and_one(lab: Lab, paragraphs: int = 5, *, padded: bool = False, short_only: bool = False) -> Workload:
    """Seven short prompts and a long one in one batch.

    Args:
        padded: every prompt is made as long as the longest, as a batch in one rectangle of tokens makes it.
        short_only: the seven by themselves.
    """
    rng = random.Random(5)
    size = paragraphs if lab.scale == 1 else 2
    prompts = []
    for i in range(7 if short_only else 8):
        is_long = padded or i == 7
        prompts.append(f"({i}) {document(rng, size)}" if is_long else question(i))
    name = "padded" if padded else "short only" if short_only else "ragged"
    return Workload(name, "Seven short prompts and a long one.", tuple(Arrival(0.0, p, 2) for p in prompts))


def one_batch(lab: Lab) -> dict[str, Run]:
    """The seven alone, with the long one beside them, and padded to its length: eight seats, whole prompts."""
    fields = {"max_num_seqs": 8, "max_num_batched_tokens": 4096, "enable_chunked_prefill": False, "num_kv_blocks": 512}
    shapes = {
        "seven short, alone": {"short_only": True},
        "with a long one": {},
        "padded to the long one": {"padded": True},
    }
    return {name: lab.run(seven_and_one(lab, **shape), **fields) for name, shape in shapes.items()}


def tight_memory(lab: Lab) -> Workload:
    """Questions with long answers, all at once: each ends up holding several times the KV blocks it began with."""
    count, output = (12, 64) if lab.scale == 1 else (6, 40)
    return Workload("long answers", "", tuple(Arrival(0.0, question(i), output) for i in range(count)))


def more_seats(lab: Lab, seats: Sequence[int] = (4, 12)) -> dict[str, Run]:
    """The same traffic with few and many seats, on a KV pool that holds the full answers of four."""
    blocks = 22 if lab.scale == 1 else 16
    return {f"{n} seats": lab.run(tight_memory(lab), max_num_seqs=n, num_kv_blocks=blocks) for n in seats}
