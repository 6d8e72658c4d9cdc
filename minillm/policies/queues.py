"""Queue policies: orders of admission, batches that are admitted whole, and a limit on waiting."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from itertools import chain

from minillm.core.request import Request, RequestStatus
from minillm.core.seams import QueuePolicy, SortedQueue, first_come
from minillm.policies.config import EngineConfig

SLOW_LANE_TURN = 4
"""In two_lane order, every fourth admission goes to the slow lane while both lanes wait."""
PROMPT_WEIGHT, OUTPUT_WEIGHT = 1, 2
"""In fair order, what a tenant is charged for a token: the paper's weights."""


def shortest_prompt(request: Request) -> tuple[int, ...]:
    """The key of shortest_prompt: preempted requests, then the fewest prompt tokens.

    Without the first part a long prompt could be preempted and then passed for ever.
    """
    return (request.status is not RequestStatus.PREEMPTED, request.num_prompt_tokens)


def by_priority(request: Request) -> tuple[int, ...]:
    """The key of priority: the lowest number is served first."""
    return (request.priority,)


class Lanes:
    """Queues side by side, each first come, first served. A kind of lanes says which one is a request's, and whose turn
    it is."""

    def __init__(self) -> None:
        self.lanes: dict[Hashable, SortedQueue] = {}
        """Those in which a request waits."""

    def lane_of(self, request: Request) -> Hashable:
        raise NotImplementedError

    def next_lane(self) -> Hashable:
        """Of those in which a request waits; there is one."""
        raise NotImplementedError

    def push(self, request: Request) -> None:
        self.lanes.setdefault(self.lane_of(request), SortedQueue()).push(request)

    def peek(self, num_running: int) -> Request | None:
        return self.first() if self.lanes else None

    def first(self) -> Request:
        """Of those that wait; there is one."""
        return self.lanes[self.next_lane()].first()

    def pop(self) -> Request:
        request = self.first()
        self.remove(request)
        return request

    def remove(self, request: Request) -> None:
        lane = self.lane_of(request)
        self.lanes[lane].remove(request)
        if not self.lanes[lane]:
            del self.lanes[lane]

    def allot(self, request: Request, most: int) -> int:
        return most

    def overdue(self, now: float) -> list[Request]:
        return []

    def __len__(self) -> int:
        return sum(map(len, self.lanes.values()))

    def __iter__(self) -> Iterator[Request]:
        return chain.from_iterable(self.lanes.values())


class TwoLaneQueue(Lanes):
    """Short prompts do not wait behind long ones; long ones still get every fourth turn."""

    def __init__(self, threshold: int) -> None:
        super().__init__()
        self._threshold = threshold
        self._turn = 1

    def lane_of(self, request: Request) -> bool:
        """Whether it is the slow one."""
        return request.num_prompt_tokens > self._threshold

    def next_lane(self) -> Hashable:
        return self._turn % SLOW_LANE_TURN == 0 if len(self.lanes) == 2 else next(iter(self.lanes))

    def pop(self) -> Request:
        request = super().pop()
        self._turn += 1
        return request


class FairQueue(Lanes):
    """The tenant that was served least is next: the Virtual Token Counter (Sheng et al., "Fairness in Serving Large
    Language Models", OSDI 2024).

    A prompt counts when it is admitted, all of it, whatever the prefix cache finds; output tokens count as they come. A
    tenant that had nothing queued is lifted to the lowest counter among those that had: being idle earns no credit.

    Between tenants that always have requests queued, what they were served since any moment differs by at most 2 max(p,
    d): p is the longest prompt's weight, d that of all tokens which the running batch can hold. No slot stays empty
    for it: who asks alone gets everything.
    """

    def __init__(self) -> None:
        super().__init__()
        self.served: defaultdict[str, int] = defaultdict(int)
        """By tenant: weighted tokens, lifts included. Who is as low as a lift would bring it is left out in time."""
        self._charged: dict[Request, int] = {}
        """Requests that were admitted, until they end -> output tokens that were counted."""
        self._last = ""
        """The tenant whose request left the queue last."""

    def lane_of(self, request: Request) -> str:
        return request.tenant

    def next_lane(self) -> Hashable:
        # Equal ones in order of arrival.
        heads = [lane.first() for lane in self.lanes.values()]
        return min(heads, key=lambda head: (self.served[head.tenant], head.arrival_index)).tenant

    def push(self, request: Request) -> None:
        self._charge()
        if not self.lanes:
            active, lowest = {running.tenant for running in self._charged}, self.served[self._last]
            kept = {name: n for name, n in self.served.items() if n > lowest or name in active}
            self.served = defaultdict(int, kept)
        else:
            lowest = min(self.served[head.tenant] for head in self)
        if request.tenant not in self.lanes:
            self.served[request.tenant] = max(self.served[request.tenant], lowest)
        super().push(request)

    def first(self) -> Request:
        self._charge()
        return super().first()

    def pop(self) -> Request:
        request = super().pop()
        if request not in self._charged:  # else it was preempted, and has paid
            self._charged[request] = 0
            self.served[request.tenant] += PROMPT_WEIGHT * request.num_prompt_tokens
        return request

    def remove(self, request: Request) -> None:
        super().remove(request)
        self._last = request.tenant

    def _charge(self) -> None:
        """Count the output tokens that have come since the last time, and let go of requests that have ended."""
        for request, num_charged in self._charged.items():
            self.served[request.tenant] += OUTPUT_WEIGHT * (request.num_output_tokens - num_charged)
        alive = (request for request in self._charged if request.status is not RequestStatus.FINISHED)
        self._charged = {request: request.num_output_tokens for request in alive}


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
"""Orders that are a matter of one request alone."""


def make_queue(config: EngineConfig) -> QueuePolicy:
    """The queue policy that a configuration asks for."""
    queue: QueuePolicy
    match config.scheduling_order:
        case "two_lane":
            queue = TwoLaneQueue(config.two_lane_threshold)
        case "fair":
            queue = FairQueue()
        case order:
            queue = SortedQueue(KEYS[order])
    if config.batching == "static":
        queue = StaticBatches(queue, config.max_num_seqs)
    return queue if config.queue_timeout_s is None else QueueTimeout(queue, config.queue_timeout_s)
