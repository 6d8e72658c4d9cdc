"""Two load generators, one endpoint: NVIDIA's AIPerf reads the same TTFT and ITL as ours, within 5%.

AIPerf brings 130 packages, so it lives in an environment of its own: `python -m venv /tmp/aiperf`, `/tmp/aiperf/bin/pip
install aiperf`, then `MINILLM_AIPERF=/tmp/aiperf/bin/aiperf pytest tests/bench/loadgen/test_aiperf.py`. With
MINILLM_AIPERF_URL it compares them on a real server. Both run one after the other: the machine must be quiet.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

AIPERF, URL = os.environ.get("MINILLM_AIPERF"), os.environ.get("MINILLM_AIPERF_URL")
REQUESTS, WORKERS, TOKENS = 60, 4, 32

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(AIPERF is None, reason="MINILLM_AIPERF does not say where aiperf is"),
]


@pytest.fixture
def url() -> Iterator[str]:
    """The given endpoint; or the fake one, in a process of its own: first token after 200 ms, then 20 ms each."""
    if URL is not None:
        yield URL
        return
    fake = subprocess.Popen([sys.executable, str(Path(__file__).parents[2] / "fake_endpoint.py")])
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


def ours(url: str) -> dict[str, float]:
    """p50 in milliseconds, by AIPerf's words: its ITL is an average per request, its ICL are the gaps."""
    command = [
        sys.executable, "-m", "minillm", "bench", "serve", "--url", url, "--concurrency", str(WORKERS),
        "--num-requests", str(REQUESTS), "--prompt-tokens", "64", "--output-tokens", str(TOKENS),
        "--warm-up", str(WORKERS), "--body", "ignore_eos=true", "--json",
    ]  # fmt: skip
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout)
    rows = {row["metric"]: row["p50"] for row in report["other_tools"] if row["tool"] == "AIPerf"}
    return {"ttft": report["latency"]["ttft"]["p50"] * 1e3, "itl": rows["ITL"] * 1e3, "icl": rows["ICL"] * 1e3}


def theirs(url: str, tokenizer: Path, folder: Path) -> dict[str, float]:
    model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    command = [
        AIPERF, "profile", "--model", model, "--url", url, "--endpoint-type", "completions", "--streaming",
        "--tokenizer", str(tokenizer), "--use-server-token-count", "--use-legacy-max-tokens",
        "--concurrency", str(WORKERS), "--request-count", str(REQUESTS), "--warmup-request-count", str(WORKERS),
        "--isl", "64", "--osl", str(TOKENS), "--extra-inputs", "ignore_eos:true",
        "--ui", "none", "--artifact-dir", str(folder),
    ]  # fmt: skip
    subprocess.run(command, capture_output=True, check=True, timeout=300)
    found = json.loads((folder / "profile_export_aiperf.json").read_text())
    names = {"ttft": "time_to_first_token", "itl": "inter_token_latency", "icl": "inter_chunk_latency"}
    return {ours: found[name]["p50"] for ours, name in names.items()}


def test_aiperf_reads_the_same_latencies(url: str, smollm_path: Path, tmp_path: Path) -> None:
    first, second = ours(url), theirs(url, smollm_path, tmp_path)
    print(f"ours {first}, AIPerf {second}")
    for name in ("ttft", "itl", "icl"):
        assert first[name] == pytest.approx(second[name], rel=0.05), f"{name}: ours {first}, AIPerf {second}"
