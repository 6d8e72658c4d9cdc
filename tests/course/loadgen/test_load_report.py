"""`minillm bench serve` as it is typed: tables, JSON, and what it refuses."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_endpoint import FakeEndpoint, Reply
from typer.testing import CliRunner

from course.loadgen.errors import EndpointError
from course.loadgen.report import figures_table
from course.simulator.errors import TraceError, WorkloadError
from minillm.bench.cli import bench_app
from minillm.core.errors import ConfigError, MinillmError

HISTOGRAMS = {"vllm:request_queue_time_seconds": 0.005, "vllm:time_to_first_token_seconds": 0.05}


def bench(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(bench_app, ["serve", *arguments])
    if isinstance(result.exception, MinillmError):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout


def report_of(*arguments: str, code: int = 0) -> dict:
    return json.loads(bench(*arguments, "--json", code=code))


def test_figures_of_several_loads_stand_under_their_names() -> None:
    quantiles = SimpleNamespace(p50=0.001, p99=0.002), SimpleNamespace(p50=0.003, p99=0.004)
    rates = {"requests_per_s": 5.0, "output_tokens_per_s": 6.0, "goodput_per_s": 7.0}
    table = figures_table({"a": {"latency": dict(zip(("ttft", "itl"), quantiles)), "rates": rates}})
    header, row = table.splitlines()
    columns = [name.strip() for name in re.split("  +", header) if name.strip()]
    found = dict(zip(columns, map(float, row.split()[1:]), strict=True))
    assert found == {
        **{"TTFT p50": 1, "TTFT p99": 2, "ITL p50": 3, "ITL p99": 4},
        **{"requests/s": 5, "tokens/s": 6, "goodput/s": 7},
    }


def test_an_open_loop_reports_what_was_served(tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    with FakeEndpoint(lambda n, body: Reply(num_tokens=body["max_tokens"]), histograms=HISTOGRAMS) as fake:
        printed = report_of(
            *f"--url {fake.url}/v1 --rate 200 --num-requests 8 --output-tokens 5 --prompt-tokens 9".split(),
            *("--slo-e2e", "100", "--slo-ttft", "0.000001", "--out", str(out), "--per-request"),
        )
    assert printed == json.loads(out.read_text())
    assert printed["counts"] == {"completed": 8}
    assert printed["endpoint"] == {"url": fake.url, "api": "completions", "model": "fake-model"}
    assert printed["latency"]["ttft"]["count"] == 8
    assert printed["latency"]["itl"]["count"] == 8 * 4
    assert printed["tokens"] == {"counted_by": {"usage": 8}, "output": 40, "prompt": 56, "cached": 0}
    assert printed["rates"]["attainment"] == 0.0, "no server answers within a microsecond"
    assert [row["num_tokens"] for row in printed["requests"]] == [5] * 8
    assert printed["server"]["name"] == "vllm"
    queue = printed["server"]["histograms"]["queue"]
    assert queue["count"] == 8, "the warm-up came before"
    assert queue["mean"] == pytest.approx(0.005)
    assert queue["p50_between"] == [0.001, 0.01]
    assert [len(body["prompt"].split()) for body in fake.bodies[1:]] == [9] * 8


def test_a_closed_loop_says_what_it_hides_and_counts_failures_apart() -> None:
    replies = {3: Reply(status=429), 4: Reply(ending="cut")}
    with FakeEndpoint(lambda number, body: replies.get(number, Reply())) as fake:
        arguments = ("--url", fake.url, "--concurrency", "2", "--num-requests", "6", "--output-tokens", "4")
        table = bench(*arguments)
        fake.bodies.clear()
        printed = report_of(*arguments)
    assert printed["counts"] == {"completed": 4, "429 too many requests": 1, "disconnected": 1}
    assert printed["latency"]["e2e"]["count"] == 4
    assert printed["schedule"] == "even"
    assert {"failures", "coordinated omission", "few samples"} <= {w["kind"] for w in printed["warnings"]}
    for words in ("from an even schedule", "1 429 too many requests", "! coordinated omission", "TTFT"):
        assert words in table
    assert max(map(len, table.splitlines())) <= 110


def test_nothing_answered_is_exit_status_1() -> None:
    with FakeEndpoint(lambda number, body: Reply() if number == 0 else Reply(status=500)) as fake:
        printed = report_of("--url", fake.url, "--concurrency", "1", "--num-requests", "2", code=1)
    assert printed["latency"]["ttft"]["count"] == 0
    assert printed["latency"]["ttft"]["p50"] is None


def test_a_trace_is_played_at_its_moments_and_speed(tmp_path: Path) -> None:
    trace = tmp_path / "azure.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:00:00.0000000,5,2\n2023-11-16 18:00:10.0000000,6,3\n2023-11-16 18:00:20.0000000,7,4\n"
    )
    with FakeEndpoint(lambda n, body: Reply(num_tokens=body["max_tokens"])) as fake:
        printed = report_of("--url", fake.url, "--trace", str(trace), "--speed", "100", "--per-request")
    assert [row["due"] for row in printed["requests"]] == pytest.approx([0.0, 0.1, 0.2])
    assert [row["num_tokens"] for row in printed["requests"]] == [2, 3, 4]
    assert [len(body["prompt"].split()) for body in fake.bodies[1:]] == [5, 6, 7]
    assert printed["settings"]["trace"] == "azure.csv", "no folder of this machine"


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((), WorkloadError, "--rate"),
        (("--rate", "0"), WorkloadError, "rate"),
        (("--rate", "1", "--trace", "x.csv"), WorkloadError, "--speed"),
        (("--arrival", "gamma", "--trace", "x.csv"), WorkloadError, "--arrival"),
        (("--seed", "3", "--trace", "x.csv"), WorkloadError, "--seed"),
        (("--rate", "1", "--speed", "2"), WorkloadError, "--speed"),
        (("--trace", "missing.csv"), TraceError, "missing.csv"),
        (("--concurrency", "2", "--arrival", "gamma"), WorkloadError, "closed loop"),
        (("--rate", "1", "--slo-ttft", "-1"), ConfigError, "slo-ttft"),
        (("--rate", "1", "--body", "nonsense"), ConfigError, "--body"),
        (("--rate", "1", "--out", "/no/such/folder/a.json"), ConfigError, "folder"),
        (("--rate", "1", "--url", "http://127.0.0.1:9"), EndpointError, "127.0.0.1:9"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_the_way_out(
    arguments: tuple[str, ...], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        bench(*arguments)
