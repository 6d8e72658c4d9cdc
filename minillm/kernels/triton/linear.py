"""What linear layers with fewer bits want of a GPU: the product with int8 or int4 weights, and rows rounded to fp8.

**int8.** A decode step takes as long as reading its weights, so they are read once, as int8, and widened in registers:
half the bytes of 16 bits, where widening the matrix first would move 5 bytes a weight instead of 1. Tensor cores
multiply by the widened numbers, exactly, and the scale of an output comes after the sum over its inputs.

**int4.** The same, with two weights in a byte: input j of a group and input j + GROUP / 2. So the halves of the bytes
of a tile are two tiles, each with the scale and offset of its group, and no weight has to change places.

Weights are the left operand, x transposed the right one. So the few rows of a decode step are the short side of a
tile (16, and not the 64 of a Hopper matrix instruction's left operand), and weights go from registers into the product.

**fp8.** torch._scaled_mm multiplies; here rows of x are rounded for it, in one launch instead of ten.

Tiles of few rows are those that were fastest for the layers of an 8B model on an H100. Speeds: docs/measured.md.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from minillm.kernels.quantization import FP8
from minillm.kernels.triton.attention import gpu, power_of_two, splits_for
from minillm.kernels.triton.ops import ELEMENTS_PER_PROGRAM, warps_for
from minillm.kernels.triton.rounding import quantize

FEW_ROWS = 16
"""The fewest that a tile has."""
SHARES = 2
"""Programs for each one that attention would start: more of them end more evenly, if with more parts to add."""


def tile_for(num_rows: int, itemsize: int) -> dict[str, int]:
    """What one program does for `num_rows` rows of x, whose numbers have `itemsize` bytes.

    Returns:
        Outputs and rows, inputs in each step of their sums, and how many steps are loaded ahead.
    """
    if itemsize == 4:  # no tensor cores for float32: every product goes through registers, so little at once
        return dict(OUTPUTS=32, ROWS=16, INPUTS=64, num_warps=4, num_stages=2)
    if num_rows <= 64:
        rows = max(FEW_ROWS, power_of_two(num_rows))
        return dict(OUTPUTS=64, ROWS=rows, INPUTS=128, num_warps=4, num_stages=3)
    return dict(OUTPUTS=128, ROWS=128, INPUTS=64, num_warps=8, num_stages=4)


def int8_linear(x: Tensor, numbers: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b for W = numbers x scales, rounded once.

    Args:
        x: [T, in] float16, bfloat16 or float32.
        numbers: [out, in] int8.
        scales: [out] float32.
        bias: [out]
    Returns:
        [T, out] in x's dtype.
    """
    return _linear(x, numbers, scales, bias, group=0)


def int4_linear(x: Tensor, packed: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b for W = low + step x q, each weight rounded to x's dtype, and then the sum.

    Args:
        x, bias: as int8_linear has them.
        packed: [out, in / 2] uint8: input j of a group of q, and 16 times input j + group / 2.
        scales: [out, in / group, 2] bfloat16: (step, low), as `quantize_int4` returns them.
    """
    return _linear(x, packed, scales.view(torch.int32), bias, group=x.shape[1] // scales.shape[1])


def _linear(x: Tensor, numbers: Tensor, scales: Tensor, bias: Tensor | None, group: int) -> Tensor:
    """Launches depend on shapes only, so a CUDA graph may record it."""
    x = x.contiguous()
    (num_rows, size), num_outputs = x.shape, len(numbers)
    tile = tile_for(num_rows, x.element_size())
    tiles = triton.cdiv(num_outputs, tile["OUTPUTS"]), triton.cdiv(num_rows, tile["ROWS"])
    # Where tiles are too few for the GPU, several programs share the sum of one. Each leaves a float32 for every row
    # and output, written and read, so the more rows there are, the more weights it must read to make up for that.
    work = size * FEW_ROWS // max(num_rows, FEW_ROWS)
    splits = splits_for(max(1, tiles[0] * tiles[1]), work, SHARES * gpu(x.device).num_processors)
    output = x.new_empty((num_rows, num_outputs))
    parts = x.new_empty((splits, num_rows, num_outputs), dtype=torch.float32) if splits > 1 else output
    finish = (scales, scales if bias is None else bias, bias is not None)
    sizes = (num_rows, num_outputs, size)
    _multiply[(*tiles, splits)](x, numbers, parts, *sizes, *finish, group, splits, **tile)
    if splits > 1:
        grid = (num_rows, triton.cdiv(num_outputs, ELEMENTS_PER_PROGRAM))
        _add_parts[grid](parts, output, num_outputs, *finish, group == 0, splits, ELEMENTS_PER_PROGRAM)
    return output


# Without this, Triton would compile again for 1 row and for multiples of 16.
@triton.jit(do_not_specialize=["num_rows"])
def _multiply(
    x,  # [T, size]
    numbers,  # [out, size] int8; or two to a byte, [out, size / 2] uint8
    sums,  # [T, out]; or [SPLITS, T, out] float32, neither scaled nor with bias
    num_rows,
    num_outputs,
    size,
    scales,
    bias,
    HAS_BIAS: tl.constexpr,
    GROUP: tl.constexpr,  # of int4: as many inputs have a scale and an offset; 0 = int8
    SPLITS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    """Grid: (tiles of outputs, tiles of rows, splits), taken in another order: eight tiles of rows that follow each
    other share a tile of weights, and x's rows for all eight stay in the cache."""
    row_tile, output_tile = tl.swizzle2d(tl.program_id(1), tl.program_id(0), tl.num_programs(1), tl.num_programs(0), 8)
    outputs = output_tile * OUTPUTS + tl.arange(0, OUTPUTS)
    row = (row_tile * ROWS + tl.arange(0, ROWS))[None, :]
    of_row = x + row.to(tl.int64) * size
    share = tl.cdiv(tl.cdiv(size, SPLITS), INPUTS) * INPUTS
    begin = tl.program_id(2) * share
    accumulator = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for start in tl.range(begin, tl.minimum(begin + share, size), INPUTS):
        # "ieee": float32 stays float32. The default would round it to tf32's 10 bits.
        if GROUP == 0:
            at = start + tl.arange(0, INPUTS)
            pointers = numbers + outputs.to(tl.int64)[:, None] * size + at[None, :]
            weights = tl.load(pointers, mask=(outputs < num_outputs)[:, None] & (at < size)[None, :], other=0)
            columns = tl.load(of_row + at[:, None], mask=(row < num_rows) & (at < size)[:, None], other=0.0)
            accumulator = tl.dot(weights.to(x.dtype.element_ty), columns, accumulator, input_precision="ieee")
        else:
            bits, step, low = _load_groups(numbers, scales, outputs, num_outputs, start, size, GROUP, INPUTS)
            at = start + tl.arange(0, INPUTS // 2) // (GROUP // 2) * GROUP + tl.arange(0, INPUTS // 2) % (GROUP // 2)
            for half in tl.static_range(2):
                # The float32 whose mantissa begins with q is 128 + q. An instruction that converts would take several
                # times as long as the one that multiplies and adds.
                nibbles = (bits & 15) * 65536 if half == 0 else (bits & 240) * 4096
                weights = (nibbles + 0x43000000).to(tl.float32, bitcast=True) * step + low
                weights = tl.reshape(weights.to(x.dtype.element_ty), [OUTPUTS, INPUTS // 2])
                inside = (row < num_rows) & (at < size)[:, None]
                columns = tl.load(of_row + (at + half * (GROUP // 2))[:, None], mask=inside, other=0.0)
                accumulator = tl.dot(weights, columns, accumulator, input_precision="ieee")
    output = outputs[:, None]
    if SPLITS == 1:
        accumulator = _finish(accumulator, output, num_outputs, scales, bias, HAS_BIAS, GROUP == 0)
    sum_at = (tl.program_id(2).to(tl.int64) * num_rows + row) * num_outputs + output
    inside = (row < num_rows) & (output < num_outputs)
    tl.store(sums + sum_at, accumulator.to(sums.dtype.element_ty), mask=inside)


@triton.jit
def _load_groups(packed, scales, outputs, num_outputs, start, size, GROUP: tl.constexpr, INPUTS: tl.constexpr):
    """The inputs that begin at `start`: bytes [OUTPUTS, groups, GROUP / 2] as int32, and [OUTPUTS, groups, 1] the steps
    and what to add: the lows, less 128 steps. What lies outside the matrix is 0."""
    groups = (start // GROUP + tl.arange(0, INPUTS // GROUP))[None, :, None]
    of_output = outputs.to(tl.int64)[:, None, None] * (size // GROUP) + groups
    inside = (outputs < num_outputs)[:, None, None] & (groups < size // GROUP)
    bytes = tl.load(packed + of_output * (GROUP // 2) + tl.arange(0, GROUP // 2)[None, None, :], mask=inside, other=0)
    pair = tl.load(scales + of_output, mask=inside, other=0)  # two bfloat16: float32 whose lower halves are 0
    step, low = (pair << 16).to(tl.float32, bitcast=True), (pair & -65536).to(tl.float32, bitcast=True)
    return bytes.to(tl.int32), step, low - 128 * step


@triton.jit
def _add_parts(
    parts,  # [SPLITS, T, out] float32
    result,  # [T, out]
    num_outputs,
    scales,
    bias,
    HAS_BIAS: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    SPLITS: tl.constexpr,
    ELEMENTS: tl.constexpr,
):
    """Grid: (rows, parts of a row). Always in one order, so the sum doesn't depend on which program ended first."""
    output = tl.program_id(1) * ELEMENTS + tl.arange(0, ELEMENTS)
    inside = output < num_outputs
    total = tl.zeros([ELEMENTS], tl.float32)
    for split in tl.static_range(SPLITS):
        row = split * tl.num_programs(0) + tl.program_id(0)
        total += tl.load(parts + row.to(tl.int64) * num_outputs + output, mask=inside, other=0.0)
    total = _finish(total, output, num_outputs, scales, bias, HAS_BIAS, HAS_SCALES)
    row = tl.program_id(0).to(tl.int64)
    tl.store(result + row * num_outputs + output, total.to(result.dtype.element_ty), mask=inside)


@triton.jit
def _finish(sums, output, num_outputs, scales, bias, HAS_BIAS: tl.constexpr, HAS_SCALES: tl.constexpr):
    """Sums of these outputs, scaled, and with their bias."""
    inside = output < num_outputs
    if HAS_SCALES:
        sums *= tl.load(scales + output, mask=inside, other=0.0)
    if HAS_BIAS:
        sums += tl.load(bias + output, mask=inside, other=0.0).to(tl.float32)
    return sums


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
