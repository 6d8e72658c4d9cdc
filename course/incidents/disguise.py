"""What makes an incident harder to read: odd settings that do no harm, innocent changes, a second, smaller ailment."""

import tomllib
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from course.incidents.causes.base import Cause, Draw, lengths
from course.incidents.service import Flow, SimulatedService
from course.simulator.cluster.clients import ClientConfig
from course.simulator.cluster.fleet import ClusterConfig
from course.simulator.cluster.network import Network
from course.simulator.cluster.routers import RouterConfig
from course.simulator.workload.kinds import Independent

INNOCENT: list[dict[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))[
    "innocent"
]
DAYS = ("six days ago", "five days ago", "four days ago", "three days ago", "two days ago", "yesterday")
MORNING = ("this morning, 6:40", "this morning, 7:15", "this morning, 8:05")
"""What did it happened then."""
FITS: dict[str, Callable[[SimulatedService], bool]] = {
    "several replicas": lambda s: s.fleet.replicas > 1 or s.fleet.autoscaling is not None,
    "no drafts": lambda s: s.engine.speculative is None,
    "a prefix cache": lambda s: s.engine.enable_prefix_caching,
}
"""What a harmless change may need, so that the rest of the evidence doesn't contradict it."""
MENTIONED = {1: 1.0, 2: 0.7, 3: 0.5}
"""By difficulty: how likely the log has the change that matters."""
ENOUGH = 2
"""Convicting answers that make a case."""
NUM_INNOCENT = {1: 2, 2: 4, 3: 6}


def change_log(draw: Draw, change: str, difficulty: int, service: SimulatedService) -> tuple[tuple[str, str], ...]:
    """(when, what), in order; perhaps with what really happened, which is never this morning's only entry.

    Args:
        service: as it was last week; harmless changes are such as it can have had.
    """
    fitting = [each["change"] for each in INNOCENT if "on" not in each or FITS[each["on"]](service)]
    num_innocent = NUM_INNOCENT[difficulty]
    moment_of_it, other = draw.sample(MORNING, 2)
    days = [other, *draw.sample(DAYS, num_innocent - 1)]
    found = dict(zip(days, draw.sample(fitting, num_innocent)))
    if draw.uniform(0, 1) < MENTIONED[difficulty]:
        found[moment_of_it] = change
    return tuple((moment, found[moment]) for moment in (*DAYS, *MORNING) if moment in found)


BROKEN = {1: 0, 2: 1, 3: 2}
"""By difficulty: how many panels are missing, and how many show last week's data."""


def broken_panels(
    draw: Draw, cause: Cause, difficulty: int, panels: Collection[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """Ids of questions without data, and of such with last week's: never what tells the cause apart, and never so many
    that its case can't be made from the others."""
    enough = {*cause.convicting[:ENOUGH], cause.told_apart_by}
    may_break = [name for name in panels if name not in enough]
    chosen = draw.sample(may_break, 2 * BROKEN[difficulty])
    return frozenset(chosen[: BROKEN[difficulty]]), frozenset(chosen[BROKEN[difficulty] :])


# ---------------------------------------------------------------- odd, and harmless


def if_default(s: SimulatedService, **fleet: object) -> SimulatedService:
    """With these parts of the fleet, unless a cause has set one of them."""
    defaults = ClusterConfig()
    return s.with_fleet(**fleet) if all(getattr(s.fleet, n) == getattr(defaults, n) for n in fleet) else s


ODDITIES: tuple[Callable[[SimulatedService], SimulatedService], ...] = (
    lambda s: if_default(s, router=RouterConfig(policy="round_robin")),
    lambda s: s.with_engine(kv_cache_dtype="int8") if s.engine.num_kv_blocks is None else s,
    lambda s: if_default(s, network=Network(hold_chunks=2, hold_s=0.01)),
    lambda s: if_default(s, clients=ClientConfig(timeout_s=40 * s.duration_s)),
    lambda s: if_default(s, clients=ClientConfig(max_in_flight=5000)),
)
"""Each leaves alone what a cause has set."""


# ---------------------------------------------------------------- a second ailment


@dataclass(frozen=True)
class Ailment:
    """Something small that is wrong besides, on its own within the SLO."""

    name: str
    phase: str
    change: Callable[[SimulatedService], SimulatedService]
    convicting: tuple[str, ...]


SHARE = 0.04
"""The share of requests that a disguise touches."""


def some_far(s: SimulatedService) -> SimulatedService:
    far = s.fleet.network.replace(far_share=SHARE, far_rtt_s=0.4, handshakes=2)
    return s.with_fleet(network=far) if s.fleet.network.far_share == 0 else s


def some_long_answers(s: SimulatedService) -> SimulatedService:
    """A few requests of another kind."""
    mean = s.workload(1).num_output_tokens / len(s.workload(1))
    kind = Independent(prompt=lengths(300), output=lengths(5 * mean, 0.2, 1.5))
    flows = tuple(flow.scaled(1 - SHARE) for flow in s.flows)
    return replace(s, flows=(*flows, Flow("reports", kind, s.flows[0].scaled(SHARE).arrivals)))


AILMENTS = (
    Ailment("a few clients are far away", "outside_the_engine", some_far, ("regions",)),
    Ailment("a few answers are very long", "decode", some_long_answers, ("output_lengths",)),
)
