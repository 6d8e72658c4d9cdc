"""Queue policies: orders of admission, batches that are admitted whole, and a limit on waiting."""

from collections.abc import Callable, Iterator
from itertools import chain

from minillm.core.request import Request, RequestStatus
from minillm.core.seams import QueuePolicy, SortedQueue, first_come
from minillm.policies.config import EngineConfig

SLOW_LANE_TURN = 4
"""In two_lane order, every fourth admission goes to the slow lane while both lanes wait."""


def shortest_prompt(request: Request) -> tuple[int, ...]:
    """The key of shortest_prompt: preempted requests, then the fewest prompt tokens.

    Without the first part a long prompt could be preempted and then passed for ever.
    """
    return (request.status is not RequestStatus.PREEMPTED, request.num_prompt_tokens)


def by_priority(request: Request) -> tuple[int, ...]:
    """The key of priority: the lowest number is served first."""
    return (request.priority,)


class TwoLaneQueue:
    """Short prompts do not wait behind long ones; long ones still get every fourth turn."""

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold
        self._fast, self._slow = SortedQueue(), SortedQueue()
        self._turn = 1

    def push(self, request: Request) -> None:
        self._lane_of(request).push(request)

    def peek(self, num_running: int) -> Request | None:
        return self._next_lane().peek(num_running)

    def pop(self) -> Request:
        request = self._next_lane().pop()
        self._turn += 1
        return request

    def remove(self, request: Request) -> None:
        self._lane_of(request).remove(request)

    def allot(self, request: Request, most: int) -> int:
        return most

    def overdue(self, now: float) -> list[Request]:
        return []

    def __len__(self) -> int:
        return len(self._fast) + len(self._slow)

    def __iter__(self) -> Iterator[Request]:
        return chain(self._fast, self._slow)

    def _lane_of(self, request: Request) -> SortedQueue:
        return self._slow if request.num_prompt_tokens > self._threshold else self._fast

    def _next_lane(self) -> SortedQueue:
        if self._fast and self._slow:
            return self._slow if self._turn % SLOW_LANE_TURN == 0 else self._fast
        return self._fast or self._slow


class QueueWrapper:
    """Another queue, and one rule on top of it. All but that rule is the other's."""

    def __init__(self, inner: QueuePolicy) -> None:
        self.inner = inner

    def push(self, request: Request) -> None:
        self.inner.push(request)

    def peek(self, num_running: int) -> Request | None:
        return self.inner.peek(num_running)

    def pop(self) -> Request:
        return self.inner.pop()

    def remove(self, request: Request) -> None:
        self.inner.remove(request)

    def allot(self, request: Request, most: int) -> int:
        return self.inner.allot(request, most)

    def overdue(self, now: float) -> list[Request]:
        return self.inner.overdue(now)

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[Request]:
        return iter(self.inner)


class StaticBatches(QueueWrapper):
    """Static batching: a batch starts together and admits nothing until its longest request finishes.

    Args:
        max_num_seqs: most requests of a batch.
    """

    def __init__(self, inner: QueuePolicy, max_num_seqs: int) -> None:
        super().__init__(inner)
        self._max_num_seqs = max_num_seqs
        self._num_open = 0
        """Members of the batch that may still join it."""

    def push(self, request: Request) -> None:
        super().push(request)
        self._num_open += request.status is RequestStatus.PREEMPTED  # it stays a member of its batch

    def peek(self, num_running: int) -> Request | None:
        if num_running == 0:  # a new batch: what waits now
            self._num_open = min(len(self), self._max_num_seqs)
        return super().peek(num_running) if self._num_open > 0 else None

    def pop(self) -> Request:
        self._num_open -= 1
        return super().pop()


class QueueTimeout(QueueWrapper):
    """Requests that have never run end after `limit_s` seconds of waiting."""

    def __init__(self, inner: QueuePolicy, limit_s: float) -> None:
        super().__init__(inner)
        self._limit_s = limit_s

    def overdue(self, now: float) -> list[Request]:
        return [
            request
            for request in self
            if request.status is RequestStatus.WAITING and now - request.timeline.arrival > self._limit_s
        ]


KEYS: dict[str, Callable[[Request], tuple[int, ...]]] = {
    "fcfs": first_come,
    "shortest_prompt": shortest_prompt,
    "priority": by_priority,
}


def make_queue(config: EngineConfig) -> QueuePolicy:
    """The queue policy that a configuration asks for."""
    order = config.scheduling_order
    queue: QueuePolicy = TwoLaneQueue(config.two_lane_threshold) if order == "two_lane" else SortedQueue(KEYS[order])
    if config.batching == "static":
        queue = StaticBatches(queue, config.max_num_seqs)
    return queue if config.queue_timeout_s is None else QueueTimeout(queue, config.queue_timeout_s)
