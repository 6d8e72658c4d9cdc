"""Measuring this machine: the design runs on the real engine, and its records say what was in each step."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from course.simulator.calibration.measure import GPU_DESIGN, QUICK_DESIGN, Mixed, design_for, drive, run_design
from course.simulator.cost.hardware import THIS_MACHINE, find_hardware
from course.simulator.cost.profile import find_profile
from course.simulator.cost.roofline import work_of
from course.simulator.deployment import Deployment
from minillm import cli
from minillm.frontend.engine import Engine
from minillm.policies.config import EngineConfig


def tiny_engine(path: Path) -> Engine:
    return Engine(EngineConfig(model=str(path), device="cpu", num_kv_blocks=64, enable_prefix_caching=False))


def test_the_work_in_records_is_the_work_in_batches(tiny_llama_path: Path) -> None:
    engine = tiny_engine(tiny_llama_path)
    batches = []
    launch = engine.runner.launch
    engine.runner.launch = lambda batch: batches.append(work_of(batch.requests)) or launch(batch)
    steps = drive(engine, [(0, QUICK_DESIGN[1]), (2, QUICK_DESIGN[0]), (3, QUICK_DESIGN[1])])
    assert [step.work for step in steps] == batches and len(steps) >= 5
    assert all(step.seconds > 0 for step in steps)


def test_the_whole_design_is_run(tiny_llama_path: Path) -> None:
    steps, _ = run_design(tiny_engine(tiny_llama_path), QUICK_DESIGN, Mixed(3, 2, 20, 6))
    assert {1, 4, 8} <= {step.work.requests for step in steps}
    assert any(step.work.prefills for step in steps) and not all(step.work.prefills for step in steps)


def test_the_sweep_reaches_as_far_as_slots_window_and_pool(tiny_llama_path: Path) -> None:
    """On a GPU batches of hundreds and prompts of thousands, where they fit: here 64 blocks of 16 tokens."""
    engine = tiny_engine(tiny_llama_path)
    rounds, mixed = design_for(engine, find_hardware("h100-sxm"))
    assert set(rounds) < set(GPU_DESIGN) and max(one.requests for one in GPU_DESIGN) == 256
    assert max(one.requests * (one.prompt_tokens + one.output_tokens) for one in rounds) <= 64 * 16
    assert mixed.longest_prompt + mixed.longest_output <= engine.context_limit
    largest = max(one.prompt_tokens for one in GPU_DESIGN)
    assert largest > 4096 and all(one.prompt_tokens < largest for one in rounds)


def test_a_profile_of_this_machine(tiny_llama_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path))
    arguments = [
        "calibrate",
        "--model",
        str(tiny_llama_path),
        "--quick",
        "--json",
        "--dtype",
        "float32",
        "--device",
        "cpu",
    ]
    result = CliRunner().invoke(cli.app, arguments, catch_exceptions=False)
    report = json.loads(result.stdout)
    assert report["hardware"] == THIS_MACHINE
    assert report["provenance"]["held_out_error"]["steps"] >= 3
    assert "torch" in report["provenance"] and "source" in report["provenance"]
    profile = find_profile(THIS_MACHINE)
    assert profile.constants.mfu == report["constants"]["mfu"]
    assert profile.hardware.bandwidth > 1e8 and profile.hardware.flops["bfloat16"] > 1e8
    assert Deployment.of("smollm2-135m", THIS_MACHINE).num_kv_blocks > 0
