"""What makes an incident harder to read: odd settings that do no harm, innocent changes, a second, smaller ailment."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from course.lab.incidents.causes.base import Draw, lengths
from course.lab.incidents.service import Flow, Service
from minillm.simulate.cluster.clients import ClientConfig
from minillm.simulate.cluster.network import Network
from minillm.simulate.cluster.routers import RouterConfig
from minillm.simulate.workload.kinds import Independent

INNOCENT = (
    "Trial of 512 tokens a step on one replica, ended", "max_num_seqs raised for a load test, put back",
    "int8 KV tried on the staging machines", "Draft model trialled for an hour, switched off",
    "Router weights evened out", "Prompt template: another example, as long as the old one",
    "Client library: time-outs renamed, same values", "Static batches tried on one replica, undone",
    "Prefix cache emptied after a fault in its metrics", "Driver update on all GPU machines",
    "Tokenizer package updated, same vocabulary", "New rate plan for two customers",
    "Load balancer moved to newer machines", "A/B test of a new system prompt ended",
    "Kernel security patch, rolling restart", "Two customers moved here from another region's endpoint, and back",
)  # fmt: skip
"""Harmless, and they touch what causes touch: a log that names the culprit by its tone would need no evidence."""
WHEN = ("six days ago", "five days ago", "four days ago", "three days ago", "two days ago", "yesterday", "this morning")
MENTIONED = {1: 1.0, 2: 0.7, 3: 0.5}
"""By difficulty: how likely the log has the change that matters."""
NUM_INNOCENT = {1: 2, 2: 4, 3: 6}


def change_log(draw: Draw, change: str, difficulty: int) -> tuple[tuple[str, str], ...]:
    """(when, what), in order; perhaps with what really happened."""
    found = draw.some(INNOCENT, NUM_INNOCENT[difficulty])
    if draw.between(0, 1) < MENTIONED[difficulty]:
        found.insert(draw.whole(0, len(found)), change)
    days = sorted(draw.some(range(len(WHEN)), len(found)))
    return tuple((WHEN[day], what) for day, what in zip(days, found))


# ---------------------------------------------------------------- odd, and harmless


def untouched(s: Service, **of_fleet: object) -> bool:
    """Whether these parts of the fleet are at their defaults."""
    return all(getattr(s.fleet, name) == default for name, default in of_fleet.items())


def round_robin(s: Service) -> Service:
    return s.with_fleet(router=RouterConfig(policy="round_robin")) if untouched(s, router=RouterConfig()) else s


def narrow_cache(s: Service) -> Service:
    return s.with_engine(kv_cache_dtype="int8") if s.engine.num_kv_blocks is None else s


def pairs(s: Service) -> Service:
    return s.with_fleet(network=Network(hold_chunks=2, hold_s=0.01)) if untouched(s, network=Network()) else s


def patient(s: Service) -> Service:
    clients = ClientConfig(timeout_s=40 * s.duration_s)
    return s.with_fleet(clients=clients) if untouched(s, clients=ClientConfig()) else s


def roomy_pool(s: Service) -> Service:
    return s.with_fleet(clients=ClientConfig(max_in_flight=5000)) if untouched(s, clients=ClientConfig()) else s


ODDITIES: tuple[Callable[[Service], Service], ...] = (round_robin, narrow_cache, pairs, patient, roomy_pool)
"""Each leaves alone what a cause has set."""


# ---------------------------------------------------------------- a second ailment


@dataclass(frozen=True)
class Ailment:
    """Something small that is wrong besides, on its own within what is promised."""

    name: str
    phase: str
    change: Callable[[Service], Service]
    convicting: tuple[str, ...]


SHARE = 0.04
"""Of the requests."""


def some_far(s: Service) -> Service:
    far = s.fleet.network.replace(far_share=SHARE, far_rtt_s=0.4, handshakes=2)
    return s.with_fleet(network=far) if s.fleet.network.far_share == 0 else s


def some_others(s: Service, name: str, kind: Independent) -> Service:
    """A few requests of another kind."""
    flows = tuple(flow.scaled(1 - SHARE) for flow in s.flows)
    return replace(s, flows=(*flows, Flow(name, kind, s.flows[0].scaled(SHARE).arrivals)))


def some_long_answers(s: Service) -> Service:
    mean = s.workload(1).num_output_tokens / len(s.workload(1))
    return some_others(s, "reports", Independent(prompt=lengths(300), output=lengths(5 * mean, 0.2, 1.5)))


AILMENTS = (
    Ailment("a few clients are far away", "queue", some_far, ("regions",)),
    Ailment("a few answers are very long", "decode", some_long_answers, ("output_lengths",)),
)
