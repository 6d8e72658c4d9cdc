"""Tuning kernels: results survive a candidate that ends the process, and only what is right can win."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="triton is for Linux")
from course.measure import tune_kernels
from course.measure.tune_kernels import Log, Tuner, error_of, summary
from course.measure.tuned_works import (
    MODELS,
    SMALL,
    TWO_LAUNCHES,
    KVWork,
    LikeliestWork,
    LinearWork,
    MoEWork,
    RowLayer,
    RowWork,
    SwigluWork,
    WidenedFirst,
    Work,
)
from minillm.kernels.quantization import dequantize, dequantize_int4, quantize_int4, quantize_rows
from minillm.kernels.triton.fragments import to_fragments
from minillm.kernels.triton.widening import INT4_BASE


class Doubling(Work):
    """y = 2 x, in several ways."""

    section, shape, bytes = "int4", "two numbers", 8

    def prepare(self, device: str) -> None:
        self.on_x = torch.tensor([[1.0, 2.0]])

    def reference(self) -> torch.Tensor:
        return 2 * self.on_x

    def in_use(self) -> dict:
        return {"now": lambda i: self.on_x + self.on_x}

    def first(self) -> list[str]:
        return ["right", "wrong", "raises"]

    def next(self, best: list[str]) -> list[str]:
        return [f"{best[0]} again"]

    def run(self, candidate: str):
        if candidate == "raises":
            raise RuntimeError("out of resources")
        return lambda i: self.on_x * (3 if candidate == "wrong" else 2)


def test_what_is_measured_and_what_wins(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.begin(Doubling(), "right")
    log.note_crash("ended the process")
    log.note_crash("ended the process")
    assert [line["note"] for line in log.lines()] == ["ended the process"]
    log.results.unlink()
    for _ in range(2):  # what is there isn't measured again
        Tuner(log, [Doubling()], "cpu", {}, end=float("inf")).tune()
    lines = {line["way"]: line for line in log.lines()}
    assert len(log.lines()) == len(lines) == 5
    assert lines["right"]["error"] == lines["right again"]["error"] == 0 and "us" in lines["now"]
    assert lines["wrong"]["note"] == "wrong" and "out of resources" in lines["raises"]["note"]
    table = summary(log.lines())
    assert "right again" in table and "us   0.0%  wrong" not in table and "2 failed" in table


def test_no_time_is_said(tmp_path: Path) -> None:
    Tuner(Log(tmp_path), [Doubling()], "cpu", {}, end=0).tune()
    assert [line["note"] for line in Log(tmp_path).lines()] == ["no time left"]


def test_candidates_of_a_model_have_names_of_their_own() -> None:
    works = [LinearWork(SMALL, kind, "o", rows) for kind in ("int4", "int8", "fp8") for rows in (1, 20, 40)]
    works += [SwigluWork(SMALL, "int4", "o", rows) for rows in (1, 20)]
    for work in (*works, KVWork(SMALL, "fp8", 2)):
        names = [str(candidate) for candidate in work.first()]
        assert len(set(names)) == len(names) > 3
    assert set(tune_kernels.BUDGETS) >= {work.section for work in tune_kernels.works(SMALL)}


@pytest.mark.parametrize("kind", ["int4", "int8", "fp8"])
def test_swiglu_is_timed_in_one_launch_beside_two(kind: str) -> None:
    """All give the same; the sums of other tiles are rounded otherwise."""
    work = SwigluWork(SMALL, kind, "o", 20)
    torch.manual_seed(0)
    work.prepare("cuda" if torch.cuda.is_available() else "cpu")
    ways = {name: run(0) for name, run in work.in_use().items()}
    assert torch.equal(ways["now"], ways[TWO_LAUNCHES])
    for candidate in [*work.first(), *work.next(work.first())]:
        assert error_of(work.run(candidate)(0), work.reference(), work.spared) <= work.tolerance, candidate
    assert work.whole()(0).shape == work.reference().shape


@pytest.mark.parametrize("work", [MoEWork(SMALL, 5), LikeliestWork(SMALL, 3)], ids=lambda work: work.section)
def test_what_is_in_use_is_right(work: Work) -> None:
    torch.manual_seed(0)
    work.prepare("cuda" if torch.cuda.is_available() else "cpu")
    assert error_of(work.in_use()["now"](0), work.reference(), work.spared) <= work.tolerance


@pytest.mark.parametrize("kind", ["int4", "int8"])
def test_bands_of_outputs_make_the_whole_product(kind: str) -> None:
    """Three of 64 outputs, the last one of 2, beside the weights that were laid out."""
    torch.manual_seed(0)
    x, weight = torch.randn(5, 96).half(), torch.randn(130, 96)
    if kind == "int4":
        numbers, scales = quantize_int4(weight, 32, INT4_BASE)
        exact = dequantize_int4(numbers, scales, INT4_BASE)
    else:
        numbers, scales = quantize_rows(weight, torch.int8)
        exact = dequantize(numbers, scales)
    found = WidenedFirst(1, band=64).product(x, to_fragments(numbers, scales, kind))
    assert (found - x.float() @ exact.T).abs().max() < 0.05


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("swiglu", [False, True])
def test_a_row_is_normed_multiplied_and_gated_in_one_launch(norm: bool, swiglu: bool) -> None:
    work = RowWork(RowLayer("small", 512, 64, norm, swiglu), torch.float16)
    torch.manual_seed(0)
    work.prepare("cuda" if torch.cuda.is_available() else "cpu")
    expected = work.in_use()["now"](1)
    for tile in work.first():
        torch.testing.assert_close(work.run(tile)(1), expected, rtol=0.004, atol=0.004)
    assert len(work.first()) > 2


@pytest.mark.parametrize(
    "work",
    [LinearWork(SMALL, "int4", "o", 1), SwigluWork(SMALL, "fp8", "o", 20), MoEWork(SMALL, 5)],
    ids=lambda work: work.section,
)
def test_a_candidate_gives_what_is_in_use(work: Work) -> None:
    torch.manual_seed(0)
    work.prepare("cuda" if torch.cuda.is_available() else "cpu")
    found = work.run(work.first()[-1])(1)
    assert error_of(found, work.in_use()["now"](1).float(), work.spared) <= work.tolerance


def test_every_matrix_of_the_models_has_tiles() -> None:
    for layer in MODELS.row_layers:
        assert len(RowWork(layer, MODELS.dtype).first()) > 2, layer


def test_what_cannot_be_tuned_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    for arguments, says in (
        (["--out", str(file), "--rehearse"], f"--out {file}"),
        (["--out", str(tmp_path), "--seconds", "nan"], "above 0, not nan"),
    ):
        with pytest.raises(SystemExit, match="2"):
            tune_kernels.main(arguments)
        assert says in capsys.readouterr().err
