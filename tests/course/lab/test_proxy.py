"""The same bytes, at other moments: what the proxy may and may not change."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import httpx
import pytest
from fake_endpoint import FakeEndpoint, Reply
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE_S

from course.lab import proxy
from course.lab.proxy import Spoiling, buffered, gathered, held, make_proxy
from course.lab.server import in_background
from course.loadgen.client import Api, Endpoint
from course.loadgen.load_test import LoadSettings, run_load_test
from course.loadgen.observation import Observation
from course.loadgen.planned_requests import PlannedRequest
from minillm.core.errors import ConfigError

EVENT = b"data: x\n\n"


async def source(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def collect(pieces: AsyncIterator[bytes]) -> list[bytes]:
    async def run() -> list[bytes]:
        return [piece async for piece in pieces]

    return asyncio.run(run())


@given(st.lists(st.sampled_from([b"data: a\n", b"\n", EVENT, b"da", b"ta: b\n\ndata"]), max_size=12), st.integers(1, 5))
def test_gathering_keeps_every_byte_and_cuts_between_events(pieces: list[bytes], count: int) -> None:
    out = collect(gathered(source(pieces), count))
    assert b"".join(out) == b"".join(pieces)
    assert all(piece.count(b"\n\n") >= 1 and piece.endswith(b"\n\n") for piece in out[:-1])


@given(st.lists(st.binary(min_size=1, max_size=9), max_size=12), st.integers(1, 20))
def test_buffering_keeps_every_byte_and_waits_for_enough(pieces: list[bytes], size: int) -> None:
    out = collect(buffered(source(pieces), size))
    assert b"".join(out) == b"".join(pieces)
    assert all(len(piece) >= size for piece in out[:-1])


def test_holding_delays_each_piece_but_not_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    now, pause, here = 0.0, asyncio.sleep, threading.get_ident()

    async def sleep(seconds: float) -> None:
        nonlocal now
        if threading.get_ident() != here:  # a server that another test left in the background
            return await pause(seconds)
        for _ in range(100):  # all that came meanwhile is read
            await pause(0)
        now += max(seconds, 0.0)

    monkeypatch.setattr(proxy.time, "perf_counter", lambda: now)
    monkeypatch.setattr(proxy.asyncio, "sleep", sleep)
    assert collect(held(source([b"a", b"b", b"c"] * 20), 0.1)) == [b"a", b"b", b"c"] * 20
    assert now == pytest.approx(0.1), "60 delays of 0.1 s run at the same time"


def test_holding_passes_on_what_broke_the_stream() -> None:
    async def breaks() -> AsyncIterator[bytes]:
        yield b"a"
        raise ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError):
        collect(held(breaks(), 0.01))


@pytest.mark.parametrize("wrong", [{"hold_ms": -1}, {"hold_ms": float("nan")}, {"buffer_bytes": -1}, {"coalesce": 0}])
def test_settings_that_make_no_sense(wrong: dict) -> None:
    with pytest.raises(ConfigError):
        Spoiling(**wrong)


@contextmanager
def proxied(upstream: str, **spoiling: float) -> Iterator[str]:
    with in_background(make_proxy(upstream, Spoiling(**spoiling))) as running:
        yield f"http://127.0.0.1:{running.port}"


def observe_through(fake: FakeEndpoint, **spoiling: float) -> Observation:
    with proxied(fake.url, **spoiling) as url:
        endpoint = Endpoint(url, Api.COMPLETIONS, "m")
        [o] = asyncio.run(run_load_test(endpoint, [PlannedRequest(0, "p", 8)], LoadSettings())).observations
    assert o.completed, o.message
    assert o.num_tokens == 8
    return o


def test_a_plain_proxy_changes_nothing_a_client_can_read() -> None:
    with FakeEndpoint(lambda n, body: Reply(num_tokens=8)) as fake, proxied(fake.url) as url:
        asked = {"model": "m", "max_tokens": 8, "prompt": "p", "stream": True}
        direct, through = (httpx.post(f"{base}/v1/completions", json=asked) for base in (fake.url, url))
        assert through.content == direct.content
        assert through.headers["content-type"] == direct.headers["content-type"]
        assert httpx.get(f"{url}/v1/models").json() == httpx.get(f"{fake.url}/v1/models").json()
        assert httpx.get(f"{url}/nowhere").status_code == 404


@pytest.mark.parametrize("spoiling", [{"coalesce": 4}, {"buffer_bytes": 400}])
def test_gathered_tokens_arrive_together(spoiling: dict) -> None:
    with FakeEndpoint(lambda n, body: Reply(num_tokens=8, gap_s=0.01)) as fake:
        o = observe_through(fake, **spoiling)
    assert len(o.deliveries) - len(set(o.deliveries)) >= 4, "read together"
    assert len(set(o.deliveries)) <= 4


def test_a_client_that_leaves_is_felt_by_the_server() -> None:
    replies = Reply(num_tokens=1000, gap_s=0.01)
    with FakeEndpoint(lambda n, body: replies) as fake, proxied(fake.url, hold_ms=20) as url:
        asked = {"model": "m", "max_tokens": 1000, "prompt": "p", "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=asked) as response:
            next(response.iter_bytes())
        assert fake.disconnected.wait(PATIENCE_S)
        assert fake.in_flight == 0


def test_no_server_behind_it_is_a_502_in_the_apis_shape() -> None:
    with proxied("http://127.0.0.1:9") as url:
        response = httpx.get(f"{url}/v1/models")
    assert response.status_code == 502
    assert "127.0.0.1:9" in json.loads(response.text)["error"]["message"]


def test_the_command_says_where_it_listens_and_stops_when_told() -> None:
    with FakeEndpoint() as fake:
        command = [sys.executable, "-m", "minillm", "proxy", "--upstream", f"{fake.url}/v1", "--port", "0", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as proxy:
            said = json.loads(proxy.stdout.readline())
            assert httpx.get(f"{said['url']}/v1/models").json()["data"][0]["id"] == "fake-model"
            proxy.terminate()
            proxy.wait(PATIENCE_S)
