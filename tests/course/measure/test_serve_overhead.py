"""`minillm bench serve-overhead`: the same work with and without the server, compared in pairs."""

from collections.abc import Callable
from typing import Any

import pytest
from fake_endpoint import FakeEndpoint, Reply

from course.measure.serve_overhead import ServedBaseline, own_server
from course.measure.workloads import BenchmarkWorkload
from minillm.bench.errors import BenchmarkError
from minillm.policies.config import EngineConfig

THREE = BenchmarkWorkload("three", "three streams", [[5, 6, 7], [8, 9], [10]], [4, 4, 4])


def test_streams_are_timed_by_their_deliveries() -> None:
    """Two tokens an event: the first after 50 ms, the second 20 ms later. A busy client may read the first one late."""
    with FakeEndpoint(lambda n, body: Reply(num_tokens=4, per_event=2, ttft_s=0.05, gap_s=0.02)) as fake:
        run = ServedBaseline(fake.url, "tiny").run(THREE)
    assert sorted(body["prompt"] for body in fake.bodies) == sorted(THREE.prompts)
    assert run.num_tokens == 12 and len(run.ttft) == len(run.itl) == 3
    assert all(ttft >= 0.05 and ttft + gap >= 0.07 for ttft, gap in zip(run.ttft, run.itl))
    assert run.seconds < 1


def test_a_stream_that_fails_ends_the_benchmark() -> None:
    said = pytest.raises(BenchmarkError, match=r"1 of 3 streams were not answered \(HTTP/1.1 503 [^\r\n]+as told")
    with FakeEndpoint(lambda number, body: Reply(status=503 if number == 1 else 200)) as fake, said:
        ServedBaseline(fake.url, "tiny").run(THREE)


def test_other_work_is_no_comparison() -> None:
    with FakeEndpoint(lambda n, body: Reply(num_tokens=3)) as fake, pytest.raises(BenchmarkError, match="asked for"):
        ServedBaseline(fake.url, "tiny").run(THREE)


def test_a_server_that_does_not_start_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "false")
    with pytest.raises(BenchmarkError, match="ended with status 1"), own_server(EngineConfig(model="any")):
        pass


def test_both_sides_are_measured_on_the_same_engine(bench_json: Callable[..., Any]) -> None:
    report = bench_json("serve-overhead", "--streams", "3", "--output-tokens", "9", "--set", "block_size=32")
    [result] = report["results"]
    assert result["num_requests"] == 3 and result["reference"] == "alone"
    served, alone = result["peers"]
    assert alone["itl_p50"] > 0
    for side in (served, alone):
        assert side["tokens_per_s"]["median"] > 0 and side["tokens_per_delivery"] >= 1
    if served["itl_p50"] is not None:  # on a busy machine, short answers may each arrive in one piece
        assert served["itl_ratios"]["alone"]["median"] == pytest.approx(served["itl_p50"] / alone["itl_p50"])
    assert report["peers"]["served"]["client_cpu"] > 0
    assert report["settings"]["output_tokens"] == 9, "asked for, also with --quick"
    engine = report["settings"]["engine"]
    assert (engine["max_num_seqs"], engine["block_size"], engine["enable_prefix_caching"]) == (3, 32, False)
