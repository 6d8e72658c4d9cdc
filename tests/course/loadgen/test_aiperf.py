"""Two load generators, one endpoint: NVIDIA's AIPerf reads the same TTFT and ITL as ours, within 5%.

AIPerf brings 130 packages, so it lives in an environment of its own: `python -m venv /tmp/aiperf`, `/tmp/aiperf/bin/pip
install aiperf`, then `MINILLM_AIPERF=/tmp/aiperf/bin/aiperf pytest tests/course/loadgen/test_aiperf.py`. With
MINILLM_AIPERF_URL they are also compared on a real `minillm serve`. Both run one after the other: the machine must be
quiet.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from course.loadgen.server_metrics import read_metrics

AIPERF, URL = os.environ.get("MINILLM_AIPERF"), os.environ.get("MINILLM_AIPERF_URL")
REQUESTS, WORKERS, TOKENS = 60, 4, 32

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(AIPERF is None, reason="MINILLM_AIPERF does not say where aiperf is"),
]

Reading = dict[str, dict[str, float]]
"""Milliseconds by metric and statistic (mean, p50), in AIPerf's words: ICL are the gaps between deliveries."""


@pytest.fixture
def fake_url() -> Iterator[str]:
    """The fake endpoint, in a process of its own: first token after 200 ms, then 20 ms each."""
    fake = subprocess.Popen([sys.executable, str(Path(__file__).parents[1] / "fake_endpoint.py")])
    try:
        base = "http://127.0.0.1:8765"
        for _ in range(200):
            try:
                httpx.get(f"{base}/health")
                break
            except httpx.TransportError:
                time.sleep(0.05)
        yield base
    finally:
        fake.terminate()
        fake.wait(10)


def ours(url: str) -> Reading:
    load = f"--concurrency {WORKERS} --num-requests {REQUESTS} --prompt-tokens 64 --output-tokens {TOKENS}"
    options = f"--url {url} {load} --warm-up {WORKERS} --body ignore_eos=true --json"
    command = [sys.executable, "-m", "minillm", "bench", "serve", *options.split()]
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300).stdout)
    taken = {"ttft": report["latency"]["ttft"], "icl": report["latency"]["itl"]}
    return {name: {key: row[key] * 1e3 for key in ("mean", "p50")} for name, row in taken.items()}


def theirs(url: str, tokenizer: Path, folder: Path, *options: str) -> Reading:
    model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    server = f"--url {url} --endpoint-type completions --streaming"
    load = f"--concurrency {WORKERS} --request-count {REQUESTS} --isl 64 --osl {TOKENS} --extra-inputs ignore_eos:true"
    counting = "--use-server-token-count --use-legacy-max-tokens --ui none"
    paths = ["--model", model, "--tokenizer", str(tokenizer), "--artifact-dir", str(folder)]
    command = [AIPERF, "profile", *f"{server} {load} {counting}".split(), *paths, *options]
    subprocess.run(command, capture_output=True, check=True, timeout=300)
    found = json.loads((folder / "profile_export_aiperf.json").read_text())
    names = {"ttft": "time_to_first_token", "icl": "inter_chunk_latency"}
    return {name: {"mean": found[key]["avg"], "p50": found[key]["p50"]} for name, key in names.items()}


def test_aiperf_reads_the_same_latencies(fake_url: str, smollm_path: Path, tmp_path: Path) -> None:
    first, second = ours(fake_url), theirs(fake_url, smollm_path, tmp_path, "--warmup-request-count", str(WORKERS))
    print(f"ours {first}, AIPerf {second}")
    for name in ("ttft", "icl"):
        assert first[name]["p50"] == pytest.approx(second[name]["p50"], rel=0.05), name


def beside_the_server(url: str, read: Callable[[], Reading]) -> dict[str, float]:
    """A client's means over the server's own, of the requests it sent."""
    before = read_metrics(httpx.get(f"{url}/metrics").text)
    reading = read()
    time.sleep(0.5)  # until the last one is counted
    told = read_metrics(httpx.get(f"{url}/metrics").text).since(before)
    told_ms = {"ttft": told["ttft"].mean * 1e3, "icl": told["itl"].mean * 1e3}
    print(f"client {reading}, server's own means {told_ms} of {told['ttft'].count:g} requests")
    return {name: reading[name]["mean"] / told_ms[name] for name in told_ms}


@pytest.mark.skipif(URL is None, reason="MINILLM_AIPERF_URL names no server")
def test_on_a_real_server_both_read_what_the_server_did(smollm_path: Path, tmp_path: Path) -> None:
    """Where client and server share two cores, AIPerf's own work makes the server slower, and both say so rightly. So
    each is laid beside the server's record of its own requests."""
    first = beside_the_server(URL, lambda: ours(URL))
    second = beside_the_server(URL, lambda: theirs(URL, smollm_path, tmp_path))
    print(f"client over server: ours {first}, AIPerf {second}")
    for name in ("ttft", "icl"):
        assert first[name] == pytest.approx(second[name], rel=0.05), name
