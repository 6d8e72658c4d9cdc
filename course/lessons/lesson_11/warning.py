"""Does the queue wait warn of time-outs, and how long before?"""

import functools
import math
from dataclasses import dataclass, replace

import numpy as np

from course.lab import simulated_70b
from course.lab.explorer import Explorer, buttons, choices
from course.lab.pictures.chart import Axis, Curve, Mark, Panel, draw_panels
from course.lab.style import ALARM, PHASE_COLOURS, number, seconds
from course.lab.svg import Picture
from course.lessons.lesson_11 import fleet
from course.simulator.cluster.record import ClientRecord, Outcome
from course.simulator.workload.arrivals import Spikes
from course.simulator.workload.requests import make_workload
from minillm.core.brief import brief

SLOTS = 64
WORRY_S = 2.0
"""A queue wait that fires the alarm."""
CALM, STARTS, ENDS = 0.6, 60.0, 360.0
"""Load before the trouble, when the trouble begins, and when the picture ends (seconds)."""
WINDOW_S = 5.0
PATIENCE = {"the first word": "first_byte_timeout_s", "the last word": "timeout_s"}
"""What clients wait for, at most so long; then they leave."""
LONG_ANSWER = 600


@dataclass(frozen=True)
class Alarm:
    """One run: waits of all who left the line, for a slot or for good, and departures of those who gave up.

    Moments in seconds.
    """

    slot_at: np.ndarray
    """When each left the line."""
    wait: np.ndarray
    """How long each had stood there."""
    gave_up: np.ndarray

    __repr__ = brief

    @property
    def fired(self) -> float:
        """When the wait first was above WORRY_S; inf = never."""
        late = self.slot_at[self.wait > WORRY_S]
        return float(late.min()) if len(late) else math.inf

    @property
    def first_timeout(self) -> float:
        return float(self.gave_up.min()) if len(self.gave_up) else math.inf

    @property
    def lead(self) -> float | None:
        """Seconds from the alarm to the first time-out; below 0: it fired too late. None: no request timed out."""
        return None if math.isinf(self.first_timeout) else self.first_timeout - self.fired


@functools.lru_cache(maxsize=64)
def alarm(load: float, patience: float, waits_for: str = "the first word", answer: int = 150) -> Alarm:
    """A steady load that steps up to `load` (a share of capacity), and clients of limited patience.

    Args:
        patience: seconds.
        waits_for: a name in PATIENCE.
        answer: mean length of an answer, tokens.
    """
    traffic = fleet.asking(1500, answer)
    most = fleet.capacity(traffic, max_num_seqs=SLOTS)
    arrivals = Spikes(rate=CALM * most, spike_rate=load * most, start_s=STARTS, length_s=ENDS)
    workload = make_workload(traffic, arrivals, duration_s=ENDS)
    run = simulated_70b.play(fleet.deployment(max_num_seqs=SLOTS), workload, clients={PATIENCE[waits_for]: patience})
    slots = [waited(record) for record in run.records]
    left = [r.ended for r in run.records if r.outcome is Outcome.TIMEOUT]
    moments, waits = np.array(sorted(slots)).reshape(-1, 2).T
    return Alarm(moments, waits, np.array(left))


def waited(record: ClientRecord) -> tuple[float, float]:
    """When a request left the line, and how long it had stood there, seconds.

    Requests that timed out count, too: answered ones alone would show a shorter queue.
    """
    line = record.timeline
    if line is None:
        return record.ended, record.ended - record.sent
    left = record.ended if line.scheduled is None else min(line.scheduled, record.ended)
    return left, left - line.arrival


def draw_alarm(load: float, patience: float, waits_for: str) -> Picture:
    """Queue wait, and people who leave, over time."""
    answer = LONG_ANSWER if waits_for == "the last word" else 150
    found = alarm(load, patience, waits_for, answer)
    starts = np.arange(0, ENDS, WINDOW_S)
    middle = [float(start + WINDOW_S / 2) for start in starts]
    groups = [found.wait[(found.slot_at >= s) & (found.slot_at < s + WINDOW_S)] for s in starts]
    waits = [float(group.max()) if len(group) else None for group in groups]
    left = [float(((found.gave_up >= s) & (found.gave_up < s + WINDOW_S)).sum() / WINDOW_S) for s in starts]
    moments = {"alarm": found.fired, "first time-out": found.first_timeout}
    marks = [Mark(name, x=moment) for name, moment in moments.items() if moment < ENDS]
    wait = Curve(f"queue wait, longest of {WINDOW_S:.0f} s", middle, waits, colour=PHASE_COLOURS["queue"])
    timeouts = Curve("time-outs", middle, left, colour=ALARM)
    panels = [
        Panel([wait], Axis("queue wait, s", low=0, high=1.25 * patience), [*marks, Mark("", y=WORRY_S)], height=140),
        Panel([timeouts], Axis("time-outs/s", low=0), [replace(mark, label="") for mark in marks]),
    ]
    if found.lead is None:
        words = "no client gives up"
    elif math.isinf(found.lead):
        words = "clients give up, and the alarm never fired"
    else:
        words = (
            f"the alarm fired {seconds(abs(found.lead))} {'before' if found.lead >= 0 else 'after'} the first time-out"
        )
    x = Axis(f"time, seconds; the load steps up at {STARTS:.0f}", low=0, high=ENDS)
    told = f"Load {load:.0%} of capacity, patience {number(patience)} s for {waits_for}: {words}."
    return draw_panels(f"Load {load:.0%}: {words}", panels, x, description=told)


def alarms() -> Explorer:
    """The overload and the patience as sliders."""

    return Explorer(
        lambda load, patience, waits_for: draw_alarm(int(load[:-1]) / 100, float(patience), waits_for),
        slow=True,
        load=choices("load, from then on", ["80%", "110%", "130%", "200%", "400%"], "130%"),
        patience=choices("clients' patience, s", (5, 10, 20, 40), 10),
        waits_for=buttons("they wait for", list(PATIENCE)),
    )
