"""Queue policies: orders of admission, batches that are admitted whole, and a limit on waiting."""

import heapq
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Iterator
from itertools import chain, count
from typing import Generic, TypeVar

from minillm.core.request import Request, RequestStatus
from minillm.core.seams import QueuePolicy, SortedQueue, first_come
from minillm.policies.config import EngineConfig

SLOW_LANE_TURN = 4
"""The slow lane's turn: in two_lane order, every fourth admission goes to the slow lane while both lanes wait."""
PROMPT_WEIGHT, OUTPUT_WEIGHT = 1, 2
"""What a tenant is charged for a token in fair order: the paper's weights."""


def shortest_prompt(request: Request) -> tuple[int, ...]:
    """The key of shortest_prompt: preempted requests, then the fewest prompt tokens.

    Without the first part a long prompt could be preempted and then passed for ever.
    """
    return (request.status is not RequestStatus.PREEMPTED, request.num_prompt_tokens)


def by_priority(request: Request) -> tuple[int, ...]:
    """The key of priority: the lowest number is served first."""
    return (request.priority,)


Lane = TypeVar("Lane", bound=Hashable)


class Lanes(Generic[Lane]):
    """Queues side by side, each first come, first served. A kind of lanes says which one is a request's, and whose turn
    it is."""

    def __init__(self) -> None:
        self.lanes: dict[Lane, SortedQueue] = {}
        """The lanes in which a request waits."""
        self._num_waiting = 0

    def lane_of(self, request: Request) -> Lane:
        raise NotImplementedError

    def next_lane(self) -> Lane:
        """The lane whose turn it is, of those in which a request waits; there is one."""
        raise NotImplementedError

    def push(self, request: Request) -> None:
        self.lanes.setdefault(self.lane_of(request), SortedQueue()).push(request)
        self._num_waiting += 1

    def peek(self, num_running: int) -> Request | None:
        return self.first() if self.lanes else None

    def first(self) -> Request:
        """The request that is admitted next; there is one."""
        return self.lanes[self.next_lane()].first()

    def pop(self) -> Request:
        request = self.first()
        self.remove(request)
        return request

    def remove(self, request: Request) -> None:
        lane = self.lane_of(request)
        self.lanes[lane].remove(request)
        self._num_waiting -= 1
        if not self.lanes[lane]:
            del self.lanes[lane]

    def overdue(self, now: float) -> list[Request]:
        return []

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Request]:
        raise NotImplementedError


class TwoLaneQueue(Lanes[bool]):
    """Short prompts do not wait behind long ones; long ones still get every fourth turn."""

    def __init__(self, threshold: int) -> None:
        super().__init__()
        self._threshold = threshold
        self._turn = 1

    def lane_of(self, request: Request) -> bool:
        """Whether it is the slow one."""
        return request.num_prompt_tokens > self._threshold

    def next_lane(self) -> bool:
        return self._lane_at(self._turn, self.lanes)

    def pop(self) -> Request:
        request = super().pop()
        self._turn += 1
        return request

    def __iter__(self) -> Iterator[Request]:
        lanes = {lane: deque(queue) for lane, queue in self.lanes.items()}
        for turn in count(self._turn):
            lanes = {lane: queue for lane, queue in lanes.items() if queue}
            if not lanes:
                return
            yield lanes[self._lane_at(turn, lanes)].popleft()

    def _lane_at(self, turn: int, lanes: Collection[bool]) -> bool:
        return turn % SLOW_LANE_TURN == 0 if len(lanes) == 2 else next(iter(lanes))


class FairQueue(Lanes[str]):
    """The tenant that was served least is next: the Virtual Token Counter (Sheng et al., "Fairness in Serving Large
    Language Models", OSDI 2024).

    A prompt counts when it is admitted, all of it, whatever the prefix cache finds; output tokens count as they come. A
    tenant that had nothing queued is lifted to the lowest counter among those that had: being idle earns no credit.

    Between tenants that always have requests queued, what they were served since any moment differs by at most 2 max(p,
    d): p is the longest prompt's weight, d that of all tokens which the running batch can hold. No slot stays empty
    for fairness: a tenant that's alone gets everything.
    """

    def __init__(self) -> None:
        super().__init__()
        self.served: defaultdict[str, int] = defaultdict(int)
        """Weighted tokens by tenant, lifts included. A tenant that's no higher than a lift would bring it is forgotten
        when the queue is empty."""
        self._charged: dict[Request, int] = {}
        """Requests that were admitted, until they end -> output tokens that were counted."""
        self._last = ""
        """The tenant whose request left the queue last."""
        self._turns: list[tuple[int, int, str]] = []
        """A heap of (tokens served, arrival of the first request, tenant). An entry may be outdated, but none of a
        tenant in the queue comes later than it should."""

    def lane_of(self, request: Request) -> str:
        return request.tenant

    def next_lane(self) -> str:
        """The tenant served least; equal ones in order of arrival."""
        while True:
            *_, tenant = turn = self._turns[0]
            if tenant not in self.lanes:
                heapq.heappop(self._turns)
            elif turn == (correct := self._turn_of(tenant)):
                return tenant
            else:  # it was served meanwhile, or its first request has left
                heapq.heapreplace(self._turns, correct)

    def push(self, request: Request) -> None:
        self._charge()
        if not self.lanes:
            active, lowest = {running.tenant for running in self._charged}, self.served[self._last]
            kept = {name: n for name, n in self.served.items() if n > lowest or name in active}
            self.served = defaultdict(int, kept)
        else:
            lowest = self.served[self.next_lane()]
        if request.tenant not in self.lanes:
            self.served[request.tenant] = max(self.served[request.tenant], lowest)
        super().push(request)
        if len(self._turns) > 2 * len(self.lanes):  # most are outdated
            self._turns = [self._turn_of(tenant) for tenant in self.lanes]
            heapq.heapify(self._turns)
        else:
            heapq.heappush(self._turns, self._turn_of(request.tenant))

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

    def __iter__(self) -> Iterator[Request]:
        self._charge()
        served = dict(self.served)
        lanes = {tenant: deque(lane) for tenant, lane in self.lanes.items()}
        turns = [self._turn_of(tenant) for tenant in lanes]
        heapq.heapify(turns)
        while turns:
            *_, tenant = turns[0]
            request = lanes[tenant].popleft()
            yield request
            if request not in self._charged:
                served[tenant] += PROMPT_WEIGHT * request.num_prompt_tokens
            if lanes[tenant]:
                heapq.heapreplace(turns, (served[tenant], lanes[tenant][0].arrival_index, tenant))
            else:
                heapq.heappop(turns)

    def _turn_of(self, tenant: str) -> tuple[int, int, str]:
        return self.served[tenant], self.lanes[tenant].first().arrival_index, tenant

    def _charge(self) -> None:
        """Count the output tokens that have come since the last time, and let go of requests that have ended."""
        for request, num_charged in self._charged.items():
            self.served[request.tenant] += OUTPUT_WEIGHT * (request.num_output_tokens - num_charged)
        alive = (request for request in self._charged if request.status is not RequestStatus.FINISHED)
        self._charged = {request: request.num_output_tokens for request in alive}


class QueueWrapper:
    """Adds one rule to another queue: a subclass overrides what the rule is about, and the other does the rest."""

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
        self._batch: OrderedDict[Request, None] = OrderedDict()
        """Members of the batch that wait: not admitted yet, or preempted. The inner queue has all others."""

    def push(self, request: Request) -> None:
        if request.status is RequestStatus.PREEMPTED:  # it stays a member of its batch
            self._batch[request] = None
            self._batch.move_to_end(request, last=False)
        else:
            self.inner.push(request)

    def peek(self, num_running: int) -> Request | None:
        if num_running == 0 and not self._batch:
            self._close_batch()
        return next(iter(self._batch), None)

    def pop(self) -> Request:
        return self._batch.popitem(last=False)[0]

    def remove(self, request: Request) -> None:
        if request in self._batch:
            del self._batch[request]  # its slot stays empty until the batch is over
        else:
            self.inner.remove(request)

    def _close_batch(self) -> None:
        """The last batch is over: a new one, of what waits now."""
        while len(self._batch) < self._max_num_seqs and (request := self.inner.peek(len(self._batch))) is not None:
            self.inner.pop()
            self._batch[request] = None

    def __len__(self) -> int:
        return len(self._batch) + len(self.inner)

    def __iter__(self) -> Iterator[Request]:
        return chain(self._batch, self.inner)


class QueueTimeout(QueueWrapper):
    """Requests that have never run end after `limit_s` seconds of waiting."""

    def __init__(self, inner: QueuePolicy, limit_s: float) -> None:
        super().__init__(inner)
        self._limit_s = limit_s
        self._arrivals: list[tuple[float, int, Request]] = []
        """A heap of (arrival, its index, request); those that have run or ended since are among them."""
        self._overdue: list[Request] = []

    def push(self, request: Request) -> None:
        if request.status is RequestStatus.WAITING:
            heapq.heappush(self._arrivals, (request.timeline.arrival, request.arrival_index, request))
        super().push(request)

    def pop(self) -> Request:
        request = super().pop()
        self._forget_those_gone()
        return request

    def remove(self, request: Request) -> None:
        super().remove(request)
        self._forget_those_gone()

    def _forget_those_gone(self) -> None:
        """Keep no ended request, with its prompt and output, until its limit would have come."""
        if len(self._arrivals) > 2 * len(self):
            self._arrivals = [entry for entry in self._arrivals if entry[-1].status is RequestStatus.WAITING]
            heapq.heapify(self._arrivals)

    def overdue(self, now: float) -> list[Request]:
        while self._arrivals and now - self._arrivals[0][0] > self._limit_s:
            self._overdue.append(heapq.heappop(self._arrivals)[-1])
        self._overdue = [request for request in self._overdue if request.status is RequestStatus.WAITING]
        return [*self._overdue]


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
