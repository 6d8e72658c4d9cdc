"""Replicas on Ray Serve: one is killed under load, load brings another, SIGTERM lets streams end. Takes minutes: Ray
starts a dozen processes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

pytest.importorskip("ray")

ROOT = Path(__file__).parents[3]
CLIENTS = 6


def replicas(driver: int) -> list[int]:
    """Ids of the engine processes that this driver's Ray runs."""
    found = []
    for child in psutil.Process(driver).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended just now
            if "ServeReplica:minillm" in " ".join(child.cmdline()):
                found.append(child.pid)
    return found


def ask(url: str, model: str, stream: bool) -> str:
    """One request; returns how it ended."""
    body = {"model": model, "prompt": "Hello there", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    try:
        answer = httpx.post(f"{url}/completions", json={**body, "stream": stream}, timeout=120)
    except httpx.ConnectError:
        return "no connection"
    except httpx.RemoteProtocolError:
        return "broken stream" if stream else "broken answer"
    if answer.status_code == 200:
        return "ok" if not stream or answer.text.endswith("data: [DONE]\n\n") else "unfinished stream"
    return str(answer.status_code)


@contextlib.contextmanager
def serving(model: Path, *flags: str) -> Iterator[tuple[subprocess.Popen, str, str]]:
    """The process, the URL up to /v1, and the model's name."""
    command = [sys.executable, "-m", "minillm", "serve", "--model", str(model), "--json", "--port", "0"]
    limits = ["--num-kv-blocks", "64", "--no-access-log"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([*command, *limits, *flags], env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            ready = json.loads(process.stdout.readline())
            yield process, ready["url"], ready["model"]
        finally:
            process.kill()


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> bool:
    for _ in range(int(seconds / 0.1)):
        if condition():
            return True
        threading.Event().wait(0.1)
    return False


@pytest.mark.slow
def test_a_replica_is_killed_under_load_and_replaced(tiny_llama_path: Path):
    with serving(tiny_llama_path, "--replicas", "2", "--max-num-seqs", "8") as (process, url, model):
        before = replicas(process.pid)
        assert len(before) == 2
        outcomes: Counter[str] = Counter()
        enough = threading.Event()

        def client(number: int) -> None:
            for _ in range(2000):
                outcomes[ask(url, model, stream=number % 2 == 0)] += 1
                if enough.is_set():
                    return

        with ThreadPoolExecutor(CLIENTS) as pool:
            clients = [pool.submit(client, number) for number in range(CLIENTS)]
            try:
                while outcomes["ok"] < 40 and not any(one.done() for one in clients):
                    threading.Event().wait(0.05)
                os.kill(before[0], signal.SIGKILL)
                wait_for(lambda: len(now := replicas(process.pid)) == 2 and before[0] not in now)
            finally:
                enough.set()
            for one in clients:
                one.result()
        assert set(outcomes) <= {"ok", "unfinished stream"}, outcomes
        assert outcomes["unfinished stream"] <= 8, "no more than were open in the replica"
        assert len(replicas(process.pid)) == 2, "the dead replica was not replaced"
        assert [ask(url, model, stream=i % 2 == 0) for i in range(20)] == ["ok"] * 20
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0


@pytest.mark.slow
def test_load_brings_another_replica_and_sigterm_lets_streams_end(tiny_llama_path: Path):
    scaling = ["--replicas", "1", "--max-replicas", "2", "--max-num-seqs", "2"]
    with serving(tiny_llama_path, *scaling) as (process, url, model), ThreadPoolExecutor(2 * CLIENTS) as pool:
        assert len(replicas(process.pid)) == 1
        enough = threading.Event()
        outcomes: Counter[str] = Counter()

        def client() -> None:
            while not enough.is_set():
                outcomes[ask(url, model, stream=True)] += 1

        clients = [pool.submit(client) for _ in range(CLIENTS)]
        try:
            assert wait_for(lambda: len(replicas(process.pid)) == 2, 300), "load brought no second replica"
        finally:
            enough.set()
        for one in clients:
            one.result()
        assert set(outcomes) == {"ok"}, outcomes

        begun = threading.Semaphore(0)

        def stream() -> str:
            body = {"model": model, "prompt": "Hello", "max_tokens": 450, "ignore_eos": True, "stream": True}
            whole = {**body, "stream_options": {"include_usage": True}}
            with httpx.stream("POST", f"{url}/completions", json=whole, timeout=120) as answer:
                assert answer.status_code == 200
                parts = answer.iter_text()
                text = next(parts)
                begun.release()
                return text + "".join(parts)

        streams = [pool.submit(stream) for _ in range(2)]
        for _ in streams:
            assert begun.acquire(timeout=60)
        queued = [pool.submit(ask, url, model, False) for _ in range(CLIENTS)]
        process.send_signal(signal.SIGTERM)
        for one in streams:
            text = one.result()
            assert text.endswith("data: [DONE]\n\n")
            assert '"completion_tokens":450,' in text
        # What waited in Ray's router when the signal came is served, too.
        assert Counter(one.result() for one in queued) <= Counter({"ok": CLIENTS, "no connection": CLIENTS})
        assert process.wait(120) == 0


@pytest.mark.slow
def test_a_rolling_restart_and_a_drain_under_load_lose_nothing(tiny_llama_path: Path):
    with serving(tiny_llama_path, "--replicas", "2", "--max-num-seqs", "2") as (process, url, model):
        before, enough = replicas(process.pid), threading.Event()
        outcomes: Counter[str] = Counter()

        def client(number: int) -> None:
            while not enough.is_set():
                outcomes[ask(url, model, stream=number % 2 == 0)] += 1

        with ThreadPoolExecutor(CLIENTS) as pool:
            clients = [pool.submit(client, number) for number in range(CLIENTS)]
            try:
                assert wait_for(lambda: outcomes["ok"] >= 20)
                process.send_signal(signal.SIGHUP)
                assert wait_for(lambda: len(now := replicas(process.pid)) == 2 and not set(now) & set(before), 300)
            finally:
                enough.set()
            for one in clients:
                one.result()
        assert set(outcomes) == {"ok"}, outcomes
        assert httpx.get(url.removesuffix("/v1") + "/ready").status_code == 200
        with ThreadPoolExecutor(4 * CLIENTS) as pool:
            waiting = [pool.submit(ask, url, model, stream=i % 2 == 0) for i in range(4 * CLIENTS)]
            threading.Event().wait(1)  # they are connected; four run, and the others wait in Ray's router
            process.send_signal(signal.SIGTERM)
            assert Counter(one.result() for one in waiting) == Counter({"ok": 4 * CLIENTS})
        assert process.wait(120) == 0
