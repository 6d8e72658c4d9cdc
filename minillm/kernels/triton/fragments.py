"""Weights in 4 or 8 bits in the order of the tensor cores' registers, and their product with a few rows.

A decode step takes as long as reading its weights. Read as a matrix, they reach the tensor cores by way of shared
memory, a shuffle and an instruction that converts. Here they are laid out once, when they are loaded, as Marlin does
(Frantar et al. 2024): a thread's 16 bytes are the weights that this thread multiplies, and a program reads one
contiguous stretch.

    matrix [out, in] -> units of 64 outputs -> blocks of 64 inputs (int4), or 32 (int8, fp8): 2,048 bytes
                     -> 4 warps of 16 outputs -> 32 threads -> 8 pairs of bytes

A pair of bytes at column c (0 .. 15) of a block holds the inputs c, 16 + c (and 32 + c, 48 + c): with each of its
parts a block is a left operand of 16 inputs. No weight has to change places between threads.

**Widening** takes bits apart where a conversion would take four times as long. A bfloat16 has 7 bits behind its
leading 1. int4: 0x4180 | 8 q is 16 + q, and the low is that much lower (`quantize_int4`'s base), so a weight takes one
instruction that multiplies and adds. int8: 0x4300 | its lower 7 bits is 128 and those; 128 are subtracted, or 256 where
it's negative. fp8: with its exponent where bfloat16 has one, all that's off is where zero is: a factor of 2^120.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from minillm.kernels.quantization import FP8, dequantize
from minillm.kernels.triton.gpu import gpu

UNIT = 64
"""Outputs: the rows that four warps multiply at once."""
COLUMNS = 16
"""Inputs that a tensor core sums over in one instruction."""
PAIRS = tl.constexpr(UNIT * COLUMNS)
"""Pairs of bytes in a block."""
PARTS = {"int4": 4, "int8": 2, "fp8": 2}
"""Weights in a pair of bytes."""
INT4_BASE = 16
"""int4: what q is added to, see quantize_int4."""
BASE = tl.constexpr(float(INT4_BASE))
BLOCKS = 4
"""Inputs are padded to as many blocks, so a step of the kernel may take 1, 2 or 4."""


@dataclass(frozen=True, slots=True)
class Fragments:
    """A weight matrix [out, in] in that order."""

    pairs: Tensor
    """[units, blocks, 1024] int16"""
    scales: Tensor
    """int8 and fp8: [units x 64] float32. int4: [units, blocks, 64], bfloat16 (step, low) of each group that an output
    has in a block: int64 for two of 32 inputs, int32 for one of 64."""
    kind: str
    """int4, int8 or fp8"""
    out: int
    size: int
    group: int = 0
    """int4: inputs that share a step and a low."""


def to_fragments(numbers: Tensor, scales: Tensor, kind: str) -> Fragments:
    """Lay out what `quantize_int4` with INT4_BASE (uint8 in 0 .. 15), or `quantize_rows` (int8, fp8) returns."""
    out, size = numbers.shape
    inputs = PARTS[kind] * COLUMNS
    units, blocks = -(-out // UNIT), -(-size // (inputs * BLOCKS)) * BLOCKS
    bytes = numbers.view(torch.uint8)
    bytes = F.pad(bytes, (0, blocks * inputs - size, 0, units * UNIT - out))
    # Of 64 outputs: 16 a warp, of which a thread has r and r + 8. Of 16 columns: pairs c and c + 8.
    shape = (units, 4, 2, 8, blocks, PARTS[kind], 2, 4, 2)
    bytes = bytes.view(shape).permute(5, 0, 4, 1, 3, 7, 6, 2, 8)
    pairs = torch.zeros(bytes.shape[1:], dtype=torch.int16, device=bytes.device)
    for part, numbers_of_part in enumerate(bytes):
        pairs |= numbers_of_part.to(torch.int16) << part * (16 // PARTS[kind])
    pairs = pairs.view(units, blocks, -1)
    if kind != "int4":
        return Fragments(pairs, F.pad(scales.float().flatten(), (0, units * UNIT - out)), kind, out, size)
    group = size // scales.shape[1]
    scales = F.pad(scales, (0, 0, 0, blocks * inputs // group - scales.shape[1], 0, units * UNIT - out))
    words = scales.view(units, UNIT, blocks, -1).transpose(1, 2).contiguous()
    words = words.view(torch.int64 if group == 32 else torch.int32).squeeze(3)
    return Fragments(pairs, words, kind, out, size, group)


INT4_TO_BF16 = tl.constexpr(
    """
{
.reg .b32 q, step, low;
.reg .b16 a, b, c, d;
mov.b32 {a, b}, $5;
mov.b32 {c, d}, $6;
mov.b32 step, {a, c};
mov.b32 low, {b, d};
shl.b32 q, $4, 3;
lop3.b32 q, q, 0x00780078, 0x41804180, 0xEA;
fma.rn.bf16x2 $0, q, step, low;
shr.u32 q, $4, 1;
lop3.b32 q, q, 0x00780078, 0x41804180, 0xEA;
fma.rn.bf16x2 $1, q, step, low;
mov.b32 {a, b}, $7;
mov.b32 {c, d}, $8;
mov.b32 step, {a, c};
mov.b32 low, {b, d};
shr.u32 q, $4, 5;
lop3.b32 q, q, 0x00780078, 0x41804180, 0xEA;
fma.rn.bf16x2 $2, q, step, low;
shr.u32 q, $4, 9;
lop3.b32 q, q, 0x00780078, 0x41804180, 0xEA;
fma.rn.bf16x2 $3, q, step, low;
}
"""
)
INT8_TO_BF16 = tl.constexpr(
    """
{
.reg .b32 p, q, r, one;
mov.b32 one, 0x3F803F80;
mov.b32 p, $2;
lop3.b32 q, p, 0x007F007F, 0x43004300, 0xEA;
lop3.b32 r, p, 0x00800080, 0xC300C300, 0xEA;
fma.rn.bf16x2 $0, q, one, r;
shr.u32 p, p, 8;
lop3.b32 q, p, 0x007F007F, 0x43004300, 0xEA;
lop3.b32 r, p, 0x00800080, 0xC300C300, 0xEA;
fma.rn.bf16x2 $1, q, one, r;
}
"""
)
FP8_TO_BF16 = tl.constexpr(
    """
{
.reg .b32 p, q, r, factor, zero;
mov.b32 factor, 0x7B807B80;
mov.b32 zero, 0x80008000;
shl.b32 p, $2, 8;
shr.u32 q, p, 4;
and.b32 r, p, 0x80008000;
lop3.b32 q, q, 0x07F007F0, r, 0xEA;
fma.rn.bf16x2 $0, q, factor, zero;
shr.u32 q, $2, 4;
and.b32 r, $2, 0x80008000;
lop3.b32 q, q, 0x07F007F0, r, 0xEA;
fma.rn.bf16x2 $1, q, factor, zero;
}
"""
)


@triton.jit
def _e4m3(byte, dtype: tl.constexpr):
    """The number with this byte (0 .. 255), by the exponent of a float32."""
    magnitude = ((byte & 127) << 20).to(tl.float32, bitcast=True) * 2.0**120
    return tl.where(byte >= 128, -magnitude, magnitude).to(dtype)


@triton.jit
def widen_two(pairs, KIND: tl.constexpr, dtype: tl.constexpr, PTX: tl.constexpr):
    """The lower and the upper numbers of pairs of bytes (int16), int8 or fp8, without their scales."""
    if PTX:
        lower, upper = tl.inline_asm_elementwise(
            INT8_TO_BF16 if KIND == "int8" else FP8_TO_BF16,
            "=&r,=&r,r",
            [pairs],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    elif KIND == "int8":
        lower, upper = pairs.to(tl.int8).to(dtype), (pairs >> 8).to(tl.int8).to(dtype)
    else:
        lower, upper = _e4m3(pairs.to(tl.int32) & 255, dtype), _e4m3(pairs.to(tl.int32) >> 8 & 255, dtype)
    return lower, upper


@triton.jit
def _widen(pairs, first, second, KIND: tl.constexpr, dtype: tl.constexpr, PTX: tl.constexpr):
    """Pairs of bytes [rows, 16] to weights [rows, 16 x parts], without the scales of int8 and fp8.

    Args:
        first, second: int4's (step, low) [rows, 1] of the first two parts and of the others.
    """
    if KIND == "int4":
        if PTX:
            a, b, c, d = tl.inline_asm_elementwise(
                INT4_TO_BF16,
                "=&r,=&r,=&r,=&r,r,r,r,r,r",
                [pairs, first, second],
                dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
                is_pure=True,
                pack=2,
            )
        else:
            bits = pairs.to(tl.int32)
            step, low = (first << 16).to(tl.float32, bitcast=True), (first & -65536).to(tl.float32, bitcast=True)
            a = (((bits & 15).to(tl.float32) + BASE) * step + low).to(dtype)
            b = (((bits >> 4 & 15).to(tl.float32) + BASE) * step + low).to(dtype)
            step, low = (second << 16).to(tl.float32, bitcast=True), (second & -65536).to(tl.float32, bitcast=True)
            c = (((bits >> 8 & 15).to(tl.float32) + BASE) * step + low).to(dtype)
            d = (((bits >> 12 & 15).to(tl.float32) + BASE) * step + low).to(dtype)
        quads = tl.join(tl.join(a, b), tl.join(c, d))  # [rows, column, part % 2, part / 2]
        return tl.reshape(tl.permute(quads, (0, 3, 2, 1)), (pairs.shape[0], 4 * pairs.shape[1]))
    else:
        a, b = widen_two(pairs, KIND, dtype, PTX)
        return tl.reshape(tl.permute(tl.join(a, b), (0, 2, 1)), (pairs.shape[0], 2 * pairs.shape[1]))


@triton.jit
def _load_block(
    pointers,
    scales,
    KIND: tl.constexpr,
    dtype: tl.constexpr,
    PTX: tl.constexpr,
    UNITS: tl.constexpr,
):
    """Weights [UNITS x 64, inputs of a block].

    Args:
        pointers: [UNITS, 1024] of a block in each unit.
        scales: int4: [UNITS x 64].
    """
    words = tl.load(pointers, eviction_policy="evict_first")
    # Bits of an index, highest first: unit | warp | row | pair of columns | columns + 8 | row + 8 | second of a pair
    words = tl.reshape(words, (UNITS, 4, 8, 4, 2, 2, 2))
    words = tl.permute(words, (0, 1, 5, 2, 4, 3, 6))
    pairs = tl.reshape(words, (UNITS * 64, 16))
    if KIND == "int4":
        word = tl.load(scales)
        first, second = word.to(tl.int32), word.to(tl.int32)
        if word.dtype == tl.int64:
            second = (word >> 32).to(tl.int32)
        first = tl.broadcast_to(first[:, None], pairs.shape)
        second = tl.broadcast_to(second[:, None], pairs.shape)
        weights = _widen(pairs, first, second, KIND, dtype, PTX)
    else:  # what follows a return is compiled all the same
        weights = _widen(pairs, pairs, pairs, KIND, dtype, PTX)
    return weights


@triton.jit(do_not_specialize=["num_rows"])
def multiply_few(
    x,  # [T, size]
    pairs,  # [units, num_blocks, 1024] int16
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
):
    """Grid: (tiles of outputs, splits, tiles of rows)."""
    UNITS: tl.constexpr = OUTPUTS // 64
    INPUTS: tl.constexpr = 64 if KIND == "int4" else 32
    tile, split, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    unit = tile * UNITS + tl.arange(0, UNITS)
    unit = tl.minimum(unit, tl.cdiv(num_outputs, 64) - 1).to(tl.int64)
    rows = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    of_row = x + tl.minimum(rows, num_rows - 1).to(tl.int64) * size  # those past the end are multiplied for nothing
    share = tl.cdiv(num_blocks, splits * STEP) * STEP
    begin = split * share
    end = tl.minimum(begin + share, num_blocks)
    of_unit = pairs + (unit * num_blocks)[:, None] * 1024 + tl.arange(0, 1024)[None, :]
    local = tl.arange(0, OUTPUTS)
    of_scale = scales
    if KIND == "int4":
        scale_unit = tl.minimum(tile * UNITS + local // 64, tl.cdiv(num_outputs, 64) - 1).to(tl.int64)
        of_scale = scales + scale_unit * num_blocks * 64 + local % 64
    accumulator = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for start in tl.range(begin, end, STEP):
        for offset in tl.static_range(STEP):
            block = start + offset
            of_block = of_scale + block * 64 if KIND == "int4" else of_scale
            weights = _load_block(of_unit + block * 1024, of_block, KIND, x.dtype.element_ty, PTX, UNITS)
            at = block * INPUTS + tl.arange(0, INPUTS)
            if EVEN:
                columns = tl.load(of_row[:, None] + at[None, :])
            else:
                columns = tl.load(of_row[:, None] + at[None, :], mask=(at < size)[None, :], other=0.0)
            accumulator = tl.dot(weights, tl.trans(columns), accumulator, input_precision="ieee")
    last = True
    if SPLIT:
        here = tl.program_id(2) * tl.num_programs(0) + tile
        of_tile = parts + here.to(tl.int64) * splits * (OUTPUTS * ROWS)
        of_tile += local[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
        tl.store(of_tile + split * (OUTPUTS * ROWS), accumulator)
        tl.debug_barrier()
        last = tl.atomic_add(arrived + here, 1, sem="acq_rel") == splits - 1
        if last:
            # Always in one order, so the sum doesn't depend on which program ended first.
            accumulator = tl.zeros([OUTPUTS, ROWS], tl.float32)
            AT_ONCE: tl.constexpr = max(2, min(8, 8192 // (OUTPUTS * ROWS)))
            for some in tl.range(0, splits, AT_ONCE, num_stages=1):
                for one in tl.static_range(AT_ONCE):
                    of_part = of_tile + (some + one) * (OUTPUTS * ROWS)
                    accumulator += tl.load(of_part, mask=some + one < splits, other=0.0, cache_modifier=".cg")
            tl.store(arrived + here, 0)
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


MOST_ROWS = 128
"""For more rows all weights are widened first, and PyTorch multiplies: 5 bytes a weight are moved, but once for all."""
TILES = {
    "int4": {8: FragmentTile(128, 8, 1, 4, 5), 32: FragmentTile(64, 32, 2, 4, 4)},
    "int8": {8: FragmentTile(64, 8, 2, 2, 6), 32: FragmentTile(64, 32, 4, 4, 4)},
}
"""By kind, and for how many rows: of those tried on an H100 (course/data/measured/tuned_kernels_h100.json), the
fastest for an 8B's layers taken together. With 16 rows or more Triton chooses Hopper's own matrix instructions, and
these want steps of two blocks: with one, several are under way at once, and from 64 rows on sums were wrong."""
PROGRAMS = 3
"""For each multiprocessor: programs share the sums of tiles until there are so many."""
MOST_SPLITS = 16


def tile_for(weights: Fragments, num_rows: int, num_processors: int) -> FragmentTile:
    """What one program does, and how many share a sum: a power of two, each of two steps at least."""
    tiles = TILES[weights.kind]
    tile = tiles[next((rows for rows in tiles if num_rows <= rows), max(tiles))]
    num_tiles = triton.cdiv(weights.out, tile.outputs) * triton.cdiv(num_rows, tile.rows)
    wanted = min(MOST_SPLITS, PROGRAMS * num_processors // max(1, num_tiles), weights.pairs.shape[1] // (2 * tile.step))
    return replace(tile, splits=1 << (max(1, wanted).bit_length() - 1))


def linear(x: Tensor, weights: Fragments, bias: Tensor | None, arrived: Tensor) -> Tensor:
    """x W^T + b, rounded once: [T, out] in the dtype of x [T, in].

    Launches depend on shapes only, so a CUDA graph may record it.

    Args:
        bias: [out]
        arrived: see `counters`.
    """
    if len(x) > MOST_ROWS or x.dtype == torch.float32:  # no tensor cores multiply float32
        return F.linear(x, widened(weights, x.dtype), bias)
    tile = tile_for(weights, len(x), gpu(x.device).num_processors)
    return multiply(x.contiguous(), weights, bias, tile, arrived)


def counters(weights: Fragments) -> Tensor:
    """int32 zeros, at least one for each tile: what `linear` counts with. Zeros again afterwards."""
    most = len(weights.pairs) * triton.cdiv(MOST_ROWS, 32)
    return torch.zeros(most, dtype=torch.int32, device=weights.pairs.device)


def rows_of(weights: Fragments, ids: Tensor) -> Tensor:
    """Rows [n] of W, float32 [n, in]: what an embedding table is asked for. int8 and fp8."""
    units, blocks, _ = weights.pairs.shape
    shape = (units, blocks, 4, 8, 4, 2, 2, 2)
    unit, of_unit = ids // UNIT, ids % UNIT
    found = weights.pairs.view(shape)[unit, :, of_unit // 16, of_unit % 8, :, :, of_unit // 8 % 2]
    columns = found.transpose(2, 3).reshape(len(ids), blocks, 1, COLUMNS)  # of the pair of columns, and columns + 8
    parts = torch.stack([columns >> part * 8 & 255 for part in range(2)], dim=2).to(torch.uint8)
    numbers = parts.flatten(1)[:, : weights.size].view(torch.int8 if weights.kind == "int8" else FP8)
    return dequantize(numbers, weights.scales[ids])


def multiply(x: Tensor, weights: Fragments, bias: Tensor | None, tile: FragmentTile, arrived: Tensor) -> Tensor:
    """x W^T + b: [T, out] for x [T, in] float16, bfloat16 or float32.

    Args:
        arrived: int32 zeros, at least one for each tile; zeros again afterwards.
    """
    num_rows = len(x)
    grid = triton.cdiv(weights.out, tile.outputs), tile.splits, triton.cdiv(num_rows, tile.rows)
    output = x.new_empty((num_rows, weights.out))
    parts = output
    if tile.splits > 1:
        parts = x.new_empty((grid[0] * grid[1] * grid[2], tile.outputs, tile.rows), dtype=torch.float32)
    num_blocks = weights.pairs.shape[1]
    tensors = (x, weights.pairs, weights.scales, x if bias is None else bias, parts, arrived, output)
    multiply_few[grid](
        *tensors,
        num_rows,
        weights.out,
        num_blocks,
        weights.size,
        HAS_BIAS=bias is not None,
        KIND=weights.kind,
        EVEN=weights.size == num_blocks * PARTS[weights.kind] * COLUMNS,
        SPLIT=tile.splits > 1,
        OUTPUTS=tile.outputs,
        ROWS=tile.rows,
        STEP=tile.step,
        PTX=x.device.type != "cpu" and x.dtype == torch.bfloat16,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return output


def widened(weights: Fragments, dtype: torch.dtype, step: int = 2) -> Tensor:
    """The matrix [out, in] in 16 bits, scaled: what a product with many rows multiplies faster."""
    units, blocks, _ = weights.pairs.shape
    matrix = weights.pairs.new_empty((weights.out, weights.size), dtype=dtype)
    widen_all[(units, blocks // step)](
        weights.pairs,
        weights.scales,
        matrix,
        weights.out,
        blocks,
        weights.size,
        KIND=weights.kind,
        STEP=step,
        PTX=matrix.device.type != "cpu" and dtype == torch.bfloat16,
        num_warps=4,
    )
    return matrix


@triton.jit
def widen_all(
    pairs,
    scales,
    matrix,  # [out, size]
    num_outputs,
    num_blocks,
    size,
    KIND: tl.constexpr,
    STEP: tl.constexpr,
    PTX: tl.constexpr,
):
    """Grid: (units, blocks / STEP)."""
    INPUTS: tl.constexpr = 64 if KIND == "int4" else 32
    dtype: tl.constexpr = matrix.dtype.element_ty
    unit = tl.program_id(0).to(tl.int64)
    local = tl.arange(0, 64)
    outputs = unit * 64 + local
    of_unit = pairs + unit * num_blocks * 1024 + tl.arange(0, 1024)[None, :]
    of_scale = scales + unit * num_blocks * 64 + local
    for offset in tl.static_range(STEP):
        block = tl.program_id(1) * STEP + offset
        weights = _load_block(of_unit + block * 1024, of_scale + block * 64, KIND, dtype, PTX, 1)
        if KIND != "int4":
            weights = (weights.to(tl.float32) * tl.load(scales + outputs)[:, None]).to(dtype)
        at = block * INPUTS + tl.arange(0, INPUTS)
        inside = (outputs < num_outputs)[:, None] & (at < size)[None, :]
        tl.store(matrix + outputs[:, None] * size + at[None, :], weights, mask=inside)
