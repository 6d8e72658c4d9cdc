"""Weights in 4 or 8 bits in the order of the tensor cores' registers, and all of them as a matrix in 16 bits.

A decode step takes as long as reading its weights. Read as a matrix, they reach the tensor cores by way of shared
memory, a shuffle and an instruction that converts. Here they are laid out once, when they are loaded, as Marlin does
(Frantar et al. 2024): a thread's 16 bytes are the weights that this thread multiplies, and a program reads one
contiguous stretch (few_rows.py).

    matrix [out, in] -> units of 64 outputs -> blocks of 64 inputs (int4), or 32 (int8): 2,048 bytes
                     -> 4 warps of 16 outputs -> 32 threads -> 8 pairs of bytes

A pair of bytes at column c (0 .. 15) of a block holds the inputs c, 16 + c (and 32 + c, 48 + c): with each of its
parts a block is a left operand of 16 inputs. No weight has to change places between threads. fp8's rows stay rows, for
the sake of prompts: fp8_rows.py says in which order.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from minillm.kernels.quantization import FP8, dequantize
from minillm.kernels.triton import fp8_rows
from minillm.kernels.triton.fp8_rows import load_fp8
from minillm.kernels.triton.widening import widen_four, widen_two

UNIT = 64
"""Outputs: the rows that four warps multiply at once."""
STRIP = 16
"""Outputs: those of one warp, 512 contiguous bytes of a block."""
COLUMNS = 16
"""Inputs that a tensor core sums over in one instruction."""
PARTS = {"int4": 4, "int8": 2}
"""Weights in a pair of bytes."""
BLOCK_INPUTS = {"int4": 4 * COLUMNS, "int8": 2 * COLUMNS, "fp8": fp8_rows.INPUTS}
BLOCKS = 4
"""Inputs are padded to as many blocks, so a step of the kernel may take 1, 2 or 4."""
LINE_INPUTS = 64
"""In 16 bits, 128 bytes: a line of memory, best written whole."""


@dataclass(frozen=True, slots=True)
class Fragments:
    """A weight matrix [out, in] in that order."""

    pairs: Tensor
    """[units, blocks, 1024] int16; fp8: [out, blocks, 32]"""
    scales: Tensor
    """int8: [units x 64] float32. fp8: [out] float32. int4: [units, blocks, 64], bfloat16 (step, low) of each group
    that an output has in a block: int64 for two of 32 inputs, int32 for one of 64."""
    kind: str
    """int4, int8 or fp8"""
    out: int
    size: int
    group: int = 0
    """int4: inputs that share a step and a low."""

    @property
    def num_blocks(self) -> int:
        return self.pairs.shape[1]

    @property
    def is_even(self) -> bool:
        """Inputs need no padding."""
        return self.size == self.num_blocks * BLOCK_INPUTS[self.kind]


def to_fragments(numbers: Tensor, scales: Tensor, kind: str) -> Fragments:
    """Lay out what `quantize_int4` with INT4_BASE (uint8 in 0 .. 15), or `quantize_rows` (int8, fp8) returns."""
    out, size = numbers.shape
    if kind == "fp8":
        pairs = fp8_rows.in_order(numbers).view(torch.int16).unflatten(1, (-1, fp8_rows.INPUTS // 2))
        return Fragments(pairs, scales, kind, out, size)
    inputs = BLOCK_INPUTS[kind]
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


def rows_of(weights: Fragments, ids: Tensor) -> Tensor:
    """Rows [n] of W, float32 [n, in]: what an embedding table is asked for. int8 and fp8."""
    if weights.kind == "fp8":
        numbers = fp8_rows.as_they_came(weights.pairs[ids].flatten(1).view(FP8), weights.size)
        return dequantize(numbers, weights.scales[ids])
    units, blocks, _ = weights.pairs.shape
    shape = (units, blocks, 4, 8, 4, 2, 2, 2)
    unit, of_unit = ids // UNIT, ids % UNIT
    found = weights.pairs.view(shape)[unit, :, of_unit // 16, of_unit % 8, :, :, of_unit // 8 % 2]
    columns = found.transpose(2, 3).reshape(len(ids), blocks, 1, COLUMNS)  # of the pair of columns, and columns + 8
    parts = torch.stack([columns >> part * 8 & 255 for part in range(2)], dim=2).to(torch.uint8)
    numbers = parts.flatten(1)[:, : weights.size].view(torch.int8)
    return dequantize(numbers, weights.scales[ids])


@triton.jit
def _load_strips(pointers, scales, KIND: tl.constexpr, dtype: tl.constexpr, PTX: tl.constexpr):
    """Weights [n x 16, inputs of a block], int4 or int8 in the order of fragments; see `load_block`."""
    words = tl.load(pointers, eviction_policy="evict_first")
    # Bits of an index, highest first: strip | row | pair of columns | columns + 8 | row + 8 | second of a pair
    words = tl.reshape(words, (words.shape[0], 8, 4, 2, 2, 2))
    words = tl.permute(words, (0, 4, 1, 3, 2, 5))
    pairs = tl.reshape(words, (pointers.shape[0] * 16, 16))
    if KIND == "int4":
        word = tl.load(scales)
        first, second = word.to(tl.int32), word.to(tl.int32)
        if word.dtype == tl.int64:
            second = (word >> 32).to(tl.int32)
        first, second = tl.broadcast_to(first[:, None], pairs.shape), tl.broadcast_to(second[:, None], pairs.shape)
        a, b, c, d = widen_four(pairs, first, second, dtype, PTX)
        quads = tl.join(tl.join(a, b), tl.join(c, d))  # [rows, column, part % 2, part / 2]
        weights = tl.reshape(tl.permute(quads, (0, 3, 2, 1)), (pairs.shape[0], 64))
    else:
        a, b = widen_two(pairs, KIND, dtype, PTX)
        weights = tl.reshape(tl.permute(tl.join(a, b), (0, 2, 1)), (pairs.shape[0], 32))
    return weights


@triton.jit
def load_block(pointers, scales, KIND: tl.constexpr, dtype: tl.constexpr, PTX: tl.constexpr):
    """Weights [outputs, inputs of a block], without the scales of int8 and fp8.

    Args:
        pointers: to a block's pairs: [outputs / 16, 256], a strip each; fp8: [outputs, 32].
        scales: int4: pointers [outputs].
    """
    return load_fp8(pointers, dtype, PTX) if KIND == "fp8" else _load_strips(pointers, scales, KIND, dtype, PTX)


def widened(weights: Fragments, dtype: torch.dtype, step: int = 0) -> Tensor:
    """The matrix [out, in] in 16 bits, scaled: what a product with many rows multiplies faster. int4 and int8.

    Args:
        step: blocks for each program; 0 = as many as fill lines of the matrix.
    """
    assert weights.kind != "fp8", "its prompts are multiplied in fp8"
    units, blocks, _ = weights.pairs.shape
    matrix = weights.pairs.new_empty((weights.out, weights.size), dtype=dtype)
    step = step or LINE_INPUTS // BLOCK_INPUTS[weights.kind]
    widen_all[(blocks // step, units)](
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
    """Grid: (blocks / STEP, units). Programs that run side by side read and write what lies side by side, each loads
    all it needs before it stores anything, and it's small, so that a multiprocessor has many."""
    INPUTS: tl.constexpr = 64 if KIND == "int4" else 32
    dtype: tl.constexpr = matrix.dtype.element_ty
    unit, block = tl.program_id(1).to(tl.int64), tl.program_id(0) * STEP
    first = unit * num_blocks + block
    local = tl.arange(0, 64 * STEP)
    outputs = unit * 64 + local % 64
    of_block = pairs + first * 1024 + (tl.arange(0, 4 * STEP) * 256)[:, None] + tl.arange(0, 256)[None, :]
    if KIND == "int4":
        weights = load_block(of_block, scales + first * 64 + local, KIND, dtype, PTX)
    else:
        scale = tl.load(scales + outputs)
        weights = load_block(of_block, scales, KIND, dtype, PTX)
        weights = (weights.to(tl.float32) * scale[:, None]).to(dtype)
    at = (block + local // 64)[:, None] * INPUTS + tl.arange(0, INPUTS)[None, :]
    inside = (outputs < num_outputs)[:, None] & (at < size)
    tl.store(matrix + outputs[:, None] * size + at, weights, mask=inside)
