"""Many clients, a third of which leave; others read slowly or send nonsense: nothing is left behind."""

import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
from patience import wait_for
from server.running import MODEL, Running, Serve
from server.soak import KINDS, PROMPTS, Soak, live


@dataclass(frozen=True)
class Footprint:
    """What a server holds while it is idle."""

    threads: int
    tasks: tuple[str, ...]
    """Tasks of the event loop, by name."""
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
    seen = [Footprint.of(server)]

    def rests() -> bool:
        threading.Event().wait(0.02)
        seen.append(Footprint.of(server))
        return seen[-2] == seen[-1] and not seen[-1].connections and not server.service.limiter.num_sequences

    wait_for(rests, "the server comes to rest")
    return seen[-1]


def check_nothing_is_left(server: Running, before: Footprint) -> None:
    left = footprint_at_rest(server)
    # A thread of an earlier test may have ended meanwhile.
    assert replace(left, threads=max(left.threads, before.threads)) == before
    assert not server.service.limiter._per_caller
    assert server.engine(lambda _: len(server.service.thread._sinks)) == 0
    del server.http  # closed above
    assert server.metric("num_requests_running") == server.metric("kv_cache_usage_perc") == 0


def soak_of(server: Running, expected: Callable[..., str], seed: int) -> Soak:
    return Soak(server.url, MODEL, {prompt: expected(prompt, max_tokens=16) for prompt in PROMPTS}, seed)


def test_a_short_soak(serve: Serve, expected: Callable[..., str]):
    server = serve()
    soak_of(server, expected, seed=1).run(20)  # starts every thread there will be
    before = footprint_at_rest(server)
    soak = soak_of(server, expected, seed=2)
    soak.run(60)
    assert set(soak.outcomes) == set(KINDS) and soak.outcomes.total() == 60
    check_nothing_is_left(server, before)


@pytest.mark.slow
def test_a_soak_of_2000_leaves_memory_flat(serve: Serve, expected: Callable[..., str]):
    server = serve()
    soak = soak_of(server, expected, seed=3)
    soak.run(500)
    before, process = footprint_at_rest(server), psutil.Process()
    warm = process.memory_info().rss
    soak.run(2000)
    check_nothing_is_left(server, before)
    grown = process.memory_info().rss - warm
    assert grown < 20e6, f"{grown / 1e6:.1f} MB more after 2000 requests: something is kept"


@pytest.mark.slow
def test_a_soak_with_restarts_loses_nothing(tiny_llama_path: Path):
    """A minute of what `make soak` does for an hour."""
    told = live(tiny_llama_path, seconds=60, life_s=15, seed=4)
    assert told["restarts"] >= 2 and told["good"] > 50 and told["leaver"] > 20, told
