"""Linear layers on a CPU: every way of computing one against float64, and what happens where a way is missing."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from minillm.models import linear as linear_module
from minillm.models.linear import FEW_ROWS, CPULinear, Linear, PackedForFBGEMM, PackedForOneDNN, pack_linears
from minillm.models.native import NativeKernels, compiling, native_kernels

pytestmark = pytest.mark.usefixtures("two_threads")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def function() -> NativeKernels:
    found = native_kernels()
    if found is None:
        pytest.skip("no C++ compiler here")
    return found


def plain(size: int, out: int, bias: bool = False, dtype: torch.dtype = torch.bfloat16) -> Linear:
    torch.manual_seed(size + out)
    layer = Linear(size, out, bias, dtype, CPU)
    layer.weight.normal_(0, 0.1)
    if bias:
        layer.bias.normal_()
    return layer


def exact(layer: Linear, x: torch.Tensor) -> torch.Tensor:
    return F.linear(x.double(), layer.weight.double(), None if layer.bias is None else layer.bias.double())


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 8, 9, 19])
@pytest.mark.parametrize(("size", "out"), [(16, 1), (64, 33), (15, 32), (1, 5), (577, 130)], ids=str)
def test_native_linear_is_right_at_any_shape(function: NativeKernels, rows: int, size: int, out: int) -> None:
    layer, x = plain(size, out), torch.randn(rows, size)
    assert (function.linear(x, layer.weight) - exact(layer, x)).abs().max() < 1e-4


def test_native_linear_hands_nan_and_infinity_on(function: NativeKernels) -> None:
    layer = plain(32, 8)
    layer.weight[3, 30] = float("nan")
    layer.weight[5, 1] = float("inf")
    y = function.linear(torch.ones(2, 32), layer.weight)
    assert y.isnan().any(0).tolist() == [False, False, False, True, False, False, False, False]
    assert y.isinf().any(0).tolist() == [False, False, False, False, False, True, False, False]


def test_it_is_compiled_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: NativeKernels) -> None:
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path))
    first = compiling.build()
    stamp = first.stat().st_mtime_ns
    assert compiling.build() == first and first.stat().st_mtime_ns == stamp
    assert list(first.parent.iterdir()) == [first], "nothing half-made is left"
    monkeypatch.setattr(compiling, "cpu_identity", lambda: "another processor")
    assert compiling.build() != first


@pytest.mark.parametrize("trouble", ["no compiler", "compiler fails", "wrong result"])
def test_without_it_the_packed_kernel_serves_all_rows(trouble: str, monkeypatch: pytest.MonkeyPatch) -> None:
    native_kernels.cache_clear()
    if trouble == "no compiler":
        monkeypatch.setattr(compiling.shutil, "which", lambda name: None)
    elif trouble == "compiler fails":
        monkeypatch.setattr(compiling, "FLAGS", ("--no-such-flag",))
    else:
        monkeypatch.setattr(NativeKernels, "linear", lambda self, x, weight: torch.zeros(len(x), len(weight)))
    try:
        assert native_kernels() is None
        holder = torch.nn.Sequential(plain(64, 32))
        layer = plain(64, 32)
        pack_linears(holder)
        assert holder[0].weight is None, "no second copy of the weights"
        x = torch.randn(2, 64)
        assert (holder[0](x) - exact(layer, x)).abs().max() < 1e-3
    finally:
        monkeypatch.undo()
        native_kernels.cache_clear()


@pytest.mark.parametrize("packing", [PackedForFBGEMM, PackedForOneDNN])
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("rows", [1, FEW_ROWS, FEW_ROWS + 1, 40])
def test_a_packed_layer_is_the_plain_one(packing: type, bias: bool, rows: int) -> None:
    layer, x = plain(96, 48, bias), torch.randn(rows, 96)
    packed = CPULinear(layer, packing, native_kernels())
    error = (packed(x) - exact(layer, x)).abs().max()
    assert error < (2e-2 if packing is PackedForOneDNN and rows > FEW_ROWS else 1e-3)
    assert packed(x).dtype == torch.float32


def test_the_kernel_follows_from_the_processor_and_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [plain(64, 32), plain(32, 64)]
    monkeypatch.setattr(linear_module, "computes_bfloat16", lambda: True)
    assert linear_module.choose_packing(layers) is PackedForOneDNN
    monkeypatch.setattr(PackedForOneDNN, "__call__", lambda self, x: torch.zeros(len(x), 64))
    assert linear_module.choose_packing(layers) is PackedForFBGEMM, "a kernel that computes wrongly is not used"
    monkeypatch.setattr(linear_module, "computes_bfloat16", lambda: False)
    assert linear_module.choose_packing(layers) is PackedForFBGEMM
    layers[1].weight[0, 0] = 1e6
    assert linear_module.choose_packing(layers) is None, "float16 ends at 65504"
    assert linear_module.choose_packing([plain(8, 8, dtype=torch.float32)]) is None


def test_a_tied_head_shares_the_embedding_table(function: NativeKernels) -> None:
    model = torch.nn.Module()
    model.layer, model.head = plain(64, 100), plain(64, 100)
    model.table = model.head.weight
    pack_linears(model)
    assert model.head.weight is model.table
    x = torch.randn(1, 64)
    assert (model.layer(x) - exact(plain(64, 100), x)).abs().max() < 1e-3, "moved beside the others, but the same"
