"""Simulated fleets of Llama-3 70B: played once, remembered, and read in a few numbers."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from course.lab import simulated_70b
from course.lab.run import percentile
from course.lab.scale import enough
from course.simulator.cluster.clients import ClientConfig
from course.simulator.cluster.record import ClientRecord
from course.simulator.cluster.run import FleetRun
from course.simulator.deployment import Deployment
from course.simulator.workload.arrivals import AllAtOnce, Arrivals, Poisson
from course.simulator.workload.kinds import Independent, TrafficModel
from course.simulator.workload.lengths import Fixed, Lengths, LogNormal
from course.simulator.workload.requests import make_workload
from minillm.core.brief import brief
from minillm.observe.summary import SLO

MODEL = "llama-3.1-70b"
"""Llama-3 70B's shape, with a window for long prompts."""
SPREAD = 0.6
"""Standard deviation of the logarithm of lengths: one request in forty is more than three times the usual."""
LEAST = 150
"""Requests without which no line has time to grow."""
FEW = 5
"""Tokens: too few to be spread."""
STACKS = (simulated_70b.TODAY, simulated_70b.OLD)
SLOTS = 128
"""max_num_seqs, unless a cell says otherwise: more than most of these replicas can use."""
Fields = tuple[tuple[str, Any], ...]
"""Named values that can be looked up in a cache."""
SETTLED = 0.2
"""Of the arrivals, the first share: the replica is still filling up, and they are left out."""
LIMITS = SLO(ttft=2.0, tpot=0.05)
"""MLPerf's TTFT for Llama-2-70B as a server, and lesson 01's chat limit per token, unless a cell says otherwise."""


def lengths(mean: int, longest: int) -> Lengths:
    """Lengths of this mean, most of them shorter, a few much longer; a word or two is always as long."""
    if mean < FEW:
        return Fixed(tokens=mean)
    return LogNormal(median=mean / math.exp(SPREAD**2 / 2), sigma=SPREAD, high=longest)


def asking(prompt: int, output: int, spread: bool = True) -> Independent:
    """Traffic whose prompts and answers have these means, tokens; without `spread` all are equal."""
    if not spread:
        return Independent(prompt=Fixed(tokens=prompt), output=Fixed(tokens=output))
    return Independent(prompt=lengths(prompt, 5 * prompt), output=lengths(output, 5 * output))


def deployment(stack: str = STACKS[0], **fields: Any) -> Deployment:
    """A replica. `profile` among the fields names the hardware, other fields are as of `simulated_70b.deployment`."""
    profile = simulated_70b.STACKS[stack](fields.pop("profile", simulated_70b.HARDWARE))
    return simulated_70b.deployment(**{"model": MODEL, **fields}, profile=profile)


@functools.lru_cache(maxsize=512)
def _played(
    traffic: TrafficModel, arrivals: Arrivals, count: int, stack: str, fleet: Fields, fields: Fields, seed: int = 0
) -> "Served":
    workload = make_workload(traffic, arrivals, num_requests=count, seed=seed)
    return Served.of(simulated_70b.play(deployment(stack, **dict(fields)), workload, **dict(fleet)))


def served(
    traffic: TrafficModel,
    arrivals: Arrivals | float,
    count: int = 300,
    *,
    stack: str = STACKS[0],
    replicas: int = 1,
    in_flight: int | None = None,
    seed: int = 0,
    **fields: Any,
) -> "Served":
    """Play traffic to a fleet; the same call again costs nothing.

    Args:
        arrivals: or requests per second, Poisson.
        in_flight: so many clients, each of which waits for an answer before asking again; None = open loop.
        fields: as of `deployment`, such as max_num_seqs, tp or model; `profile` names the hardware.
    """
    arrivals = Poisson(rate=float(arrivals)) if isinstance(arrivals, (int, float)) else arrivals
    fleet: dict[str, Any] = {"replicas": replicas}
    if in_flight is not None:
        fleet["clients"] = ClientConfig(max_in_flight=in_flight)
    count = enough(count, LEAST) if count > LEAST else count
    return _played(traffic, arrivals, count, stack, _key(fleet), _key(fields), seed)


def _key(fields: Mapping[str, Any]) -> Fields:
    return tuple(sorted(fields.items()))


def capacity(traffic: TrafficModel, stack: str = STACKS[0], **fields: Any) -> float:
    """Requests per second that one replica serves while requests are always waiting; in the short form, too."""
    fields = {"max_num_seqs": SLOTS, **fields}
    count = max(2 * LEAST, 5 * int(fields["max_num_seqs"]))
    run = _played(traffic, AllAtOnce(), count, stack, _key({"replicas": 1}), _key(fields))
    last = float(run.slot_at.max())
    since = SETTLED * last
    return float(((run.stamps >= since) & (run.stamps < last)).sum() / (last - since) / run.tokens.mean())


@dataclass(frozen=True, eq=False)
class Served:
    """What a simulated run's clients saw, a row a request in order of arrival. Seconds; NaN = that never happened."""

    sent: np.ndarray
    ttft: np.ndarray
    """From sending to the first byte."""
    tpot: np.ndarray
    """Mean gap of the answer; NaN for an answer of one token."""
    stall: np.ndarray
    """The longest gap."""
    e2e: np.ndarray
    slot_at: np.ndarray
    """The moment at which it got a slot."""
    queue: np.ndarray
    """How long it had waited then."""
    tokens: np.ndarray
    """Received."""
    stamps: np.ndarray
    """When each token reached its client."""
    preemptions: int

    __repr__ = brief

    @classmethod
    def of(cls, run: FleetRun) -> "Served":
        rows = [row_of(record) for record in run.records if record.sent is not None]
        columns = np.array(rows, dtype=float).reshape(-1, 8).T
        stamps = np.array([stamp for record in run.records for stamp in record.deliveries])
        preemptions = sum(report.num_preemptions for report in run.reports)
        return cls(*columns, stamps=stamps, preemptions=preemptions)

    @property
    def until(self) -> float:
        """The last arrival: after it there is less and less to do."""
        return float(self.sent.max())

    @property
    def settled(self) -> np.ndarray:
        """Requests that came when the replicas had filled up."""
        return self.sent >= SETTLED * self.until

    @property
    def throughput(self) -> float:
        """Output tokens per second that reached clients while requests came in."""
        since = SETTLED * self.until
        return float(((self.stamps >= since) & (self.stamps <= self.until)).sum() / (self.until - since))

    def p(self, what: str, q: float) -> float:
        """A percentile of one of the columns, of the requests that got that far; NaN when none did."""
        values = getattr(self, what)[self.settled]
        values = values[~np.isnan(values)]
        return percentile(values, q) if len(values) else math.nan

    def met(self, slo: SLO) -> np.ndarray:
        """Which requests were answered within every limit, as their clients saw it."""
        found = ~np.isnan(self.e2e)
        for limit, values in ((slo.ttft, self.ttft), (slo.tpot, self.tpot), (slo.itl, self.stall), (slo.e2e, self.e2e)):
            if limit is not None:
                found &= ~(values > limit)
        return found

    def attainment(self, slo: SLO) -> float:
        """Share of the requests that met every limit; one without an answer did not."""
        return float(self.met(slo)[self.settled].mean())

    def goodput(self, slo: SLO) -> float:
        """Requests per second that met every limit."""
        return float(self.met(slo)[self.settled].sum() / ((1 - SETTLED) * self.until))


def row_of(record: ClientRecord) -> tuple[float | None, ...]:
    """The columns of Served for one request; None where something never happened."""
    line, stamps = record.timeline, record.deliveries
    gaps = np.diff(stamps) if len(stamps) > 1 else None
    return (
        record.sent,
        record.ttft("sent"),
        None if gaps is None else float(gaps.mean()),
        None if gaps is None else float(gaps.max()),
        record.e2e("sent"),
        None if line is None else line.scheduled,
        None if line is None or line.scheduled is None else line.scheduled - line.arrival,
        record.num_tokens,
    )
