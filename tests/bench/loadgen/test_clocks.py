"""Clocks that have nothing to do with each other, and what can be said all the same."""

import asyncio
import time

import pytest
from fake_endpoint import FakeEndpoint, Reply
from hypothesis import given
from hypothesis import strategies as st
from made import observation

from minillm.bench.loadgen.asks import Ask
from minillm.bench.loadgen.client import Api, Client, Endpoint
from minillm.bench.loadgen.clocks import Offset, measure_offset, narrowed, offset_of, side_by_side, wire_cost
from minillm.bench.loadgen.load_test import LoadSettings, run_load_test
from minillm.core.errors import EndpointError
from minillm.core.timeline import Timeline
from minillm.server.server_times import read_server_times, server_times

positive = st.floats(0, 10)


@given(st.floats(-1e6, 1e6), positive, positive)
def test_the_true_offset_is_always_within(offset: float, out: float, back: float) -> None:
    found = offset_of(asked=5.0, server_clock=5.0 + out + offset, heard=5.0 + out + back)
    assert found.low - 1e-6 <= offset <= found.high + 1e-6
    assert found.error == pytest.approx((out + back) / 2, abs=1e-6)


def stamped(arrival: float, first: float, last: float, offset: float) -> dict[str, float]:
    moments = {
        "arrival": arrival,
        "scheduled": arrival + 0.1,
        "prefill_end": first - 0.01,
        "first_token": first,
        "last_token": last,
    }
    return {name: moment + offset for name, moment in moments.items()}


def test_answers_narrow_the_offset_by_cause_and_effect() -> None:
    """Sent at 0, there at 0.02, first token out at 0.45, read at 0.5: the wire took 20 ms and 50 ms."""
    o = observation(server_times=stamped(0.02, 0.45, 0.51, offset=1000.0))
    wide = Offset(999.0, 1001.0)
    found = narrowed(wide, [o], start=0.0)
    assert (found.low, found.high) == pytest.approx((1000.0 - 0.05, 1000.0 + 0.02))
    assert narrowed(wide, [observation()], start=0.0) == wide, "without stamps nothing is learned"
    assert wide.within(Offset(5.0, 6.0)) == wide, "a contradiction is not believed"


def test_spans_of_both_sides_lie_on_the_clients_clock() -> None:
    o = observation(sent=3.0, server_times=stamped(3.02, 3.45, 3.55, offset=1000.0))
    spans = side_by_side(o, Offset(999.99, 1000.01), start=0.0)
    by_name = {(s.side, s.name): s for s in spans}
    assert by_name["server", "queue"].start == pytest.approx(3.02)
    assert by_name["server", "queue"].seconds == pytest.approx(0.1)
    assert by_name["client", "time to first token"].seconds == pytest.approx(0.5)
    assert by_name["wire", "request out"].seconds == pytest.approx(0.02)
    assert by_name["wire", "first token back"].seconds == pytest.approx(0.05)
    assert by_name["wire", "last token back"].error == pytest.approx(0.01)


@given(st.floats(-1e3, 1e3))
def test_what_the_wire_costs_does_not_depend_on_the_offset(wrong_by: float) -> None:
    o = observation(server_times=stamped(0.02, 0.45, 0.51, offset=1000.0))
    spans = side_by_side(o, Offset(1000.0 + wrong_by, 1000.0 + wrong_by), start=0.0)
    assert wire_cost(spans) == pytest.approx(0.07, abs=1e-6)


def test_an_answer_without_stamps_cannot_be_compared() -> None:
    with pytest.raises(EndpointError, match="stamps"):
        side_by_side(observation(), Offset(0, 0), start=0.0)


def test_the_field_says_what_the_timeline_says_and_vllm_says_lengths() -> None:
    timeline = Timeline(arrival=1.0, scheduled=1.5, prefill_end=2.0, finished=4.0)
    timeline.deliver(2.25, 1)
    timeline.deliver(3.0, 1)
    times = read_server_times(server_times(timeline))
    assert times.phases == {k: v for k, v in timeline.phases().items() if k != "stream"}
    assert times.stamps["last_token"] == 3.0
    theirs = read_server_times({"queue_time_ms": 12, "time_to_first_token_ms": 85.2, "generation_time_ms": 1240.5})
    assert theirs.phases == pytest.approx({"queue": 0.012, "prefill": 0.0852, "decode": 1.2405})
    assert not theirs.stamps
    assert read_server_times({"arrival": "soon"}) is None
    assert read_server_times({**server_times(timeline), "first_token": 0.0}) is None, "out of order"


def test_against_a_server_whose_clock_is_1000_seconds_ahead() -> None:
    """The fake's /health runs 1000 s ahead of this process's clock, so the truth is known."""

    def reply(number: int, body: dict) -> Reply:
        moment = time.perf_counter() + 1000.0
        names = ("arrival", "scheduled", "prefill_end", "first_token", "last_token")
        return Reply(extra={"minillm": {name: moment + 1e-6 * i for i, name in enumerate(names)}})

    async def play(fake: FakeEndpoint):
        endpoint = Endpoint(fake.url, Api.COMPLETIONS, "m")
        async with Client(endpoint) as client:
            offset = await measure_offset(client)
        return offset, await run_load_test(endpoint, [Ask(0, "p", 4)], LoadSettings())

    with FakeEndpoint(reply) as fake:
        offset, test = asyncio.run(play(fake))
    closer = narrowed(offset, test.observations, test.start)
    for found in (offset, closer):
        assert found.low <= 1000.0 <= found.high
    assert closer.error <= offset.error
    spans = side_by_side(test.observations[0], closer, test.start)
    assert 0 <= wire_cost(spans) <= spans[0].seconds


def test_a_server_without_a_clock_is_said() -> None:
    async def ask(fake: FakeEndpoint) -> None:
        async with Client(Endpoint(f"{fake.url}/v1/models?", Api.COMPLETIONS, "m")) as client:
            await measure_offset(client)

    with FakeEndpoint() as fake, pytest.raises(EndpointError, match="no clock"):
        asyncio.run(ask(fake))
