"""A draw from a wide nucleus (top-p, min-p), on the GPU.

How many tokens a nucleus has only the device knows. To sort as many, the host would have to wait for it; to sort the
whole vocabulary, whatever the nucleus, costs more than a small model's step. Here nothing is sorted: a token is found
by the mass of what ranks before it, and its logit by bisection. One program a row, which ends at once where the few
that were sorted are enough. (FlashInfer and vLLM find theirs by such searches, too.) The search itself has
not been measured on a GPU.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
"""Logits that a program reads in one go."""


def draw_wide(scaled: Tensor, is_wide: Tensor, top_p_mass: Tensor, log_min_p: Tensor, draws: Tensor) -> Tensor:
    """Draw from the rows whose nucleus `is_wide`: [2, R] float64, the logit drawn, and how many equal ones rank before.

    Args:
        scaled: [R, V] float32, the largest of each row 0.
        is_wide: [R] bool; what comes of other rows means nothing.
        top_p_mass: [R] float64: what is kept is the smallest set that has this mass, the sum of exp(scaled).
        log_min_p: [R] float64, the least logit kept.
        draws: [R] float64 in [0, 1).
    """
    num_rows, vocab_size = scaled.shape
    drawn = torch.zeros((2, num_rows), dtype=torch.float64, device=scaled.device)
    limits = top_p_mass.nextafter(torch.zeros_like(top_p_mass))  # to have the mass is to have more than this
    _draw_wide[(num_rows,)](scaled, is_wide, limits, log_min_p, draws, drawn, num_rows, vocab_size, BLOCK, num_warps=8)
    return drawn


# How many rows there are is no constant: for 1, for multiples of 16 and for others it would be a kernel each.
@triton.jit(do_not_specialize=["ROWS"])
def _draw_wide(scaled, is_wide, limits, log_min_p, draws, drawn, ROWS, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """Grid: (rows,)."""
    index = tl.program_id(0)
    if tl.load(is_wide + index):
        row = scaled + index.to(tl.int64) * VOCAB
        limit, least = tl.load(limits + index), tl.load(log_min_p + index)
        border, weight, before = _find(row, limit, VOCAB, BLOCK)
        if border < least:
            kept = _mass(row, (-least).to(tl.float32), VOCAB, BLOCK)
        else:  # of equal logits at the border, as many as it takes
            kept = before + tl.ceil((limit - before) / tl.maximum(weight, 1e-300)) * weight
        target = tl.load(draws + index) * kept
        logit, weight, before = _find(row, target, VOCAB, BLOCK)
        tl.store(drawn + index, logit)
        tl.store(drawn + ROWS + index, tl.floor((target - before) / tl.maximum(weight, 1e-300)))


@triton.jit
def _find(row, mass, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """The largest logit that has more than this mass together with those above it; its own mass, and theirs."""
    # Distances below 0, from nothing to infinity, as bits: those of floats >= 0 are in the order of the floats.
    low, high = tl.full((), 0, tl.int32), tl.full((), 0x7F800000, tl.int32)
    while low < high:
        middle = low + (high - low) // 2
        if _mass(row, middle.to(tl.float32, bitcast=True), VOCAB, BLOCK) > mass:
            high = middle
        else:
            low = middle + 1
    distance = low.to(tl.float32, bitcast=True)
    before = _mass(row, (low - 1).to(tl.float32, bitcast=True), VOCAB, BLOCK)  # -1 is NaN, which nothing is within
    return -distance, tl.exp(-distance).to(tl.float64), before


@triton.jit
def _mass(row, distance, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """The mass of the logits at most so far below 0."""
    mass = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, VOCAB, BLOCK):
        at = start + tl.arange(0, BLOCK)
        logit = tl.load(row + at, mask=at < VOCAB, other=-float("inf"))
        mass += tl.where(logit >= -distance, tl.exp(logit), 0.0)
    return tl.sum(mass)
