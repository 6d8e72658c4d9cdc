"""A candidate for decode steps of one request, in 16 bits: a matrix and one row, with what lies before and after it.

The engine gives such products to cuBLAS, and norms and SwiGLU to kernels of their own (minillm/kernels/triton/ops.py).
At batch 1 each of those is a launch that moves a few kilobytes, and a small model's step is mostly launches. Here a
program multiplies some outputs by the whole row, which it adds and norms by itself: that's kilobytes again for each
program, but no launch. Whether it pays hasn't been measured: `tune_kernels` does that.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from minillm.kernels.triton.dependent_launch import pdl_options, wait_for_previous
from minillm.kernels.triton.swiglu import gated


@dataclass(frozen=True, slots=True)
class RowTile:
    """What one program multiplies in a step."""

    outputs: int
    inputs: int
    num_warps: int

    def __str__(self) -> str:
        return f"{self.outputs}x{self.inputs} warps {self.num_warps}"


@dataclass(frozen=True, slots=True)
class NormBefore:
    """The row isn't x itself, but the norm of x + delta."""

    delta: Tensor
    """[1, size]"""
    weight: Tensor
    """[size], a power of two"""
    eps: float


@triton.jit
def multiply_row(
    x,  # [IN]
    delta,  # [IN], with NORM
    norm_weight,  # [IN], with NORM
    eps,
    weight,  # [OUT, IN]
    total,  # [IN], with NORM: x + delta
    output,  # [OUT], or with SWIGLU, whose OUT are gates, then ups, [OUT / 2]
    IN: tl.constexpr,
    OUT: tl.constexpr,
    NORM: tl.constexpr,
    SWIGLU: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid: (tiles of outputs,). Rounded where the separate kernels round, so that only the order of sums differs."""
    local = tl.arange(0, OUTPUTS)
    HALF: tl.constexpr = OUTPUTS // 2
    if SWIGLU:  # half of a tile are gates, the other half their ups
        at = local // HALF * (OUT // 2) + tl.program_id(0) * HALF + local % HALF
    else:
        at = tl.program_id(0) * OUTPUTS + local
    column = tl.arange(0, INPUTS)
    tile = weight + at.to(tl.int64)[:, None] * IN + column[None, :]
    weights = tl.load(tile, eviction_policy="evict_first")  # on their way while the row is made and normed
    wait_for_previous(PDL)
    scale = 1.0
    if NORM:
        every = tl.arange(0, IN)
        added = tl.load(x + every).to(tl.float32) + tl.load(delta + every).to(tl.float32)
        rounded = added.to(total.dtype.element_ty)
        if tl.program_id(0) == 0:
            tl.store(total + every, rounded)
        whole = rounded.to(tl.float32)
        scale = tl.rsqrt(tl.sum(whole * whole, 0) / IN + eps)
    sums = tl.zeros([OUTPUTS, INPUTS], tl.float32)
    for start in tl.range(0, IN, INPUTS):
        ahead = tl.load(tile + start + INPUTS, mask=(start + INPUTS + column < IN)[None, :], other=0.0)
        row = tl.load(x + start + column).to(tl.float32)
        if NORM:
            row = (row + tl.load(delta + start + column).to(tl.float32)).to(total.dtype.element_ty).to(tl.float32)
            normed = row * scale * tl.load(norm_weight + start + column).to(tl.float32)
            row = normed.to(total.dtype.element_ty).to(tl.float32)
        sums += weights.to(tl.float32) * row[None, :]
        weights = ahead
    product = tl.sum(sums, 1)
    if SWIGLU:
        gate, up = tl.split(tl.permute(tl.reshape(product.to(output.dtype.element_ty), (2, HALF)), (1, 0)))
        inner = tl.program_id(0) * HALF + tl.arange(0, HALF)
        tl.store(output + inner, gated(gate, up, output.dtype.element_ty).to(output.dtype.element_ty))
    else:
        tl.store(output + at, product.to(output.dtype.element_ty))


def product_of_row(x: Tensor, weight: Tensor, tile: RowTile, norm: NormBefore | None, swiglu: bool) -> Tensor:
    """x W^T [1, out] of x [1, size]; with SwiGLU [1, out / 2]. The tile's outputs divide `out`, its inputs `size`."""
    out, size = weight.shape
    output, total = x.new_empty((1, out // 2 if swiglu else out)), torch.empty_like(x)
    delta, norm_weight, eps = (x, x, 0.0) if norm is None else (norm.delta, norm.weight, norm.eps)
    sizes = dict(IN=size, OUT=out, NORM=norm is not None, SWIGLU=swiglu, OUTPUTS=tile.outputs, INPUTS=tile.inputs)
    given = (x, delta, norm_weight, eps, weight, total, output)
    options = dict(num_warps=tile.num_warps, num_stages=1, **pdl_options(x.device))
    multiply_row[(out // tile.outputs,)](*given, **sizes, **options)
    return output
