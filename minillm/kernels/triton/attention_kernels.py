"""Paged attention as two Triton kernels. attention.py launches them, and says how large the tiles are.

`attend_tiles` is FlashAttention (Dao 2023) over pages: one program holds a tile of queries and walks over
the keys it may see, a few at a time. The score matrix never exists; what exists is, per query, the
largest score so far, the sum of exp(score - largest), and the values weighted by it ("online softmax",
Milakov & Gimelshein 2018).

The rows of a tile are (query position, head of the group), so the heads that share keys and values read
them once. Where tiles are few and contexts long, several programs take a part of the keys each, and
`combine_splits` puts the parts together (Flash-Decoding, Dao et al. 2023).

Everything that differs from step to step is read from tensors, so a CUDA graph may replay a launch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from minillm.kernels.triton.dependent_launch import pdl_options, wait_for_previous
from minillm.kernels.triton.rounding import E4M3_UNIT, from_e4m3

FEW_SPLITS, MAX_SPLITS = 8, 64
"""Parts that a program of the combine kernel has registers for: two kernels to compile, not one for each number."""


# Numbers that change from step to step: without this, Triton would compile again for 1 and for multiples of 16.
@triton.jit(do_not_specialize=["first_sequence", "num_sequences", "num_splits", "table_stride"])
def attend_tiles(
    query,  # [T, n_heads, d]
    kv_cache,  # [num_blocks, BLOCK_SIZE, 2, n_kv_heads, d]
    kv_scales,  # [num_blocks, BLOCK_SIZE, 2, n_kv_heads], if the cache has a FORMAT
    block_tables,  # [B, max_blocks]
    query_starts,  # [B + 1]
    context_lens,  # [B]
    output,  # [T, n_heads, d], if this launch does not split
    partial_output,  # [rows of this launch, n_heads, num_splits, d] float32, if it does
    partial_softmax,  # [rows of this launch, n_heads, num_splits, 2] float32: largest score, sum of exponentials
    first_sequence,  # this launch computes these sequences of the batch
    num_sequences,
    num_splits,  # parts of a sequence's keys, each for a program
    scale,  # of the scores, times log2(e): exp2 is what the hardware has
    query_stride_token,
    query_stride_head,
    kv_stride_block,
    kv_stride_token,
    kv_stride_kv,
    kv_stride_head,
    table_stride,
    output_stride_token,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,  # the next power of two
    GROUP: tl.constexpr,  # query heads per key/value head
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,  # 0 = none
    FORMAT: tl.constexpr,  # of a quantized cache: "int8", or "fp8", which comes as int8; else ""
    IS_SPLIT: tl.constexpr,  # into more than one: how many is no constant, as each would be a kernel to compile
    ONE_TOKEN: tl.constexpr,  # every sequence has one new token: tile b is sequence b
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid: (kv heads, splits, tiles). Neighbours read neighbouring bytes of the same pages."""
    wait_for_previous(PDL)
    kv_head, split = tl.program_id(0), tl.program_id(1)
    # Last tiles first: they see most keys, so the launch doesn't end with a long one that started late.
    tile = tl.num_programs(2) - 1 - tl.program_id(2)
    TILE_TOKENS: tl.constexpr = TILE_ROWS // GROUP

    # Which sequence, and which of its new tokens.
    first_row = tl.load(query_starts + first_sequence)
    if ONE_TOKEN:
        sequence = first_sequence + tile
        tile_of_sequence = 0
    else:
        sequence = _sequence_of_tile(tile, query_starts, first_sequence, num_sequences, first_row, TILE_TOKENS)
        tile_of_sequence = tile - _first_tile(sequence, query_starts, first_sequence, first_row, TILE_TOKENS)
    query_start = tl.load(query_starts + sequence)
    num_queries = tl.load(query_starts + sequence + 1) - query_start
    if tile_of_sequence * TILE_TOKENS >= num_queries:
        return  # the grid has room for the worst split of the tokens over the sequences
    context_len = tl.load(context_lens + sequence)

    # Rows of the tile: queries of a group that share a position are neighbours.
    rows, dims = tl.arange(0, TILE_ROWS), tl.arange(0, PADDED_DIM)
    token = tile_of_sequence * TILE_TOKENS + rows // GROUP
    head = kv_head * GROUP + rows % GROUP
    valid = (rows < TILE_TOKENS * GROUP) & (token < num_queries)
    query_at = (query_start + token).to(tl.int64) * query_stride_token + head * query_stride_head
    inside = valid[:, None] & (dims < HEAD_DIM)[None, :]
    q = tl.load(query + query_at[:, None] + dims[None, :], mask=inside, other=0.0)
    position = context_len - num_queries + token

    # The keys that any row of the tile sees, and this program's share of them in whole steps of TILE_KEYS.
    first_position = context_len - num_queries + tile_of_sequence * TILE_TOKENS
    end = tl.minimum(first_position + TILE_TOKENS, context_len)
    begin = 0
    if WINDOW:
        begin = tl.maximum(first_position - WINDOW + 1, 0)
    share = tl.cdiv(tl.cdiv(end - begin, num_splits), TILE_KEYS) * TILE_KEYS
    begin += split * share
    end = tl.minimum(end, begin + share)
    # Keys up to here are seen by all rows, so they need no mask.
    all_see = begin
    if WINDOW == 0 and HEAD_DIM == PADDED_DIM:
        all_see += tl.maximum(tl.minimum(end, first_position + 1) - begin, 0) // TILE_KEYS * TILE_KEYS

    table = block_tables + sequence.to(tl.int64) * table_stride
    keys, scales = kv_cache + kv_head * kv_stride_head, kv_scales + kv_head
    pages = (table, keys, scales, kv_stride_block, kv_stride_token, kv_stride_kv)
    SIZES: tl.constexpr = (HEAD_DIM, PADDED_DIM, BLOCK_SIZE, WINDOW, TILE_KEYS)
    largest = tl.full([TILE_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([TILE_ROWS], tl.float32)
    accumulator = tl.zeros([TILE_ROWS, PADDED_DIM], tl.float32)
    sums = (largest, total, accumulator)
    sums = _attend_range(begin, all_see, q, position, sums, scale, pages, False, FORMAT, SIZES)
    largest, total, accumulator = _attend_range(all_see, end, q, position, sums, scale, pages, True, FORMAT, SIZES)

    if not IS_SPLIT:
        total = tl.where(total == 0, 1.0, total)  # no key at all: a padded sequence of length 0 gets zeros
        output_at = (query_start + token).to(tl.int64) * output_stride_token + head * HEAD_DIM
        result = accumulator / total[:, None]
        tl.store(output + output_at[:, None] + dims[None, :], result.to(output.dtype.element_ty), mask=inside)
    else:
        # A share without keys leaves what changes nothing: -inf, 0 and zeros.
        num_heads = tl.num_programs(0) * GROUP
        part = ((query_start - first_row + token).to(tl.int64) * num_heads + head) * num_splits + split
        tl.store(partial_output + part[:, None] * HEAD_DIM + dims[None, :], accumulator, mask=inside)
        tl.store(partial_softmax + part * 2, largest, mask=valid)
        tl.store(partial_softmax + part * 2 + 1, total, mask=valid)


@triton.jit
def _attend_range(
    begin,
    end,
    q,  # [rows, PADDED_DIM]
    position,  # [rows]
    sums,  # largest [rows], total [rows], accumulator [rows, PADDED_DIM]: online softmax so far
    scale,
    pages,  # block table, keys and scales of the head; strides of the cache
    MASKED: tl.constexpr,
    FORMAT: tl.constexpr,
    SIZES: tl.constexpr,
):
    """Let the queries see the keys at positions begin to end. Masked where some see fewer than others.

    Returns:
        The sums, brought up to date.
    """
    HEAD_DIM, PADDED_DIM, BLOCK_SIZE, WINDOW, TILE_KEYS = SIZES
    table, keys, scales, kv_stride_block, kv_stride_token, kv_stride_kv = pages
    largest, total, accumulator = sums
    dims = tl.arange(0, PADDED_DIM)
    for start in tl.range(begin, end, TILE_KEYS):
        key_position = start + tl.arange(0, TILE_KEYS)
        # Nothing past the end may be read, not even to be multiplied by 0: it may be NaN.
        exists = key_position < end
        if MASKED:
            block = tl.load(table + key_position // BLOCK_SIZE, mask=exists, other=0)
        else:
            block = tl.load(table + key_position // BLOCK_SIZE)
        key_at = block.to(tl.int64) * kv_stride_block + key_position % BLOCK_SIZE * kv_stride_token
        pointers = keys + key_at[:, None] + dims[None, :]
        if MASKED:
            inside = exists[:, None] & (dims < HEAD_DIM)[None, :]
            k = tl.load(pointers, mask=inside, other=0.0)
            v = tl.load(pointers + kv_stride_kv, mask=inside, other=0.0)
        else:
            k = tl.load(pointers)
            v = tl.load(pointers + kv_stride_kv)
        if FORMAT == "fp8":
            k = from_e4m3(k)

        # "ieee": float32 stays float32. The default would round it to tf32's 10 bits.
        scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee")
        if FORMAT != "":  # a scale for every HEAD_DIM numbers: of a whole key, so it can come after the product
            scale_at = scales + key_at // HEAD_DIM
            unit: tl.constexpr = E4M3_UNIT if FORMAT == "fp8" else 1.0
            key_scales = tl.load(scale_at, mask=exists, other=0.0).to(tl.float32) * unit
            value_scales = tl.load(scale_at + kv_stride_kv // HEAD_DIM, mask=exists, other=0.0).to(tl.float32) * unit
            scores *= key_scales[None, :]
        if MASKED:
            distance = position[:, None] - key_position[None, :]
            sees = (distance >= 0) & exists[None, :]
            if WINDOW:
                sees = sees & (distance < WINDOW)
            scores = tl.where(sees, scores, float("-inf"))

        new_largest = tl.maximum(largest, tl.max(scores, 1) * scale)
        shift = new_largest
        if MASKED:  # a row that has seen no key yet: -inf - -inf would be NaN
            shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        weights = tl.exp2(scores * scale - shift[:, None])
        correction = tl.exp2(largest - shift)
        total = total * correction + tl.sum(weights, 1)
        accumulator = accumulator * correction[:, None]
        if FORMAT != "":
            weights *= value_scales[None, :]
        if FORMAT == "fp8":
            v = from_e4m3(v)
        accumulator = tl.dot(weights.to(q.dtype), v.to(q.dtype), accumulator, input_precision="ieee")
        largest = new_largest
    return largest, total, accumulator


@triton.jit
def _first_tile(sequence, query_starts, first_sequence, first_row, TILE_TOKENS: tl.constexpr):
    """Where a sequence's tiles begin, if every sequence may leave one tile partly empty."""
    rows_before = tl.load(query_starts + sequence) - first_row
    return rows_before // TILE_TOKENS + sequence - first_sequence


@triton.jit
def _sequence_of_tile(tile, query_starts, first_sequence, num_sequences, first_row, TILE_TOKENS: tl.constexpr):
    """Binary search: the last sequence whose tiles begin at or before this one."""
    low, high = first_sequence, first_sequence + num_sequences
    while high - low > 1:
        middle = (low + high) // 2
        if _first_tile(middle, query_starts, first_sequence, first_row, TILE_TOKENS) <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit(do_not_specialize=["first_sequence", "num_splits"])
def combine_splits(
    partial_output,  # [rows, n_heads, num_splits, d]
    partial_softmax,  # [rows, n_heads, num_splits, 2]
    output,  # [T, n_heads, d]
    query_starts,
    first_sequence,
    num_splits,
    output_stride_token,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    MOST_SPLITS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid: (rows, heads). Each part's sums were taken relative to its own largest score."""
    wait_for_previous(PDL)
    row, head = tl.program_id(0), tl.program_id(1)
    splits, dims = tl.arange(0, MOST_SPLITS), tl.arange(0, PADDED_DIM)
    part = (row.to(tl.int64) * tl.num_programs(1) + head) * num_splits + splits
    exists, inside = splits < num_splits, dims < HEAD_DIM
    largest = tl.load(partial_softmax + part * 2, mask=exists, other=float("-inf"))
    total = tl.load(partial_softmax + part * 2 + 1, mask=exists, other=0.0)
    at = part[:, None] * HEAD_DIM + dims[None, :]
    values = tl.load(partial_output + at, mask=exists[:, None] & inside[None, :], other=0.0)

    overall = tl.max(largest, 0)
    overall = tl.where(overall == float("-inf"), 0.0, overall)  # no key in any part
    weight = tl.exp2(largest - overall)
    total = tl.sum(total * weight, 0)
    total = tl.where(total == 0, 1.0, total)
    result = tl.sum(values * weight[:, None], 0) / total
    output_row = tl.load(query_starts + first_sequence) + row
    pointers = output + output_row.to(tl.int64) * output_stride_token + head * HEAD_DIM + dims
    tl.store(pointers, result.to(output.dtype.element_ty), mask=inside)


def partial_results(query: Tensor, output: Tensor, num_rows: int, num_splits: int) -> tuple[Tensor, Tensor]:
    """Memory for the parts of a launch's rows, as `combine_splits` reads them. Without splitting it isn't written to:
    the output stands for it."""
    if num_splits == 1:
        return output, output
    _, num_heads, head_dim = query.shape
    sizes = (num_rows, num_heads, num_splits)
    return query.new_empty((*sizes, head_dim), dtype=torch.float32), query.new_empty((*sizes, 2), dtype=torch.float32)


def combine(parts: Tensor, softmax: Tensor, output: Tensor, query_starts: Tensor, first_sequence: int) -> None:
    """Put the parts of these rows together, which are those of `first_sequence` and after."""
    num_rows, num_heads, num_splits, head_dim = parts.shape
    combine_splits[(num_rows, num_heads)](
        parts,
        softmax,
        output,
        query_starts,
        first_sequence,
        num_splits,
        output.stride(0),
        HEAD_DIM=head_dim,
        PADDED_DIM=max(triton.next_power_of_2(head_dim), 16),
        MOST_SPLITS=FEW_SPLITS if num_splits <= FEW_SPLITS else MAX_SPLITS,
        num_warps=4,
        **pdl_options(output.device),
    )
