"""Against public recordings of real GPUs, where they lie beside the checkout."""

from collections.abc import Callable
from pathlib import Path

import pytest

from course.simulator.calibration.fit_log import calibrate_from_requests
from course.simulator.cluster.fleet import ClusterConfig
from course.simulator.cost.hardware import find_hardware
from course.simulator.cost.profile import typical_profile
from course.simulator.cost.roofline import StepWork
from course.simulator.deployment import Deployment
from course.simulator.report import simulate_log, simulate_workload
from course.simulator.workload.arrivals import AllAtOnce
from course.simulator.workload.kinds import Independent
from course.simulator.workload.lengths import Fixed
from course.simulator.workload.requests import make_workload

SERVER = {
    "num_kv_blocks": 2588,
    "max_model_len": 32768,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
    "scheduler_reserve_full_isl": True,
    "null_block": True,
}
CLOSE = 4.5
"""Percent, on every mean, p50, p90 and p99 of TTFT, TPOT and E2E."""


def worst(errors: dict) -> float:
    return max(abs(error) for metric in ("ttft_s", "tpot_s", "e2e_s") for error in errors[metric].values())


@pytest.fixture
def rtx_4090_log(recording: Callable[[str], Path]) -> Path:
    """300 requests that vLLM served (casys-kaist/LLMServingSim, MIT)."""
    return recording("vllm-RTX4090-Llama-3.1-8B/requests.jsonl")


@pytest.mark.slow
def test_the_packaged_profile_of_the_rtx_4090(rtx_4090_log: Path) -> None:
    report = simulate_log(Deployment.of("llama-3.1-8b", "rtx-4090", **SERVER), rtx_4090_log)
    assert worst(report["error_percent"]) < CLOSE


FP8 = {"weight_dtype": "fp8", "kv_dtype": "fp8"}
PUBLISHED = [
    # NVIDIA NIM 1.8, requests at a time: docs.nvidia.com/nim/benchmarking/llm/1.0.0/performance
    ("llama-3.1-70b", "h100-sxm", {"tp": 2, **FP8}, (5000, 500), 1, 3, {"tpot_s": 0.01858, "tokens": 51.67}),
    ("llama-3.1-70b", "h100-sxm", {"tp": 2, **FP8}, (5000, 500), 25, 75, {"tpot_s": 0.03875, "tokens": 623.4}),
    ("llama-3.1-70b", "h100-sxm", {"tp": 2, **FP8}, (500, 2000), 1, 2, {"tpot_s": 0.01891}),
    # vLLM's own: buildkite.com/vllm/performance-benchmark/builds/9515
    ("llama-3.1-8b", "h200", {"tp": 1}, (32, 128), 8, 8, {"e2e_s": 0.8334}),
    ("llama-3-70b", "h200", {"tp": 4}, (32, 128), 8, 8, {"e2e_s": 2.0775}),
    # TensorRT-LLM, all at once: its docs/source/developer-guide/perf-overview.md, per GPU
    ("llama-3.1-70b", "h100-sxm", {"tp": 2, "max_num_seqs": 2048, **FP8}, (1000, 1000), 1500, 1500, {"tokens": 4418}),
    ("llama-3.1-70b", "h100-sxm", {"tp": 2, "max_num_seqs": 2048, **FP8}, (8192, 1024), 300, 300, {"tokens": 796}),
    # vLLM 0.30, github.com/tgarg01/silybench-data
    ("qwen3-8b", "h100-sxm", {}, (128, 1024), 1, 2, {"tpot_s": 0.00686, "tokens": 145.7}),
    ("qwen3-8b", "h100-sxm", {}, (2048, 2048), 16, 80, {"tokens": 1625}),
]


@pytest.mark.parametrize(
    ("model", "card", "fields", "lengths", "at_a_time", "count", "published"),
    [pytest.param(*row, marks=[pytest.mark.slow] * (row[4] > 1000)) for row in PUBLISHED],
)
def test_todays_stack_beside_published_figures(
    model: str, card: str, fields: dict, lengths: tuple, at_a_time: int, count: int, published: dict
) -> None:
    """What a card's name stands for, unless it was fitted itself: within 15%."""
    prompt, output = (Fixed(tokens=length) for length in lengths)
    workload = make_workload(Independent(prompt=prompt, output=output), AllAtOnce(), num_requests=count)
    config = ClusterConfig(sample_every_s=None, clients={"max_in_flight": at_a_time})
    deployment = Deployment.of(model, card, max_num_batched_tokens=8192, max_model_len=10_000, **fields)
    report = simulate_workload(deployment, workload, config)
    got = {metric: figures["mean"] for metric, figures in report["summary"].items()}
    got["tokens"] = report["throughput"]["output_tokens_per_s"]
    assert {name: got[name] for name in published} == pytest.approx(published, rel=0.15)


@pytest.mark.parametrize(("at_a_time", "itl"), [(8, 0.0129), (16, 0.0176), (32, 0.0226)])
def test_a_mixture_of_experts_beside_published_figures(at_a_time: int, itl: float) -> None:
    """Qwen3 30B-A3B on an H100 under vLLM: the ML.ENERGY leaderboard's chats, whose prompts it doesn't tell the length
    of: 200 tokens more or less change a step by 1%."""
    step_time = Deployment.of("qwen3-30b-a3b", "h100-sxm").step_time()
    context = at_a_time * 600
    work = StepWork(at_a_time, at_a_time, at_a_time, context, context, 0)
    assert step_time.price(work).total == pytest.approx(itl, rel=0.15)


@pytest.mark.slow
def test_fitting_the_rtx_4090_anew(rtx_4090_log: Path) -> None:
    start = Deployment.of("llama-3.1-8b", typical_profile(find_hardware("rtx-4090")), **SERVER)
    profile, report = calibrate_from_requests(rtx_4090_log, start, "llama-3.1-8b")
    assert worst(report["error_percent"]) < CLOSE
    assert profile.constants.mfu < 1.1 and profile.constants.bandwidth < 1.0
