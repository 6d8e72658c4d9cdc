"""A few rows times weights in 4 or 8 bits, which are widened on their way to the tensor cores.

The weights are the left operand, as the instructions want 16 or 64 rows of it, and as few as 8 columns of the other,
x^T. Outputs are cut into tiles; where these are too few to keep all multiprocessors reading, several programs share the
sum over a tile's inputs, and the one that ends last adds up.

Where outputs are gates and ups, silu(gate) * up may follow in the same launch (SWIGLU): half of a tile are gates then,
and the other half their ups. That's one launch instead of two, and half as many numbers written. Not yet measured.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from minillm.kernels.triton.dependent_launch import PREFETCHED_LINES, pdl_options, prefetch, wait_for_previous
from minillm.kernels.triton.fragments import STRIP, Fragments, load_block, widened
from minillm.kernels.triton.gpu import gpu
from minillm.kernels.triton.swiglu import gate_halves


@triton.jit
def _outputs_of(tile, num_outputs, EVERY: tl.constexpr, OUTPUTS: tl.constexpr, SWIGLU: tl.constexpr):
    """Every EVERY-th output of a tile.

    Returns:
        Each one's number, with SWIGLU among the gates or among the ups; how many of these there are; and where these
        begin. The last tile's numbers may go past the last output.
    """
    PART: tl.constexpr = OUTPUTS // 2 if SWIGLU else OUTPUTS
    size = num_outputs // 2 if SWIGLU else num_outputs
    local = tl.arange(0, OUTPUTS // EVERY) * EVERY
    return tile * PART + local % PART, size, local // PART * size


@triton.jit
def _strips_of(tile, num_outputs, EVERY: tl.constexpr, OUTPUTS: tl.constexpr, SWIGLU: tl.constexpr):
    """The strip of 16 that each EVERY-th output is in, and its number there. Past the last output, a strip of the
    matrix is read for nothing."""
    number, size, begin = _outputs_of(tile, num_outputs, EVERY, OUTPUTS, SWIGLU)
    strip = begin // 16 + tl.minimum(number // 16, tl.cdiv(size, 16) - 1)
    return strip.to(tl.int64), number % 16


@triton.jit
def _pairs_at(pairs, tile, num_outputs, num_blocks, KIND: tl.constexpr, OUTPUTS: tl.constexpr, SWIGLU: tl.constexpr):
    """Pointers to where a tile's strips begin, 4 to a unit; of fp8, its outputs."""
    if KIND == "fp8":
        number, size, begin = _outputs_of(tile, num_outputs, 1, OUTPUTS, SWIGLU)
        at = (begin + tl.minimum(number, size - 1)).to(tl.int64) * num_blocks * 32
    else:
        strip, _ = _strips_of(tile, num_outputs, 16, OUTPUTS, SWIGLU)
        at = strip // 4 * num_blocks * 1024 + strip % 4 * 256
    return pairs + at


@triton.jit
def _scales_at(scales, tile, num_outputs, num_blocks, EVERY: tl.constexpr, OUTPUTS: tl.constexpr, SWIGLU: tl.constexpr):
    """int4: pointers to the scales of the first inputs of every EVERY-th output of a tile."""
    strip, number = _strips_of(tile, num_outputs, EVERY, OUTPUTS, SWIGLU)
    return scales + strip // 4 * num_blocks * 64 + strip % 4 * 16 + number


@triton.jit
def _prefetch_weights(
    first_pairs,
    scales,
    tile,
    num_outputs,
    num_blocks,
    begin,
    end,
    KIND: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SWIGLU: tl.constexpr,
):
    """Ask for the first of a program's weights, and in int4 for their scales."""
    if KIND == "fp8":  # two blocks to a line
        prefetch(first_pairs, begin // 2, tl.cdiv(end, 2), 64, PREFETCHED_LINES // OUTPUTS)
    else:  # four lines to a block of a strip
        BLOCKS: tl.constexpr = PREFETCHED_LINES // (OUTPUTS // 4)
        lines = first_pairs[:, None] + tl.arange(0, 4)[None, :] * 64
        prefetch(tl.reshape(lines, (OUTPUTS // 4,)), begin, end, 1024, BLOCKS)
        if KIND == "int4":
            of_strips = _scales_at(scales, tile, num_outputs, num_blocks, 16, OUTPUTS, SWIGLU)
            prefetch(of_strips, begin, end, 64, BLOCKS)


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
    output,  # [T, out], or with SWIGLU, whose outputs are gates, then ups, [T, out / 2]
    num_rows,
    num_outputs,
    num_blocks,
    size,
    HAS_BIAS: tl.constexpr,
    KIND: tl.constexpr,
    EVEN: tl.constexpr,  # inputs need no padding
    SPLIT: tl.constexpr,  # several programs share the sum of a tile
    SWIGLU: tl.constexpr,
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
    first_pairs = _pairs_at(pairs, tile, num_outputs, num_blocks, KIND, OUTPUTS, SWIGLU)
    of_scales = scales
    if KIND == "int4":
        of_scales = _scales_at(scales, tile, num_outputs, num_blocks, 1, OUTPUTS, SWIGLU)
    if PDL:
        _prefetch_weights(first_pairs, scales, tile, num_outputs, num_blocks, begin, end, KIND, OUTPUTS, SWIGLU)
    wait_for_previous(PDL)
    of_pairs = first_pairs[:, None] + tl.arange(0, 32 if KIND == "fp8" else 256)[None, :]
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
        dtype: tl.constexpr = output.dtype.element_ty
        number, size_of_part, begin_of_part = _outputs_of(tile, num_outputs, 1, OUTPUTS, SWIGLU)
        exists, of_all = number < size_of_part, begin_of_part + number
        if KIND != "int4":
            accumulator *= tl.load(scales + of_all, mask=exists, other=0.0)[:, None]
        if HAS_BIAS:
            accumulator += tl.load(bias + of_all, mask=exists, other=0.0).to(tl.float32)[:, None]
        result = gate_halves(accumulator, dtype) if SWIGLU else accumulator
        number = tile * result.shape[0] + tl.arange(0, result.shape[0])
        output_at = rows.to(tl.int64)[None, :] * size_of_part + number[:, None]
        inside = (number < size_of_part)[:, None] & (rows < num_rows)[None, :]
        tl.store(output + output_at, result.to(dtype), mask=inside)


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
of two blocks: with one, several are under way together, and from 64 rows on sums were wrong. With SWIGLU the
tiles are the same, because the loop is; in that form none has run on a GPU yet.

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


def suits_swiglu(x: Tensor, weights: Fragments) -> bool:
    """Whether `multiply_few` goes on with SwiGLU for these rows [T, in]: ups begin with a strip of their own."""
    return are_few(x, weights) and weights.out % (2 * STRIP) == 0


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


def linear_swiglu(x: Tensor, weights: Fragments, bias: Tensor | None, arrived: Tensor) -> Tensor:
    """silu(gate) * up of (gate, up) = `linear`(...): [T, out / 2], rounded where two launches round. For rows and
    weights that `suits_swiglu` accepts."""
    tile = tile_for(weights, len(x), gpu(x.device).num_processors)
    return multiply(x.contiguous(), weights, bias, tile, arrived, swiglu=True)


def multiply(
    x: Tensor, weights: Fragments, bias: Tensor | None, tile: FragmentTile, arrived: Tensor, swiglu: bool = False
) -> Tensor:
    """x W^T + b: [T, out] for x [T, in] float16, bfloat16 or float32.

    Args:
        arrived: int32 zeros, at least one for each tile whose sum is shared; see counters.py.
        swiglu: outputs are gates, then ups: [T, out / 2], silu(gate) * up.
    """
    num_rows = len(x)
    num_tiles = triton.cdiv(weights.out, tile.outputs) * triton.cdiv(num_rows, tile.rows)
    output = x.new_empty((num_rows, weights.out // 2 if swiglu else weights.out))
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
        SWIGLU=swiglu,
        OUTPUTS=tile.outputs,
        ROWS=tile.rows,
        STEP=tile.step,
        PTX=x.device.type != "cpu" and x.dtype == torch.bfloat16,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **pdl_options(x.device),
    )
    return output
