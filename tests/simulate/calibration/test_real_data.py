"""Against public recordings of real GPUs, where they lie beside the checkout."""

from collections.abc import Callable
from pathlib import Path

import pytest

from minillm.simulate.calibration.fit_log import calibrate_from_requests
from minillm.simulate.cost.hardware import find_hardware
from minillm.simulate.cost.profile import typical_profile
from minillm.simulate.deployment import Deployment
from minillm.simulate.report import simulate_log

pytestmark = pytest.mark.slow
SERVER = {
    "num_kv_blocks": 2588,
    "max_model_len": 32768,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
    "scheduler_reserve_full_isl": True,
    "null_block": True,
}
CLOSE = 4.0
"""Percent, on every mean, p50, p90 and p99 of TTFT, TPOT and E2E."""


def worst(errors: dict) -> float:
    return max(abs(error) for metric in ("ttft_s", "tpot_s", "e2e_s") for error in errors[metric].values())


@pytest.fixture
def rtx_4090_log(recording: Callable[[str], Path]) -> Path:
    """300 requests that vLLM served (casys-kaist/LLMServingSim, MIT)."""
    return recording("vllm-RTX4090-Llama-3.1-8B/requests.jsonl")


def test_the_packaged_profile_of_the_rtx_4090(rtx_4090_log: Path) -> None:
    report = simulate_log(Deployment.of("llama-3.1-8b", "rtx-4090", **SERVER), rtx_4090_log)
    assert worst(report["error_percent"]) < CLOSE


def test_fitting_the_rtx_4090_anew(rtx_4090_log: Path) -> None:
    start = Deployment.of("llama-3.1-8b", typical_profile(find_hardware("rtx-4090")), **SERVER)
    profile, report = calibrate_from_requests(rtx_4090_log, start, "llama-3.1-8b")
    assert worst(report["error_percent"]) < CLOSE
    assert profile.constants.mfu < 1.1 and profile.constants.bandwidth < 1.0
