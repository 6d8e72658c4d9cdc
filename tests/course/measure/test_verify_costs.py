"""Steps that check drafts, and the gates that follow from what they cost."""

from collections.abc import Callable
from typing import Any

from course.measure.verify_costs import LENGTHS, Gates, VerifyCost, gates_of
from course.simulator.calibration.bench_records import is_of_steps


def test_steps_of_every_length_are_measured_in_every_batch(bench_json: Callable[..., Any]) -> None:
    report = bench_json("verify-costs")
    assert [(row["batch"], row["num_drafts"]) for row in report["results"]] == [(b, k) for b in (1, 2) for k in LENGTHS]
    assert all(row["num_steps"] >= 2 and row["seconds"] > 0 for row in report["results"])
    assert all(row["in_plain_steps"] == 1 for row in report["results"] if row["num_drafts"] == 0)
    assert report["gates"]["acceptance_floor"] >= 0
    assert not is_of_steps(report), "the simulator is fitted to plain steps"


def test_the_gates_follow_from_the_costs() -> None:
    """A plain step takes 10 ms. Eight drafts add 0.8 ms alone and 16 in a batch of eight, where a row costs more. Four
    drafts accepted six times in ten emit 2.3 tokens a step, too few where it takes as long as 2.4 plain ones."""

    def cost(batch: int, num_drafts: int, in_plain_steps: float) -> VerifyCost:
        return VerifyCost(batch, num_drafts, 9, 0.010 * in_plain_steps, in_plain_steps)

    costs = [cost(1, 0, 1.0), cost(1, 4, 1.0), cost(1, 8, 1.08), cost(8, 0, 1.0), cost(8, 4, 2.2), cost(8, 8, 2.6)]
    gates = gates_of(costs)
    assert gates == Gates(acceptance_floor=gates.acceptance_floor, max_batch=8)
    assert abs(gates.acceptance_floor - 1.6 / 8 / 8) < 1e-12
    assert gates_of([*costs[:4], cost(8, 4, 2.4), costs[5]]).max_batch == 1
    assert gates_of([cost(1, 0, 1.0), cost(1, 4, 3.0), cost(1, 8, 3.0)]).max_batch == 0
