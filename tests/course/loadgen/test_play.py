"""Requests against an endpoint that does as it is told: outcomes, order, caps, conversations, retries."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from fake_endpoint import FakeEndpoint, Reply
from patience import PATIENCE_S

from course.loadgen.client import Api, Endpoint, Failure
from course.loadgen.load_test import LoadSettings, LoadTest, run_load_test
from course.loadgen.observation import COMPLETED, CUT_OFF, NEVER_SENT, TokenSource
from course.loadgen.planned_requests import PlannedRequest, planned_requests
from course.simulator.workload.arrivals import AllAtOnce, Poisson
from course.simulator.workload.kinds import Independent, Sessions, SharedPrefix
from course.simulator.workload.lengths import Fixed
from course.simulator.workload.requests import make_workload

WARM = 1


def at_once(count: int, max_tokens: int = 4) -> list[PlannedRequest]:
    return [PlannedRequest(i, f"prompt {i}", max_tokens) for i in range(count)]


def load(
    fake: FakeEndpoint, asks: list[PlannedRequest], api: Api = Api.COMPLETIONS, extra: Any = None, **settings: Any
) -> LoadTest:
    endpoint = Endpoint(fake.url, api, "", extra or {})
    return asyncio.run(run_load_test(endpoint, asks, LoadSettings(**settings)))


def after_warm_up(reply: Reply) -> Callable[[int, dict], Reply]:
    return lambda number, body: Reply() if number < WARM else reply


@pytest.mark.parametrize("api", Api)
def test_answers_are_whole_counted_and_in_order_of_events(api: Api) -> None:
    with FakeEndpoint(lambda n, body: Reply(num_tokens=body["max_tokens"])) as fake:
        test = load(fake, at_once(3, max_tokens=6), api, extra={"ignore_eos": True})
    for o in test.observations:
        assert (o.outcome, o.num_tokens, o.token_source) == (COMPLETED, 6, TokenSource.USAGE)
        assert o.prompt_tokens == 7
        assert o.finish_reason == "length"
        assert len(o.deliveries) == 6
        assert o.due <= o.sent < o.deliveries[0]
        assert list(o.deliveries) == sorted(o.deliveries)
        assert o.deliveries[-1] <= o.ended
    assert test.endpoint.model == "fake-model"
    body = fake.bodies[-1]
    assert body["ignore_eos"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert ("messages" in body) == (api is Api.CHAT)
    assert not test.server, "it shows no metrics"


@pytest.mark.parametrize(
    ("reply", "failure"),
    [
        (Reply(status=429, headers={"Retry-After": "1"}), Failure.RATE_LIMITED),
        (Reply(status=400), Failure.REFUSED),
        (Reply(status=503), Failure.SERVER_ERROR),
        (Reply(ending="cut"), Failure.DISCONNECTED),
        (Reply(ending="silent"), Failure.BAD_STREAM),
        (Reply(ending="error"), Failure.BAD_STREAM),
        (Reply(ending="garbage"), Failure.BAD_STREAM),
        (Reply(content_type="application/json"), Failure.NOT_A_STREAM),
        (Reply(content_type="text/plain; charset=klingon"), Failure.NOT_A_STREAM),
        (Reply(status=204), Failure.OTHER_STATUS),
        (Reply(status=307, headers={"Location": "/v1/models"}), Failure.OTHER_STATUS),
        (Reply(status=429, headers={"Retry-After": "\u00b2"}), Failure.RATE_LIMITED),
        (Reply(num_tokens=0), Failure.BAD_STREAM),
    ],
)
def test_every_kind_of_failure_is_counted_as_itself(reply: Reply, failure: Failure) -> None:
    with FakeEndpoint(after_warm_up(reply)) as fake:
        [o] = load(fake, at_once(1)).observations
    assert o.outcome == failure
    assert o.message
    assert len(fake.bodies) == WARM + 1, "nothing is tried again"
    assert not o.as_request_record().completed


def test_a_bug_of_the_client_costs_one_request_and_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real_body = Endpoint.body

    def body(self: Endpoint, messages: list[dict[str, str]], max_tokens: int, user: str) -> bytes:
        if messages[0]["content"] == "prompt 1":
            raise ZeroDivisionError("of the client")
        return real_body(self, messages, max_tokens, user)

    monkeypatch.setattr(Endpoint, "body", body)
    with FakeEndpoint() as fake:
        endpoint = Endpoint(fake.url, Api.COMPLETIONS, "m")
        test = asyncio.run(run_load_test(endpoint, at_once(4), LoadSettings(max_in_flight=1), show_progress=True))
    assert [o.outcome for o in test.observations] == [COMPLETED, Failure.CLIENT_BUG, COMPLETED, COMPLETED]
    assert test.observations[1].message == "ZeroDivisionError: of the client"
    shown = capsys.readouterr()
    assert "4/4" in shown.err and shown.out == ""


def test_a_timeout_is_a_failure_and_ends_the_request_at_the_server() -> None:
    with FakeEndpoint(after_warm_up(Reply(gate=threading.Event()))) as fake:
        [o] = load(fake, at_once(1), timeout_s=1.0).observations
        assert fake.disconnected.wait(PATIENCE_S)
    assert o.outcome == Failure.TIMEOUT
    assert o.as_request_record().timeline.first_token is None


def test_a_server_without_usage_is_asked_without_and_said_so() -> None:
    with FakeEndpoint(lambda n, body: Reply(num_tokens=6, per_event=2), knows_usage=False) as fake:
        test = load(fake, at_once(2))
    assert {o.token_source for o in test.observations} == {TokenSource.EVENTS}
    assert {o.num_tokens for o in test.observations} == {3}
    endpoint = Endpoint("", Api.COMPLETIONS, "m")
    assert endpoint.include_usage and not test.endpoint.include_usage


def test_a_cap_is_kept_and_every_request_still_goes_out() -> None:
    with FakeEndpoint(lambda n, body: Reply(ttft_s=0.01)) as fake:
        test = load(fake, at_once(12), max_in_flight=3)
    assert fake.most_in_flight == 3
    assert all(o.completed for o in test.observations)
    assert max(o.late_s for o in test.observations) > 0.02, "the last ones were held back"


def test_an_open_loop_does_not_wait_for_answers() -> None:
    """The server answers only when all are there: a closed loop would never end."""
    gate = threading.Event()

    def reply(number: int, body: dict) -> Reply:
        if number == WARM + 4:
            gate.set()
        return Reply(gate=None if number < WARM else gate)

    with FakeEndpoint(reply) as fake:
        test = load(fake, [PlannedRequest(i, "p", 4, due=0.01 * i) for i in range(5)])
    assert [o.completed for o in test.observations] == [True] * 5
    assert [o.due for o in test.observations] == pytest.approx([0.0, 0.01, 0.02, 0.03, 0.04])
    assert all(o.sent >= o.due for o in test.observations)


def test_a_tenant_is_sent_as_the_user() -> None:
    workload = make_workload(SharedPrefix(tenants=3), AllAtOnce(), num_requests=9)
    with FakeEndpoint() as fake:
        load(fake, planned_requests(workload))
    assert {r.tenant for r in workload} == {body["user"] for body in fake.bodies[WARM:]}


def test_a_conversation_repeats_what_was_really_answered() -> None:
    turns = Sessions(turns=Fixed(tokens=3), system=Fixed(tokens=5), think_s=0.0)
    workload = make_workload(turns, AllAtOnce(), num_requests=1)
    with FakeEndpoint(lambda n, body: Reply(num_tokens=2)) as fake:
        test = load(fake, planned_requests(workload), Api.CHAT)
        completions = load(fake, planned_requests(workload))
    assert all(o.completed for o in test.observations + completions.observations)
    last = fake.bodies[WARM + 2]["messages"]
    assert [m["role"] for m in last] == ["user", "assistant", "user", "assistant", "user"]
    assert last[1]["content"] == " t0 t1" and "user" not in fake.bodies[-1]
    assert last[:3] == fake.bodies[WARM + 1]["messages"]
    assert fake.bodies[-1]["prompt"] == "".join(m["content"] for m in last)


def test_after_a_failed_turn_the_rest_is_never_sent() -> None:
    asks = [
        PlannedRequest(0, "a", 4),
        PlannedRequest(1, "b", 4, due=None, after=0),
        PlannedRequest(2, "c", 4, due=None, after=1),
    ]
    with FakeEndpoint(after_warm_up(Reply(status=500))) as fake:
        test = load(fake, asks)
    assert [o.outcome for o in test.observations] == [Failure.SERVER_ERROR, NEVER_SENT, NEVER_SENT]
    assert len(fake.bodies) == WARM + 1
    assert test.observations[1].as_request_record() is None


def test_cut_off_keeps_what_is_there() -> None:
    """As Ctrl-C does: one answer is over, the next one is open, one is not due yet."""
    replies = [Reply(), Reply(), Reply(gate=threading.Event())]

    async def cut_off(fake: FakeEndpoint) -> LoadTest:
        asks = [
            PlannedRequest(0, "a", 4),
            PlannedRequest(1, "b", 4, due=None, after=0),
            PlannedRequest(2, "c", 4, due=600.0),
        ]
        endpoint = Endpoint(fake.url, Api.COMPLETIONS, "m")
        running = asyncio.create_task(run_load_test(endpoint, asks, LoadSettings()))
        while len(fake.bodies) < WARM + 2 or fake.in_flight != 1:
            await asyncio.sleep(0.005)
        running.cancel()
        return await running

    with FakeEndpoint(lambda number, body: replies[number]) as fake:
        test = asyncio.run(cut_off(fake))
        assert fake.disconnected.wait(PATIENCE_S), "the server hears of it"
    assert test.was_cut_off
    assert [o.outcome for o in test.observations] == [COMPLETED, CUT_OFF, NEVER_SENT]


def test_cut_off_while_warming_up_begins_no_test() -> None:
    async def cut_off(fake: FakeEndpoint) -> None:
        running = asyncio.create_task(run_load_test(Endpoint(fake.url, Api.CHAT, "m"), at_once(3), LoadSettings()))
        while not fake.bodies:
            await asyncio.sleep(0.005)
        running.cancel()
        await running

    with FakeEndpoint(lambda n, body: Reply(gate=threading.Event())) as fake:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(cut_off(fake))
        assert fake.disconnected.wait(PATIENCE_S)
    assert len(fake.bodies) == 1


def test_the_key_goes_out_and_is_in_no_text() -> None:
    with FakeEndpoint() as fake:
        endpoint = Endpoint(fake.url, Api.COMPLETIONS, "m", api_key="sk-secret")
        asyncio.run(run_load_test(endpoint, at_once(1), LoadSettings()))
        assert fake.headers[-1]["authorization"] == "Bearer sk-secret"
    assert "sk-secret" not in repr(endpoint)


def test_shared_pieces_are_shared_words_and_about_as_long_as_planned() -> None:
    turns = make_workload(Sessions(turns=Fixed(tokens=1), system=Fixed(tokens=50)), Poisson(rate=1), num_requests=2)
    first, second = (ask.prompt.split() for ask in planned_requests(turns))
    assert first[:50] == second[:50]
    assert first[50:] != second[50:]
    alone = make_workload(Independent(prompt=Fixed(tokens=30), output=Fixed(tokens=5)), Poisson(rate=1), num_requests=1)
    assert len(planned_requests(alone)[0].prompt.split()) == 30
