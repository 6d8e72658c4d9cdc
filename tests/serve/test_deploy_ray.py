"""Two replicas on Ray Serve; one is killed under load. Takes minutes: Ray starts a dozen processes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

pytest.importorskip("ray")

ROOT = Path(__file__).parents[2]
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
    except httpx.RemoteProtocolError:
        return "broken stream" if stream else "broken answer"
    if answer.status_code == 200:
        return "ok" if not stream or answer.text.endswith("data: [DONE]\n\n") else "unfinished stream"
    return str(answer.status_code)


@pytest.mark.slow
def test_a_replica_is_killed_under_load_and_replaced(tiny_llama_path: Path):
    command = [sys.executable, "-m", "minillm", "serve", "--model", str(tiny_llama_path), "--replicas", "2", "--json"]
    limits = ["--port", "0", "--num-kv-blocks", "64", "--max-num-seqs", "8", "--no-access-log"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([*command, *limits], env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            ready = json.loads(process.stdout.readline())
            url, model = ready["url"], ready["model"]
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
                    for _ in range(1200):
                        now = replicas(process.pid)
                        if len(now) == 2 and before[0] not in now:
                            break
                        threading.Event().wait(0.1)
                finally:
                    enough.set()
                for one in clients:
                    one.result()
            assert set(outcomes) <= {"ok", "500", "503", "broken stream"}, outcomes
            assert len(replicas(process.pid)) == 2, "the dead replica was not replaced"
            assert [ask(url, model, stream=i % 2 == 0) for i in range(20)] == ["ok"] * 20
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0
        finally:
            process.kill()
