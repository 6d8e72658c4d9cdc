"""The capacity worksheet: from traffic, a service-level objective and a price to replicas, cost, and what binds.

1. One replica's knee: the highest rate at which enough requests meet the SLO, by bisection over simulated runs.
   All runs play the same requests, only faster or slower (and more of them, when they would be over too soon for
   a queue to show), so that luck does not move the knee. With pools for prefill and decode, "one replica" is a group
   with some of each, and a link of its own.
2. Replicas: demand / knee, rounded up, then tried out as a fleet.
3. Cost: what the fleet costs in an hour, over what it serves in an hour, split between input and output.
4. What binds, seen a little past the knee: see limits.py.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from course.simulator.capacity.limits import Bottlenecks, Explain, find_limits, prefill_share, recording
from course.simulator.cluster.fleet import ClusterConfig, simulate
from course.simulator.cluster.record import ClientRecord, Outcome, Since
from course.simulator.cluster.replica import EngineFactory
from course.simulator.cluster.run import FleetRun
from course.simulator.errors import SimulationError, WorkloadError
from course.simulator.latencies import DIGITS
from course.simulator.workload.arrivals import Arrivals, Poisson
from course.simulator.workload.requests import Traffic, Workload, make_workload, mean_turns
from course.simulator.workload.traces import replayed
from course.summary import SLO
from minillm.core.brief import brief

SINCE: Since = "intended"
"""Limits count from when a request is due: a closed loop's clients would hold back all that is too much, and no rate
would ever look too high."""
TOLERANCE = 0.03
"""The bisection ends when the knee is known to this share of itself."""
PAST_THE_KNEE = 1.25
"""Where to look for what binds: so many times the knee."""
IDLE_RATE = 1e-3
"""Requests per second at which no request waits for another."""
LIMITS_PER_RUN, STAYS_PER_RUN = 10, 5
"""Arrivals go on for at least so many times the TTFT or E2E limit, and so many times as long as a request stays: above
the knee a queue grows slowly, and only when as many leave as come is a replica as full as it will be."""
MOST_REQUESTS = 200_000
"""In one run: a minute or two."""
RECORDED_REQUESTS = 300
"""At least, in the two runs whose every step is kept."""
TRIED_OUT = 8
"""Only so many replicas of a larger fleet are tried out, under their share of the demand. The whole fleet can
balance its load at least as well."""


@dataclass(frozen=True, slots=True)
class KneePoint:
    """One simulated run of one replica; a point of the knee curve. Seconds from when a request is due, and rates per
    second."""

    rate: float
    attainment: float
    """Share of requests that met every limit of the SLO."""
    ttft_p99: float | None
    """None when nothing was answered."""
    tpot_p99: float | None
    """None when no answer has two tokens."""
    output_tokens_per_s: float
    e2e_p99: float | None = None
    """None when nothing was answered."""

    @classmethod
    def of(cls, rate: float, run: FleetRun, slo: SLO) -> "KneePoint":
        summary = run.summary(slo, SINCE)
        p99s = (summary.metrics[metric].p99 for metric in ("ttft", "tpot", "e2e"))
        ttft, tpot, e2e = (None if value is None else round(value, DIGITS) for value in p99s)
        return cls(rate, summary.attainment or 0.0, ttft, tpot, round(summary.output_tokens_per_s, DIGITS), e2e)

    def __str__(self) -> str:
        percentiles = (("TTFT", self.ttft_p99), ("TPOT", self.tpot_p99), ("E2E", self.e2e_p99))
        stated = [
            f"{name} p99 {value * 1e3:,.{0 if value >= 0.1 else 1}f} ms"
            for name, value in percentiles
            if value is not None
        ]
        return ", ".join(stated) or "nothing is answered: are prompts longer than the model's window?"


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """The filled-in worksheet. Rates per second, money in US dollars."""

    demand: float
    slo: SLO
    target: float
    """Share of requests that must meet the SLO."""
    knee: float
    """Highest rate one replica serves within the SLO, requests per second."""
    curve: tuple[KneePoint, ...]
    """Every rate that was tried on one replica, ascending."""
    knee_requests: int
    """Requests in the run that found the knee. A longer one sees rarer bursts, and finds a lower knee."""
    replicas: int
    """Groups of them, with pools for prefill and decode."""
    replicas_by_knee: int
    """Demand over knee, less headroom, rounded up. More were needed where a fleet misses what one replica meets: a
    router that spreads conversations leaves their prefixes behind."""
    in_each: dict[str, int]
    """Replicas in one of those, by pool."""
    fleet_attainment: float | None
    """What that many replicas (at most TRIED_OUT) attain under their share of the demand; None = not tried out."""
    cost_per_hour: float
    cost_per_request: float
    input_cost_per_million: float
    """Per million input (prompt) tokens."""
    output_cost_per_million: float
    prefill_share: float
    """Share of a replica's busy time that prompts cost; it splits the bill. Idle time is split likewise."""
    limits: Bottlenecks

    __repr__ = brief

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        limits = ((name, getattr(self.slo, name)) for name in ("ttft", "itl", "tpot", "e2e"))
        stated = ", ".join(f"{name.upper()} <= {value * 1e3:g} ms" for name, value in limits if value is not None)
        tried = "not tried out" if self.fleet_attainment is None else f"tried out: {self.fleet_attainment:.1%} meet it"
        if self.replicas > self.replicas_by_knee:
            tried += f"; {self.replicas_by_knee} by the knee, and too few"
        spent = sorted(self.limits.step_time.items(), key=lambda item: -item[1])
        shares = ", ".join(f"{name} {share:.0%}" for name, share in spent) or "not known"
        counted, split = str(self.replicas), "of busy time is what prompts add to steps"
        if prefills := self.in_each.get("prefill"):
            counted = f"{self.replicas} groups of {prefills} for prefill and {self.in_each['main']} for decode"
            split = "of the replicas are for prefill"
        bill = f"${self.cost_per_hour:,.2f} an hour, ${self.cost_per_request * 1e3:.4f} per 1000 requests"
        lines = (
            f"demand              {self.demand:.2f} requests/s, {self.target:.1%} of them with {stated}, since due",
            f"knee of one replica {self.knee:.2f} requests/s, in runs of {self.knee_requests}",
            f"replicas            {counted} ({tried})",
            f"what binds          {self.limits.binding}: {self.limits.why}",
            f"  steps' time       {shares}",
            f"cost                {bill}",
            f"  input             ${self.input_cost_per_million:.4f} per million tokens",
            f"  output            ${self.output_cost_per_million:.4f} per million tokens",
            f"  split             {self.prefill_share:.0%} {split}",
        )
        return "\n".join(lines)


class OutOfReachError(Exception):
    """A run can't reach the target any more, whatever becomes of the requests that are left."""


class Misses:
    """Counts the requests of a run that miss the SLO, and ends it when those that are left can't make up for them."""

    def __init__(self, num_requests: int, slo: SLO, target: float) -> None:
        self._num_requests, self._slo, self._target = num_requests, slo, target
        self._missed = 0

    def __call__(self, record: ClientRecord) -> None:
        row = record.as_request_record(SINCE)
        if row is None or (row.completed and self._slo.met_by(row.timeline)):
            return
        self._missed += 1
        if (self._num_requests - self._missed) / self._num_requests < self._target:
            raise OutOfReachError


class Worksheet:
    """Simulated runs of one kind of traffic on one kind of replica.

    Args:
        traffic: what is asked: made up, or a recording, which is replayed in its own rhythm (`traces.replayed`). Rates
            below are of requests, also where an arrival brings several.
        make_engine: makes one replica's engine.
        make_recording_engine: makes the same with step records, for the bill and for what binds; None = make_engine
            makes such engines.
        slo: at least one limit.
        target: share of requests that must meet it; 0.99 states the limits as p99.
        arrivals: the arrival process of made-up traffic at a given rate; None = Poisson.
        num_requests: requests in a run, per replica; more where that would be over too soon.
        config: of the fleet; its number of replicas is replaced. With disaggregation it is one group.
        explain: what a step's seconds are spent on; None = unknown.
        progress: told what is tried, and the share of it that is done.
    Raises:
        WorkloadError: an SLO without limits above zero, a target that is no share, no requests, or a fleet of two
            models, or of a number of replicas that changes.
    """

    def __init__(
        self,
        traffic: Traffic | Workload,
        make_engine: EngineFactory,
        slo: SLO,
        *,
        make_recording_engine: EngineFactory | None = None,
        target: float = 0.99,
        arrivals: Callable[[float], Arrivals] | None = None,
        num_requests: int = 1000,
        seed: int = 0,
        config: ClusterConfig | None = None,
        explain: Explain | None = None,
        progress: Callable[[str, float], None] | None = None,
    ) -> None:
        limits = [limit for limit in dataclasses.astuple(slo) if limit is not None]
        if not limits:
            raise WorkloadError("the SLO states no limit, so any rate would do: give it a ttft, tpot, itl or e2e")
        if not all(limit > 0 for limit in limits):
            raise WorkloadError(f"limits of an SLO are seconds above 0, not {', '.join(map(str, limits))}")
        if not 0 < target <= 1:
            raise WorkloadError(f"target is a share of requests above 0 and at most 1, not {target}")
        if num_requests < 1:
            raise WorkloadError(f"num_requests must be at least 1, not {num_requests}")
        if isinstance(traffic, Workload) and arrivals is not None:
            raise WorkloadError("a recording has a rhythm of its own: leave arrivals out")
        config = config or ClusterConfig()
        if config.autoscaling or config.model_routing or config.degrading:
            raise WorkloadError("the worksheet counts replicas of one kind: no autoscaling, model_routing, degrading")
        self.traffic, self.make_engine, self.slo, self.target = traffic, make_engine, slo, target
        self.make_recording_engine = make_recording_engine or make_engine
        self.arrivals = arrivals or (lambda rate: Poisson(rate=rate))
        self.num_requests, self.seed = num_requests, seed
        self.config = config.replace(sample_every_s=None)
        self.explain, self.progress = explain, progress
        self.turns = 1.0 if isinstance(traffic, Workload) else mean_turns(traffic, seed)
        self.points: dict[float, KneePoint] = {}
        self._stay_s = 0.0
        """How long an arrival stays with an idle replica: to the end of its last answer, mean, seconds."""
        self._unserved = ""
        """What is to be said of requests that not even an idle replica can serve."""

    @property
    def in_each(self) -> dict[str, int]:
        """Replicas in one unit of what is counted, by pool."""
        split = self.config.disaggregation
        return {"main": 1} if split is None else {"prefill": split.prefill_replicas, "main": self.config.replicas}

    def fleet(self, count: int) -> ClusterConfig:
        """So many of what is counted."""
        split, main = self.config.disaggregation, self.in_each["main"]
        if split is not None:
            links = count * split.link_bytes_per_s
            split = split.replace(prefill_replicas=count * split.prefill_replicas, link_bytes_per_s=links)
        return self.config.replace(replicas=count * main, disaggregation=split)

    def num_in_run(self, rate: float) -> int:
        """Requests that one replica gets in a run at this rate."""
        slowest = max(self.slo.ttft or 0.0, self.slo.e2e or 0.0)
        num = max(self.num_requests, math.ceil(rate * LIMITS_PER_RUN * slowest), self.num_until_full(rate))
        if num > MOST_REQUESTS:
            raise SimulationError(
                f"{rate:.3g} requests/s against a limit of {slowest:g} s would take runs of {num} requests: plan for "
                "a shorter limit"
            )
        return num

    def num_until_full(self, rate: float) -> int:
        """Requests until a replica is as full as it will be at this rate, and for a while after."""
        return math.ceil(rate * STAYS_PER_RUN * self._stay_s)

    def workload(self, rate: float, num_requests: int) -> Workload:
        """The traffic at this rate: the first so many requests, or a few more, to the end of a conversation."""
        if isinstance(self.traffic, Workload):
            return replayed(self.traffic, rate, num_requests)
        arrivals = self.arrivals(rate / self.turns)
        num = math.ceil(num_requests / self.turns)
        return make_workload(self.traffic, arrivals, num_requests=num, seed=self.seed)

    def run(
        self,
        rate: float,
        replicas: int = 1,
        num_requests: int | None = None,
        make_engine: EngineFactory | None = None,
        *,
        gives_up: bool = False,
    ) -> FleetRun:
        """Play the traffic at this rate to so many replicas.

        Args:
            rate: of all of them together.
            num_requests: likewise; None = enough.
            gives_up: end it with OutOfReachError as soon as too many requests have missed the SLO.
        """
        workload = self.workload(rate, num_requests or replicas * self.num_in_run(rate / replicas))
        tell = self.progress
        progress = None if tell is None else functools.partial(tell, f"{replicas} x at {rate:.3g} requests/s")
        watch = Misses(len(workload), self.slo, self.target) if gives_up else None
        make = make_engine or self.make_engine
        return simulate(workload, self.fleet(replicas), make, progress=progress, on_end=watch)

    def holds(self, rate: float) -> bool:
        """Whether one replica serves this rate within the SLO."""
        if rate not in self.points:
            self.points[rate] = KneePoint.of(rate, self.run(rate), self.slo)
        return self.points[rate].attainment >= self.target

    def idle(self) -> KneePoint:
        """How a replica does that has nearly nothing to do; also learns how long arrivals stay."""
        if IDLE_RATE not in self.points:
            run = self.run(IDLE_RATE)
            self.points[IDLE_RATE] = KneePoint.of(IDLE_RATE, run, self.slo)
            begun = {record.request.session: record.intended or 0.0 for record in reversed(run.records)}
            ended = {record.request.session: record.ended or 0.0 for record in run.records}
            errors = [record.error for record in run.records if record.outcome is Outcome.ERROR]
            if errors:
                self._unserved = (
                    f"; {len(errors) / len(run.records):.1%} can't be served at all, the first: {errors[0]}"
                )
            self._stay_s = sum(ended[session] - begun[session] for session in begun) / len(begun)
        return self.points[IDLE_RATE]

    def knee(self, guess: float) -> float:
        """The highest rate that holds, to TOLERANCE.

        Args:
            guess: where to begin at the latest, requests per second.
        Raises:
            SimulationError: not even an idle replica meets the SLO, or there is no rate that breaks it.
        """
        idle = self.idle()
        if idle.attainment < self.target:
            raise SimulationError(
                f"an idle replica meets the SLO for {idle.attainment:.1%} of requests only ({idle}{self._unserved}): "
                "more replicas cannot help; faster ones, or other limits, can"
            )
        one_by_one = self.turns / self._stay_s if self._stay_s else math.inf
        low, high = IDLE_RATE, max(min(guess, one_by_one), 2 * IDLE_RATE)
        while self.holds(high):
            low, high = high, 2 * high
            if high > 1e6:
                raise SimulationError("no rate breaks the SLO: do steps take no time?")
        while high > low * (1 + TOLERANCE):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.holds(middle) else (low, middle)
        return low


def plan_capacity(
    worksheet: Worksheet, demand: float, *, price_per_hour: float, headroom: float = 0.0, try_out: bool = True
) -> CapacityPlan:
    """Fill in the worksheet.

    Args:
        demand: requests per second to be served.
        price_per_hour: US dollars for one replica, all its accelerators together.
        headroom: share of the knee that is left unused, for spikes and failed replicas.
        try_out: simulate the fleet, and add replicas while it misses the target.
    Raises:
        WorkloadError: a demand, price or headroom that cannot be.
        SimulationError: the SLO cannot be met, or the engines keep no step records.
    """
    if not (0 < demand < math.inf and 0 <= price_per_hour < math.inf and 0 <= headroom < 1):
        raise WorkloadError(
            f"demand must be above 0, the price 0 or more and headroom from 0 to below 1, not {demand}, "
            f"{price_per_hour} and {headroom}"
        )
    knee = worksheet.knee(guess=demand)
    by_knee, attainment = math.ceil(demand / (knee * (1 - headroom))), None
    replicas = by_knee
    if try_out:
        replicas, attainment = enough_replicas(worksheet, demand, by_knee)

    num_recorded = max(RECORDED_REQUESTS, worksheet.num_until_full(PAST_THE_KNEE * knee))
    make_recording, _ = recording(worksheet.make_recording_engine)
    at_knee = worksheet.run(knee, num_requests=num_recorded, make_engine=make_recording)
    make_explained, seconds = recording(worksheet.make_recording_engine, worksheet.explain)
    past_knee = worksheet.run(PAST_THE_KNEE * knee, num_requests=num_recorded, make_engine=make_explained)

    cost = replicas * price_per_hour
    per_request = cost / (3600 * demand)
    knee_requests = worksheet.num_in_run(knee)
    workload = worksheet.workload(demand, knee_requests)
    each = worksheet.in_each
    share = each["prefill"] / sum(each.values()) if "prefill" in each else prefill_share(at_knee)
    return CapacityPlan(
        demand=demand,
        slo=worksheet.slo,
        target=worksheet.target,
        knee=knee,
        curve=tuple(worksheet.points[rate] for rate in sorted(worksheet.points)),
        knee_requests=knee_requests,
        replicas=replicas,
        replicas_by_knee=by_knee,
        in_each=worksheet.in_each,
        fleet_attainment=attainment,
        cost_per_hour=cost,
        cost_per_request=per_request,
        input_cost_per_million=1e6 * share * per_request * len(workload) / workload.num_prompt_tokens,
        output_cost_per_million=1e6 * (1 - share) * per_request * len(workload) / workload.num_output_tokens,
        prefill_share=share,
        limits=find_limits(past_knee, seconds),
    )


def attainment_of(run: FleetRun, slo: SLO) -> float:
    """Share of the requests that met the SLO."""
    return run.summary(slo, SINCE).attainment or 0.0


def enough_replicas(worksheet: Worksheet, demand: float, replicas: int) -> tuple[int, float]:
    """Adds replicas while a simulated fleet misses the target.

    Returns:
        How many, and the share of requests for which they meet the SLO.
    Raises:
        SimulationError: more replicas do not help.
    """
    at_first = replicas
    while True:
        tried = min(replicas, TRIED_OUT)
        with contextlib.suppress(OutOfReachError):
            run = worksheet.run(demand * tried / replicas, replicas=tried, gives_up=True)
            attainment = attainment_of(run, worksheet.slo)
            if attainment >= worksheet.target:
                return replicas, attainment
        if replicas > 2 * at_first + TRIED_OUT:
            raise SimulationError(
                f"{at_first} replicas should do, yet not even {replicas} meet the SLO for {worksheet.target:.1%} of "
                "requests: does the router spread the load, and send a conversation where its prefix is?"
            )
        replicas += math.ceil(replicas / 20)
