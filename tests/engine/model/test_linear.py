"""Linear layers on a CPU: every way of computing one against float64, and what happens where a way is missing."""

import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from minillm.kernels.cpu import NativeKernels, has_dots
from minillm.kernels.cpu.bands import band_bfloat16, band_int4, band_int8, in_bands, numbers_of
from minillm.model import packing as packing_module
from minillm.model.linear import Linear
from minillm.model.packed import (
    FEW_ROWS,
    CPULinear,
    PackedForDots,
    PackedForFBGEMM,
    PackedForOneDNN,
    PackedInBands,
    chosen_packings,
)
from minillm.model.packing import ROUNDS, Seconds, choose_packings, fastest, pack_linears, tried, works

pytestmark = pytest.mark.usefixtures("two_threads")
CPU = torch.device("cpu")


def plain(size: int, out: int, bias: bool = False, dtype: torch.dtype = torch.bfloat16) -> Linear:
    torch.manual_seed(size + out)
    layer = Linear(size, out, bias, dtype, CPU)
    layer.weight.normal_(0, 0.1)
    if bias:
        layer.bias.normal_()
    return layer


def exact(layer: Linear, x: torch.Tensor) -> torch.Tensor:
    return F.linear(x.double(), layer.weight.double(), None if layer.bias is None else layer.bias.double())


def multiply(kernels: NativeKernels, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return kernels.linear(x, band_bfloat16(weight), len(weight))


@pytest.mark.parametrize("out", [1, 16, 33, 48])
def test_a_row_can_be_taken_out_of_its_band(out: int) -> None:
    ids = torch.arange(out)
    for numbers in (torch.randint(-127, 128, (out, 24), dtype=torch.int8), torch.randint(-128, 128, (out, 1)).char()):
        assert torch.equal(numbers_of(band_int8(numbers), ids), numbers)
    levels = torch.randint(0, 16, (out, 32), dtype=torch.uint8)
    levels[0] = 15  # the sign bit of a word, too
    assert torch.equal(numbers_of(band_int4(levels), ids).to(torch.uint8), levels)
    assert in_bands(torch.ones(out)).shape == (-(-out // 16), 16) and in_bands(torch.ones(out)).sum() == out


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 8, 9, 19])
@pytest.mark.parametrize(("size", "out"), [(16, 1), (64, 33), (15, 32), (1, 5), (577, 130), (34, 400)], ids=str)
def test_native_linear_is_right_at_any_shape(kernels: NativeKernels, rows: int, size: int, out: int) -> None:
    layer, x = plain(size, out), torch.randn(rows, size)
    assert (multiply(kernels, x, layer.weight) - exact(layer, x)).abs().max() < 1e-4


@pytest.mark.skipif(not has_dots(), reason="this processor has no products of bfloat16")
@pytest.mark.parametrize(("size", "out"), [(32, 16), (64, 33), (50, 48), (96, 7), (576, 400)], ids=str)
def test_a_rounded_rows_product_depends_on_that_row_alone(kernels: NativeKernels, size: int, out: int) -> None:
    layer, x = plain(size, out), torch.randn(300, size)
    packed = PackedForDots(layer.weight, None)
    y = packed(x)
    assert (y - exact(layer, x.bfloat16())).abs().max() < 1e-4
    for rows in (0, 1, 2, 15, 16, 17, 31, 33, 257):
        assert torch.equal(packed(x[300 - rows :]), y[300 - rows :]), rows


def test_native_linear_hands_nan_and_infinity_on(kernels: NativeKernels) -> None:
    layer = plain(32, 8)
    layer.weight[3, 30] = float("nan")
    layer.weight[5, 1] = float("inf")
    y = multiply(kernels, torch.ones(2, 32), layer.weight)
    assert y.isnan().any(0).tolist() == [False, False, False, True, False, False, False, False]
    assert y.isinf().any(0).tolist() == [False, False, False, False, False, True, False, False]


def test_without_native_kernels_pytorchs_serves_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing_module, "native_kernels", lambda: None)
    monkeypatch.setattr(packing_module, "has_dots", lambda: False)
    holder, x = torch.nn.Sequential(plain(64, 32)), torch.randn(2, 64)
    pack_linears(holder)
    assert holder[0].few is holder[0].many, "no second copy of the weights"
    assert isinstance(holder[0].many, PackedForFBGEMM)
    assert (holder[0](x) - exact(plain(64, 32), x)).abs().max() < 1e-3


@pytest.mark.parametrize("packing", [PackedInBands, PackedForDots, PackedForFBGEMM, PackedForOneDNN])
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("rows", [1, FEW_ROWS, FEW_ROWS + 1, 40])
def test_a_packed_layer_is_the_plain_one(packing: type, bias: bool, rows: int) -> None:
    layer, x = plain(96, 48, bias), torch.randn(rows, 96)
    if (packing is PackedForDots and not has_dots()) or not works(packing, layer):
        pytest.skip(f"this processor has no instructions for {packing.__name__}")
    packed = CPULinear(layer, PackedInBands, packing)
    error = (packed(x) - exact(layer, x)).abs().max()
    assert error < (2e-2 if packed.many.computes == torch.bfloat16 and rows > FEW_ROWS else 1e-3)
    assert packed(x).dtype == torch.float32


def test_the_best_kernel_of_a_trial_is_chosen_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: NativeKernels
) -> None:
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path))
    monkeypatch.setattr(packing_module, "TOO_SMALL", 4096)
    layers = [plain(64, 64), plain(32, 64)]
    outcomes = {"PackedInBands": [1.0, 1.0, 9.0], "PackedForFBGEMM": [2.0, 2.0, 5.0]}

    def measured(products: dict[str, object], size: int) -> Seconds:
        return {name: [outcomes.get(name, [3.0, 3.0, 8.5])] * ROUNDS for name in products}

    monkeypatch.setattr(packing_module, "measure", measured)
    assert choose_packings(layers) == (PackedInBands, PackedForFBGEMM)
    outcomes["PackedForFBGEMM"] = [0.1, 0.1, 0.1]
    assert choose_packings(layers) == (PackedInBands, PackedForFBGEMM), "no second trial"
    (kept,) = tmp_path.glob("native/trials-*")
    kept.write_text("half a fi")
    assert choose_packings(layers) == (PackedForFBGEMM, PackedForFBGEMM)
    monkeypatch.setattr(packing_module, "available_bytes", lambda: 1000)
    kept.unlink()
    outcomes["PackedForFBGEMM"] = [2.0, 2.0, 5.0]
    assert choose_packings(layers) == (PackedInBands, PackedInBands), "no room for a second copy"


def rounds_of(*seconds: float) -> list[list[float]]:
    """A trial of one number of rows."""
    return [[each] for each in seconds]


@pytest.mark.parametrize(
    ("first", "other", "winner"),
    [
        (rounds_of(10, 10, 10, 10), rounds_of(8, 8, 8, 8), "other"),
        (rounds_of(10, 10, 10, 10), rounds_of(9.5, 9.5, 9.5, 9.5), "first"),  # too little to rely on
        (rounds_of(10, 90, 30, 10), rounds_of(8, 70, 25, 40), "other"),  # all rounds but one say so
        (rounds_of(90, 30, 11, 40), rounds_of(8, 25, 30, 70), "first"),  # the least of each would say the other
    ],
)
def test_another_kernel_is_taken_if_the_rounds_of_a_trial_agree_that_it_is_faster(
    first: list[list[float]], other: list[list[float]], winner: str
) -> None:
    assert fastest({"first": first, "other": other}, slice(1)) == winner


def test_an_account_without_a_home_folder_keeps_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("MINILLM_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    made: list[str] = []

    def product() -> packing_module.Product:
        made.append("a product")
        return lambda x: x

    for _ in range(2):
        assert list(tried([(8, 8)], {"only": product}, 8)) == ["only"]
    assert len(made) == 2


def test_a_trial_measures_every_kernel_at_every_number_of_rows() -> None:
    seconds = packing_module.measure({"bands": torch.sum, "other": torch.mean}, 256)
    assert list(seconds) == ["bands", "other"]
    for rounds in seconds.values():
        assert [len(taken) for taken in rounds] == [3] * ROUNDS and min(map(min, rounds)) > 0


def test_only_what_works_is_a_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [plain(64, 32), plain(32, 64)]
    monkeypatch.setattr(packing_module, "native_kernels", lambda: None)
    monkeypatch.setattr(packing_module, "has_dots", lambda: False)
    assert choose_packings(layers) == (PackedForFBGEMM, PackedForFBGEMM)
    with monkeypatch.context() as context:
        context.setattr(PackedForFBGEMM, "__call__", lambda self, x: torch.zeros(len(x), 64))
        assert choose_packings(layers) in (None, (PackedForOneDNN, PackedForOneDNN)), "it computes wrongly"
    layers[1].weight[0, 0] = 1e6
    assert choose_packings(layers) in (None, (PackedForOneDNN, PackedForOneDNN)), "float16 ends at 65504"
    assert choose_packings([plain(8, 8, dtype=torch.float32)]) is None


def test_a_tied_head_leaves_the_embedding_table_as_it_is(kernels: NativeKernels) -> None:
    model = torch.nn.Module()
    model.layer, model.head = plain(64, 100), plain(64, 100)
    model.table = table = model.head.weight
    pack_linears(model)
    assert model.table is table and torch.equal(table, plain(64, 100).weight)
    x = torch.randn(1, 64)
    assert (model.layer(x) - exact(plain(64, 100), x)).abs().max() < 2e-2, "moved beside the others, but the same"


def test_weights_are_dropped_as_they_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Sequential(*(plain(64, 32) for _ in range(4)))
    alive = [weakref.ref(layer) for layer in model]
    left: list[int] = []

    class Watched(CPULinear):
        def __init__(self, *arguments: object) -> None:
            left.append(sum(layer() is not None for layer in alive))
            super().__init__(*arguments)

    monkeypatch.setattr(packing_module, "CPULinear", Watched)
    assert pack_linears(model)
    assert left == [4, 3, 2, 1]


def test_a_report_can_name_the_kernels_that_were_chosen(kernels: NativeKernels) -> None:
    model = torch.nn.Sequential(plain(64, 32), plain(32, 8))
    assert chosen_packings(model) == {"few_rows": [], "many_rows": []}
    model[0], model[1] = CPULinear(model[0], PackedInBands, PackedForFBGEMM), torch.nn.Identity()
    assert chosen_packings(model) == {"few_rows": ["PackedInBands"], "many_rows": ["PackedForFBGEMM"]}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is another reason")
def test_without_a_compiler_it_says_so_and_how_to_get_one() -> None:
    """`make lab` shows what begins with `! `."""
    told = subprocess.run(
        [sys.executable, "-m", "minillm.kernels.cpu"],
        env={**os.environ, "CXX": "no-such-compiler"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.startswith("! no C++ compiler found ($CXX is 'no-such-compiler'): decoding will be slower")
    assert "install g++" in told.stdout
