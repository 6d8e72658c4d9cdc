"""Triton's kernels for 8-bit weights against plain operations: on a GPU if there is one, else in its interpreter."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from minillm.kernels.quantization import FP8, dequantize_int4, quantize, quantize_int4
from minillm.kernels.triton.attention import Gpu
from minillm.model.quantized_cuda import pack_int4

linear = pytest.importorskip("minillm.kernels.triton.linear", reason="triton is for Linux", exc_type=ImportError)


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    """Where all tensors are made."""
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        yield


@pytest.mark.parametrize(("rows", "dtype"), [*((n, torch.float16) for n in (1, 3, 17, 64, 130)), (17, torch.float32)])
@pytest.mark.parametrize(("size", "out", "bias"), [(64, 33, True), (577, 130, False), (1040, 40, True)], ids=str)
def test_int8_product(size: int, out: int, bias: bool, rows: int, dtype: torch.dtype) -> None:
    """1040 inputs are shared by several programs if there are few rows."""
    x = torch.randn(rows, size + 1).to(dtype)[:, 1:]
    numbers, scales = torch.randint(-127, 128, (out, size), dtype=torch.int8), torch.rand(out) / 100
    b = torch.randn(out).to(dtype) if bias else None
    exact = F.linear(x.double(), numbers.double() * scales.double()[:, None], b.double() if bias else None)
    found = linear.int8_linear(x, numbers, scales, b)
    assert found.dtype == dtype
    assert (found - exact).abs().max() <= max(torch.finfo(dtype).eps, 1e-6) * exact.abs().max()


@pytest.mark.parametrize(("rows", "dtype"), [*((n, torch.float16) for n in (1, 17, 130)), (17, torch.float32)])
@pytest.mark.parametrize(
    ("size", "out", "bias", "group"), [(64, 33, True, 32), (96, 130, False, 32), (1088, 40, True, 64)], ids=str
)
def test_int4_product(size: int, out: int, bias: bool, group: int, rows: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(rows, size).to(dtype), torch.randn(out, size)
    b = torch.randn(out).to(dtype) if bias else None
    numbers, scales = quantize_int4(weight, group)
    exact = F.linear(x.double(), dequantize_int4(numbers, scales).double(), b.double() if bias else None)
    found = linear.int4_linear(x, pack_int4(numbers, group), scales, b)
    assert found.dtype == dtype
    assert (found - exact).abs().max() <= max(torch.finfo(dtype).eps, 1e-6) * exact.abs().max()


def test_launches_follow_from_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors without contents, as in a layer of 8B on an H100: grids of outputs, rows and parts of a sum."""
    grids: list[Any] = []

    class Recorder:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            grids.append(grid)
            return lambda *args, **options: None

    for name in ("_multiply", "_add_parts", "_quantize_row"):
        monkeypatch.setattr(linear, name, Recorder())
    monkeypatch.setattr(linear, "gpu", lambda device: Gpu(132, 227 * 1024))
    with torch.device("meta"):
        numbers, scales = torch.empty(4096, 4096, dtype=torch.int8), torch.empty(4096)
        for rows in (1, 64, 8192):
            x = torch.empty(rows, 4096, dtype=torch.bfloat16)
            linear.int8_linear(x, numbers, scales, None)
        linear.quantize_fp8(x)
        few, some, many = [(64, 1, 8), (1, 4)], [(64, 1, 4), (64, 4)], [(32, 64, 1)]
        assert grids == [*few, *some, *many, (8192,)]
        linear.int8_linear(x[:0], numbers, scales, None)  # the head, in a step that ends no prompt


@pytest.mark.parametrize("size", [1, 64, 577])
def test_fp8_rows_are_those_of_plain_operations(size: int) -> None:
    x = torch.randn(16, size) * torch.logspace(-9, 9, 16)[:, None]
    x[3], x[5, 0], x[7, 0] = 0, float("nan"), float("inf")
    numbers, scales = linear.quantize_fp8(x)
    expected_numbers, expected_scales = quantize(x.cpu(), FP8)
    assert torch.equal(scales.cpu().nan_to_num(5.0), expected_scales.nan_to_num(5.0))
    kept = expected_scales.isfinite()
    assert torch.equal(numbers.cpu().view(torch.int8)[kept], expected_numbers.view(torch.int8)[kept])


def test_every_byte_of_e4m3_is_rounded_to_and_read() -> None:
    """Also halfway to the next one: to the even one of two. A row's largest number is 448, so its scale is 1."""
    values = torch.arange(127, dtype=torch.int8).view(FP8).float()
    between = (values[1:] + values[:-1]) / 2
    x = torch.cat((values, between, torch.nextafter(between, between + 1), -values, -between))[None]
    numbers, scales = linear.quantize_fp8(x)
    assert scales.item() == 1 and torch.equal(numbers.view(torch.int8), x.to(FP8).view(torch.int8))
