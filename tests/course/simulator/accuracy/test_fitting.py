"""Constants fitted to rows."""

import csv
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from simulator.accuracy.made_points import DENSE, MIXTURE, POOLS, points_of, write_points

from course.simulator.accuracy.fitting import __main__ as command
from course.simulator.accuracy.fitting.closed_loop import play
from course.simulator.accuracy.fitting.export import document, number_of_constants, parameters_of
from course.simulator.accuracy.fitting.fit import fit, predict
from course.simulator.accuracy.fitting.rows import PlanRow, rows_of
from course.simulator.accuracy.fitting.tree import BACKEND, CHIP, ENGINE, Tree
from course.simulator.accuracy.play import forecast
from course.simulator.cost import profile
from course.simulator.cost.profile import DENSE as DENSE_KIND
from course.simulator.cost.profile import MIXTURES as MIXTURE_KIND

pytestmark = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")
LOADS = (4, 16, 64)


def rows(folder: Path, *of: dict) -> list[PlanRow]:
    return rows_of(points_of(folder, *({**row, "concurrency": load} for row in of for load in LOADS)))


def priced(row: PlanRow) -> profile.Profile:
    """By the constants as they are."""
    return profile.engine_profile(f"{row.engine}@{row.card}").for_model(row.deployment.model)


def test_the_loop_is_as_the_simulator(tmp_path: Path) -> None:
    """The same load, the same formula, whatever the constants. (Not the same order of events: engines have one step
    more under way.)"""
    sliced = {**DENSE, "osl": 256, "tp_size": 4, "model_path": "meta-llama/Llama-3.1-70B", "precision": "fp8"}
    pools = {**POOLS, "osl": 256, "isl": 1024, "measured": ""}
    dense, mixture = ({**each, "osl": 256, "measured": ""} for each in (DENSE, MIXTURE))
    patient = {**MIXTURE, "backend": "sglang", "moe_tp_size": 2}
    found = [row for row in rows(tmp_path, dense, sliced, mixture, pools, patient) if row.plan.concurrency < LOADS[-1]]
    assert {row.plan.waits.look_every for row in found} == {1, 10, 30}
    profiles = [priced(row).for_weights(row.dtype) for row in found]
    loop = play(found, [each.constants for each in profiles], [each.client_s for each in profiles])
    for row, (ttft, tpot) in zip(found, loop):
        simulated = forecast(replace(row.plan, profile=f"{row.engine}@{row.card}"))
        assert tpot == pytest.approx(simulated.tpot_s, rel=0.06), row.curve
        assert ttft == pytest.approx(simulated.ttft_s, rel=0.3), row.curve


def test_a_fit_finds_what_made_the_rows(tmp_path: Path) -> None:
    """Rows that a tree made are forecast better from its start than they were, and a version's factor is its own."""
    newer = {**DENSE, "backend_version": "0.15.1"}
    made = rows(tmp_path, DENSE, newer, {**MIXTURE, "osl": 128, "measured": ""})
    tree = Tree(made)
    truth = tree.start.copy()
    for number, parameter in enumerate(tree.parameters):
        if parameter.kind.name == "layer_s" and parameter.level in (CHIP, ENGINE):
            truth[number] += 0.4 if parameter.place != ("vllm-0.15",) else -0.4
    measured = [replace(row, ttft_s=ttft, tpot_s=tpot) for row, (ttft, tpot) in zip(made, predict(tree, truth, made))]
    found = fit(measured, rounds=6)
    before = np.abs(np.log(predict(tree, tree.start, made)[:, 1] / [row.tpot_s for row in measured])).mean()
    after = np.abs(np.log(predict(found.tree, found.z, made)[:, 1] / [row.tpot_s for row in measured])).mean()
    assert after < before / 2


def test_curves_stay_together(tmp_path: Path) -> None:
    found = rows(tmp_path, DENSE, {**DENSE, "osl": 128})
    assert len({row.curve for row in found}) == 2 and len({(row.curve, row.half()) for row in found}) == 2


def test_what_is_written_prices_as_the_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = rows(tmp_path, DENSE, {**MIXTURE, "measured": ""})
    trees = {kind: Tree([row for row in found if command.kind_of(row) == kind]) for kind in (DENSE_KIND, MIXTURE_KIND)}
    fitted = {kind: (tree, tree.start + np.linspace(-0.2, 0.2, len(tree.start))) for kind, tree in trees.items()}
    made = document(fitted)
    assert number_of_constants(made) == sum(
        parameter.level == CHIP or abs(value) >= 0.02
        for tree, z in fitted.values()
        for parameter, value in zip(tree.parameters, z)
    )
    monkeypatch.setattr(profile, "ENGINES", made)
    for kind, (tree, z) in fitted.items():
        assert {parameter.level for parameter in tree.parameters} == {CHIP, BACKEND, ENGINE}, kind
        assert parameters_of(made[kind], tree) == pytest.approx(z, abs=0.03)
        constants, client = tree.constants(tree.values(z))
        for row, wanted, seconds in zip(tree.rows, constants, client):
            got = priced(row)
            assert got.client_s == pytest.approx(seconds, rel=0.02)
            for name, value in got.for_weights(row.dtype).constants.model_dump().items():
                assert value == pytest.approx(getattr(wanted, name), rel=0.03) if value is not None else True, name


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    curves = [{**DENSE, "osl": osl, "concurrency": load} for osl in range(32, 128, 16) for load in (2, 8)]
    table = write_points(tmp_path / "points.csv", curves)
    out = tmp_path / "engines.json"
    kept = ["--rows", str(tmp_path), "--bands", str(tmp_path / "bands.json")]
    monkeypatch.setattr(sys, "argv", ["fitting", "--points", str(table), "--out", str(out), "--rounds", "2", *kept])
    command.main()
    for name in ("held_out", "in_sample"):
        with (tmp_path / f"{name}.csv").open(newline="") as file:
            assert sum(float(row["predicted_tpot_ms"]) > 0 for row in csv.DictReader(file)) == 12, name
    assert sum(band["n"] for band in json.loads((tmp_path / "bands.json").read_text())["engines"]) == 12
    told = capsys.readouterr().out
    assert "12 points, 12 simulations" in told and "by the fit that had not seen its curve" in told
    assert f"{number_of_constants(json.loads(out.read_text()))} constants in" in told
    monkeypatch.setattr(sys, "argv", ["fitting", "--points", str(tmp_path / "none.csv")])
    with pytest.raises(SystemExit, match="cannot read"):
        command.main()
