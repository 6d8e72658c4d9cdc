"""Experiments on the real engine; and the runs that decide the bets."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from course.lab.display import Html, as_table
from course.lab.explorer import Explorer, choices
from course.lab.lab import Lab
from course.lab.predict import Outcome
from course.lab.run import Run, itl_of, percentile
from course.lab.slo import attainment
from course.lab.style import number, seconds
from course.lab.texts import CHAT_QUESTIONS
from course.lab.waiting import with_progress
from course.lab.workloads import Arrival, Workload, document
from course.lessons.lesson_11 import fleet, spike
from course.lessons.lesson_11.knee import Point, Sweep, draw_knee
from minillm.core.brief import brief
from minillm.observe.summary import SLO

SLOTS, SHORT_SLOTS = (1, 2, 4, 8, 16), (1, 2, 8)
LOAD = 0.75
"""Of what the engine serves with all slots: enough spare time for bursts to drain."""
BACK = (
    "the autoscaler: replicas start and drain the queue",
    "refusing, or degrading to a small model",
    "both about equally soon",
)
APART_S = 20.0
"""Two windows of the picture: what is closer is the same."""


def mixed(count: int, answer: int) -> list[tuple[str, int]]:
    """Short questions, every third behind a paragraph; none of them alike."""
    rng = random.Random(11)
    asked = []
    for i in range(count):
        text = f"({i}) {CHAT_QUESTIONS[i % len(CHAT_QUESTIONS)]}"
        asked.append((f"{document(rng, 2)}\n\n{text}" if i % 3 == 2 else text, answer))
    return asked


def sized(lab: Lab) -> tuple[int, int]:
    """Requests, and tokens of an answer."""
    return (16, 16) if lab.scale == 1 else (8, 8)


def together(lab: Lab) -> Workload:
    """All at the same moment: the engine is never idle."""
    return Workload("all at once", "Mixed questions.", tuple(Arrival(0.0, text, n) for text, n in mixed(*sized(lab))))


def one_by_one(lab: Lab, rate: float) -> Workload:
    """The same questions at random moments, so many a second on average."""
    rng, moment, arrivals = random.Random(5), 0.0, []
    for text, tokens in mixed(*sized(lab)):
        arrivals.append(Arrival(moment, text, tokens))
        moment += rng.expovariate(rate)
    return Workload(f"{number(rate)} a second", "Mixed questions, at random moments.", tuple(arrivals))


@dataclass(frozen=True)
class RealKnee:
    """The same arrivals on this machine under one max_num_seqs after the other."""

    runs: Mapping[int, Run]
    rate: float

    __repr__ = brief

    @property
    def limits(self) -> SLO:
        """What this machine could keep: four times its best median TTFT, and twice its best median TPOT."""
        ttft = min(percentile(run.ttft, 50) for run in self.runs.values())
        tpot = min(percentile(_tpots(run), 50) for run in self.runs.values())
        return SLO(ttft=4 * ttft, tpot=2 * tpot)

    @property
    def sweep(self) -> Sweep:
        slo = self.limits
        return Sweep(tuple(_point(slots, run, slo) for slots, run in self.runs.items()), slo, self.rate)


def _tpots(run: Run) -> list[float]:
    gaps = [itl_of(view) for view in run.finished]
    return [sum(each) / len(each) for each in gaps if each]


def _point(slots: int, run: Run, slo: SLO) -> Point:
    in_time = attainment(run, slo)
    return Point(
        slots, run.throughput, percentile(run.ttft, 99), percentile(_tpots(run), 99),
        in_time * len(run.rows) / run.duration, in_time, run.snapshot.num_preemptions,
    )  # fmt: skip


def real_knee(lab: Lab) -> RealKnee:
    """Measures what the engine can do with all slots, then offers most of that to every setting."""
    slots = SLOTS if lab.scale == 1 else SHORT_SLOTS
    full = lab.run(together(lab), max_num_seqs=slots[-1], enable_prefix_caching=False)
    rate = LOAD * len(full.finished) / full.duration
    arrivals = one_by_one(lab, rate)
    runs = {
        each: lab.run(arrivals, max_num_seqs=each, enable_prefix_caching=False)
        for each in with_progress(slots, "the real engine, setting by setting")
    }
    return RealKnee(runs, rate)


def place(found: RealKnee) -> Explorer:
    """This machine's knee, with a slider for the operating point."""
    sweep = found.sweep
    slots = tuple(found.runs)

    return Explorer(
        lambda at: draw_knee(sweep, at, "this machine"),
        slow=True,
        at=choices("operating point: max-batch", slots, slots[len(slots) // 2]),
    )


def a_hundred(qps: float = 100.0, slots: int = 64) -> fleet.Served:
    """100 requests a second of 1500 + 150 tokens to one replica of 70B on four H100s, for a while."""
    return fleet.served(fleet.asking(1500, 150), qps, 1600, max_num_seqs=slots)


def served_share(run: fleet.Served, qps: float) -> float:
    """Requests served per second while others were queued, over those that came."""
    last = float(run.slot_at.max())
    since = fleet.SETTLED * last
    tokens = float(((run.stamps >= since) & (run.stamps < last)).sum())
    return tokens / (last - since) / float(run.tokens.mean()) / qps


def first_back(stories: Mapping[str, spike.Story]) -> Outcome:
    """Which is within the SLO again first: the autoscaler, or refusing or degrading."""
    scaler = stories["autoscaler"].back
    away = min(stories[name].back for name in ("refuse beyond a limit", spike.DEGRADE))
    answer = BACK[2] if abs(scaler - away) < APART_S else BACK[0] if scaler < away else BACK[1]
    told = ", ".join(
        f"{name} {'not in this picture' if s.back == float('inf') else seconds(s.back)}" for name, s in stories.items()
    )
    return Outcome(answer, f"from the start of the spike until TTFT p99 is within the SLO for good: {told}")


def stories_table(stories: Mapping[str, spike.Story], price: float) -> Html:
    """What became of every request, and what it cost.

    Args:
        price: dollars for a GPU and an hour.
    """
    rows = []
    for name, each in stories.items():
        back = "not here" if each.back == float("inf") else "never left" if each.back == 0 else seconds(each.back)
        shares = (f"{each.share(kind):.0%}" for kind in ("within SLO", "small", "refused"))
        rows.append((name, back, *shares, f"${each.gpu_hours * price:.2f}"))
    return as_table(("measure", "answered: SLO met after", "within SLO", "by the small model", "refused", "GPUs"), rows)
