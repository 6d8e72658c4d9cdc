"""Folders with a server's log: read, replayed, and compared."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from course.simulator.accuracy.cli import accuracy
from course.simulator.accuracy.logs import check_log, read_server, shares
from course.simulator.calibration.requests_log import read_requests_log
from course.simulator.cost.roofline import StepTimeModel
from course.simulator.deployment import Deployment
from course.simulator.errors import RecordingError


def meta(model: str, gpu: str, **asked: Any) -> dict[str, Any]:
    return {
        "model": model,
        "vllm_version": "0.19.0",
        "engine_kwargs": {"max_num_batched_tokens": 8192, "dtype": "bfloat16", "kv_cache_dtype": "auto", **asked},
        "kv_cache": {"num_gpu_blocks": 4000, "block_size": 16, "enable_prefix_caching": True},
        "hardware": {"device_name": gpu},
        "resolved_config": {"scheduler_config": {"max_num_seqs": 128, "async_scheduling": True}},
    }


def write_log(folder: Path, meta: dict[str, Any], **config: Any) -> Path:
    rows = []
    for number in range(40):
        queued = 0.1 * number
        stamps = {"scheduled_ts": queued, "first_token_ts": queued + 0.1, "last_token_ts": queued + 1.1}
        rows.append({"request_id": f"r{number}", "input_toks": 400, "output_toks": 51, "queued_ts": queued, **stamps})
    (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "meta.json").write_text(json.dumps(meta))
    if config:
        (folder / "config.json").write_text(json.dumps({"nodes": [{"instances": [config]}]}))
    return folder


def test_a_dense_model_on_one_gpu(tmp_path: Path) -> None:
    folder = write_log(tmp_path, meta("meta-llama/Llama-3.1-8B", "NVIDIA RTX PRO 6000 Blackwell Server Edition"))
    server = read_server(folder)
    assert (server.shape, server.card, server.tp, server.ranks) == ("llama-3.1-8b", "rtx-pro-6000-server", 1, 1)
    assert (server.kv_blocks, server.async_scheduling, server.prefix_caching) == (4000, True, True)
    assert server.sizes == {"max_num_seqs": 128, "max_num_batched_tokens": 8192, "block_size": 16}
    found = check_log(folder)
    assert found["requests"] == 40
    assert found["measured"]["tpot_s"]["mean"] == pytest.approx(0.02)
    error = found["error_percent"]["tpot_s"]["mean"]
    assert found["simulated"]["tpot_s"]["mean"] == pytest.approx(0.02 * (1 + error / 100), rel=1e-3)
    assert set(found["error_percent"]) == {"ttft_s", "tpot_s", "e2e_s"}


def test_a_larger_one_on_two(tmp_path: Path) -> None:
    asked = {"tensor_parallel_size": 2, "kv_cache_dtype": "fp8_e4m3", "quantization": "fp8"}
    folder = write_log(tmp_path, meta("Qwen/Qwen3-32B", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", **asked))
    server = read_server(folder)
    assert (server.tp, server.weight_dtype, server.kv_dtype) == (2, "fp8", "fp8")
    assert check_log(folder)["simulated"]["e2e_s"]["mean"] > 0


def step_of(rank: Deployment) -> StepTimeModel:
    return StepTimeModel(rank.model, rank.profile.hardware, rank.placement, rank.profile.constants)


def test_a_mixture_of_experts_with_two_ranks(tmp_path: Path) -> None:
    asked = {"data_parallel_size": 2, "tensor_parallel_size": 1, "enable_expert_parallel": True}
    folder = write_log(tmp_path, meta("Qwen/Qwen3-30B-A3B", "NVIDIA H100 80GB HBM3", **asked))
    server = read_server(folder)
    assert (server.ranks, server.kv_blocks) == (2, 2000)  # vLLM reports those of both
    log = read_requests_log(folder / "requests.jsonl")
    parts = shares(server.deployment(log), log, 2)
    assert sorted(each.request_id for part in parts for each in part) == sorted(each.request_id for each in log)
    assert min(map(len, parts)) > len(log) / 3
    two, shared = check_log(folder)["simulated"], step_of(server.deployment(log))
    (folder / "meta.json").write_text(json.dumps(meta("Qwen/Qwen3-30B-A3B", "NVIDIA H100 80GB HBM3")))
    alone = step_of(read_server(folder).deployment(log))
    assert shared.idle_s < 0.6 * alone.idle_s, "twice the bandwidth for experts"
    assert shared.exchange_s > alone.exchange_s == 0, "but ranks exchange tokens"
    assert two["tpot_s"]["mean"] != check_log(folder)["simulated"]["tpot_s"]["mean"]
    # Ranks of a dense model have nothing in common.
    (folder / "meta.json").write_text(json.dumps(meta("meta-llama/Llama-3.1-8B", "H100", **asked)))
    assert check_log(folder)["server"]["dp"] == 2


def test_what_meta_leaves_out_config_tells(tmp_path: Path) -> None:
    folder = write_log(tmp_path, {}, model_name="meta-llama/Llama-3.1-8B", hardware="RTX4090", tp_size=1)
    server = read_server(folder)
    assert (server.shape, server.card, server.kv_blocks, server.sizes) == ("llama-3.1-8b", "rtx-4090", None, {})
    (folder / "config.json").unlink()
    with pytest.raises(RecordingError, match="doesn't tell the model, or the GPU"):
        read_server(folder)


@pytest.mark.parametrize(
    ("meta_of", "reason"),
    [
        (meta("acme/nonesuch", "H100"), "its shape is not packaged"),
        (meta("Qwen/Qwen3-32B", "abacus"), "not in the catalogue"),
        (meta("Qwen/Qwen3-32B", "H100", pipeline_parallel_size=2), "pipeline stages"),
    ],
)
def test_servers_that_cannot_be_replayed(meta_of: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=reason):
        read_server(write_log(tmp_path, meta_of))


def test_a_real_log(recording: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    log = recording("vllm-RTX4090-Llama-3.1-8B")
    accuracy(log=log, as_json=True)
    errors = json.loads(capsys.readouterr().out)["error_percent"]
    assert abs(errors["tpot_s"]["mean"]) < 6 and abs(errors["e2e_s"]["mean"]) < 6
    accuracy(log=log)
    assert "300 requests replayed: model llama-3.1-8b" in capsys.readouterr().out
