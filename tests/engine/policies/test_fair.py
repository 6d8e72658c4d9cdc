"""Fairness between tenants (Virtual Token Counter): who gets how much, and that nothing else changes."""

from itertools import count

import fake_runner
import pytest
from fake_runner import drain, expected_output, greedy
from hypothesis import given, settings
from hypothesis import strategies as st

from course.simulator import ClusterConfig, simulate
from course.simulator.deployment import Deployment
from course.simulator.workload.arrivals import AllAtOnce
from course.simulator.workload.kinds import Independent
from course.simulator.workload.lengths import Fixed
from course.simulator.workload.requests import make_workload, merge
from minillm.core.params import SamplingParams
from minillm.core.request import Request, RequestStatus
from minillm.core.seams import SortedQueue
from minillm.core.timeline import Timeline
from minillm.frontend.engine import Engine
from minillm.policies.queues import FairQueue

LONGEST, MOST = 12, 6
"""Lengths of prompts and outputs, tokens."""
sizes = st.tuples(st.integers(1, LONGEST), st.integers(1, MOST))


def make_engine(slots: int, order: str = "fair", num_kv_blocks: int = 64) -> Engine:
    return fake_runner.make_engine(
        num_kv_blocks, max_num_seqs=slots, max_num_batched_tokens=1024, max_model_len=40, scheduling_order=order
    )


def add(engine: Engine, tenant: str, asked: list[tuple[int, int]]) -> None:
    for num_prompt, num_output in asked:
        engine.add_request(list(range(num_prompt)), greedy(num_output), tenant=tenant)


def served(requests: list[Request], tenant: str = "") -> int:
    """Weighted tokens: prompts that were admitted, and output."""
    begun = [r for r in requests if r.tenant == tenant and r.status is not RequestStatus.WAITING]
    return sum(request.num_prompt_tokens + 2 * request.num_output_tokens for request in begun)


def lead_of_a(order: str, slots: int, a: list[tuple[int, int]], b: list[tuple[int, int]], late: int) -> list[int]:
    """By how much more a was served than b, step by step while both have requests queued; b asks `late` steps later."""
    engine, leads = make_engine(slots, order), []
    add(engine, "a", a)
    for _ in range(late):
        engine.step()
    add(engine, "b", b)
    requests = list(engine.recent_requests)
    while engine.has_unfinished:
        most = min(slots, len(engine.core.requests))
        engine.step()
        assert len(engine.runner.batches[-1].requests) == most, "a slot stays empty"
        queued = {request.tenant for request in engine.scheduler.waiting}
        if queued == {"a", "b"}:
            leads.append(served(requests, "a") - served(requests, "b"))
    return leads


@settings(max_examples=100)
@given(
    slots=st.integers(1, 3),
    a=st.lists(sizes, min_size=25, max_size=35),
    b=st.lists(sizes, min_size=10, max_size=35),
    late=st.integers(0, 60),
)
def test_tenants_with_requests_queued_are_served_alike_from_any_moment_on(
    slots: int, a: list[tuple[int, int]], b: list[tuple[int, int]], late: int
) -> None:
    """However long b was idle before: that earns no credit."""
    leads = lead_of_a("fair", slots, a, b, late)
    assert not leads or max(leads) - min(leads) <= 2 * (LONGEST + 2 * slots * MOST)


def test_first_come_first_served_breaks_that_bound() -> None:
    few, bound = [(LONGEST, MOST)] * 20, 2 * (LONGEST + 2 * MOST)
    for order, holds in (("fair", True), ("fcfs", False)):
        leads = lead_of_a(order, 1, few, few, late=0)
        assert (max(leads) - min(leads) <= bound) is holds


@settings(max_examples=60)
@given(
    slots=st.integers(1, 4),
    num_kv_blocks=st.integers(5, 8),
    asked=st.lists(st.tuples(st.integers(0, 2), sizes), min_size=5, max_size=20),
)
def test_no_slot_stays_empty_no_token_changes_and_none_is_charged_twice(
    slots: int, num_kv_blocks: int, asked: list[tuple[int, tuple[int, int]]]
) -> None:
    """Also where requests are preempted. One tenant's requests come first come, first served."""
    fair, alone, fcfs = (make_engine(slots, order, num_kv_blocks) for order in ("fair", "fair", "fcfs"))
    for tenant, size in asked:
        add(fair, str(tenant), [size])
        add(alone, "", [size])
        add(fcfs, "", [size])
    requests = list(alone.recent_requests)
    for output in drain(fair).values():
        assert output.token_ids == expected_output(output.prompt_token_ids, len(output.token_ids))
    drain(alone), drain(fcfs)
    steps = [[[s.num_tokens for s in batch.requests] for batch in each.runner.batches] for each in (alone, fcfs)]
    assert steps[0] == steps[1]
    queue = alone.scheduler.waiting
    assert isinstance(queue, FairQueue)
    queue.push(request(""))  # counts what came since it was asked last
    assert queue.served[""] == served(requests)


ARRIVALS = count()


def request(tenant: str, num_prompt: int = 1) -> Request:
    return Request(
        tenant, [1] * num_prompt, SamplingParams(), Timeline(0.0), tenant=tenant, arrival_index=next(ARRIVALS)
    )


def test_an_idle_tenant_is_lifted_to_the_lowest_of_those_that_wait_or_to_the_one_that_left_last() -> None:
    queue = FairQueue()
    for each in (request("a", 10), request("b", 7), request("a"), request("b")):
        queue.push(each)
    assert [queue.pop().tenant for _ in range(2)] == ["a", "b"] and queue.served == {"a": 10, "b": 7}
    queue.push(request("c"))
    assert queue.served["c"] == 7
    assert [queue.pop().tenant for _ in range(3)] == ["b", "c", "a"]
    queue.push(request("d"))  # none waits, and a, with 11 tokens, left last
    assert queue.served == {"a": 11, "b": 8, "c": 8, "d": 11} and queue.pop().tenant == "d"


def test_tenants_that_a_lift_would_bring_as_high_are_forgotten() -> None:
    queue = FairQueue()
    for number in range(1000):
        queue.push(each := request(str(number)))
        assert queue.pop() is each
        each.status = RequestStatus.FINISHED
    assert len(queue.served) <= 2


def test_a_tenant_with_few_requests_does_not_wait_for_one_with_many() -> None:
    """In the simulator, where workloads that are merged are tenants."""
    chat = Independent(prompt=Fixed(tokens=200), output=Fixed(tokens=50))
    many, few = (make_workload(chat, AllAtOnce(), num_requests=n, name=name) for name, n in (("many", 60), ("few", 3)))
    last = {}
    for order in ("fcfs", "fair"):
        engines = Deployment.of("qwen3-1.7b", "l4", max_num_seqs=2, scheduling_order=order)
        run = simulate(merge("both", many, few), ClusterConfig(), engines.fast_engine)
        last[order] = max(record.e2e() for record in run.records if record.request.tenant == "few")
        assert all(record.completed for record in run.records)
    assert last["fair"] < last["fcfs"] / 5


def test_no_arrival_or_admission_walks_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SortedQueue, "__iter__", lambda self: pytest.fail("the waiting requests were walked"))
    queue = FairQueue()
    for i in range(9):
        request = Request(str(i), [1], SamplingParams(), Timeline(0.0), tenant=f"tenant {i % 3}")
        request.arrival_index = i
        queue.push(request)
    assert [queue.pop().request_id for _ in range(9)] == [*"012345678"]
