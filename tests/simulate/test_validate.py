"""The real engine beside its simulated twin: what is served, and how the error is counted."""

from pathlib import Path

import pytest

from minillm.simulate import validate as module
from minillm.simulate.hardware import find_hardware
from minillm.simulate.profile import typical_profile
from minillm.simulate.validate import num_runs, serve_traffic, simulate_run, validate

from .test_measure import tiny_engine


@pytest.fixture
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NUM_REQUESTS", 4)
    monkeypatch.setattr(module, "NUM_AT_ONCE", 6)


@pytest.mark.usefixtures("short_runs")
def test_the_same_requests_are_served_for_real_and_simulated(tiny_llama_path: Path) -> None:
    engine = tiny_engine(tiny_llama_path)
    profile = typical_profile(find_hardware("rtx-4090"))
    served = list(serve_traffic(engine, loads=(0.5, 0.9), seeds=2))
    assert len(served) == num_runs((0.5, 0.9), 2) == 6
    assert [run.load for run in served] == [None, 0.5, 0.9] * 2
    twin = module.deployment_of(engine, profile)
    for run in served:
        lengths = {a.request_id: a.output_tokens for a in run.arrivals}
        assert {o.request_id: len(o.token_ids) for o in run.outputs} == lengths
        assert {o.request_id: len(o.token_ids) for o in simulate_run(twin, run.arrivals)} == lengths
    found = validate(engine, profile, served)
    assert set(found.error_percent) == {0.5, 0.9}
    assert found.simulated_capacity > found.real_capacity  # an RTX 4090's constants, and a model for tests
    assert found.capacity_error_percent > 0 and found.error_percent[0.5]["tpot_s"]["p50"] < 0


@pytest.mark.usefixtures("short_runs")
def test_an_engine_that_is_its_own_twin_has_no_error(tiny_llama_path: Path) -> None:
    engine = tiny_engine(tiny_llama_path)
    profile = typical_profile(find_hardware("rtx-4090"))
    twin = module.deployment_of(engine, profile)
    served = [
        module.RealRun(run.load, run.arrivals, simulate_run(twin, run.arrivals))
        for run in serve_traffic(engine, loads=(0.5,), seeds=1)
    ]
    found = validate(engine, profile, served)
    assert found.capacity_error_percent == pytest.approx(0)
    assert all(error in (None, 0) for error in found.error_percent[0.5]["e2e_s"].values())
