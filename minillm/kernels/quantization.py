"""Numbers in fewer bits: what is rounded, to what, and how far that is from what it was. All of it is lossy.

Weights are rounded once, when they are loaded, to the nearest step of a grid (no calibration data):

- int8: one scale for each output, w = scale x q, q in -127 .. 127.
- int4: one scale and one offset for each group of 32 or 64 inputs of an output, w = low + scale x q, q in 0 .. 15.
  Small groups are what makes 4 bits usable: one large weight coarsens the grid of its group only.
- fp8: one scale for each output, q in e4m3 (4 bits of exponent, 3 of mantissa).

Keys and values (`kv_cache_dtype`) are rounded as they are written, one scale for each token and head.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

INT8_MAX = 127
FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
INT4_LEVELS = 15
SMALLEST_SCALE = 1e-12
"""The scale of a row of zeros: anything but 0, which would make 0 / 0."""
SLICE = 1 << 22
"""Weights that are rounded in one go: 16 MB as float32. A whole output head would take gigabytes."""


def dtype_name(dtype: torch.dtype) -> str:
    """`float32`, `bfloat16`, `int8`, `fp8`: as configurations and reports call it."""
    return "fp8" if dtype == FP8 else str(dtype).removeprefix("torch.")


def quantize(x: Tensor, dtype: torch.dtype, scale_dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """[..., d] to int8 or float8_e4m3fn numbers [..., d] and scales [...]. NaN and infinity end up in the scale."""
    most = INT8_MAX if dtype == torch.int8 else FP8_MAX
    scales = (x.float().abs().amax(-1) / most).clamp_(min=SMALLEST_SCALE).to(scale_dtype)
    numbers = x.float() / scales.float()[..., None]
    if dtype == torch.int8:
        numbers = numbers.round_()
    return numbers.clamp_(-most, most).to(dtype), scales


def dequantize(numbers: Tensor, scales: Tensor) -> Tensor:
    """Back to float32 [..., d]; arguments as `quantize` returns them."""
    return numbers.float() * scales.float()[..., None]


def sliced(function: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """The function, applied to a slice of rows at a time: no row knows of another."""

    @wraps(function)
    def in_slices(weight: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
        slices = weight.split(max(1, SLICE // weight.shape[1]))
        numbers, scales = zip(*(function(rows, *options) for rows in slices))
        return torch.cat([part.view(torch.uint8) for part in numbers]).view(numbers[0].dtype), torch.cat(scales)

    return in_slices


quantize_rows = sliced(quantize)
"""`quantize` of a weight matrix [out, in], to numbers [out, in] and scales [out]."""


@sliced
def quantize_int4(weight: Tensor, group: int, base: int = 0) -> tuple[Tensor, Tensor]:
    """[out, in] to uint8 [out, in] in 0 .. 15, and bfloat16 (scale, low) [out, in / group, 2].

    Scale and offset are rounded first, and weights to the grid that they really span.

    Args:
        base: what a kernel's numbers begin with: w = low + scale x (base + q), so the low is that much lower.
    """
    groups = weight.float().unflatten(1, (-1, group))
    low, high = groups.aminmax(dim=2)
    low = low.bfloat16()
    scale = ((high - low.float()) / INT4_LEVELS).clamp_(min=SMALLEST_SCALE).bfloat16()
    low = (low.float() - base * scale.float()).bfloat16()
    numbers = (groups - low.float()[..., None]) / scale.float()[..., None] - base
    return numbers.round_().clamp_(0, INT4_LEVELS).to(torch.uint8).flatten(1), torch.stack((scale, low), dim=2)


def dequantize_int4(numbers: Tensor, scales: Tensor, base: int = 0) -> Tensor:
    """Back to float32 [out, in]; arguments as `quantize_int4` returns them, and got them."""
    groups = numbers.float().unflatten(1, (scales.shape[1], -1)) + base
    return (groups * scales[..., :1].float() + scales[..., 1:].float()).flatten(1)


def share_on_int4_grid(weight: Tensor, group: int = 32) -> float:
    """Share of weights that int4 leaves as they are, to a twentieth of a step: 1 where a checkpoint was made of 4-bit
    weights (as GGUF's Q4_1 is), so that rounding to 4 bits again says nothing about what 4 bits cost."""
    groups = weight.float().unflatten(1, (-1, group))
    low, high = groups.aminmax(dim=2, keepdim=True)
    steps = (groups - low) / ((high - low) / INT4_LEVELS).clamp_(min=SMALLEST_SCALE)
    return ((steps - steps.round()).abs() < 0.05).float().mean().item()
