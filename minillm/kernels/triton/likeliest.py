"""The likeliest token of each row of logits, on the GPU.

PyTorch's max() gives the same, and then a row has to be checked for NaN. Here that's in it, several programs share a
row, and each thread reads 16 bytes at a time. The two haven't been timed beside each other yet: `tune_kernels` does.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from minillm.kernels.triton.dependent_launch import pdl_options, wait_for_previous

BLOCK = 2048
"""Logits that a program reads in one go: 16 a thread."""
PROGRAMS, MOST_PARTS = 1024, 64
"""Programs that fill a large GPU, several on each multiprocessor; and those that share a row at most."""


def likeliest(logits: Tensor) -> Tensor:
    """[R] int64: the id of each row's largest logit, the first of equal ones; -1 where a logit is NaN, or the largest
    one infinite.

    Args:
        logits: [R, V], any float dtype.
    """
    logits = logits.contiguous()
    num_rows, vocab_size = logits.shape
    parts = min(triton.next_power_of_2(triton.cdiv(PROGRAMS, max(num_rows, 1))), MOST_PARTS)
    largest = logits.new_empty((num_rows, parts), dtype=torch.float32)
    token_ids = logits.new_empty((num_rows, parts), dtype=torch.int32)
    result = logits.new_empty(num_rows, dtype=torch.int64)
    if num_rows:
        pdl = pdl_options(logits.device)
        _largest_of_part[(num_rows, parts)](logits, largest, token_ids, vocab_size, BLOCK, num_warps=4, **pdl)
        _largest_of_row[(num_rows,)](largest, token_ids, result, parts, MOST_PARTS, num_warps=1, **pdl)
    return result


@triton.jit
def _first_of_largest(values, token_ids):
    """The largest value, or NaN if there is one; and the least of its token ids."""
    largest = tl.max(values, 0)
    token_id = tl.min(tl.where(values == largest, token_ids, 0x7FFFFFFF), 0)
    is_broken = tl.max((values != values).to(tl.int32), 0)
    return tl.where(is_broken == 1, float("nan"), largest), token_id


@triton.jit
def _largest_of_part(logits, largest, token_ids, VOCAB: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Grid: (rows, parts of a row)."""
    wait_for_previous(PDL)
    row, parts = tl.program_id(0).to(tl.int64), tl.num_programs(1)
    share = tl.cdiv(tl.cdiv(VOCAB, parts), BLOCK) * BLOCK
    begin = tl.program_id(1) * share
    column = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_at = tl.zeros([BLOCK], tl.int32) + begin
    ahead = tl.load(logits + row * VOCAB + begin + column, mask=begin + column < VOCAB, other=float("-inf"))
    for start in tl.range(begin, tl.minimum(begin + share, VOCAB), BLOCK):
        values, after = ahead.to(tl.float32), start + BLOCK + column
        ahead = tl.load(
            logits + row * VOCAB + after, mask=after < tl.minimum(begin + share, VOCAB), other=float("-inf")
        )
        # NaN is kept where it is met: no value is larger.
        is_better = (values > best) | (values != values)
        best = tl.where(is_better, values, best)
        best_at = tl.where(is_better, start, best_at)
    value, token_id = _first_of_largest(best, best_at + column)
    tl.store(largest + row * parts + tl.program_id(1), value)
    tl.store(token_ids + row * parts + tl.program_id(1), token_id)


# How many parts there are is no constant: each number would be a kernel to compile, while requests wait.
@triton.jit(do_not_specialize=["num_parts"])
def _largest_of_row(largest, token_ids, result, num_parts, MOST_PARTS: tl.constexpr, PDL: tl.constexpr):
    """Grid: (rows,)."""
    wait_for_previous(PDL)
    part = tl.arange(0, MOST_PARTS)
    at, exists = tl.program_id(0) * num_parts + part, part < num_parts
    values = tl.load(largest + at, mask=exists, other=float("-inf"))
    value, token_id = _first_of_largest(values, tl.load(token_ids + at, mask=exists, other=0x7FFFFFFF))
    is_finite = tl.abs(value) < float("inf")
    tl.store(result + tl.program_id(0), tl.where(is_finite, token_id, -1).to(tl.int64))
