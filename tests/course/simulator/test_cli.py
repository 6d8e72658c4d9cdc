"""`minillm simulate` and `minillm calibrate`: the JSON that stays put, one seed one result, clear errors."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from simulator.calibration.made_logs import made_requests, write_served_log
from typer.testing import CliRunner

from course.simulator.calibration.requests_log import LoggedRequest
from course.simulator.deployment import Deployment
from course.simulator.errors import RecordingError
from course.simulator.options import FIRST_TASTE_WRITTEN
from minillm import cli

GOLDEN = Path(__file__).parent / "golden_simulation.json"


def call(*arguments: object) -> dict:
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def write_bare_log(path: Path, requests: list[LoggedRequest]) -> None:
    rows = [{"input_toks": r.input_tokens, "output_toks": r.output_tokens, "queued_ts": r.queued} for r in requests]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    write_bare_log(path, made_requests(25, rate=4.0))
    return path


SIMULATE = ("--model", "llama-3.1-8b", "--hardware", "rtx-4090", "--tp", 1, "--kv-blocks", 500, "--json")


def test_a_log_gives_the_promised_json(log: Path) -> None:
    report = call("simulate", "--requests", log, *SIMULATE, "--per-request")
    assert set(report["summary"]) == {"ttft_s", "tpot_s", "e2e_s", "queue_s"}
    for spread in report["summary"].values():
        assert set(spread) == {"mean", "p50", "p90", "p99"}
        assert all(value is not None for value in spread.values())
    assert {"throughput", "wall_s", "virtual_s", "provenance"} <= set(report)
    assert len(report["requests"]) == 25
    row = report["requests"][0]
    assert row["request_id"] == "line-1" and row["e2e_s"] >= row["ttft_s"] >= row["queue_s"] >= 0
    assert "error_percent" not in report, "a log without stamps has nothing to compare with"


def test_a_log_of_requests_that_the_model_cannot_hold_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"input_toks": 100_000, "output_toks": 50_000, "queued_ts": 0.0}) + "\n")
    sizes = ("simulate", "--requests", path, "--model", "llama-3.1-8b", "--hardware", "h100-sxm", "--json")
    with pytest.raises(RecordingError, match=r"150000 tokens, .*window is 131072"):
        call(*sizes)
    assert call(*sizes, "--max-model-len", 150_000)["summary"]["ttft_s"]["p50"] > 0, "the server was set up for it"
    (tmp_path / "meta.json").write_text(json.dumps({"engine_kwargs": {"max_model_len": 150_000}}))
    assert call(*sizes)["summary"]["ttft_s"]["p50"] > 0, "so its facts say"
    (tmp_path / "meta.json").write_text(json.dumps({"engine_kwargs": {"max_model_len": 149_999}}))
    with pytest.raises(RecordingError, match="window is 149999"):
        call(*sizes)


def test_the_golden_run_has_not_drifted(log: Path) -> None:
    """After a wanted change of the scheduler or the prices, write the file anew from what this test prints."""
    report = call("simulate", "--requests", log, *SIMULATE)
    kept = {name: report[name] for name in ("summary", "throughput", "virtual_s", "kv_blocks")}
    print(json.dumps(kept, indent=2))
    assert kept == json.loads(GOLDEN.read_text())


def test_facts_beside_the_log_fill_in_and_flags_win(log: Path) -> None:
    engine = {"max_num_seqs": 3, "max_num_batched_tokens": 700, "tensor_parallel_size": 2}
    facts_of_server = {"engine_kwargs": engine, "kv_cache": {"num_gpu_blocks": 400}}
    (log.parent / "meta.json").write_text(json.dumps(facts_of_server))
    report = call("simulate", "--requests", log, *SIMULATE, "--max-num-seqs", 5)
    facts = ("kv_blocks", "max_num_seqs", "max_num_batched_tokens", "tp")
    assert [report[fact] for fact in facts] == [500, 5, 700, 1]
    bare = ("--model", "llama-3.1-8b", "--hardware", "rtx-4090", "--json")
    assert [call("simulate", "--requests", log, *bare)[fact] for fact in facts] == [400, 3, 700, 2]
    (log.parent / "meta.json").write_text(json.dumps({"engine_kwargs": {"data_parallel_size": 2}}))
    with pytest.raises(RecordingError, match="data_parallel_size 2"):
        call("simulate", "--requests", log, *bare)


def test_calibrate_then_simulate(tmp_path: Path) -> None:
    log, out = tmp_path / "real.jsonl", tmp_path / "profile.json"
    truth = Deployment.of("llama-3.1-8b", "rtx-4090", num_kv_blocks=2000)
    write_served_log(log, truth, made_requests(40, rate=2.0))
    common = ("--model", "Llama-3.1-8B", "--tp", 1, "--kv-blocks", 2000, "--json")
    fitted = call("calibrate", "--from-requests", log, "--hardware", "RTX4090", "--out", out, *common)
    assert fitted["profile"] == str(out) and fitted["error_percent"]["tpot_s"]["mean"] is not None
    report = call("simulate", "--requests", log, "--profile", out, *common)
    assert report["summary"] == fitted["summary"], "the same replay, twice"
    assert report["error_percent"] == fitted["error_percent"]
    assert report["provenance"]["error_percent_on_the_same_log"] == fitted["error_percent"]


def test_errors_say_what_to_do(run: Callable[..., tuple[int, str, str]]) -> None:
    for arguments, said in (
        (("simulate", "--model", "llama-3-8b", "--hardware", "h100"), "--requests, or a rate"),
        (("simulate", "--model", "llama-3-8b", "--qps", 1), "--hardware NAME"),
        (("simulate", "--model", "llama-3-8b", "--hardware", "h1", "--qps", 1), "no hardware 'h1'"),
        (("simulate", "--model", "llama-3-70b", "--hardware", "h100", "--qps", 1), "at least 2 accelerators (--tp 2)"),
        (
            ("simulate", "--model", "deepseek-v3", "--hardware", "h100", "--qps", 1),
            "--tp 32, as its heads can be shared",
        ),
        (("calibrate", "--from-requests", "absent.jsonl", "--model", "llama-2-70b"), "--hardware NAME"),
        (("calibrate", "--from-requests", "absent.jsonl", "--model", "llama-2-70b", "--hardware", "l4"), "cannot read"),
        (("calibrate", "--from-requests", "absent.jsonl", "--hardware", "l4", "--quick"), "does not read --quick"),
        (("calibrate", "--hardware", "l4", "--kv-dtype", "fp8"), "does not read --kv-dtype, --hardware"),
    ):
        status, _, err = run(*arguments)
        assert status == 2 and said in err, arguments


def test_without_options_a_first_taste(run: Callable[..., tuple[int, str, str]]) -> None:
    """Bare `simulate` plays what it names; where constants come from is told when asked; one option is refused."""
    status, told, _ = run("simulate")
    assert status == 0 and FIRST_TASTE_WRITTEN in told and "constants:" not in told and "beyond" in told
    again = run("simulate", *FIRST_TASTE_WRITTEN.split(), "--explain")[1]
    assert "constants:" in again and [
        line for line in again.splitlines() if line.startswith(("ttft", "tpot", "e2e"))
    ] == [line for line in told.splitlines() if line.startswith(("ttft", "tpot", "e2e"))]
    assert run("simulate", "--qps", "3")[0] == 2
