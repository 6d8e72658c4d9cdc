"""Fits find the constants that made the data, and leave alone what the data do not show."""

import random
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from simulator.calibration.made_logs import made_requests, write_served_log

from course.simulator.calibration.fit import StepTable, TimedStep, error_report, fit_to_steps, from_usual_to_mean
from course.simulator.calibration.fit_log import calibrate_from_requests, schedule_of
from course.simulator.calibration.requests_log import read_requests_log
from course.simulator.cost.hardware import find_hardware
from course.simulator.cost.models import find_model
from course.simulator.cost.placement import Placement
from course.simulator.cost.profile import PRIORS, Profile, typical_profile
from course.simulator.cost.roofline import ROOFLINE, Constants, StepTimeModel, StepWork
from course.simulator.deployment import Deployment
from course.simulator.errors import PricingError
from course.simulator.report import simulate_log

A100 = find_hardware("a100-80gb")
PRIOR = Constants(**PRIORS)
TRUTH = PRIOR.replace(mfu=0.52, bandwidth=0.74, kv_bandwidth=0.5, step_s=2.5e-3, request_s=6e-5)


def made_steps(constants: Constants, tp: int, num: int, noise: float) -> StepTable:
    rng = random.Random(tp)
    model, placement = find_model("llama-3.1-8b"), Placement(tp)
    price = StepTimeModel(model, A100, placement, constants).price
    steps = []
    for _ in range(num):
        batch, context = rng.randint(1, 64), rng.randint(100, 4000)
        chunk = rng.choice([0, 0, rng.randint(64, 4096)])
        pairs = batch * context + chunk * (chunk + 1) / 2
        work = StepWork(batch + chunk, batch, batch, pairs, batch * context + chunk, int(chunk > 0))
        steps.append(TimedStep(work, price(work).total * rng.lognormvariate(0, noise)))
    return StepTable(model, A100, placement, steps)


def test_constants_come_back_from_noisy_steps() -> None:
    table = made_steps(TRUTH, 1, 400, noise=0.03)
    training, held_out = table.split()
    free = ("mfu", "bandwidth", "kv_bandwidth", "step_s", "request_s", "link")
    fitted = fit_to_steps([training], PRIOR, free)
    for name in ("mfu", "bandwidth"):
        assert getattr(fitted.constants, name) == pytest.approx(getattr(TRUTH, name), rel=0.08)
    assert error_report([held_out], fitted.constants)["median_percent"] < 4
    assert error_report([held_out], ROOFLINE)["median_percent"] > 20
    assert "mfu" in fitted.decided and "link" not in fitted.decided
    assert fitted.constants.link == pytest.approx(PRIOR.link, rel=1e-3), "one accelerator says nothing about links"


def test_the_split_is_always_the_same_and_leaves_nothing_out() -> None:
    table = made_steps(TRUTH, 1, 200, noise=0.0)
    training, held_out = table.split()
    assert table.split()[1].steps == held_out.steps
    assert len(training.steps) + len(held_out.steps) == 200
    assert 40 < len(held_out.steps) < 80


def test_slow_steps_hardly_move_the_fit_but_count_in_the_total() -> None:
    table = made_steps(TRUTH, 1, 400, noise=0.0)
    hiccups = [replace(step, seconds=step.seconds * (3 if i % 10 == 0 else 1)) for i, step in enumerate(table.steps)]
    table = replace(table, steps=hiccups)
    free = ("mfu", "bandwidth", "kv_bandwidth", "step_s", "request_s")
    fitted = fit_to_steps([table], PRIOR, free).constants
    assert fitted.mfu == pytest.approx(TRUTH.mfu, rel=0.1)
    assert table.slowness(fitted) == pytest.approx(1.2, abs=0.08)
    mean = from_usual_to_mean(fitted, table, free)
    assert table.only(prompts=True).slowness(mean) == pytest.approx(1, abs=0.01)
    assert table.only(prompts=False).slowness(mean) == pytest.approx(1, abs=0.01)


def test_hiccups_of_decodes_are_no_hiccups_of_prompts() -> None:
    table = made_steps(TRUTH, 1, 400, noise=0.0)
    steps = [step if step.work.prefills else replace(step, seconds=1.1 * step.seconds) for step in table.steps]
    table = replace(table, steps=steps)
    mean = from_usual_to_mean(TRUTH, table, ("mfu", "bandwidth", "kv_bandwidth", "step_s", "request_s"))
    for prompts in (True, False):
        assert table.only(prompts=prompts).slowness(mean) == pytest.approx(1, abs=0.01)


def test_constants_that_nobody_waits_for_do_not_run_away() -> None:
    """The host is slower than the prompts: no product of matrices explains why they take longer."""
    hosted = TRUTH.replace(host_s=1.0)
    table = made_steps(hosted, 1, 200, noise=0.0)
    table = replace(table, steps=[replace(step, seconds=1.05 * step.seconds) for step in table.steps])
    mean = from_usual_to_mean(hosted, table, ("mfu", "bandwidth", "kv_bandwidth"))
    assert mean.mfu == pytest.approx(hosted.mfu, rel=0.06)
    assert mean.bandwidth == pytest.approx(hosted.bandwidth, rel=0.06)


def test_an_eager_stack_is_found_though_graphs_are_where_the_fit_begins() -> None:
    eager = PRIOR.replace(launch_s=4e-4)
    tables = [made_steps(eager, tp, 150, noise=0.02) for tp in (2, 8)]
    fitted = fit_to_steps(tables, PRIOR, ("mfu", "bandwidth", "launch_s"))
    assert fitted.constants.launch_s == pytest.approx(4e-4, rel=0.1)


@pytest.mark.parametrize("rate", [pytest.param(1.0, marks=pytest.mark.slow), 6.0], ids=["light", "heavy"])
def test_constants_come_back_from_a_log(tmp_path: Path, rate: float) -> None:
    """From stamps of requests alone; then the same constants serve another model.

    That one is kept from saturation: near it, one percent of capacity is ten of latency, and one model's log does
    not tell all constants apart to a percent.
    """
    true_profile = Profile(hardware=A100, constants=TRUTH)
    log = tmp_path / "log.jsonl"
    fields = {"num_kv_blocks": 2500, "max_num_seqs": 64}
    write_served_log(log, Deployment.of("llama-3.1-8b", true_profile, **fields), made_requests(90, rate))

    start = Deployment.of("llama-3.1-8b", typical_profile(A100), **fields)
    profile, report = calibrate_from_requests(log, start, "llama-3.1-8b")
    for metric in ("ttft_s", "tpot_s", "e2e_s"):
        for part, error in report["error_percent"][metric].items():
            assert abs(error) < 4, (metric, part)
    assert profile.provenance["source"] == "90 requests of log.jsonl"

    other = tmp_path / "other.jsonl"
    write_served_log(other, Deployment.of("qwen3-14b", true_profile, **fields), made_requests(60, rate / 3, seed=1))
    carried = Deployment.of("qwen3-14b", profile, **fields)
    errors = simulate_log(carried, other)["error_percent"]
    assert max(abs(error) for metric in ("tpot_s", "e2e_s") for error in errors[metric].values()) < 6


def test_in_lockstep_the_schedule_is_the_logs_however_fast_the_device(tmp_path: Path) -> None:
    """With a KV pool so small that requests are preempted, and a device that is half as fast again."""
    true = Deployment.of("llama-3.1-8b", Profile(hardware=A100, constants=TRUTH), num_kv_blocks=600, max_num_seqs=64)
    path = tmp_path / "log.jsonl"
    write_served_log(path, true, made_requests(90, 6.0))
    log = read_requests_log(path)
    fast = true.with_constants(ROOFLINE.replace(bandwidth=0.9, kv_bandwidth=0.9, mfu=0.7))
    wanted, found = (schedule_of(deployment, log) for deployment in (true, fast))
    pairs = zip(found.simulated(fast.step_time()), wanted.measured)
    assert fmean(simulated / measured for simulated, measured in pairs) < 0.8
    assert wanted.simulated(true.step_time()) == pytest.approx(wanted.measured, rel=1e-3)
    steps = [[last - first for last, first in zip(one.last, one.first)] for one in (wanted, found)]
    assert any(count > request.output_tokens for count, request in zip(steps[0], log)), "somebody was preempted"
    assert fmean(abs(there - here) <= 2 for here, there in zip(*steps)) > 0.8


def test_no_finite_time_is_no_data() -> None:
    bad = made_steps(TRUTH, 1, 3, noise=0.0)
    bad.steps[0] = TimedStep(bad.steps[0].work, 0.0)
    with pytest.raises(PricingError, match="finite"):
        fit_to_steps([bad], PRIOR, ("mfu",))
