"""A live client follows the same retry policy as a simulated one."""

import asyncio

from fake_endpoint import FakeEndpoint, Reply

from course.loadgen.client import Api, Client, ClientExchange, Endpoint
from course.loadgen.planned_requests import PlannedRequest
from course.loadgen.retrying import send_until_answered
from course.simulator.cluster.retries import BreakerPolicy, BreakerState, Retries, RetryPolicy

REFUSAL = Reply(status=429, headers={"Retry-After": "2"})


def send(statuses: list[int], policy: RetryPolicy, count: int = 1) -> tuple[list[bool], list[ClientExchange], Retries]:
    """So many requests, one after the other, to an endpoint that refuses in this order, and answers then."""
    tried, retries = [], Retries(policy, lambda: 0.0)

    async def run() -> list[bool]:
        async with Client(Endpoint(fake.url, Api.COMPLETIONS, "fake-model")) as client:
            return [await send_until_answered(client, PlannedRequest(i, "x", 4), retries, tried) for i in range(count)]

    replies = [REFUSAL if status == 429 else Reply(status=status) for status in statuses]
    with FakeEndpoint(lambda number, body: replies[number] if number < len(replies) else Reply()) as fake:
        return asyncio.run(run()), tried, retries


def test_it_asks_again_until_it_is_answered_or_may_not() -> None:
    naive = RetryPolicy(max_attempts=3)
    answered, tried, _ = send([429, 503], naive)
    assert answered == [True] and [each.status for each in tried] == [429, 503, 200]
    assert tried[0].retry_after_s == 2
    assert send([429] * 3, naive)[0] == [False]
    assert [each.status for each in send([400], naive)[1]] == [400], "asking again would not help"


def test_an_open_breaker_sends_nothing() -> None:
    policy = RetryPolicy(breaker=BreakerPolicy(min_attempts=2, open_s=60, window_s=60))
    answered, tried, retries = send([503] * 2, policy, count=4)
    assert answered == [False] * 4 and [each.sent is None for each in tried] == [False, False, True, True]
    assert retries.breaker.state is BreakerState.OPEN
