"""A replica's queue whose order is decided from outside, step by step."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from course.challenge.service import MAX_NUM_SEQS
from course.grading.props import FleetReplica
from minillm.core.request import Request, RequestStatus

Plan = Callable[[float, Sequence[int], FleetReplica], tuple[Sequence[int], Sequence[int]]]
"""(now, ids of waiting requests in order of arrival, the replica) -> ids to run next, in order; ids to refuse now."""


class PlannedQueue:
    """A `QueuePolicy` that asks for a plan before each step in which a request waits and a slot is free.

    What a plan doesn't name goes on waiting. Preempted requests come first, as in the engine's own queues: a plan never
    sees them. A plan may leave slots empty, but not a whole replica: where nothing runs and nothing is named, the
    request that has waited longest runs.
    """

    def __init__(self, state: Callable[[], FleetReplica], plan: Plan) -> None:
        self._state, self._plan = state, plan
        self._waiting: dict[int, Request] = {}
        self._preempted: deque[Request] = deque()
        self._next: deque[Request] = deque()
        """What is left of this step's plan."""

    def push(self, request: Request) -> None:
        if request.status is RequestStatus.PREEMPTED:
            self._preempted.append(request)
        else:
            self._waiting[int(request.request_id)] = request

    def overdue(self, now: float) -> list[Request]:
        """Called as a step begins: makes its plan. Gives back the requests that it refuses, which end here."""
        self._next.clear()
        if not self._waiting or (state := self._state()).running >= MAX_NUM_SEQS:
            return []
        run, refuse = self._plan(now, [*self._waiting], state)
        self._next.extend(self._waiting[number] for number in run)
        return [self._waiting[number] for number in refuse]

    def peek(self, num_running: int) -> Request | None:
        candidates = self._preempted or self._next or (self._waiting.values() if num_running == 0 else ())
        return next(iter(candidates), None)

    def pop(self) -> Request:
        if self._preempted:
            return self._preempted.popleft()
        request = self._next.popleft() if self._next else next(iter(self._waiting.values()))
        return self._waiting.pop(int(request.request_id))

    def remove(self, request: Request) -> None:
        if request in self._preempted:
            self._preempted.remove(request)
        else:
            del self._waiting[int(request.request_id)]

    def __len__(self) -> int:
        return len(self._preempted) + len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter([*self._preempted, *self._waiting.values()])
