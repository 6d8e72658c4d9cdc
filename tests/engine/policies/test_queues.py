"""What every queue promises: iteration is the order of admission, and no call walks all that wait."""

import sys
from collections.abc import Callable, Iterator
from itertools import count
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minillm.core.params import SamplingParams
from minillm.core.request import Request, RequestStatus
from minillm.core.seams import QueuePolicy, SortedQueue
from minillm.core.timeline import Timeline
from minillm.policies.queues import FairQueue, QueueTimeout, StaticBatches, TwoLaneQueue, by_priority, shortest_prompt

SLOTS = 3
QUEUES: dict[str, Callable[[], QueuePolicy]] = {
    "fcfs": SortedQueue,
    "shortest_prompt": lambda: SortedQueue(shortest_prompt),
    "priority": lambda: SortedQueue(by_priority),
    "two_lane": lambda: TwoLaneQueue(4),
    "fair": FairQueue,
    "static": lambda: StaticBatches(SortedQueue(shortest_prompt), SLOTS),
    "static, two_lane": lambda: StaticBatches(TwoLaneQueue(4), SLOTS),
    "timeout, fair": lambda: QueueTimeout(FairQueue(), 5.0),
}
every_queue = pytest.mark.parametrize("make", QUEUES.values(), ids=QUEUES)
ARRIVALS = count()


def request(num_tokens: int = 3, priority: int = 0, tenant: str = "") -> Request:
    index = next(ARRIVALS)
    params, timeline = SamplingParams(), Timeline(float(index))
    return Request(
        str(index), [1] * num_tokens, params, timeline, priority=priority, tenant=tenant, arrival_index=index
    )


def admissions(queue: QueuePolicy) -> Iterator[Request]:
    """All that wait, as they're admitted if none arrives or gives up: into free slots, then each when another ends."""
    num_running = 0
    while len(queue):
        head = queue.peek(num_running)
        if head is None:
            num_running -= 1
            continue
        assert queue.pop() is head
        head.status = RequestStatus.RUNNING
        yield head
        num_running += 1


# A new request (tokens, priority, tenant), or: admit one, preempt one that was, remove one that waits.
events = st.lists(
    st.tuples(st.integers(1, 8), st.integers(0, 2), st.sampled_from("abc"))
    | st.sampled_from(["admit", "preempt"])
    | st.integers(0, 9),
    max_size=40,
)


@every_queue
@given(script=events)
def test_iteration_is_the_order_of_admission(make: Callable[[], QueuePolicy], script: list[Any]) -> None:
    """Whatever came before: arrivals, admissions, preemptions, and requests that ended while they waited."""
    queue, running = make(), []
    for event in script:
        if isinstance(event, tuple):
            queue.push(request(*event))
        elif event == "admit":
            if (head := queue.peek(len(running))) is not None:
                assert queue.pop() is head
                head.status = RequestStatus.RUNNING
                running.append(head)
        elif event == "preempt":
            if running:
                victim = running.pop()
                victim.status = RequestStatus.PREEMPTED
                queue.push(victim)
        elif event < len(queue):
            gone = list(queue)[event]
            queue.remove(gone)
            gone.status = RequestStatus.FINISHED
    order = list(queue)
    assert len(queue) == len(order) and list(queue) == order, "a look changes nothing"
    assert list(admissions(queue)) == order


def operations(call: Callable[[], object]) -> int:
    """Bytecodes that a call executes: a measure of work that no machine's speed is in."""
    executed = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal executed
        frame.f_trace_opcodes = True
        executed += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return executed


@every_queue
@pytest.mark.parametrize("num_tenants", [3, 10_000], ids=["few tenants", "a tenant each"])
def test_no_call_walks_all_that_wait(make: Callable[[], QueuePolicy], num_tenants: int) -> None:
    """Arrivals, steps, and requests that give up, with 16 times as many in the queue."""

    def work(num_waiting: int) -> int:
        queue = make()
        waiting = [request(1 + i % 8, i % 3, str(i % num_tenants)) for i in range(num_waiting)]
        arriving = [request(1 + i % 8, i % 3, str(i % num_tenants)) for i in range(50)]
        for each in waiting:
            queue.push(each)

        def some_steps() -> None:
            for i, each in enumerate(arriving):
                queue.push(each)
                queue.overdue(0.0)
                if queue.peek(i % SLOTS) is not None:
                    queue.pop().status = RequestStatus.FINISHED
                assert len(queue)
                if i % 5 == 0 and each.status is RequestStatus.WAITING:
                    queue.remove(each)
                    each.status = RequestStatus.FINISHED

        return operations(some_steps)

    assert work(1600) < 2 * work(100)


def test_a_batch_stays_closed_when_a_member_gives_up() -> None:
    """Three start together; b is aborted before it was admitted. d, which came later, takes no slot of that batch."""
    queue = StaticBatches(SortedQueue(), 3)
    a, b, c, d = (request(16) for _ in range(4))
    for each in (a, b, c):
        queue.push(each)
    assert queue.peek(0) is a and queue.pop() is a
    queue.remove(b)
    queue.push(d)
    assert queue.peek(1) is c and queue.pop() is c
    assert queue.peek(2) is queue.peek(1) is None and queue.peek(0) is d


def test_a_shorter_prompt_does_not_overtake_members_of_a_closed_batch() -> None:
    queue = StaticBatches(SortedQueue(shortest_prompt), 2)
    short, long, shorter = request(5), request(9), request(1)
    queue.push(long)
    queue.push(short)
    assert queue.peek(0) is short and queue.pop() is short
    queue.push(shorter)
    assert queue.peek(1) is long and list(queue) == [long, shorter]
