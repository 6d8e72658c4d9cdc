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
leading 1, so 0x4300 | q is 128 + q for q below 128, exactly. int4: subtract 128, multiply by the step, add the low,
rounded once. int8: its lower 7 bits in the same way, and 256 instead of 128 to subtract where it's negative. fp8: with
its exponent where bfloat16 has one, all that's off is where zero is: a factor of 2^120.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

UNIT = 64
"""Outputs: the rows that four warps multiply at once."""
COLUMNS = 16
"""Inputs that a tensor core sums over in one instruction."""
PAIRS = tl.constexpr(UNIT * COLUMNS)
"""Pairs of bytes in a block."""
PARTS = {"int4": 4, "int8": 2, "fp8": 2}
"""Weights in a pair of bytes."""
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
    fused: bool = False
    """int4: with the low goes -16 steps, so that a weight takes one instruction that multiplies and adds."""


def to_fragments(numbers: Tensor, scales: Tensor, kind: str, fused: bool = False) -> Fragments:
    """Lay out what `quantize_int4` (uint8 in 0 .. 15) or `quantize_rows` (int8, fp8) returns."""
    out, size = numbers.shape
    inputs = PARTS[kind] * COLUMNS
    units, blocks = -(-out // UNIT), -(-size // (inputs * BLOCKS)) * BLOCKS
    bytes = numbers.view(torch.uint8)
    bytes = F.pad(bytes, (0, blocks * inputs - size, 0, units * UNIT - out))
    # Of 64 outputs: 16 a warp, of which a thread has r and r + 8. Of 16 columns: pairs c and c + 8.
    shape = (units, 4, 2, 8, blocks, PARTS[kind], 2, 4, 2)
    bytes = bytes.view(shape).permute(5, 0, 4, 1, 3, 7, 6, 2, 8)
    pairs = torch.zeros(bytes.shape[1:], dtype=torch.int32, device=bytes.device)
    for part, numbers_of_part in enumerate(bytes):
        pairs |= numbers_of_part.int() << part * (16 // PARTS[kind])
    pairs = (pairs - (pairs >> 15 << 16)).to(torch.int16).view(units, blocks, -1)
    if kind != "int4":
        return Fragments(pairs, F.pad(scales.float().flatten(), (0, units * UNIT - out)), kind, out, size)
    group = size // scales.shape[1]
    if fused:
        step, low = scales.float().unbind(2)
        scales = torch.stack((step, low - 16 * step), dim=2).bfloat16()
    scales = F.pad(scales, (0, 0, 0, blocks * inputs // group - scales.shape[1], 0, units * UNIT - out))
    words = scales.view(units, UNIT, blocks, -1).transpose(1, 2).contiguous()
    words = words.view(torch.int64 if group == 32 else torch.int32).squeeze(3)
    return Fragments(pairs, words, kind, out, size, group, fused)


INT4_TO_BF16 = tl.constexpr(
    """
{
.reg .b32 p, q, step, low, one, minus;
.reg .b16 a, b, c, d;
mov.b32 one, 0x3F803F80;
mov.b32 minus, 0xC300C300;
mov.b32 {a, b}, $5;
mov.b32 {c, d}, $6;
mov.b32 step, {a, c};
mov.b32 low, {b, d};
mov.b32 p, $4;
lop3.b32 q, p, 0x000F000F, 0x43004300, 0xEA;
fma.rn.bf16x2 q, q, one, minus;
fma.rn.bf16x2 $0, q, step, low;
shr.u32 p, p, 4;
lop3.b32 q, p, 0x000F000F, 0x43004300, 0xEA;
fma.rn.bf16x2 q, q, one, minus;
fma.rn.bf16x2 $1, q, step, low;
mov.b32 {a, b}, $7;
mov.b32 {c, d}, $8;
mov.b32 step, {a, c};
mov.b32 low, {b, d};
shr.u32 p, p, 4;
lop3.b32 q, p, 0x000F000F, 0x43004300, 0xEA;
fma.rn.bf16x2 q, q, one, minus;
fma.rn.bf16x2 $2, q, step, low;
shr.u32 p, p, 4;
lop3.b32 q, p, 0x000F000F, 0x43004300, 0xEA;
fma.rn.bf16x2 q, q, one, minus;
fma.rn.bf16x2 $3, q, step, low;
}
"""
)
INT4_FUSED = tl.constexpr(
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


PREFETCH_TO_L2 = tl.constexpr(
    """
{
.reg .pred first, some;
.reg .b32 thread;
mov.u32 thread, %tid.x;
setp.eq.u32 first, thread, 0;
setp.gt.and.s32 some, $2, 0, first;
@some cp.async.bulk.prefetch.L2.global [$1], $2;
mov.b32 $0, 0;
}
"""
)


@triton.jit
def _prefetch(pointer, size):
    """Ask for `size` bytes, a multiple of 16."""
    tl.inline_asm_elementwise(PREFETCH_TO_L2, "=r,l,r", [pointer, size], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def _e4m3(byte, dtype: tl.constexpr):
    """The number with this byte (0 .. 255), by the exponent of a float32."""
    magnitude = ((byte & 127) << 20).to(tl.float32, bitcast=True) * 2.0**120
    return tl.where(byte >= 128, -magnitude, magnitude).to(dtype)


@triton.jit
def _widen(pairs, first, second, KIND: tl.constexpr, dtype: tl.constexpr, PTX: tl.constexpr, FUSED: tl.constexpr):
    """Pairs of bytes [rows, 16] to weights [rows, 16 x parts], without the scales of int8 and fp8.

    Args:
        first, second: int4's (step, low) [rows, 1] of the first two parts and of the others.
    """
    if KIND == "int4":
        if PTX:
            a, b, c, d = tl.inline_asm_elementwise(
                INT4_FUSED if FUSED else INT4_TO_BF16,
                "=&r,=&r,=&r,=&r,r,r,r,r,r",
                [pairs, first, second],
                dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
                is_pure=True,
                pack=2,
            )
        else:
            bits = pairs.to(tl.int32)
            zero: tl.constexpr = 16.0 if FUSED else 0.0
            step, low = (first << 16).to(tl.float32, bitcast=True), (first & -65536).to(tl.float32, bitcast=True)
            a = (((bits & 15).to(tl.float32) + zero) * step + low).to(dtype)
            b = (((bits >> 4 & 15).to(tl.float32) + zero) * step + low).to(dtype)
            step, low = (second << 16).to(tl.float32, bitcast=True), (second & -65536).to(tl.float32, bitcast=True)
            c = (((bits >> 8 & 15).to(tl.float32) + zero) * step + low).to(dtype)
            d = (((bits >> 12 & 15).to(tl.float32) + zero) * step + low).to(dtype)
        quads = tl.join(tl.join(a, b), tl.join(c, d))  # [rows, column, part % 2, part / 2]
        return tl.reshape(tl.permute(quads, (0, 3, 2, 1)), (pairs.shape[0], 4 * pairs.shape[1]))
    else:
        if PTX:
            a, b = tl.inline_asm_elementwise(
                INT8_TO_BF16 if KIND == "int8" else FP8_TO_BF16,
                "=&r,=&r,r",
                [pairs],
                dtype=(tl.bfloat16, tl.bfloat16),
                is_pure=True,
                pack=2,
            )
        elif KIND == "int8":
            a, b = pairs.to(tl.int8).to(dtype), (pairs >> 8).to(tl.int8).to(dtype)
        else:
            a, b = _e4m3(pairs.to(tl.int32) & 255, dtype), _e4m3(pairs.to(tl.int32) >> 8 & 255, dtype)
        return tl.reshape(tl.permute(tl.join(a, b), (0, 2, 1)), (pairs.shape[0], 2 * pairs.shape[1]))


@triton.jit
def _load_block(
    pointers,
    scales,
    KIND: tl.constexpr,
    dtype: tl.constexpr,
    PTX: tl.constexpr,
    FUSED: tl.constexpr,
    UNITS: tl.constexpr,
    POLICY: tl.constexpr,
):
    """Weights [UNITS x 64, inputs of a block].

    Args:
        pointers: [UNITS, 1024] of a block in each unit.
        scales: int4: [UNITS x 64].
    """
    words = tl.load(pointers, eviction_policy=POLICY)
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
        return _widen(pairs, first, tl.broadcast_to(second[:, None], pairs.shape), KIND, dtype, PTX, FUSED)
    return _widen(pairs, pairs, pairs, KIND, dtype, PTX, FUSED)


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
    FUSED: tl.constexpr,
    EVEN: tl.constexpr,  # inputs need no padding
    SPLIT: tl.constexpr,  # several programs share the sum of a tile
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,  # blocks
    POLICY: tl.constexpr,
    PTX: tl.constexpr,
    PREFETCH: tl.constexpr,  # ask for all of a program's weights at once, into L2
    PDL: tl.constexpr,
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
    if PREFETCH:
        for one in tl.static_range(UNITS):
            which = tl.minimum(tile * UNITS + one, tl.cdiv(num_outputs, 64) - 1).to(tl.int64)
            wanted = tl.maximum(end - begin, 0)
            _prefetch(pairs + (which * num_blocks + begin) * 1024, wanted * 2048)
            if KIND == "int4":
                _prefetch(
                    scales + (which * num_blocks + begin) * 64,
                    wanted * (64 * scales.dtype.element_ty.primitive_bitwidth // 8),
                )
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    accumulator = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for start in tl.range(begin, end, STEP):
        for offset in tl.static_range(STEP):
            block = start + offset
            of_block = of_scale + block * 64 if KIND == "int4" else of_scale
            weights = _load_block(of_unit + block * 1024, of_block, KIND, x.dtype.element_ty, PTX, FUSED, UNITS, POLICY)
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
class Tile:
    """What one program of `multiply_few` does, and how many share the sum of a tile."""

    outputs: int
    rows: int
    step: int
    """Blocks of inputs whose loads are on their way together"""
    num_warps: int
    num_stages: int
    splits: int = 1
    policy: str = "evict_first"
    prefetch: bool = False
    pdl: bool = False


def multiply(x: Tensor, weights: Fragments, bias: Tensor | None, tile: Tile, arrived: Tensor) -> Tensor:
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
    multiply_few[grid](
        x,
        weights.pairs,
        weights.scales,
        x if bias is None else bias,
        parts,
        arrived,
        output,
        num_rows,
        weights.out,
        weights.pairs.shape[1],
        weights.size,
        HAS_BIAS=bias is not None,
        KIND=weights.kind,
        FUSED=weights.fused,
        EVEN=weights.size == weights.pairs.shape[1] * PARTS[weights.kind] * COLUMNS,
        SPLIT=tile.splits > 1,
        OUTPUTS=tile.outputs,
        ROWS=tile.rows,
        STEP=tile.step,
        POLICY=tile.policy,
        PTX=x.device.type != "cpu" and x.dtype == torch.bfloat16,
        PREFETCH=tile.prefetch,
        PDL=tile.pdl,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **({"launch_pdl": True} if tile.pdl else {}),
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
        FUSED=weights.fused,
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
    FUSED: tl.constexpr,
    STEP: tl.constexpr,
    PTX: tl.constexpr,
):
    """Grid: (units, blocks / STEP)."""
    INPUTS: tl.constexpr = 64 if KIND == "int4" else 32
    unit, dtype = tl.program_id(0).to(tl.int64), matrix.dtype.element_ty
    local = tl.arange(0, 64)
    outputs = unit * 64 + local
    of_unit = pairs + unit * num_blocks * 1024 + tl.arange(0, 1024)[None, :]
    of_scale = scales + unit * num_blocks * 64 + local
    for offset in tl.static_range(STEP):
        block = tl.program_id(1) * STEP + offset
        weights = _load_block(of_unit + block * 1024, of_scale + block * 64, KIND, dtype, PTX, FUSED, 1, "evict_first")
        if KIND != "int4":
            weights = (weights.to(tl.float32) * tl.load(scales + outputs)[:, None]).to(dtype)
        at = block * INPUTS + tl.arange(0, INPUTS)
        inside = (outputs < num_outputs)[:, None] & (at < size)[None, :]
        tl.store(matrix + outputs[:, None] * size + at[None, :], weights, mask=inside)
