"""What travels through a fleet: an attempt of a client, the jobs it becomes in the pools, and the reply."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from course.simulator.cluster.record import ClientRecord, Outcome
from course.simulator.workload.requests import Piece
from minillm.core.request import Request
from minillm.core.timeline import Timeline

if TYPE_CHECKING:  # a replica works on jobs
    from course.simulator.cluster.replica import Replica


@dataclass(slots=True)
class Reply:
    """How a job ended, and what its client is told in the end."""

    outcome: Outcome
    timeline: Timeline | None = None
    token_ids: list[int] = field(default_factory=list)
    num_cached_tokens: int = 0
    replica: str | None = None
    error: str | None = None
    deliveries: list[float] = field(default_factory=list)
    """When each delivery reaches the client; filled in on the way."""


@dataclass(slots=True, eq=False)
class Job:
    """One stay of one attempt in one pool."""

    job_id: str
    pieces: Sequence[Piece]
    token_ids: list[int]
    max_tokens: int
    on_end: Callable[[Reply], None]
    """Called once, at the moment it ends; never for a job that was cancelled."""
    priority: int = 0
    tenant: str = ""
    has_kv: bool = False
    """The prompt's KV cache comes with it: another replica has computed it."""
    arrival: float = 0.0
    replica: "Replica | None" = None
    request: Request | None = None
    """The engine's own object, once it has one."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One try at one request, on its way."""

    record: ClientRecord
    number: int
    """1 for the first try."""
    pieces: tuple[Piece, ...]
    """The whole prompt, former answers included."""
    answers: dict[str, list[int]]
    """Token ids of those answers, by piece name."""
    ticket: int
    """The circuit breaker's leave to send it."""
    closed: bool = False
    """The client has its answer, or waits no longer."""
    hung_up: bool = False
    """The service has heard that the client is gone."""
    cancel: Callable[[], None] | None = None
    """Ends the work it is causing at the moment; set by the service."""
    asked: Job | None = None
    """The last job it became."""
    shown: list[Job] = field(default_factory=list)
    """The jobs whose tokens go to the client, in order."""

    @property
    def name(self) -> str:
        return f"{self.record.request.index}.{self.number}"

    def close(self) -> None:
        """Its client has the answer. (Its jobs know it, and it lets go of them: nothing is left for a collection.)"""
        self.closed = True
        self.cancel = self.asked = None
        self.shown = []

    @property
    def stamps(self) -> list[float]:
        """When its tokens were handed over, as far as that has happened."""
        return [s for job in self.shown if job.request is not None for s in job.request.timeline.deliveries]
