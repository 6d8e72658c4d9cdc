"""What lesson 11b plays: a spike under five measures, an alarm on the queue, a replica that sleeps, a canary."""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from course.lab import simulated_70b
from course.lab.run import percentile
from course.lab.scale import enough, is_short
from course.lab.waiting import with_progress
from course.lessons.lesson_11 import fleet
from course.lessons.lesson_11.run import GPUS, SMALL
from course.simulator.cluster.record import ClientRecord, Outcome
from course.simulator.workload.arrivals import Poisson, Ramp, Spikes
from course.simulator.workload.requests import Workload, make_workload
from minillm.core.brief import brief

# ---------------------------------------------------------------- a spike, and five answers to it

WINDOW_S = 10.0
"""Width of the panels' windows: requests are grouped by when they were sent."""
BASE = 3.0
"""Requests per second before and after: two fifths of what a replica can do."""
STARTS, ENDS = 60.0, 420.0
MOST_REPLICAS = 4
MAX_OUTSTANDING = 40
"""Requests that a replica may hold at once, with admission control; with as many, it degrades."""
DEGRADE = "degrade to a small model, and back"
MEASURES = ("do nothing", "autoscaler", "refuse beyond a limit", DEGRADE, "a spare replica, always on")


@dataclass(frozen=True)
class Spike:
    """What happens."""

    times: float = 4.0
    """So many times the usual rate."""
    length: float = 60.0
    cold: float = 120.0
    """From ordering a replica to its first request, seconds: machine, weights, warm-up."""
    back_at: int = 10
    """Degraded, new requests go to the large model again when it holds no more than so many."""
    gentle: bool = False
    """The rate climbs in a straight line until the end, instead of jumping up and down again."""

    @property
    def workload(self) -> Workload:
        high = BASE * self.times
        if self.gentle:
            arrivals = Ramp(start_rate=BASE, end_rate=high, length_s=ENDS)
        else:
            arrivals = Spikes(rate=BASE, spike_rate=high, start_s=STARTS, length_s=self.length)
        return make_workload(fleet.asking(1500, 150), arrivals, duration_s=ENDS)


@dataclass(frozen=True)
class SpikeRequest:
    """One request."""

    sent: float
    ttft: float | None
    """To the first byte of an answer; None = there was none."""
    small: bool = False
    """The small model answered."""


@dataclass(frozen=True)
class SpikeStory:
    """One spike under one measure."""

    spike: Spike
    measure: str
    outcomes: tuple[SpikeRequest, ...]
    up: tuple[tuple[float, int], ...]
    """Moment, replicas of the large model that took requests."""
    gpu_hours: float

    __repr__ = brief

    def windows(self, ends: float = ENDS) -> list[float]:
        return [WINDOW_S * i for i in range(math.ceil(ends / WINDOW_S))]

    def by_window(self) -> list[list[SpikeRequest]]:
        """Requests, by when they were sent."""
        return [[f for f in self.outcomes if start <= f.sent < start + WINDOW_S] for start in self.windows()]

    def rate(self, only_overflow: bool = False) -> list[float]:
        """Requests per second by window; of those that the large model did not answer, if only these are wanted."""
        groups = self.by_window()
        if only_overflow:
            groups = [[f for f in group if f.ttft is None or f.small] for group in groups]
        return [len(group) / WINDOW_S for group in groups]

    def ttft(self, q: float = 99) -> list[float | None]:
        """By window, of answered requests."""
        return [percentile([f.ttft for f in group if f.ttft is not None], q) for group in self.by_window()]

    def share(self, kind: str) -> float:
        """Share of all requests: "within SLO", "small" (answered by the small model), "refused"."""
        limit = fleet.LIMITS.ttft
        chosen = {
            "within SLO": lambda f: f.ttft is not None and f.ttft <= limit,
            "small": lambda f: f.small,
            "refused": lambda f: f.ttft is None,
        }[kind]
        return sum(map(chosen, self.outcomes)) / len(self.outcomes)

    @property
    def late(self) -> int:
        """Answered requests that missed the TTFT limit."""
        return sum(each.ttft is not None and each.ttft > fleet.LIMITS.ttft for each in self.outcomes)

    @property
    def grown(self) -> float:
        """Seconds from the begin of the spike until more replicas were seen to take requests; inf = never here."""
        first = self.up[0][1]
        return next((moment - STARTS for moment, replicas in self.up if replicas > first), math.inf)

    @property
    def switches(self) -> int:
        """Between the models, one way or the other."""
        in_order = sorted(self.outcomes, key=lambda each: each.sent)
        return sum(one.small != other.small for one, other in itertools.pairwise(in_order))

    @property
    def back(self) -> float:
        """Seconds from the begin of the spike until p99 of TTFT is within the SLO for good; inf = never here."""
        late = [
            start + WINDOW_S
            for start, value in zip(self.windows(), self.ttft())
            if value is not None and value > fleet.LIMITS.ttft and start >= STARTS
        ]
        if not late:
            return 0.0
        return math.inf if late[-1] >= ENDS else late[-1] - STARTS


@functools.lru_cache(maxsize=64)
def story(spike: Spike, measure: str) -> SpikeStory:
    """Play it. Raises ValueError: there is no such measure."""
    if measure not in MEASURES:
        raise ValueError(f"choose one of {', '.join(MEASURES)}")
    on, workload = fleet.deployment(max_num_seqs=256), spike.workload
    settings: dict[str, object] = {"sample_every_s": WINDOW_S, "cold_start_s": spike.cold}
    if measure == "autoscaler":
        settings["autoscaling"] = {
            "target": MAX_OUTSTANDING / 2,
            "max_replicas": MOST_REPLICAS,
            "window_s": 15.0,
            "scale_down_after_s": 60.0,
        }
    elif measure == "a spare replica, always on":
        settings["replicas"] = 2
    elif measure == "refuse beyond a limit":
        settings["shedding"] = {"max_outstanding": MAX_OUTSTANDING}
    elif measure == DEGRADE:
        settings["degrading"] = {"above": MAX_OUTSTANDING, "back_at": spike.back_at}
        settings["small"] = fleet.deployment(model=SMALL, tp=1, max_num_seqs=128)
    run = simulated_70b.play(on, workload, **settings)
    outcomes = [SpikeRequest(r.intended, r.ttft(), (r.replica or "").startswith("small")) for r in run.records]
    gpu_s = sum(report.up_s * (GPUS if report.pool == "main" else 1) for report in run.reports)
    large = Counter(sample.moment for sample in run.samples if sample.replica.startswith("main"))
    return SpikeStory(spike, measure, tuple(outcomes), tuple(sorted(large.items())), gpu_s / 3600)


def stories(spike: Spike) -> dict[str, SpikeStory]:
    """Every measure; in the short form of a climb, the first two."""
    tried = MEASURES[:2] if spike.gentle and is_short() else MEASURES
    return {measure: story(spike, measure) for measure in with_progress(tried, "simulating measures")}


# ---------------------------------------------------------------- does the queue wait warn of time-outs?

ALARM_SLOTS = 64
WORRY_S = 2.0
"""A queue wait that fires the alarm."""
CALM_LOAD, OVERLOAD_STARTS, ALARM_ENDS = 0.6, 60.0, 360.0
"""Load before the trouble, when the trouble begins, and when the picture ends (seconds)."""
ALARM_WINDOW_S = 5.0
PATIENCE = {"the first word": "first_byte_timeout_s", "the last word": "timeout_s"}
"""What clients wait for, at most so long; then they leave."""
LONG_ANSWER = 600


@dataclass(frozen=True)
class Alarm:
    """One run: the waits of all requests that left the queue, for a slot or for good, and when clients gave up.

    Moments in seconds.
    """

    slot_at: Sequence[float]
    """When each left the queue."""
    wait: Sequence[float]
    """How long each had waited there."""
    gave_up: Sequence[float]

    __repr__ = brief

    @property
    def fired(self) -> float:
        """When the wait first was above WORRY_S; inf = never."""
        return min((at for at, wait in zip(self.slot_at, self.wait) if wait > WORRY_S), default=math.inf)

    @property
    def first_timeout(self) -> float:
        return min(self.gave_up, default=math.inf)

    @property
    def lead(self) -> float | None:
        """Seconds from the alarm to the first time-out; below 0: it fired too late. None: no request timed out."""
        return None if math.isinf(self.first_timeout) else self.first_timeout - self.fired


@functools.lru_cache(maxsize=64)
def alarm(load: float, patience: float, waits_for: str = "the first word", answer: int = 150, seed: int = 0) -> Alarm:
    """A steady load that steps up to `load` (a share of capacity), and clients of limited patience.

    Args:
        patience: seconds.
        waits_for: a name in PATIENCE.
        answer: mean length of an answer, tokens.
        seed: other arrivals and lengths of the same kind.
    """
    traffic = fleet.asking(1500, answer)
    most = fleet.capacity(traffic, max_num_seqs=ALARM_SLOTS)
    arrivals = Spikes(rate=CALM_LOAD * most, spike_rate=load * most, start_s=OVERLOAD_STARTS, length_s=ALARM_ENDS)
    workload = make_workload(traffic, arrivals, duration_s=ALARM_ENDS, seed=seed)
    run = simulated_70b.play(
        fleet.deployment(max_num_seqs=ALARM_SLOTS), workload, clients={PATIENCE[waits_for]: patience}
    )
    moments, waits = zip(*sorted(map(waited, run.records)))
    left = [r.ended for r in run.records if r.outcome is Outcome.TIMEOUT]
    return Alarm(moments, waits, left)


def waited(record: ClientRecord) -> tuple[float, float]:
    """When a request left the queue, and how long it had waited there, seconds.

    Requests that timed out count, too: answered ones alone would show a shorter queue.
    """
    line = record.timeline
    if line is None:
        return record.ended, record.ended - record.sent
    left = record.ended if line.scheduled is None else min(line.scheduled, record.ended)
    return left, left - line.arrival


def alarm_runs() -> tuple[dict[str, Alarm], Alarm]:
    """Three overloads, two in the short form; and long answers without one."""
    loads = (1.3, 2.0) if is_short() else (1.1, 1.3, 2.0)
    queued = {f"load {load:.0%}": alarm(load, 10.0) for load in loads}
    return queued, alarm(0.8, 20.0, "the last word", LONG_ANSWER)


# ---------------------------------------------------------------- rare traffic, and scaling to zero

RARE_RATES = (1.0, 3.0, 10.0, 30.0, 50.0, 300.0)
"""Requests an hour."""
LOOK_S = 15.0
"""Seconds between two looks of the autoscaler."""
COLD_S = 1.0
"""A request that waits so much longer than at a warm replica came while this one slept."""
SLEEP_COUNT = 480
"""At 50 an hour one gap in 65 is longer than five minutes: of 160 requests, one seed in twelve meets none."""


@dataclass(frozen=True)
class Sleep:
    """Scale to zero, played. Seconds; shares of 1."""

    cold: float
    """Share of the requests that found no replica, or one that was still starting."""
    ttft: float
    """Mean."""
    ttft_warm: float
    """Mean, had it never slept."""
    awake: float
    """Share of the time that is paid for."""
    keep: float
    """Seconds without a request after which it was taken down."""

    @property
    def share_of_ttft(self) -> float:
        """Share of all waiting for a first word that cold starts added."""
        return max(0.0, 1 - self.ttft_warm / self.ttft)


@functools.lru_cache(maxsize=128)
def sleep(per_hour: float, cold: float, keep: float) -> Sleep:
    """Play random arrivals to 70B that is taken down when no request came for `keep` seconds.

    Args:
        per_hour: requests.
        cold: from ordering the replica to its first request, seconds.
    """
    workload = make_workload(
        fleet.asking(1500, 150), Poisson(rate=per_hour / 3600), num_requests=enough(SLEEP_COUNT, SLEEP_COUNT // 4)
    )
    on = fleet.deployment(max_num_seqs=64)
    # The rate of arrivals, since a short answer may come and go between two looks.
    scaling = {
        "signal": "arrival_rate",
        "target": 1000.0,
        "min_replicas": 0,
        "max_replicas": 1,
        "interval_s": LOOK_S,
        "window_s": 0.0,
    }
    slept = simulated_70b.play(
        on, workload, replicas=0, cold_start_s=cold, autoscaling={**scaling, "scale_down_after_s": keep}
    )
    warm = fleet.Served.of(simulated_70b.play(on, workload))
    found = fleet.Served.of(slept)
    # It was asleep when the picture began: the first ones to come do not count.
    ttft, ttft_warm = found.of_settled(found.ttft), found.of_settled(warm.ttft)
    return Sleep(
        cold=fmean(cold - warm > COLD_S for cold, warm in zip(ttft, ttft_warm)),
        ttft=fmean(ttft),
        ttft_warm=fmean(ttft_warm),
        awake=min(1.0, slept.replica_seconds / slept.duration),
        keep=keep,
    )


def sleeps(rates: Sequence[float] = RARE_RATES, cold: float = 180.0, keep: float = 300.0) -> dict[float, Sleep]:
    """By requests an hour; every other rate in the short form."""
    rates = rates[1::2] if is_short() else rates
    return {rate: sleep(rate, cold, keep) for rate in with_progress(rates, "simulating days and nights")}


# ---------------------------------------------------------------- a change of configuration, tried on one replica

CHANGES: dict[str, dict[str, Any]] = {
    "no CUDA graphs": {"stack": fleet.STACKS[1]},
    "max_num_seqs 128 → 16": {"max_num_seqs": 16},
    "prompt template doubles": {"prompt": 3000},
    "nothing (an A/A test)": {},
}
UNDO = {"a flag, read at run time": 5.0, "a redeploy, with a cold start": 120.0}
"""Seconds from the decision to the old configuration."""
CANARY_RATE, RULE_WINDOW, RULE_LIMIT = 3.0, 50, 0.2
CANARY_COUNT, REHEARSALS = 400, 6


def watched(change: str, rate: float, seed: int = 0) -> list[tuple[float, bool, float]]:
    """What monitoring learns of a replica from the moment of the change on, in order.

    Returns:
        The moment at which each request is known to be late or not; whether it's late; when it was sent. Seconds.
    """
    fields = {"max_num_seqs": 128, **CHANGES[change]}
    traffic = fleet.asking(fields.pop("prompt", 1500), 150)
    run = fleet.served(traffic, rate, CANARY_COUNT, seed=seed, **fields)
    limit = fleet.LIMITS.ttft
    # One without a token is known as soon as the limit passes, not when the answer ends.
    known = (sent + (e2e if ttft <= limit else limit) for sent, ttft, e2e in zip(run.sent, run.ttft, run.e2e))
    is_late = (not is_met for is_met in run.met(fleet.LIMITS))
    return sorted(zip(known, is_late, run.sent))


@dataclass(frozen=True)
class Rehearsal:
    """One deploy, watched and undone. Seconds since the deploy; inf = never in this run."""

    moments: Sequence[float]
    share: Sequence[float]
    """Late, of the last so many requests at each moment."""
    detected: float
    undone: float
    harmed: int
    """Late requests that were sent before the change was undone."""

    __repr__ = brief


def rehearse(change: str, rate: float, window: int, limit: float, undo_s: float, seed: int = 0) -> Rehearsal:
    """Roll back as soon as more than `limit` of the last `window` requests were late."""
    requests = watched(change, rate, seed)
    window = min(window, len(requests))
    total = list(itertools.accumulate((is_late for _, is_late, _ in requests), initial=0))
    share = [(after - before) / window for before, after in zip(total, total[window:])]
    moments = [moment for moment, _, _ in requests[window - 1 :]]
    detected = min((moment for moment, late in zip(moments, share) if late > limit), default=math.inf)
    undone = detected + undo_s
    return Rehearsal(moments, share, detected, undone, sum(late and sent < undone for _, late, sent in requests))
