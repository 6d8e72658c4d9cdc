"""Plays a trace to the fleet under somebody's policies, and keeps the record that the score is counted from.

Each replica is the course's own engine, priced by the simulator. Only three things are left open: which request is
admitted, which replica gets it, and in which order a replica's queue is served.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from course.challenge.service import CARDS, DURATION_S, KINDS, fleet, seen_by_gateway, trace_of
from course.grading.props import FleetReplica, FleetRequest
from course.simulator.cluster.events import EventQueue, rare_collections
from course.simulator.cluster.jobs import Job, Reply
from course.simulator.cluster.record import Outcome
from course.simulator.cluster.replica import Replica
from course.simulator.workload.requests import WorkloadRequest, prompt_token_ids
from minillm.core.seams import QueuePolicy
from minillm.frontend.prompts import CheckedTokens


class Policies(Protocol):
    """The three seams, and what they are told afterwards. Seconds count from the start of the trace."""

    @property
    def scheduling_order(self) -> str:
        """Name of the engine's own queue order, where `queue` gives none."""
        ...

    def queue(self, state: Callable[[], FleetReplica]) -> QueuePolicy | None:
        """Scheduler: a queue for one replica; None = the engine's own. Called once for each, before any arrival.

        Args:
            state: what is seen of that replica whenever it is called.
        """
        ...

    def admit(self, now: float, request: FleetRequest, replicas: Sequence[FleetReplica]) -> bool:
        """Admission: whether a request that has just arrived is taken in."""
        ...

    def route(self, now: float, request: FleetRequest, replicas: Sequence[FleetReplica]) -> int:
        """Router: the number of the replica that gets it."""
        ...

    def ended(self, now: float, request: FleetRequest, output_tokens: int, in_time: bool) -> None:
        """An admitted request has ended. One that the scheduler has refused has no output tokens."""
        ...


@dataclass
class RequestOutcome:
    """What became of one request."""

    request: FleetRequest
    replica: int | None = None
    """None: it was not admitted."""
    reply: Reply | None = None
    in_time: bool = False
    """It was answered in full, within every limit of its kind."""


@dataclass(frozen=True)
class Played:
    """One trace, played to its end."""

    seed: int
    outcomes: tuple[RequestOutcome, ...]
    """In order of arrival."""
    replicas: tuple[Replica, ...]

    @property
    def in_time(self) -> int:
        """Requests answered within their limits."""
        return sum(outcome.in_time for outcome in self.outcomes)

    @property
    def goodput(self) -> float:
        """Those requests, per second of the trace."""
        return self.in_time / DURATION_S


def play(seed: int, policies: Policies, *, keeps_steps: bool = False) -> Played:
    """Play a seed's trace from the first arrival to the last token.

    Args:
        keeps_steps: go through every step on the plain engine, which records them. Slower; the results are the same.
    """
    playing = _Playing(policies, keeps_steps)
    outcomes = tuple(playing.expect(planned) for planned in trace_of(seed))
    with rare_collections():
        playing.events.run()
    return Played(seed, outcomes, tuple(playing.replicas))


class _Playing:
    """Arrivals, replicas, and the requests that are open."""

    def __init__(self, policies: Policies, keeps_steps: bool) -> None:
        self.events = EventQueue()
        self.replicas: list[Replica] = []
        self._policies = policies
        self._open: list[dict[int, Job]] = [{} for _ in CARDS]
        """By replica and request."""
        for number, deployment in enumerate(fleet(policies.scheduling_order)):
            make_engine = deployment.engine if keeps_steps else deployment.fast_engine
            replica = Replica("replica", number, make_engine, self.events)
            self.replicas.append(replica)
            if (queue := policies.queue(partial(self.state, replica))) is not None:
                replica.engine.scheduler.waiting = queue

    def expect(self, planned: WorkloadRequest) -> RequestOutcome:
        """Enter an arrival."""
        outcome = RequestOutcome(seen_by_gateway(planned))
        self.events.at(outcome.request.arrival_s, self._arrive, planned, outcome)
        return outcome

    def _arrive(self, planned: WorkloadRequest, outcome: RequestOutcome) -> None:
        now, request = self.events.now, outcome.request
        states = [self.state(replica) for replica in self.replicas]
        if not self._policies.admit(now, request, states):
            return
        number = outcome.replica = self._policies.route(now, request, states)
        job = self._open[number][request.id] = Job(
            job_id=str(request.id),
            pieces=planned.pieces,
            token_ids=CheckedTokens(prompt_token_ids(planned.pieces, {})),
            max_tokens=planned.output_tokens,
            on_end=lambda reply: self._end(outcome, number, reply),
            tenant=request.kind,
            arrival=now,
        )
        self.replicas[number].submit(job)

    def _end(self, outcome: RequestOutcome, number: int, reply: Reply) -> None:
        request = outcome.request
        del self._open[number][request.id]
        outcome.reply = reply
        if reply.outcome is Outcome.COMPLETED and reply.timeline is not None:
            outcome.in_time = KINDS[request.kind].slo.met_by(reply.timeline)
        self._policies.ended(self.events.now, request, len(reply.token_ids), outcome.in_time)

    def state(self, replica: Replica) -> FleetReplica:
        """What a gateway sees of a replica now."""
        jobs = self._open[replica.number].values()
        backlog = sum(len(job.token_ids) for job in jobs if not _has_first_token(job))
        return FleetReplica(replica.number, replica.num_waiting, replica.num_running, backlog)


def _has_first_token(job: Job) -> bool:
    return job.request is not None and job.request.timeline.first_token is not None
