"""What cards draw: arithmetic of watts and joules, and constants that are found again."""

import json
import math
from pathlib import Path

import pytest

from course.simulator.calibration.fit_power import PowerReading, band, fit, left_out, read_draws
from course.simulator.cluster.fleet import ClusterConfig, simulate
from course.simulator.cost.hardware import CATALOGUE
from course.simulator.cost.models import find_model
from course.simulator.cost.placement import Placement
from course.simulator.cost.power import Power, UsedShares, shares_used
from course.simulator.deployment import Deployment
from course.simulator.energy import energy_of
from course.simulator.errors import RecordingError
from course.simulator.report import energy_lines, energy_report
from course.simulator.workload.arrivals import AllAtOnce, Deterministic
from course.simulator.workload.kinds import Independent
from course.simulator.workload.lengths import Fixed
from course.simulator.workload.requests import make_workload

H100 = CATALOGUE["h100-sxm"]
LLAMA = find_model("llama-3.1-8b")


def test_watts_by_arithmetic() -> None:
    power = Power(idle=100.0, compute=400.0, memory=200.0, limit=450.0, band=None)
    assert power.watts(0.0, 0.0) == 100.0
    assert power.watts(0.25, 0.5) == 100 + 400 * 0.5 + 200 * 0.5
    assert power.watts(1.0, 1.0) == 450.0, "not above the board's limit"


def test_shares_by_arithmetic() -> None:
    """Ten steps of 8 requests that decode behind 1,000 tokens each, in a second."""
    shares = shares_used(
        LLAMA,
        H100,
        Placement(),
        prompt_tokens=0,
        output_tokens=80,
        prompt_pairs=0,
        decode_context=80 * 1000,
        steps=10,
        seconds=1.0,
    )
    parameters, head = 6.98e9, 4096 * 128256
    flops = 80 * (2 * (parameters + head) + 4 * 32 * 4096 * 1000)
    assert shares.flops == pytest.approx(flops / 989.4e12, rel=0.01)
    read = 10 * 2 * (parameters + head) + 80 * 1000 * 131072
    assert shares.bytes == pytest.approx(read / 3.35e12, rel=0.01)


def test_two_gpus_use_half_of_theirs() -> None:
    work = {"prompt_tokens": 500.0, "output_tokens": 80.0, "prompt_pairs": 1e5, "decode_context": 8e4}
    one, two = (shares_used(LLAMA, H100, Placement(tp), **work, steps=10, seconds=1.0) for tp in (1, 2))
    assert (two.flops, two.bytes) == pytest.approx((one.flops / 2, one.bytes / 2), rel=0.01)


def test_a_mixture_reads_the_experts_that_its_steps_wake() -> None:
    model = find_model("qwen3-30b-a3b")
    work = {"prompt_tokens": 0.0, "prompt_pairs": 0.0, "decode_context": 0.0, "seconds": 1.0, "steps": 10.0}
    alone, many = (shares_used(model, H100, Placement(), output_tokens=10.0 * batch, **work) for batch in (1, 64))
    assert alone.bytes * 3.35e12 / 10 == pytest.approx(model.read_bytes("bfloat16"), rel=1e-6)
    assert 5 < many.bytes / alone.bytes < 64


def served(rate: float | None, hardware: str = "h100-sxm") -> tuple[Deployment, object]:
    on = Deployment.of("llama-3.1-8b", hardware)
    traffic = Independent(prompt=Fixed(tokens=200), output=Fixed(tokens=100))
    arrivals = AllAtOnce() if rate is None else Deterministic(rate=rate)
    return on, simulate(
        make_workload(traffic, arrivals, num_requests=40), ClusterConfig(sample_every_s=None), on.fast_engine
    )


def test_joules_are_watts_over_tokens_per_second() -> None:
    on, run = served(None)
    energy = energy_of(on, run)
    assert energy is not None
    assert energy.busy_share == pytest.approx(1.0, abs=0.01)
    assert energy.joules_per_output_token == pytest.approx(energy.watts * run.duration / 4000, rel=0.01)
    assert energy.power.idle < energy.watts <= energy.busy_watts <= 700


def test_a_replica_that_waits_draws_idle_power_between_steps() -> None:
    on, run = served(0.05)  # a request every twenty seconds
    energy = energy_of(on, run)
    assert energy is not None and energy.busy_share < 0.1
    expected = energy.power.idle * (1 - energy.busy_share) + energy.busy_watts * energy.busy_share
    assert energy.watts == pytest.approx(expected) and energy.watts < energy.power.idle + 60
    busy = energy_of(*served(None))
    assert busy is not None and energy.joules_per_output_token > 10 * busy.joules_per_output_token


def test_cards_that_nobody_has_measured_say_so() -> None:
    report = energy_report(*served(None, "l40s"))
    assert report["energy"] is None and report["joules_per_output_token_at_most"] > 0
    (line,) = energy_lines(report)
    assert line.startswith("energy: not measured on this card; at most ")
    first, second = energy_lines(energy_report(*served(None)))
    assert " W per GPU (110 idle, " in first and "J per output token" in first
    assert "77 measured runs were -10 to +21%" in second


@pytest.mark.parametrize(("at_a_time", "watts", "joules"), [(8, 441, 3.76), (64, 500, 0.797), (512, 623, 0.421)])
def test_70b_on_four_h100s_beside_the_ml_energy_benchmark(at_a_time: int, watts: float, joules: float) -> None:
    """Llama 3.1 70B under vLLM, average board watts and joules per token; prompts of unpublished length."""
    on = Deployment.of("llama-3-70b", "h100-sxm", tp=4, max_num_seqs=1024)
    traffic = Independent(prompt=Fixed(tokens=250), output=Fixed(tokens=350))
    config = ClusterConfig(sample_every_s=None, clients={"max_in_flight": at_a_time})
    workload = make_workload(traffic, AllAtOnce(), num_requests=3 * at_a_time)
    energy = energy_of(on, simulate(workload.anonymous(), config, on.without_prefix_lookups().fast_engine))
    assert energy is not None
    assert energy.watts == pytest.approx(watts, rel=0.2)
    assert energy.joules_per_output_token == pytest.approx(joules, rel=0.2)


def test_the_fit_finds_the_constants_again() -> None:
    truth = Power(110.0, 700.0, 300.0, 700.0, None)
    shares = [UsedShares(f, b) for f in (0.01, 0.05, 0.1, 0.3) for b in (0.1, 0.3, 0.6)]
    draws = [
        PowerReading(f"model {i % 3}", "dense", "h100-sxm", each, 110 + 700 * math.sqrt(each.flops) + 300 * each.bytes)
        for i, each in enumerate(shares)
    ]
    found = fit(draws, H100)
    assert (found.compute, found.memory) == pytest.approx((truth.compute, truth.memory))
    in_reach = [draw for draw in draws if draw.watts < 700]
    assert left_out(in_reach, H100) == pytest.approx([1.0] * len(in_reach))
    assert band([0.9, 1.0, 1.1]) == {"low": -8.0, "high": 8.0, "points": 3}


def test_ml_energys_files_are_read(tmp_path: Path) -> None:
    row = {
        **{"gpu_model": "H100", "num_gpus": 4, "avg_batch_size": 32.0, "avg_output_len": 350.0},
        **{"output_throughput_tokens_per_sec": 1500.0, "avg_power_watts": 1800.0},
        "parallelization": {"tensor_parallel": 4, "data_parallel": 1, "expert_parallel": 1},
    }
    content = {"model_id": "meta-llama/Llama-3.1-70B-Instruct", "task": "lm-arena-chat", "weight_precision": "bfloat16"}
    (tmp_path / "70b.json").write_text(json.dumps({**content, "configurations": [row, {**row, "gpu_model": "A40"}]}))
    (tmp_path / "image.json").write_text(json.dumps({**content, "task": "text-to-image", "configurations": [row]}))
    (tmp_path / "other.json").write_text(json.dumps({**content, "model_id": "none/such", "configurations": [row]}))
    (draw,) = read_draws(tmp_path)
    assert (draw.kind, draw.card, draw.watts) == ("dense", "h100-sxm", 450.0)
    assert draw.shares.bytes == pytest.approx(1500 / 32 * 141e9 / 4 / 3.35e12, rel=0.1), "mostly weights"
    with pytest.raises(RecordingError, match="no measurements"):
        read_draws(tmp_path / "empty")
