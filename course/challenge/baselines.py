"""The ladder's rungs: the engine's own queue orders behind the simulator's own routers, and one that knows too much."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from course.challenge.oracle import Oracle
from course.challenge.play import Policies
from course.grading.props import FleetReplica, FleetRequest
from course.simulator.cluster.routers import PrefixAware, RoundRobin, Router, RouterConfig
from course.simulator.workload.requests import Piece
from minillm.core.seams import QueuePolicy


@dataclass
class Baseline:
    """`Policies` that admit everything."""

    router: "FleetRouter"
    scheduling_order: str = "fcfs"

    def queue(self, state: Callable[[], FleetReplica]) -> QueuePolicy | None:
        return None

    def admit(self, now: float, request: FleetRequest, replicas: Sequence[FleetReplica]) -> bool:
        return True

    def route(self, now: float, request: FleetRequest, replicas: Sequence[FleetReplica]) -> int:
        question = Piece("", request.prompt_tokens - request.prefix_tokens)
        prefix = (Piece(request.prefix, request.prefix_tokens),) if request.prefix else ()
        return self.router.choose((*prefix, question), replicas).number

    def ended(self, now: float, request: FleetRequest, output_tokens: int, in_time: bool) -> None:
        pass


class FleetRouter(Protocol):
    """Chooses one of the fleet's replicas."""

    def choose(self, pieces: Sequence[Piece], replicas: Sequence[FleetReplica]) -> FleetReplica: ...


class FewestWaiting:
    """vLLM's balancer between data-parallel engines (`DPLBAsyncMPClient`): a queued request counts four times."""

    def choose(self, pieces: Sequence[Piece], replicas: Sequence[FleetReplica]) -> FleetReplica:
        return min(replicas, key=lambda replica: 4 * replica.waiting + replica.running)


@dataclass(frozen=True)
class Rung:
    """One line of the ladder."""

    name: str
    about: str
    policies: Callable[[int], Policies] = field(repr=False)
    """Made anew for the trace of a seed."""
    is_online: bool = True
    """It knows no more than a contestant's file does."""


SGLANG = RouterConfig(policy="prefix_aware", imbalance=8)
"""SGLang's rule with an imbalance that 64 slots a replica can reach."""
RUNGS = (
    Rung("FCFS", "round robin, then first come, first served", lambda _: Baseline(RoundRobin())),
    Rung("vLLM's rule", "fewest waiting, then first come", lambda _: Baseline(FewestWaiting())),
    Rung("fair", "fewest open, then the kind served least", lambda _: Baseline(Router(), "fair")),
    Rung("shortest first", "fewest open, then the shortest prompt", lambda _: Baseline(Router(), "shortest_prompt")),
    Rung("prefix-aware", "to the cached prefix unless busy", lambda _: Baseline(PrefixAware(SGLANG))),
    Rung("oracle", "knows every answer's length and all arrivals", Oracle, is_online=False),
)
