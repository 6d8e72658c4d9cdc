"""Who is admitted next among the waiting. One queue, sorted by a key; two queues for two lanes.

A preempted request waits here again. First come, first served puts it in front by itself; shortest
prompt first has to say so, or a long prompt could be preempted and then passed for ever.
"""

import heapq
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Protocol

from minillm.core.request import Request, RequestStatus
from minillm.policies.config import EngineConfig

SLOW_LANE_TURN = 4
"""In two_lane order, every fourth admission goes to the slow lane while both lanes wait."""


class WaitingQueue(Protocol):
    """Requests that wait, in the order in which they will be served."""

    def push(self, request: Request) -> None: ...
    def peek(self) -> Request: ...
    def pop(self) -> Request: ...
    def remove(self, request: Request) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Request]: ...


class SortedQueue:
    """Smallest key first, ties first come, first served. O(log n) each; removal is lazy."""

    def __init__(self, key: Callable[[Request], tuple[int, ...]]) -> None:
        self._key = key
        self._heap: list[tuple[tuple[int, ...], int, Request]] = []
        self._waiting: dict[str, Request] = {}

    def push(self, request: Request) -> None:
        heapq.heappush(self._heap, (self._key(request), request.arrival_index, request))
        self._waiting[request.request_id] = request

    def peek(self) -> Request:
        while self._waiting.get(self._heap[0][-1].request_id) is not self._heap[0][-1]:
            heapq.heappop(self._heap)  # it was removed earlier
        return self._heap[0][-1]

    def pop(self) -> Request:
        request = self.peek()
        heapq.heappop(self._heap)
        del self._waiting[request.request_id]
        return request

    def remove(self, request: Request) -> None:
        del self._waiting[request.request_id]

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._waiting.values())


class TwoLaneQueue:
    """Short prompts do not stand behind long ones; long ones still get every fourth turn."""

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold
        self._fast, self._slow = SortedQueue(first_come), SortedQueue(first_come)
        self._turn = 1

    def push(self, request: Request) -> None:
        self._lane_of(request).push(request)

    def peek(self) -> Request:
        return self._next_lane().peek()

    def pop(self) -> Request:
        request = self._next_lane().pop()
        self._turn += 1
        return request

    def remove(self, request: Request) -> None:
        self._lane_of(request).remove(request)

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


def first_come(request: Request) -> tuple[int, ...]:
    """The key of fcfs: who came first."""
    return (request.arrival_index,)


def shortest_prompt(request: Request) -> tuple[int, ...]:
    """The key of shortest_prompt: who was preempted, then the fewest prompt tokens."""
    return (request.status is not RequestStatus.PREEMPTED, request.num_prompt_tokens)


def by_priority(request: Request) -> tuple[int, ...]:
    """The key of priority: the lowest number is served first."""
    return (request.priority,)


def make_waiting_queue(config: EngineConfig) -> WaitingQueue:
    """The queue for `config.scheduling_order`."""
    if config.scheduling_order == "two_lane":
        return TwoLaneQueue(config.two_lane_threshold)
    keys = {"fcfs": first_come, "shortest_prompt": shortest_prompt, "priority": by_priority}
    return SortedQueue(keys[config.scheduling_order])
