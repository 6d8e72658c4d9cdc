"""A few rows times weights in 4 or 8 bits, which are widened on their way to the tensor cores.

The weights are the left operand, as the instructions want 16 or 64 rows of it, and as few as 8 columns of the other,
x^T. Outputs are cut into tiles; where these are too few to keep all multiprocessors reading, several programs share the
sum over a tile's inputs, and the one that ends last adds up.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from minillm.kernels.triton.dependent_launch import PREFETCHED_LINES, pdl_options, prefetch, wait_for_previous
from minillm.kernels.triton.fragments import Fragments, load_block, widened
from minillm.kernels.triton.gpu import gpu


@triton.jit
def _rows_at(first, num_outputs, KIND: tl.constexpr, OUTPUTS: tl.constexpr):
    """The rows of memory that have the outputs from `first` on: of fp8 one each, of the others 64 in a unit. Outputs
    past the last one are read from within the matrix."""
    if KIND == "fp8":
        row = tl.minimum(first + tl.arange(0, OUTPUTS), num_outputs - 1)
    else:
        row = tl.minimum(first // 64 + tl.arange(0, OUTPUTS // 64), tl.cdiv(num_outputs, 64) - 1)
    return row.to(tl.int64)


@triton.jit
def _scales_at(scales, first, num_outputs, num_blocks, KIND: tl.constexpr, OUTPUTS: tl.constexpr):
    """What `load_block` is given as scales of the first inputs of these outputs."""
    of_scales = scales
    if KIND == "int4":
        output = first + tl.arange(0, OUTPUTS)
        unit = tl.minimum(output // 64, tl.cdiv(num_outputs, 64) - 1).to(tl.int64)
        of_scales = scales + unit * num_blocks * 64 + output % 64
    return of_scales


@triton.jit
def _add_up(accumulator, parts, arrived, split, splits):
    """Store this program's part of a tile's sum.

    Args:
        parts: [splits, outputs, rows], this tile's.
        arrived: programs that have stored theirs; 0 when all have.
    Returns:
        Whether it was the last one of them, and the sum of all then.
    """
    OUTPUTS: tl.constexpr = accumulator.shape[0]
    ROWS: tl.constexpr = accumulator.shape[1]
    AT_ONCE: tl.constexpr = max(2, min(8, 8192 // (OUTPUTS * ROWS)))
    of_first = parts + tl.arange(0, OUTPUTS)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
    tl.store(of_first + split * (OUTPUTS * ROWS), accumulator)
    tl.debug_barrier()
    last = tl.atomic_add(arrived, 1, sem="acq_rel") == splits - 1
    if last:
        # Always in one order, so the sum doesn't depend on which program ended first.
        accumulator = tl.zeros([OUTPUTS, ROWS], tl.float32)
        for some in tl.range(0, splits, AT_ONCE, num_stages=1):
            for one in tl.static_range(AT_ONCE):
                of_part = of_first + (some + one) * (OUTPUTS * ROWS)
                accumulator += tl.load(of_part, mask=some + one < splits, other=0.0, cache_modifier=".cg")
        tl.store(arrived, 0)
    return last, accumulator


@triton.jit(do_not_specialize=["num_rows"])
def multiply_few(
    x,  # [T, size]
    pairs,  # see Fragments
    scales,  # see Fragments
    bias,  # [out]
    parts,  # [tiles, splits, OUTPUTS, ROWS] float32, with SPLIT
    arrived,  # [tiles] int32, all 0, before and after
    output,  # [T, out]
    num_rows,
    num_outputs,
    num_blocks,
    size,
    HAS_BIAS: tl.constexpr,
    KIND: tl.constexpr,
    EVEN: tl.constexpr,  # inputs need no padding
    SPLIT: tl.constexpr,  # several programs share the sum of a tile
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,  # blocks
    PTX: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid: (tiles of outputs x tiles of rows, splits). Programs with the same weights and other rows run side by side,
    so that one of them reads from memory, and the others what it left in the L2 cache."""
    INPUTS: tl.constexpr = 32 if KIND == "int8" else 64
    STRIDE: tl.constexpr = 32 if KIND == "fp8" else 1024
    here, split, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    row_tiles = tl.cdiv(num_rows, ROWS)
    tile = here // row_tiles
    rows = here % row_tiles * ROWS + tl.arange(0, ROWS)
    of_row = x + tl.minimum(rows, num_rows - 1).to(tl.int64) * size  # those past the end are multiplied for nothing
    share = tl.cdiv(num_blocks, splits * STEP) * STEP
    begin = split * share
    end = tl.minimum(begin + share, num_blocks)
    first_block = _rows_at(tile * OUTPUTS, num_outputs, KIND, OUTPUTS) * num_blocks
    of_scales = _scales_at(scales, tile * OUTPUTS, num_outputs, num_blocks, KIND, OUTPUTS)
    if PDL:
        LINES: tl.constexpr = PREFETCHED_LINES // first_block.shape[0]
        prefetch(pairs + first_block * STRIDE, begin * STRIDE, end * STRIDE, LINES)
        if KIND == "int4":  # whose scales are as many bytes as a fourth of the weights, or an eighth
            prefetch(scales + first_block * 64, begin * 64, end * 64, LINES // 4)
    wait_for_previous(PDL)
    of_pairs = pairs + (first_block * STRIDE)[:, None] + tl.arange(0, STRIDE)[None, :]
    local = tl.arange(0, OUTPUTS)
    accumulator = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for start in tl.range(begin, end, STEP):
        for offset in tl.static_range(STEP):
            block = start + offset
            scales_here = of_scales + block * 64 if KIND == "int4" else of_scales
            weights = load_block(of_pairs + block * STRIDE, scales_here, KIND, x.dtype.element_ty, PTX)
            at = block * INPUTS + tl.arange(0, INPUTS)
            if EVEN:
                columns = tl.load(of_row[:, None] + at[None, :])
            else:
                columns = tl.load(of_row[:, None] + at[None, :], mask=(at < size)[None, :], other=0.0)
            accumulator = tl.dot(weights, tl.trans(columns), accumulator, input_precision="ieee")
    last = True
    if SPLIT:
        of_tile = parts + here.to(tl.int64) * splits * (OUTPUTS * ROWS)
        last, accumulator = _add_up(accumulator, of_tile, arrived + here, split, splits)
    if last:
        outputs = tile * OUTPUTS + local
        inside = outputs < num_outputs
        if KIND != "int4":
            accumulator *= tl.load(scales + outputs, mask=inside, other=0.0)[:, None]
        if HAS_BIAS:
            accumulator += tl.load(bias + outputs, mask=inside, other=0.0).to(tl.float32)[:, None]
        output_at = rows.to(tl.int64)[None, :] * num_outputs + outputs[:, None]
        tl.store(
            output + output_at,
            accumulator.to(output.dtype.element_ty),
            mask=inside[:, None] & (rows < num_rows)[None, :],
        )


@dataclass(frozen=True, slots=True)
class FragmentTile:
    """What one program of `multiply_few` does, and how many share the sum of a tile."""

    outputs: int
    rows: int
    step: int
    """Blocks of inputs whose loads are on their way together"""
    num_warps: int
    num_stages: int
    splits: int = 1


MOST_ROWS = {"int4": 128, "int8": 128, "fp8": 32}
"""For more rows int4 and int8 are widened first, and PyTorch multiplies: 5 bytes a weight are moved, but once for all.
fp8 is then multiplied in fp8, by its layer: of an 8B's steps on an H100, that took 6.1 ms for 32 rows and 8.7 for 128,
where int8, whose bytes and kernel are fp8's here, took 5.1 and 14.7 (when each tile of rows read weights anew)."""
TILES = {
    "int4": {8: FragmentTile(128, 8, 1, 4, 5), 32: FragmentTile(64, 32, 2, 4, 4)},
    "int8": {8: FragmentTile(64, 8, 2, 2, 6), 32: FragmentTile(64, 32, 4, 4, 4)},
    "fp8": {8: FragmentTile(64, 8, 2, 4, 4), 32: FragmentTile(64, 32, 2, 4, 4)},
}
"""By kind, and for how many rows: of those tried on an H100 (course/data/measured/tuned_kernels_h100.json), the
fastest for an 8B's layers taken together. fp8's, in this order, haven't been tried: they are tiles that were fast for
int8, in steps of 128 inputs. With 16 rows or more Triton chooses Hopper's own matrix instructions, and these want steps
of two blocks: with one, several are under way together, and from 64 rows on sums were wrong.

A program reads all of x. For 32 rows and 64 outputs that's 1.6 times the bytes of its int4 weights, and the L2 cache,
not memory, is probably the limit: it gives 191 MB in 34.1 microseconds for 4096 x 28672. With 128 outputs x would be
read half as often, but of such int4 tiles only one with steps of one block was faster (30.5)."""
PROGRAMS = 3
"""For each multiprocessor: programs share the sums of tiles until there are so many."""
MOST_SPLITS = 16


def tile_for(weights: Fragments, num_rows: int, num_processors: int) -> FragmentTile:
    """What one program does, and how many share a sum: a power of two, each of two steps at least."""
    tiles = TILES[weights.kind]
    tile = tiles[next((rows for rows in tiles if num_rows <= rows), max(tiles))]
    return with_splits(tile, weights, num_rows, PROGRAMS * num_processors)


def with_splits(tile: FragmentTile, weights: Fragments, num_rows: int, num_programs: int) -> FragmentTile:
    """The tile, shared by so many that there are up to `num_programs`."""
    num_tiles = triton.cdiv(weights.out, tile.outputs) * triton.cdiv(num_rows, tile.rows)
    wanted = min(MOST_SPLITS, num_programs // max(1, num_tiles), weights.num_blocks // (2 * tile.step))
    return replace(tile, splits=1 << (max(1, wanted).bit_length() - 1))


def are_few(x: Tensor, weights: Fragments) -> bool:
    """Whether `multiply_few` is for these rows [T, in]."""
    return len(x) <= MOST_ROWS[weights.kind] and x.dtype != torch.float32  # which no tensor cores multiply


def linear(x: Tensor, weights: Fragments, bias: Tensor | None, arrived: Tensor) -> Tensor:
    """x W^T + b, rounded once: [T, out] in the dtype of x [T, in]. fp8: of few rows.

    Launches depend on shapes only, so a CUDA graph may record it.

    Args:
        bias: [out]
        arrived: see `multiply`.
    """
    if not are_few(x, weights):
        return F.linear(x, widened(weights, x.dtype), bias)
    tile = tile_for(weights, len(x), gpu(x.device).num_processors)
    return multiply(x.contiguous(), weights, bias, tile, arrived)


def multiply(x: Tensor, weights: Fragments, bias: Tensor | None, tile: FragmentTile, arrived: Tensor) -> Tensor:
    """x W^T + b: [T, out] for x [T, in] float16, bfloat16 or float32.

    Args:
        arrived: int32 zeros, at least one for each tile whose sum is shared; see counters.py.
    """
    num_rows = len(x)
    num_tiles = triton.cdiv(weights.out, tile.outputs) * triton.cdiv(num_rows, tile.rows)
    output = x.new_empty((num_rows, weights.out))
    parts = output
    if tile.splits > 1:
        assert num_tiles <= len(arrived)
        parts = x.new_empty((num_tiles * tile.splits, tile.outputs, tile.rows), dtype=torch.float32)
    tensors = (x, weights.pairs, weights.scales, x if bias is None else bias, parts, arrived, output)
    multiply_few[num_tiles, tile.splits](
        *tensors,
        num_rows,
        weights.out,
        weights.num_blocks,
        weights.size,
        HAS_BIAS=bias is not None,
        KIND=weights.kind,
        EVEN=weights.is_even,
        SPLIT=tile.splits > 1,
        OUTPUTS=tile.outputs,
        ROWS=tile.rows,
        STEP=tile.step,
        PTX=x.device.type != "cpu" and x.dtype == torch.bfloat16,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **pdl_options(x.device),
    )
    return output
