"""Many clients, a third of which leave at some moment, and a tenth of which send nonsense: nothing is left behind."""

import asyncio
import gc
import json
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

import httpx
import psutil
import pytest
from server.running import MODEL, Running, Serve

PROMPTS = [f"Tell me about the number {i} and the ones around it." for i in range(12)]
CLIENTS = 24


class Soak:
    """Sends requests, and checks every good answer."""

    def __init__(self, server: Running, expected: Callable[..., str], seed: int) -> None:
        self.server = server
        self.random = random.Random(seed)
        self.right = {prompt: expected(prompt, max_tokens=16) for prompt in PROMPTS}
        self.outcomes: list[str] = []

    def run(self, num_requests: int) -> None:
        asyncio.run(self._run(num_requests))

    async def _run(self, num_requests: int) -> None:
        kinds = [self._kind() for _ in range(num_requests)]
        limits = httpx.Limits(max_connections=CLIENTS)
        async with httpx.AsyncClient(base_url=self.server.url, timeout=120, limits=limits) as client:
            places = asyncio.Semaphore(CLIENTS)

            async def one(kind: str) -> None:
                async with places:
                    await getattr(self, f"_{kind}")(client)
                    self.outcomes.append(kind)

            await asyncio.gather(*(one(kind) for kind in kinds))

    def _kind(self) -> str:
        draw = self.random.random()
        return "malformed" if draw < 0.1 else "leaver" if draw < 0.1 + 1 / 3 else "good"

    def _body(self, prompt: str, stream: bool, max_tokens: int = 16) -> dict:
        wanted = {"temperature": 0, "max_tokens": max_tokens, "ignore_eos": True}
        return {"model": MODEL, "prompt": prompt, "stream": stream, **wanted}

    async def _good(self, client: httpx.AsyncClient) -> None:
        prompt, stream = self.random.choice(PROMPTS), self.random.random() < 0.5
        answer = await client.post("/v1/completions", json=self._body(prompt, stream))
        assert answer.status_code == 200, answer.text
        if stream:
            events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
            assert events.pop() == "[DONE]"
            text = "".join(json.loads(event)["choices"][0]["text"] for event in events)
        else:
            text = answer.json()["choices"][0]["text"]
        assert text == self.right[prompt]

    async def _leaver(self, client: httpx.AsyncClient) -> None:
        stream, patience = self.random.random() < 0.7, self.random.randrange(12)
        body = self._body(self.random.choice(PROMPTS), stream, max_tokens=200)
        try:
            async with (
                asyncio.timeout(None if stream else patience / 100),
                client.stream("POST", "/v1/completions", json=body) as answer,
            ):
                async for _ in answer.aiter_lines():
                    patience -= 1
                    if patience < 0:
                        return  # leaving the block closes the connection
        except TimeoutError:
            pass

    async def _malformed(self, client: httpx.AsyncClient) -> None:
        good = json.dumps(self._body("x", False)).encode()
        content = self.random.choice(
            [
                b"",
                b"{",
                good[: self.random.randrange(len(good))],
                good.replace(b"16", b'"16"'),
                good.replace(b"n", b"m"),
            ]
        )
        answer = await client.post("/v1/completions", content=content)
        assert 400 <= answer.status_code < 500, answer.text


@dataclass(frozen=True)
class Footprint:
    """What a server holds while it is idle."""

    threads: int
    tasks: tuple[str, ...]
    """Of the event loop, by name."""
    connections: int
    files: int
    """Open files and sockets of the whole process: the client's too."""

    @classmethod
    def of(cls, server: Running) -> "Footprint":
        files = psutil.Process().num_fds()
        return cls(threading.active_count(), tuple(server.tasks()), server.num_connections(), files)


def footprint_at_rest(server: Running) -> Footprint:
    """Once all is over: the server hears a moment later that its clients have left, and its tasks end after that."""
    server.wait_until_idle()
    server.http.close()
    gc.collect()  # closes sockets of clients that were cancelled in mid-air
    rest = None
    for _ in range(500):
        before, rest = rest, Footprint.of(server)
        if before == rest and not rest.connections and not server.service.limiter.num_sequences:
            return rest
        threading.Event().wait(0.02)
    raise AssertionError(f"the server does not come to rest: {rest}")


def check_nothing_is_left(server: Running, before: Footprint) -> None:
    assert footprint_at_rest(server) == before
    assert not server.service.limiter._per_caller
    assert server.engine(lambda _: len(server.service.thread._sinks)) == 0
    del server.http  # closed above
    assert server.metric("num_requests_running") == server.metric("kv_cache_usage_perc") == 0


def test_a_short_soak(serve: Serve, expected: Callable[..., str]):
    server = serve()
    Soak(server, expected, seed=1).run(20)  # starts every thread there will be
    before = footprint_at_rest(server)
    soak = Soak(server, expected, seed=2)
    soak.run(60)
    assert set(soak.outcomes) == {"good", "leaver", "malformed"} and len(soak.outcomes) == 60
    check_nothing_is_left(server, before)


@pytest.mark.slow
def test_a_soak_of_2000_leaves_memory_flat(serve: Serve, expected: Callable[..., str]):
    server = serve()
    soak = Soak(server, expected, seed=3)
    soak.run(500)
    before, process = footprint_at_rest(server), psutil.Process()
    warm = process.memory_info().rss
    soak.run(2000)
    check_nothing_is_left(server, before)
    grown = process.memory_info().rss - warm
    assert grown < 20e6, f"{grown / 1e6:.1f} MB more after 2000 requests: something is kept"
