"""Triton's kernels for weights in few bits against plain operations: on a GPU if there is one, or interpreted."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from minillm.kernels.quantization import FP8, dequantize, dequantize_int4, quantize, quantize_int4, quantize_rows
from minillm.kernels.triton.counters import make_counters
from minillm.kernels.triton.gpu import GpuLimits

few_rows, fp8_rows, fragments, ops, widening = (
    pytest.importorskip(f"minillm.kernels.triton.{name}", reason="triton is for Linux", exc_type=ImportError)
    for name in ("few_rows", "fp8_rows", "fragments", "ops", "widening")
)


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    """Where all tensors are made."""
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        yield


def product(x: Tensor, weights: Any, bias: Tensor | None = None) -> Tensor:
    counters = make_counters(x.device)
    y = few_rows.linear(x, weights, bias, counters)
    assert y.dtype == x.dtype and not counters.any()
    return y


INT8 = [("int8", n, torch.float16) for n in (1, 17, 40, 130)] + [("int8", 17, torch.float32)]
FEW_FP8 = [("fp8", n, torch.float16) for n in (1, 8, 9, 32)]


@pytest.mark.parametrize(("kind", "rows", "dtype"), INT8 + FEW_FP8, ids=str)
@pytest.mark.parametrize(("size", "out", "bias"), [(64, 33, True), (577, 130, False), (1040, 40, True)], ids=str)
def test_product_of_8_bits(size: int, out: int, bias: bool, kind: str, rows: int, dtype: torch.dtype) -> None:
    """1040 inputs are shared by several programs if there are few rows; int8's widened matrix multiplies 130."""
    x = torch.randn(rows, size + 1).to(dtype)[:, 1:]
    numbers, scales = quantize_rows(torch.randn(out, size), torch.int8 if kind == "int8" else FP8)
    b = torch.randn(out).to(dtype) if bias else None
    weight = dequantize(numbers, scales)
    exact = F.linear(x.double(), weight.double(), b.double() if bias else None)
    laid = fragments.to_fragments(numbers, scales, kind)
    found = product(x, laid, b)
    assert (found - exact).abs().max() <= max(2 * torch.finfo(dtype).eps, 1e-6) * exact.abs().max()
    ids = torch.randperm(out)[:20]
    assert torch.equal(fragments.rows_of(laid, ids), weight[ids])


@pytest.mark.parametrize(("rows", "dtype"), [*((n, torch.float16) for n in (1, 17, 130)), (17, torch.float32)])
@pytest.mark.parametrize(
    ("size", "out", "bias", "group"), [(64, 33, True, 32), (96, 130, False, 32), (1088, 40, True, 64)], ids=str
)
def test_int4_product(size: int, out: int, bias: bool, group: int, rows: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(rows, size).to(dtype), torch.randn(out, size)
    b = torch.randn(out).to(dtype) if bias else None
    numbers, scales = quantize_int4(weight, group, widening.INT4_BASE)
    rounded = dequantize_int4(numbers, scales, widening.INT4_BASE)
    assert (rounded - weight).abs().max() < 0.65 * scales[..., 0].max(), "the low is rounded, too"
    exact = F.linear(x.double(), rounded.double(), b.double() if bias else None)
    found = product(x, fragments.to_fragments(numbers, scales, "int4"), b)
    assert (found - exact).abs().max() <= max(2 * torch.finfo(dtype).eps, 1e-6) * exact.abs().max()


def rounded(weight: Tensor, kind: str) -> Any:
    """The weights as the kernel reads them."""
    if kind == "int4":
        numbers, scales = quantize_int4(weight, 32, widening.INT4_BASE)
    else:
        numbers, scales = quantize_rows(weight, torch.int8 if kind == "int8" else FP8)
    return fragments.to_fragments(numbers, scales, kind)


FEW = [(kind, rows) for kind in ("int4", "int8", "fp8") for rows in (1, 5, 8, 9, 32, 40) if (kind, rows) != ("fp8", 40)]


@pytest.mark.parametrize(("kind", "rows"), FEW)
@pytest.mark.parametrize(("size", "inner", "bias"), [(64, 32, True), (608, 80, False), (1088, 48, True)], ids=str)
def test_swiglu_in_the_products_launch_changes_no_number(
    size: int, inner: int, bias: bool, kind: str, rows: int
) -> None:
    """Sums of several programs, tiles whose last gates and ups aren't there, and units that have both."""
    x, weights = torch.randn(rows, size).half(), rounded(torch.randn(2 * inner, size) / 8, kind)
    assert few_rows.suits_swiglu(x, weights)
    b, counters = torch.randn(2 * inner).half() if bias else None, make_counters(x.device)
    found = few_rows.linear_swiglu(x, weights, b, counters)
    gate_up = product(x, weights, b)
    assert torch.equal(found, ops.TritonOps().silu_mul(gate_up)) and not counters.any()
    gate, up = gate_up.float().chunk(2, dim=1)
    torch.testing.assert_close(found.float(), F.silu(gate) * up, rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("tile", [(128, 8, 1, 4, 4), (128, 32, 2, 8, 4), (256, 16, 2, 4, 4)], ids=str)
@pytest.mark.parametrize("kind", ["int4", "int8", "fp8"])
def test_swiglu_of_a_tile_with_whole_units_of_gates(kind: str, tile: tuple[int, ...]) -> None:
    """Tiles that aren't in use, but that are timed beside those: 64 gates or more, and their ups."""
    x, weights = torch.randn(9, 256).half(), rounded(torch.randn(2 * 208, 256), kind)
    each = few_rows.FragmentTile(*tile, splits=2)
    counters = make_counters(x.device)
    gate_up, found = (few_rows.multiply(x, weights, None, each, counters, swiglu) for swiglu in (False, True))
    assert torch.equal(found, ops.TritonOps().silu_mul(gate_up))


def test_where_swiglu_is_a_launch_of_its_own() -> None:
    """For a prompt's rows, in float32, and where gates and ups would share a strip."""
    x, weights = torch.randn(200, 64).half(), rounded(torch.randn(64, 64), "int8")
    assert few_rows.suits_swiglu(x[:128], weights) and not few_rows.suits_swiglu(x, weights)
    assert not few_rows.suits_swiglu(x[:1].float(), weights)
    assert not few_rows.suits_swiglu(x[:1], rounded(torch.randn(80, 64), "int8"))


def test_launches_follow_from_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors without contents, as in a layer of 8B on an H100: grids of outputs and rows, and parts of a sum."""
    grids: list[Any] = []

    class Recorder:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            grids.append(grid)
            return lambda *args, **options: None

    monkeypatch.setattr(few_rows, "multiply_few", Recorder())
    monkeypatch.setattr(few_rows, "gpu", lambda device: GpuLimits(132, 227 * 1024))
    with torch.device("meta"):
        numbers, scales = torch.empty(4096, 4096, dtype=torch.int8), torch.empty(4096)
        weights = fragments.to_fragments(numbers, scales, "int8")
        for rows in (1, 32, 128, 0):  # none: the head, in a step that ends no prompt
            x = torch.empty(rows, 4096, dtype=torch.bfloat16)
            few_rows.linear(x, weights, None, make_counters(x.device))
    assert grids == [(64, 4), (64, 4), (64 * 4, 1), (0, 16)]


@pytest.mark.parametrize("size", [1, 64, 577])
def test_fp8_rows_are_those_of_plain_operations(size: int) -> None:
    """In the order of the weights, with zeros where these have padding."""
    x = torch.randn(16, size) * torch.logspace(-9, 9, 16)[:, None]
    x[3], x[5, 0], x[7, 0] = 0, float("nan"), float("inf")
    numbers, scales = fp8_rows.quantize_fp8(x)
    expected_numbers, expected_scales = quantize(x.cpu(), FP8)
    assert torch.equal(scales.cpu().nan_to_num(5.0), expected_scales.nan_to_num(5.0))
    kept = expected_scales.isfinite()
    expected = fp8_rows.in_order(expected_numbers)
    assert torch.equal(numbers.cpu().view(torch.int8)[kept], expected.view(torch.int8)[kept])
    assert torch.equal(fp8_rows.as_they_came(expected, size).view(torch.int8), expected_numbers.view(torch.int8))


def test_every_byte_of_e4m3_is_rounded_to_and_read() -> None:
    """Also halfway to the next one: to the even one of two. A row's largest number is 448, so its scale is 1."""
    values = torch.arange(127, dtype=torch.int8).view(FP8).float()
    between = (values[1:] + values[:-1]) / 2
    x = torch.cat((values, between, torch.nextafter(between, between + 1), -values, -between))[None]
    numbers, scales = fp8_rows.quantize_fp8(x)
    assert scales.item() == 1
    assert torch.equal(numbers.view(torch.int8), fp8_rows.in_order(x.to(FP8)).view(torch.int8))
