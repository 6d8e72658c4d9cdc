"""Decodes over a KV cache in 8 bits, read in pairs.

A matrix instruction wants two neighbouring keys of a value's dimension in one register, and loads that turn a tile
round move 16 bits at a time. So bytes are read in pairs: dimensions 2i and 2i + 1 of a key or a value. The even
ones are one operand, the odd ones another, widened as weights are (widening.py), and there are two products
where there was one. Scales are loaded two heads at once: the pipeline brings nothing smaller than 4 bytes.
"""

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from minillm.kernels.attention.base import AttentionMetadata
from minillm.kernels.attention.cache import KVCache, as_kernels_read
from minillm.kernels.triton import attention_kernels
from minillm.kernels.triton.dependent_launch import pdl_options, wait_for_previous
from minillm.kernels.triton.widening import widen_two


@dataclass(frozen=True, slots=True)
class PairTile:
    """One program's work: keys per step, a power of two, and how many programs share a sequence's."""

    keys: int
    splits: int = 1
    num_warps: int = 2
    num_stages: int = 5


@triton.jit(do_not_specialize=["first_sequence", "num_splits", "table_stride"])
def attend_pairs(
    query,  # [T, n_heads, HEAD_DIM]
    kv_pairs,  # [num_blocks, BLOCK_SIZE, 2, n_kv_heads, HEAD_DIM / 2] int16
    kv_scales,  # [num_blocks, BLOCK_SIZE, 2, n_kv_heads / 2] int32: of two heads, bfloat16 each
    block_tables,  # [B, max_blocks]
    query_starts,  # [B + 1]
    context_lens,  # [B]
    output,  # [T, n_heads, HEAD_DIM], if this launch does not split
    partial_output,  # [rows of this launch, n_heads, num_splits, HEAD_DIM] float32, if it does
    partial_softmax,  # [rows of this launch, n_heads, num_splits, 2] float32: largest score, sum of exponentials
    first_sequence,
    num_splits,  # parts of a sequence's keys, each for a program
    scale,  # of the scores, times log2(e)
    query_stride_token,
    query_stride_head,
    kv_stride_block,  # numbers, not pairs
    kv_stride_token,
    kv_stride_kv,
    table_stride,
    output_stride_token,
    HEAD_DIM: tl.constexpr,
    GROUP: tl.constexpr,  # query heads per key/value head
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,  # 0 = none
    FORMAT: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    PTX: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid: (kv heads, splits, sequences), one new token each."""
    wait_for_previous(PDL)
    kv_head, split, sequence = tl.program_id(0), tl.program_id(1), first_sequence + tl.program_id(2)
    token, context_len = tl.load(query_starts + sequence), tl.load(context_lens + sequence)
    rows, halves = tl.arange(0, ROWS), tl.arange(0, HEAD_DIM // 2)
    valid = rows < GROUP
    head = kv_head * GROUP + rows
    query_at = (
        query + token.to(tl.int64) * query_stride_token + (head * query_stride_head)[:, None] + 2 * halves[None, :]
    )
    q_even = tl.load(query_at, mask=valid[:, None], other=0.0)
    q_odd = tl.load(query_at + 1, mask=valid[:, None], other=0.0)

    begin = tl.maximum(context_len - WINDOW, 0) if WINDOW else 0
    share = tl.cdiv(tl.cdiv(context_len - begin, num_splits), KEYS) * KEYS
    begin += split * share
    end = tl.minimum(context_len, begin + share)
    table = block_tables + sequence.to(tl.int64) * table_stride
    keys = kv_pairs + kv_head * (HEAD_DIM // 2)
    words = kv_scales + kv_head // 2
    shift = 16 * (1 - kv_head % 2)  # the half that holds this head's scale, moved up
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sum_even = tl.zeros([ROWS, HEAD_DIM // 2], tl.float32)
    sum_odd = tl.zeros([ROWS, HEAD_DIM // 2], tl.float32)
    for start in tl.range(begin, end, KEYS):
        exists = start + tl.arange(0, KEYS) < end
        # Nothing past the end may be read, not even to be multiplied by 0: it may be NaN. So the last key is read
        # again, which takes fewer instructions than a mask.
        position = tl.minimum(start + tl.arange(0, KEYS), end - 1).to(tl.uint32)
        block = tl.load(table + position // BLOCK_SIZE)
        key_at = block.to(tl.uint64) * kv_stride_block + position % BLOCK_SIZE * kv_stride_token
        pointers = keys + (key_at // 2)[:, None] + halves[None, :]
        k = tl.load(pointers)
        v = tl.load(pointers + kv_stride_kv // 2)
        scale_at = words + key_at // (2 * HEAD_DIM)
        key_word = tl.load(scale_at)
        value_word = tl.load(scale_at + kv_stride_kv // (2 * HEAD_DIM))
        key_scales = (key_word << shift & -65536).to(tl.float32, bitcast=True)
        value_scales = (value_word << shift & -65536).to(tl.float32, bitcast=True)

        k_even, k_odd = widen_two(k, FORMAT, query.dtype.element_ty, PTX)
        scores = tl.dot(q_even, tl.trans(k_even), input_precision="ieee")
        scores = tl.dot(q_odd, tl.trans(k_odd), scores, input_precision="ieee")
        scores = tl.where(exists[None, :], scores * (key_scales * scale)[None, :], float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp2(scores - new_largest[:, None])
        correction = tl.exp2(largest - new_largest)
        total = total * correction + tl.sum(weights, 1)
        weights = (weights * value_scales[None, :]).to(query.dtype.element_ty)
        v_even, v_odd = widen_two(v, FORMAT, query.dtype.element_ty, PTX)
        sum_even = tl.dot(weights, v_even, sum_even * correction[:, None], input_precision="ieee")
        sum_odd = tl.dot(weights, v_odd, sum_odd * correction[:, None], input_precision="ieee")
        largest = new_largest

    sums = tl.reshape(tl.join(sum_even, sum_odd), (ROWS, HEAD_DIM))
    dims = tl.arange(0, HEAD_DIM)
    if not IS_SPLIT:
        total = tl.where(total == 0, 1.0, total)  # no key at all: a padded sequence of length 0 gets zeros
        output_at = output + token.to(tl.int64) * output_stride_token + (head * HEAD_DIM)[:, None] + dims[None, :]
        tl.store(output_at, (sums / total[:, None]).to(output.dtype.element_ty), mask=valid[:, None])
    else:
        num_heads = tl.num_programs(0) * GROUP
        row = token - tl.load(query_starts + first_sequence)
        part = (row.to(tl.int64) * num_heads + head) * num_splits + split
        tl.store(partial_output + part[:, None] * HEAD_DIM + dims[None, :], sums, mask=valid[:, None])
        tl.store(partial_softmax + part * 2, largest, mask=valid)
        tl.store(partial_softmax + part * 2 + 1, total, mask=valid)


def attend_decodes(
    query: Tensor,
    kv_cache: KVCache,
    metadata: AttentionMetadata,
    scale: float,
    output: Tensor,
    tile: PairTile,
    sequences: range,
) -> None:
    """Attend with the one new token of each of these sequences; writes their rows of `output`.

    Args:
        query, output: [T, n_heads, d], d a power of two.
        kv_cache: quantized, of an even number of heads.
    """
    numbers, scales, kv_format = as_kernels_read(kv_cache)
    _, num_heads, head_dim = query.shape
    num_kv_heads, tables, starts = numbers.shape[3], metadata.block_tables, metadata.query_starts_tensor
    group = num_heads // num_kv_heads
    parts, softmax = attention_kernels.partial_results(query, output, len(sequences), tile.splits)
    pairs, pairs_of_scales = numbers.view(torch.int16), scales.view(torch.int32)
    tensors = (query, pairs, pairs_of_scales, tables, starts, metadata.context_lens_tensor, output, parts, softmax)
    strides = (*query.stride()[:2], *numbers.stride()[:3], tables.stride(0), output.stride(0))
    attend_pairs[(num_kv_heads, tile.splits, len(sequences))](
        *tensors,
        sequences.start,
        tile.splits,
        scale * math.log2(math.e),
        *strides,
        HEAD_DIM=head_dim,
        GROUP=group,
        BLOCK_SIZE=numbers.shape[1],
        WINDOW=metadata.window or 0,
        FORMAT=kv_format,
        IS_SPLIT=tile.splits > 1,
        ROWS=max(16, triton.next_power_of_2(group)),
        KEYS=tile.keys,
        PTX=query.device.type != "cpu" and query.dtype == torch.bfloat16,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **pdl_options(query.device),
    )
    if tile.splits > 1:
        attention_kernels.combine(parts, softmax, output, starts, sequences.start)
