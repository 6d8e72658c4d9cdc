"""The real engine beside its simulated twin: what is served, and how the error is counted."""

import dataclasses
from pathlib import Path

import pytest
from tiny_llama import VOCAB_SIZE

from course.simulator.calibration import validate as module
from course.simulator.calibration.replay import Arrival
from course.simulator.calibration.validate import CPU_TRAFFIC, serve_traffic, simulate_run
from course.simulator.cost.hardware import find_hardware
from course.simulator.cost.models import find_model
from course.simulator.cost.placement import Placement
from course.simulator.cost.profile import roofline_profile, typical_profile
from course.simulator.deployment import Deployment
from course.simulator.workload.requests import prompt_token_ids
from minillm.policies.config import EngineConfig

from .test_measure import tiny_engine

SHORT = dataclasses.replace(CPU_TRAFFIC, loads=(0.5, 0.9), seeds=2, num_requests=4, num_at_once=6)


def test_the_same_requests_are_served_for_real_and_simulated(
    tiny_llama_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        module, "prompt_token_ids", lambda *of: [token_id % VOCAB_SIZE for token_id in prompt_token_ids(*of)]
    )
    engine = tiny_engine(tiny_llama_path)
    profile = typical_profile(find_hardware("rtx-4090"))
    served = list(serve_traffic(engine, SHORT))
    assert len(served) == SHORT.num_runs == 6
    assert [run.load for run in served] == [None, 0.5, 0.9] * 2
    twin = module.deployment_of(engine, profile)
    for run in served:
        lengths = {a.request_id: a.output_tokens for a in run.arrivals}
        assert {o.request_id: len(o.token_ids) for o in run.outputs} == lengths
        assert {o.request_id: len(o.token_ids) for o in simulate_run(twin, run.arrivals)} == lengths
    found = module.compare(module.deployment_of(engine, profile), served, SHORT)
    assert set(found.error_percent) == {0.5, 0.9}
    assert found.real_capacity > 0 and found.simulated_capacity > 0
    for errors in found.error_percent.values():
        assert errors.keys() == {"ttft_s", "tpot_s", "e2e_s", "queue_s"}


def test_errors_are_of_the_real_number_and_negative_where_the_simulator_is_too_fast() -> None:
    """The real engine's part is played by a simulated one at half the speed. Requests come one at a time."""
    cost = find_model("smollm2-135m")
    chip = find_hardware("rtx-4090")
    flops = {dtype: peak / 2 for dtype, peak in chip.flops.items()}
    half = chip.replace(flops=flops, bandwidth=chip.bandwidth / 2)
    fast, slow = (
        Deployment(
            cost, roofline_profile(hardware), Placement(1, "float32", "float32"), EngineConfig(max_model_len=512)
        )
        for hardware in (chip, half)
    )
    seconds_apart = [Arrival(f"r{i}", float(i), [5] * 40, 6) for i in range(3)]
    at_once = [dataclasses.replace(arrival, moment=0.0) for arrival in seconds_apart]
    served = [
        module.RealRun(load, arrivals, simulate_run(slow, arrivals))
        for load, arrivals in ((None, at_once), (0.5, seconds_apart))
    ]
    found = module.compare(fast, served, CPU_TRAFFIC)
    assert found.capacity_error_percent == pytest.approx(100, abs=0.1)
    assert found.error_percent[0.5]["tpot_s"]["p50"] == pytest.approx(-50, abs=0.1)
    assert found.error_percent[0.5]["e2e_s"]["p99"] == pytest.approx(-50, abs=0.1)
