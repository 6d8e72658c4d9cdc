"""Replicas on Ray Serve: one is killed under load, load brings another, SIGTERM lets streams end. Takes minutes: Ray
starts a dozen processes."""

import contextlib
import os
import signal
import subprocess
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from patience import wait_for
from server.running import MODEL, serve_process

pytest.importorskip("ray")

CLIENTS = 6


def replicas(driver: int) -> list[int]:
    """Ids of the engine processes that this driver's Ray runs."""
    found = []
    for child in psutil.Process(driver).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended just now
            if "ServeReplica:minillm" in " ".join(child.cmdline()):
                found.append(child.pid)
    return found


def ask(url: str, stream: bool) -> str:
    """One request; returns how it ended."""
    body = {"model": MODEL, "prompt": "Hello there", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    try:
        answer = httpx.post(f"{url}/v1/completions", json={**body, "stream": stream}, timeout=120)
    except httpx.ConnectError:
        return "no connection"
    except httpx.RemoteProtocolError:
        return "broken stream" if stream else "broken answer"
    if answer.status_code == 200:
        return "ok" if not stream or answer.text.endswith("data: [DONE]\n\n") else "unfinished stream"
    return str(answer.status_code)


def serving(model: Path, *flags: str) -> "contextlib.AbstractContextManager[tuple[str, subprocess.Popen[str]]]":
    """Small replicas: their URL, and the process."""
    return serve_process(model, "--num-kv-blocks", "64", *flags)


@pytest.mark.slow
def test_a_replica_is_killed_under_load_and_replaced(tiny_llama_path: Path):
    with serving(tiny_llama_path, "--replicas", "2", "--max-num-seqs", "8") as (url, process):
        before = replicas(process.pid)
        assert len(before) == 2
        outcomes: Counter[str] = Counter()
        enough = threading.Event()

        def client(number: int) -> None:
            for _ in range(2000):
                outcomes[ask(url, stream=number % 2 == 0)] += 1
                if enough.is_set():
                    return

        with ThreadPoolExecutor(CLIENTS) as pool:
            clients = [pool.submit(client, number) for number in range(CLIENTS)]
            try:
                while outcomes["ok"] < 40 and not any(one.done() for one in clients):
                    threading.Event().wait(0.05)
                os.kill(before[0], signal.SIGKILL)
                wait_for(lambda: len(now := replicas(process.pid)) == 2 and before[0] not in now, "it is replaced")
            finally:
                enough.set()
            for one in clients:
                one.result()
        assert set(outcomes) <= {"ok", "unfinished stream"}, outcomes
        assert outcomes["unfinished stream"] <= 8, "no more than were open in the replica"
        assert len(replicas(process.pid)) == 2, "the dead replica was not replaced"
        assert [ask(url, stream=i % 2 == 0) for i in range(20)] == ["ok"] * 20
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0


@pytest.mark.slow
def test_load_brings_another_replica_and_sigterm_lets_streams_end(tiny_llama_path: Path):
    scaling = ["--replicas", "1", "--max-replicas", "2", "--max-num-seqs", "2"]
    with serving(tiny_llama_path, *scaling) as (url, process), ThreadPoolExecutor(2 * CLIENTS) as pool:
        assert len(replicas(process.pid)) == 1
        enough = threading.Event()
        outcomes: Counter[str] = Counter()

        def client() -> None:
            while not enough.is_set():
                outcomes[ask(url, stream=True)] += 1

        clients = [pool.submit(client) for _ in range(CLIENTS)]
        try:
            wait_for(lambda: len(replicas(process.pid)) == 2, "load brings a second replica")
        finally:
            enough.set()
        for one in clients:
            one.result()
        assert set(outcomes) == {"ok"}, outcomes

        begun = threading.Semaphore(0)

        def stream() -> str:
            body = {"model": MODEL, "prompt": "Hello", "max_tokens": 450, "ignore_eos": True, "stream": True}
            whole = {**body, "stream_options": {"include_usage": True}}
            with httpx.stream("POST", f"{url}/v1/completions", json=whole, timeout=120) as answer:
                assert answer.status_code == 200
                parts = answer.iter_text()
                text = next(parts)
                begun.release()
                return text + "".join(parts)

        streams = [pool.submit(stream) for _ in range(2)]
        for _ in streams:
            assert begun.acquire(timeout=60)
        queued = [pool.submit(ask, url, False) for _ in range(CLIENTS)]
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
    with serving(tiny_llama_path, "--replicas", "2", "--max-num-seqs", "2") as (url, process):
        before, enough = replicas(process.pid), threading.Event()
        outcomes: Counter[str] = Counter()

        def client(number: int) -> None:
            while not enough.is_set():
                outcomes[ask(url, stream=number % 2 == 0)] += 1

        with ThreadPoolExecutor(CLIENTS) as pool:
            clients = [pool.submit(client, number) for number in range(CLIENTS)]
            try:
                wait_for(lambda: outcomes["ok"] >= 20, "some are answered")
                process.send_signal(signal.SIGHUP)
                wait_for(lambda: len(now := replicas(process.pid)) == 2 and not set(now) & set(before), "all are new")
            finally:
                enough.set()
            for one in clients:
                one.result()
        assert set(outcomes) == {"ok"}, outcomes
        assert httpx.get(f"{url}/ready").status_code == 200
        with ThreadPoolExecutor(4 * CLIENTS) as pool:
            waiting = [pool.submit(ask, url, stream=i % 2 == 0) for i in range(4 * CLIENTS)]
            threading.Event().wait(1)  # they are connected; four run, and the others wait in Ray's router
            process.send_signal(signal.SIGTERM)
            assert Counter(one.result() for one in waiting) == Counter({"ok": 4 * CLIENTS})
        assert process.wait(120) == 0
