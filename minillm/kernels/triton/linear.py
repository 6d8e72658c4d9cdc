"""Rows of x rounded to fp8, which torch._scaled_mm multiplies: in one launch instead of ten.

Products with int8 and int4 weights: fragments.py.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from minillm.kernels.quantization import FP8
from minillm.kernels.triton.attention import power_of_two
from minillm.kernels.triton.ops import warps_for
from minillm.kernels.triton.rounding import quantize


def quantize_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """`quantize(x, FP8)` of rows [T, size] in one launch: numbers [T, size] float8_e4m3fn and scales [T] float32.

    PyTorch's operations go ten times through memory, and most of them in float32.
    """
    x = x.contiguous()
    numbers, scales = torch.empty_like(x, dtype=torch.int8), x.new_empty(len(x), dtype=torch.float32)
    padded = power_of_two(x.shape[1])
    _quantize_row[(len(x),)](x, numbers, scales, x.shape[1], padded, num_warps=warps_for(padded))
    return numbers.view(FP8), scales


@triton.jit
def _quantize_row(x, numbers, scales, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """Grid: (rows,). A row stays in registers between finding its largest number and rounding: 3 bytes a number."""
    at = tl.arange(0, PADDED)[None, :]
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)[:, None]
    values = tl.load(x + row * SIZE + at, mask=at < SIZE, other=0.0).to(tl.float32)
    rounded, scale = quantize(values, tl.float32, "fp8")
    tl.store(numbers + row * SIZE + at, rounded, mask=at < SIZE)
    tl.store(scales + row, scale)
