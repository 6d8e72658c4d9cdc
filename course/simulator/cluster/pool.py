"""A pool: replicas of one kind behind one router, with a bound on what it takes in."""

import functools
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from pydantic import Field, model_validator

from course.simulator.cluster.events import EventQueue
from course.simulator.cluster.jobs import Job, Reply
from course.simulator.cluster.record import Outcome
from course.simulator.cluster.replica import IMMEDIATE, EngineFactory, Intake, Replica
from course.simulator.cluster.routers import Router
from course.simulator.cluster.tiers import Tier, TierConfig
from course.simulator.workload.streams import WorkloadModel
from minillm.core.timeline import Timeline


class Autoscaling(WorkloadModel):
    """Rules of Kubernetes' HorizontalPodAutoscaler: replicas = total of a signal / target per replica, rounded up.

    `ttft` and `tpot` scale by an objective instead: replicas = those there are x latency / target, where the latency is
    the 90th percentile of what has ended lately. As there, nothing changes within a tenth of the target, and at most
    twice or half as many are wanted at a time (NVIDIA Dynamo's SLA planner goes by the same two latencies).

    Its lag has three parts: the signal is an average over the past, it is looked at now and then, and a new
    replica takes `ClusterConfig.cold_start_s` to come up.
    """

    signal: Literal["outstanding", "waiting", "arrival_rate", "ttft", "tpot"] = Field(
        "outstanding", description="requests in the pool, in its queues only, or arriving per second; or a latency"
    )
    target: float = Field(gt=0, description="of the signal, per replica; of a latency, seconds")
    min_replicas: int = Field(1, ge=0, description="never fewer; 0 = scale to zero")
    max_replicas: int = Field(16, ge=1, description="never more")
    interval_s: float = Field(15.0, gt=0, description="seconds between two looks")
    window_s: float = Field(30.0, ge=0, description="the signal is averaged over so many seconds")
    scale_down_after_s: float = Field(300.0, ge=0, description="fewer replicas only when so long fewer would have done")

    @property
    def by_latency(self) -> bool:
        return self.signal in ("ttft", "tpot")

    @model_validator(mode="after")
    def _order(self) -> "Autoscaling":
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas ({self.min_replicas}) must not exceed max_replicas ({self.max_replicas})")
        return self


QUANTILE = 0.9
"""The latency that is compared with the target: the slowest tenth may be slower."""
TOLERANCE = 0.1
"""Kubernetes' default: a signal that is so near its target changes nothing."""


class Autoscaler:
    """Keeps the signal's history, and decides.

    Args:
        num_replicas: how many there are at the start; they are not taken down at once.
    """

    def __init__(self, config: Autoscaling, num_replicas: int) -> None:
        self.config = config
        self._signal: deque[tuple[float, float]] = deque()
        self._latencies: deque[tuple[float, float]] = deque()
        """When requests ended lately, and how long they took."""
        self._wanted: deque[tuple[float, int]] = deque([(0.0, num_replicas)])

    def decide(self, now: float, signal: float) -> int:
        """The number of replicas there should be.

        Args:
            now: seconds; ascending from call to call.
            signal: its total over the pool at this moment.
        """
        config = self.config
        remember(self._signal, now, signal, config.window_s)
        mean = sum(value for _, value in self._signal) / len(self._signal)
        return self._settle(now, math.ceil(mean / config.target))

    def see(self, now: float, timeline: Timeline) -> None:
        """A request has ended."""
        latency = timeline.ttft if self.config.signal == "ttft" else timeline.tpot
        if latency is not None:
            remember(self._latencies, now, latency, self.config.window_s)

    def decide_by_latency(self, now: float, num_replicas: int) -> int:
        """As `decide`, with so many replicas there or on their way."""
        recent = sorted(value for moment, value in self._latencies if moment >= now - self.config.window_s)
        ratio = recent[int(QUANTILE * (len(recent) - 1))] / self.config.target if recent else 1.0
        if abs(ratio - 1) <= TOLERANCE:
            ratio = 1.0
        return self._settle(now, math.ceil(num_replicas * min(max(ratio, 0.5), 2.0)))

    def _settle(self, now: float, wanted: int) -> int:
        config = self.config
        remember(
            self._wanted, now, min(max(wanted, config.min_replicas), config.max_replicas), config.scale_down_after_s
        )
        return max(value for _, value in self._wanted)


Amount = TypeVar("Amount", int, float)


def remember(history: deque[tuple[float, Amount]], now: float, value: Amount, seconds: float) -> None:
    """Append a value, and drop those older than `seconds`."""
    history.append((now, value))
    while history[0][0] < now - seconds:
        history.popleft()


class Shedding(WorkloadModel):
    """Load shedding: what the service refuses, so that the rest is served in time. The defaults refuse nothing."""

    max_outstanding: int | None = Field(
        None, ge=1, description="refuse when the pool holds so many requests per replica; None = never"
    )
    deadline_s: float | None = Field(
        None, gt=0, description="drop a request that no engine has begun so long after it came in; None = never"
    )


class Pool:
    """Spreads jobs over replicas, holds them while there is none, and changes the number of replicas.

    Args:
        num_replicas: at the start; they are warm.
        cold_start_s: from ordering a further replica to its first request: machine, weights, health check.
        warm_up_s: what such a replica still does when its first request is there.
        autoscaler: None = the number of replicas stays.
        tiers: where keys and values are kept behind the replicas' prefix caches.
        intake: when a replica takes requests in.
    """

    def __init__(
        self,
        name: str,
        make_engine: EngineFactory,
        num_replicas: int,
        router: Router,
        events: EventQueue,
        shedding: Shedding,
        cold_start_s: float = 0.0,
        warm_up_s: float = 0.0,
        autoscaler: Autoscaler | None = None,
        tiers: Sequence[TierConfig] = (),
        intake: Intake = IMMEDIATE,
    ) -> None:
        self.name = name
        self.events = events
        self.autoscaler = autoscaler
        self.replicas: list[Replica] = []
        """All there ever were."""
        self.serving: list[Replica] = []
        """Those that take requests, in order of their numbers."""
        self._make_engine, self._router, self._shedding = make_engine, router, shedding
        self._cold_start_s, self._warm_up_s = cold_start_s, warm_up_s
        self._tiers, self._shared = tiers, {tier.name: Tier(tier) for tier in tiers if tier.shared}
        self._intake = intake
        self._starting: list[Replica] = []
        self._draining: list[Replica] = []
        self._held: deque[Job] = deque()
        """Jobs that came while no replica was up."""
        self._arrivals = 0
        """Since the autoscaler last looked, refused ones included."""
        for _ in range(num_replicas):
            self.serving.append(self._new_replica(warm_up_s=0.0))

    # ---------------------------------------------------------------- jobs

    @property
    def outstanding(self) -> int:
        """Jobs here that have not ended."""
        return len(self._held) + sum(r.outstanding for r in (*self.serving, *self._draining))

    @property
    def num_waiting(self) -> int:
        """Jobs that no engine has begun."""
        return len(self._held) + sum(replica.num_waiting for replica in self.serving)

    def submit(self, job: Job) -> None:
        """Take a job in or refuse it; `job.on_end` is called in either case, in the end."""
        job.arrival = self.events.now
        self._arrivals += 1
        if self.autoscaler is not None and self.autoscaler.config.by_latency:
            job.on_end = functools.partial(self._ended, job.on_end)
        limit = self._shedding.max_outstanding
        if limit is not None and self.outstanding >= limit * max(len(self.serving), 1):
            self.events.after(0.0, job.on_end, Reply(Outcome.SHED, error="the service is full"))
            return
        if self._shedding.deadline_s is not None:
            self.events.after(self._shedding.deadline_s, self._drop_unless_begun, job)
        self._place(job)

    def cancel(self, job: Job) -> None:
        if job.replica is not None:
            job.replica.cancel(job)
        elif job in self._held:
            self._held.remove(job)

    def _ended(self, on_end: Callable[[Reply], None], reply: Reply) -> None:
        if reply.timeline is not None and self.autoscaler is not None:
            self.autoscaler.see(self.events.now, reply.timeline)
        on_end(reply)

    def _place(self, job: Job) -> None:
        if not self.serving:
            self._held.append(job)
            return
        self._router.choose(job.pieces, self.serving).submit(job)

    def _drop_unless_begun(self, job: Job) -> None:
        waits_here = job in self._held
        request = job.request
        waits_there = request is not None and request.finish_reason is None and request.timeline.scheduled is None
        is_held = job.replica is not None and job.replica.holds(job)
        if waits_here or waits_there or is_held:
            self.cancel(job)
            replica = job.replica.name if job.replica else None
            job.on_end(Reply(Outcome.SHED, replica=replica, error="the deadline passed before any engine began"))

    # ---------------------------------------------------------------- replicas

    def rescale(self) -> None:
        """Let the autoscaler look, and order or drain replicas accordingly."""
        autoscaler = self.autoscaler
        assert autoscaler is not None
        config = autoscaler.config
        arrived, self._arrivals = self._arrivals, 0
        now, num_ordered = self.events.now, len(self.serving) + len(self._starting)
        if config.by_latency:
            wanted = autoscaler.decide_by_latency(now, num_ordered)
        else:
            signals = {"waiting": self.num_waiting, "arrival_rate": arrived / config.interval_s}
            wanted = autoscaler.decide(now, signals.get(config.signal, self.outstanding))
        for _ in range(num_ordered, wanted):
            replica = self._new_replica(self._warm_up_s)
            self._starting.append(replica)
            self.events.after(self._cold_start_s, self._serve, replica)
        for _ in range(wanted, len(self.serving)):
            self._draining.append(self.serving.pop())  # the youngest; those still starting are left to finish
        self._give_back_drained()

    def _new_replica(self, warm_up_s: float) -> Replica:
        tiers = [self._shared.get(tier.name) or Tier(tier) for tier in self._tiers]
        number = len(self.replicas)
        replica = Replica(self.name, number, self._make_engine, self.events, warm_up_s, tiers, self._intake)
        self.replicas.append(replica)
        return replica

    def _serve(self, replica: Replica) -> None:
        self._starting.remove(replica)
        self.serving.append(replica)
        self.serving.sort(key=lambda replica: replica.number)
        while self._held:
            self._place(self._held.popleft())

    def _give_back_drained(self) -> None:
        """A draining replica takes nothing new; when it has finished what it has, it is not paid for any more."""
        for replica in [replica for replica in self._draining if replica.outstanding == 0]:
            self._draining.remove(replica)
            replica.stopped = self.events.now
