"""Simulated fleets of Llama-3 70B: played once, remembered, and read in a few numbers."""

import functools
import math
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from course.lab import simulated_70b
from course.lab.scale import enough
from course.lab.simulated_70b import SETTLED, Served
from course.simulator.cluster.clients import ClientConfig
from course.simulator.deployment import Deployment
from course.simulator.workload.arrivals import AllAtOnce, Arrivals, Poisson
from course.simulator.workload.kinds import Independent, TrafficModel
from course.simulator.workload.lengths import Fixed, Lengths, LogNormal
from course.simulator.workload.requests import make_workload
from course.summary import SLO

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
    return simulated_70b.deployment(stack=stack, **{"model": MODEL, **fields})


@functools.lru_cache(maxsize=512)
def _played(
    traffic: TrafficModel, arrivals: Arrivals, count: int, stack: str, fleet: Fields, fields: Fields, seed: int = 0
) -> Served:
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
) -> Served:
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
    return requests_per_s(run)


def requests_per_s(run: Served) -> float:
    """Requests served per second while others were queued."""
    last = max(run.slot_at)
    return run.tokens_per_s(SETTLED * last, last) / fmean(run.tokens)
