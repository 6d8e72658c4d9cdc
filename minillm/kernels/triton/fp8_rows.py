"""Weights in fp8 whose rows stay rows: one copy that serves the few rows of a decode step and a prompt's.

Few rows are multiplied as int8's are, with weights widened on their way from memory to the tensor cores (few_rows.py).
A prompt's rows are rounded to fp8 as well, and the tensor cores multiply fp8 by fp8, at twice the speed of 16 bits:
`torch._scaled_mm`, which wants each output's weights side by side, but doesn't care in which order its inputs come, as
long as x has them in the same one. So within each 64 inputs they lie as the registers of the tensor cores want them:

    bits of an input's number within 64:     32 | 16 | 8 | pair of columns (2 bits) | second of a pair
    of its place in memory:                  pair of columns (2 bits) | 8 | 32 | second of a pair | 16

Four threads share the 16 columns that an instruction sums over, a pair of neighbours each, and another pair 8 columns
on. So a thread's 16 bytes are those that it multiplies, as in fragments.py. `quantize_fp8` puts a prompt's x in this
order while it rounds it, in the same launch; few rows stay as they are.
"""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from minillm.kernels.quantization import FP8
from minillm.kernels.triton.gpu import warps_for
from minillm.kernels.triton.rounding import quantize
from minillm.kernels.triton.widening import widen_two

INPUTS = 64
"""Inputs that change places with each other: a block of few_rows.py."""
ALIGNMENT = 2 * INPUTS
"""A row is padded to whole lines of memory, so a step of the kernel may take 1 or 2 blocks."""


def padded(size: int) -> int:
    """Numbers in a row of `size` inputs: the rest are zeros."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def in_order(numbers: Tensor) -> Tensor:
    """[rows, size] of one byte each, in that order: [rows, padded size]."""
    rows = F.pad(numbers.view(torch.uint8), (0, padded(numbers.shape[1]) - numbers.shape[1]))
    places = rows.view(len(rows), -1, 2, 2, 2, 4, 2).permute(0, 1, 5, 4, 2, 6, 3)
    return places.reshape(rows.shape).view(numbers.dtype)


def as_they_came(numbers: Tensor, size: int) -> Tensor:
    """What `in_order` was given, of rows of this size."""
    places = numbers.view(torch.uint8).view(len(numbers), -1, 4, 2, 2, 2, 2).permute(0, 1, 4, 6, 3, 2, 5)
    return places.reshape(numbers.shape)[:, :size].view(numbers.dtype)


def quantize_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """`quantize(x, FP8)` of rows [T, size] in one launch: numbers in order, [T, padded size], and scales [T] float32.

    PyTorch's operations go ten times through memory, and most of them in float32.
    """
    x, width = x.contiguous(), padded(x.shape[1])
    numbers = x.new_empty((len(x), width), dtype=torch.int8)
    scales = x.new_empty(len(x), dtype=torch.float32)
    elements = triton.next_power_of_2(width)
    quantize_row[(len(x),)](x, numbers, scales, x.shape[1], width, elements, num_warps=warps_for(elements))
    return numbers.view(FP8), scales


@triton.jit
def quantize_row(x, numbers, scales, SIZE: tl.constexpr, WIDTH: tl.constexpr, ELEMENTS: tl.constexpr):
    """Grid: (rows,). A row stays in registers between finding its largest number and rounding: 3 bytes a number."""
    at = tl.arange(0, ELEMENTS)[None, :]
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)[:, None]
    values = tl.load(x + row * SIZE + at, mask=at < SIZE, other=0.0).to(tl.float32)
    rounded, scale = quantize(values, tl.float32, "fp8")
    places = tl.reshape(rounded, (ELEMENTS // 64, 2, 2, 2, 4, 2))
    rounded = tl.reshape(tl.permute(places, (0, 4, 3, 1, 5, 2)), (1, ELEMENTS))
    tl.store(numbers + row * WIDTH + at, rounded, mask=at < WIDTH)
    tl.store(scales + row, scale)


@triton.jit
def load_fp8(pointers, dtype: tl.constexpr, PTX: tl.constexpr):
    """Weights [outputs, 64], as they came, without their scales.

    Args:
        pointers: [outputs, 32] of pairs of bytes (int16).
    """
    pairs = tl.load(pointers, eviction_policy="evict_first")
    lower, upper = widen_two(pairs, "fp8", dtype, PTX)
    places = tl.reshape(tl.join(lower, upper), (pairs.shape[0], 4, 2, 2, 2, 2))
    return tl.reshape(tl.permute(places, (0, 3, 5, 2, 1, 4)), (pairs.shape[0], 64))
