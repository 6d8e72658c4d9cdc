"""The capacity worksheet: from traffic, a service-level objective and a price to replicas, cost, and what binds.

1. One replica's knee: the highest rate at which enough requests meet the SLO, by bisection over simulated runs.
   All runs play the same requests, only faster or slower, so that luck does not move the knee.
2. Replicas: demand / knee, rounded up, then tried out as a fleet.
3. Cost: what the fleet costs in an hour, over what it serves in an hour, split between input and output.
4. What binds, seen a little past the knee: see capacity_limits.py.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minillm.errors import SimulationError, WorkloadError
from minillm.observe.summary import SLO
from minillm.simulate.arrivals import Arrivals, Poisson
from minillm.simulate.capacity_limits import Explain, Limits, explained, find_limits, prefill_share
from minillm.simulate.cluster import ClusterConfig, simulate
from minillm.simulate.cluster_replica import EngineFactory
from minillm.simulate.cluster_run import FleetRun
from minillm.simulate.workload import Traffic, Workload, make_workload

TOLERANCE = 0.03
"""The bisection ends when the knee is known to this share of itself."""
PAST_THE_KNEE = 1.25
"""Where to look for what binds: so many times the knee."""
IDLE_RATE = 1e-3
"""Requests per second at which nobody waits for anybody."""


@dataclass(frozen=True, slots=True)
class Point:
    """One simulated run of one replica; a point of the knee curve. Seconds and rates per second."""

    rate: float
    attainment: float
    """Share of requests that met every limit of the SLO."""
    ttft_p99: float
    tpot_p99: float | None
    """None when no answer has two tokens."""
    output_tokens_per_s: float

    @classmethod
    def of(cls, rate: float, run: FleetRun, slo: SLO) -> "Point":
        summary = run.summary(slo)
        ttft, tpot = summary.metrics["ttft"].p99, summary.metrics["tpot"].p99
        return cls(rate, summary.attainment, math.inf if ttft is None else ttft, tpot, summary.output_tokens_per_s)


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """The filled-in worksheet. Rates per second, money in the unit of the price."""

    demand: float
    slo: SLO
    target: float
    """Share of requests that must meet the SLO."""
    knee: float
    """Highest rate one replica serves within the SLO, requests per second."""
    curve: tuple[Point, ...]
    """Every rate that was tried on one replica, ascending."""
    replicas: int
    fleet_attainment: float | None
    """Of that many replicas under the whole demand; None if it was not tried out."""
    cost_per_hour: float
    cost_per_request: float
    input_cost_per_million: float
    """Per million input (prompt) tokens."""
    output_cost_per_million: float
    prefill_share: float
    """Share of a replica's busy time that prompts cost; it splits the bill. Idle time is split likewise."""
    limits: Limits

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        limits = ((name, getattr(self.slo, name)) for name in ("ttft", "itl", "tpot", "e2e"))
        stated = ", ".join(f"{name.upper()} <= {value * 1e3:g} ms" for name, value in limits if value is not None)
        tried = "not tried out" if self.fleet_attainment is None else f"tried out: {self.fleet_attainment:.1%} meet it"
        bill = f"{self.cost_per_hour:.2f} an hour, {self.cost_per_request * 1e3:.4f} per 1000 requests"
        return "\n".join(
            (
                f"demand              {self.demand:.2f} requests/s, {self.target:.1%} of them with {stated}",
                f"knee of one replica {self.knee:.2f} requests/s",
                f"replicas            {self.replicas} ({tried})",
                f"what binds          {self.limits.binding}: {self.limits.why}",
                f"cost                {bill}",
                f"  input             {self.input_cost_per_million:.4f} per million tokens",
                f"  output            {self.output_cost_per_million:.4f} per million tokens",
                f"  split             {self.prefill_share:.0%} of busy time is what prompts add to steps",
            )
        )


class Worksheet:
    """Simulated runs of one kind of traffic on one kind of replica.

    Args:
        traffic: what is asked.
        make_engine: makes one replica's engine.
        make_recording_engine: makes the same with step records, for the bill and for what binds; None = make_engine
            makes such engines.
        slo: at least one limit.
        target: share of requests that must meet it; 0.99 states the limits as p99.
        arrivals: the arrival process at a given rate.
        num_requests: arrivals in a run, per replica. A run must be long enough for a queue to show.
        config: of the fleet; its number of replicas is replaced.
        explain: what a step's seconds are spent on; None = unknown.
    Raises:
        WorkloadError: an SLO without limits, or a target that is no share.
    """

    def __init__(
        self,
        traffic: Traffic,
        make_engine: EngineFactory,
        slo: SLO,
        *,
        make_recording_engine: EngineFactory | None = None,
        target: float = 0.99,
        arrivals: Callable[[float], Arrivals] = lambda rate: Poisson(rate=rate),
        num_requests: int = 300,
        seed: int = 0,
        config: ClusterConfig | None = None,
        explain: Explain | None = None,
    ) -> None:
        if all(limit is None for limit in dataclasses.astuple(slo)):
            raise WorkloadError("the SLO states no limit, so any rate would do: give it a ttft, tpot, itl or e2e")
        if not 0 < target <= 1:
            raise WorkloadError(f"target is a share of requests above 0 and at most 1, not {target}")
        self.traffic, self.make_engine, self.slo, self.target = traffic, make_engine, slo, target
        self.make_recording_engine = make_recording_engine or make_engine
        self.arrivals, self.num_requests, self.seed = arrivals, num_requests, seed
        self.config = (config or ClusterConfig()).replace(sample_every_s=None)
        self.explain = explain
        self.points: dict[float, Point] = {}

    def workload(self, rate: float, replicas: int = 1) -> Workload:
        num = self.num_requests * replicas
        return make_workload(self.traffic, self.arrivals(rate), num_requests=num, seed=self.seed)

    def run(self, rate: float, replicas: int = 1, make_engine: EngineFactory | None = None) -> FleetRun:
        """Play the traffic at this rate to so many replicas."""
        config = self.config.replace(replicas=replicas)
        return simulate(self.workload(rate, replicas), config, make_engine or self.make_engine)

    def holds(self, rate: float) -> bool:
        """Whether one replica serves this rate within the SLO."""
        if rate not in self.points:
            self.points[rate] = Point.of(rate, self.run(rate), self.slo)
        return self.points[rate].attainment >= self.target

    def knee(self, guess: float) -> float:
        """The highest rate that holds, to TOLERANCE.

        Args:
            guess: where to begin, requests per second.
        Raises:
            SimulationError: not even an idle replica meets the SLO, or there is no rate that breaks it.
        """
        if not self.holds(IDLE_RATE):
            idle = self.points[IDLE_RATE]
            tpot = "" if idle.tpot_p99 is None else f", TPOT p99 {idle.tpot_p99 * 1e3:.1f} ms"
            raise SimulationError(
                f"an idle replica meets the SLO for {idle.attainment:.1%} of requests only (TTFT p99 "
                f"{idle.ttft_p99 * 1e3:.0f} ms{tpot}): more replicas cannot help, faster ones or other limits can"
            )
        low, high = IDLE_RATE, max(guess, 2 * IDLE_RATE)
        while self.holds(high):
            low, high = high, 2 * high
            if high > 1e6:
                raise SimulationError("no rate breaks the SLO: are steps free of cost, or requests too few?")
        while high > low * (1 + TOLERANCE):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.holds(middle) else (low, middle)
        return low


def plan_capacity(
    worksheet: Worksheet,
    demand: float,
    *,
    price_per_hour: float,
    headroom: float = 0.0,
    try_out: bool = True,
) -> CapacityPlan:
    """Fill in the worksheet.

    Args:
        demand: requests per second to be served.
        price_per_hour: of one replica, all its accelerators together.
        headroom: share of the knee that is left unused, for spikes and failed replicas.
        try_out: simulate the fleet, and add replicas while it misses the target. Takes a while for a large one.
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
    replicas = math.ceil(demand / (knee * (1 - headroom)))
    attainment = None
    while try_out:
        attainment = worksheet.run(demand, replicas).summary(worksheet.slo).attainment
        if attainment >= worksheet.target:
            break
        replicas += math.ceil(replicas / 20)

    at_knee = worksheet.run(knee, make_engine=worksheet.make_recording_engine)
    make_explained, seconds = explained(worksheet.make_recording_engine, worksheet.explain)
    past_knee = worksheet.run(PAST_THE_KNEE * knee, make_engine=make_explained)

    cost = replicas * price_per_hour
    workload = worksheet.workload(demand)
    requests_per_hour = 3600 * demand * len(workload) / worksheet.num_requests
    per_request = cost / requests_per_hour
    share = prefill_share(at_knee)
    return CapacityPlan(
        demand=demand,
        slo=worksheet.slo,
        target=worksheet.target,
        knee=knee,
        curve=tuple(worksheet.points[rate] for rate in sorted(worksheet.points)),
        replicas=replicas,
        fleet_attainment=attainment,
        cost_per_hour=cost,
        cost_per_request=per_request,
        input_cost_per_million=1e6 * share * per_request * len(workload) / workload.num_prompt_tokens,
        output_cost_per_million=1e6 * (1 - share) * per_request * len(workload) / workload.num_output_tokens,
        prefill_share=share,
        limits=find_limits(past_knee, seconds),
    )
