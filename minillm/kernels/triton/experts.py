"""A mixture of experts for the few tokens of a decode step, in four launches.

Done step by step, a layer of experts is some eighteen launches: softmax, top k, a sort, its inverse, two grouped
products, and what lies between. At batch 1 these take longer than reading the weights of eight experts. Here:

1. `route`: the router's product, softmax and top k;
2. `multiply_by_experts`, gates and ups: a program takes a few outputs of one expert, and finds that expert's rows
   itself: every token that has chosen it, among at most a few hundred pairs. So nothing is sorted. silu(gate) * up
   follows in registers;
3. the same with the matrix that leads back down;
4. `add_shares`: each token's experts, weighted.

Weights are read as PyTorch keeps them, [E, out, in]. An expert that nobody has chosen isn't read. With fewer pairs than
experts a program is for a pair, and those whose expert an earlier pair has do nothing; with more, for an expert.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from minillm.kernels.ops import StackedExperts
from minillm.kernels.triton.counters import counters_for
from minillm.kernels.triton.dependent_launch import pdl_options, wait_for_previous
from minillm.kernels.triton.swiglu import gate_halves


@dataclass(frozen=True, slots=True)
class ExpertTile:
    """What one program multiplies in a step."""

    outputs: int
    """Outputs of a tile of the down projection; gate and up have half as many each."""
    rows: int
    inputs: int
    num_warps: int
    num_stages: int

    def options(self) -> dict[str, int]:
        """As launches want it: sizes in capitals are constants of a kernel."""
        sizes = dict(OUTPUTS=self.outputs, ROWS=self.rows, INPUTS=self.inputs)
        return dict(**sizes, num_warps=self.num_warps, num_stages=self.num_stages)


@triton.jit(do_not_specialize=["num_tokens"])
def route(
    x,  # [T, size]
    weight,  # [E, size]
    parts,  # [SPLITS, T, E] float32
    arrived,  # [tiles of tokens] int32, all 0, before and after
    experts,  # [T, K] int32
    shares,  # [T, K]
    num_tokens,
    SIZE: tl.constexpr,
    E: tl.constexpr,
    PADDED: tl.constexpr,  # E, as a power of two
    K: tl.constexpr,
    NORMALIZE: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
    SPLITS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid: (tiles of experts, splits of the sum, tiles of tokens). The last program of a tile of tokens chooses."""
    wait_for_previous(PDL)
    rows = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    inside = rows < num_tokens
    of_row = x + tl.minimum(rows, num_tokens - 1).to(tl.int64) * SIZE
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    of_output = weight + tl.minimum(output, E - 1).to(tl.int64) * SIZE
    share: tl.constexpr = SIZE // SPLITS
    accumulator = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for start in tl.range(0, share, INPUTS):
        at = tl.program_id(1) * share + start + tl.arange(0, INPUTS)
        weights = tl.load(of_output[:, None] + at[None, :])
        columns = tl.load(of_row[:, None] + at[None, :])
        accumulator = tl.dot(weights, tl.trans(columns), accumulator, input_precision="ieee")
    part_at = (tl.program_id(1) * num_tokens + rows)[None, :] * E + output[:, None]
    tl.store(parts + part_at, accumulator, mask=inside[None, :] & (output < E)[:, None])
    tl.debug_barrier()
    wanted: tl.constexpr = SPLITS * ((E + OUTPUTS - 1) // OUTPUTS)
    if tl.atomic_add(arrived + tl.program_id(2), 1, sem="acq_rel") == wanted - 1:
        expert = tl.arange(0, PADDED)
        exists = inside[:, None] & (expert < E)[None, :]
        logits = tl.zeros([ROWS, PADDED], tl.float32)
        for split in tl.static_range(SPLITS):
            logits_at = (split * num_tokens + rows)[:, None] * E + expert[None, :]
            logits += tl.load(parts + logits_at, mask=exists, other=0.0, cache_modifier=".cg")
        logits = tl.where((expert < E)[None, :], logits.to(x.dtype.element_ty).to(tl.float32), float("-inf"))
        odds = tl.exp(logits - tl.max(logits, 1)[:, None])
        odds = odds / tl.sum(odds, 1)[:, None]
        place = tl.arange(0, K)
        best = tl.zeros([ROWS, K], tl.float32)
        chosen = tl.zeros([ROWS, K], tl.int32)
        for rank in tl.static_range(K):
            most = tl.max(odds, 1)
            # Of a row with NaN none is the largest. It gets the last expert: beyond it there are no weights to read.
            first = tl.min(tl.where(odds == most[:, None], expert[None, :], E - 1), 1)
            best = tl.where((place == rank)[None, :], most[:, None], best)
            chosen = tl.where((place == rank)[None, :], first[:, None], chosen)
            odds = tl.where(expert[None, :] == first[:, None], -1.0, odds)
        if NORMALIZE:
            best = best / tl.sum(best, 1)[:, None]
        pair = rows[:, None] * K + place[None, :]
        tl.store(experts + pair, chosen, mask=inside[:, None])
        tl.store(shares + pair, best.to(shares.dtype.element_ty), mask=inside[:, None])
        tl.store(arrived + tl.program_id(2), 0)


@triton.jit
def _pairs_of_expert(experts, slot, num_pairs, PAIRS: tl.constexpr, BY_EXPERT: tl.constexpr):
    """This program's expert; of each pair its place among the expert's, or -1; and how many these are: 0 if another
    program has them."""
    pair = tl.arange(0, PAIRS)
    ids = tl.load(experts + pair, mask=pair < num_pairs, other=-1)
    expert = slot
    if not BY_EXPERT:
        expert = tl.load(experts + slot)
    mine = (ids == expert).to(tl.int32)
    count = tl.sum(mine, 0)
    if not BY_EXPERT:
        count = tl.where(tl.sum(tl.where(pair < slot, mine, 0), 0) == 0, count, 0)
    return expert, tl.where(mine == 1, tl.cumsum(mine, 0) - 1, -1), count


@triton.jit
def _rows_at(place, first, ROWS: tl.constexpr, PAIRS: tl.constexpr):
    """The pairs at places `first` and after: [ROWS], 0 where there are no more."""
    wanted = first + tl.arange(0, ROWS)
    return tl.sum(tl.where(place[None, :] == wanted[:, None], tl.arange(0, PAIRS)[None, :], 0), 1)


@triton.jit
def _products(of_output, of_row, SIZE: tl.constexpr, INPUTS: tl.constexpr):
    """[outputs, rows] float32: sums over SIZE inputs, of weights and rows that begin at these pointers."""
    accumulator = tl.zeros([of_output.shape[0], of_row.shape[0]], tl.float32)
    for start in tl.range(0, SIZE, INPUTS):
        at = start + tl.arange(0, INPUTS)
        weights = tl.load(of_output[:, None] + at[None, :], eviction_policy="evict_first")
        columns = tl.load(of_row[:, None] + at[None, :])
        accumulator = tl.dot(weights, tl.trans(columns), accumulator, input_precision="ieee")
    return accumulator


@triton.jit(do_not_specialize=["num_pairs"])
def multiply_by_experts(
    x,  # [T * K / SHARED, IN]
    weight,  # [E, OUT, IN]
    experts,  # [T, K] int32
    result,  # [T * K, OUT], or with SWIGLU, whose OUT are gates, then ups, [T * K, OUT / 2]
    num_pairs,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    SHARED: tl.constexpr,  # pairs that have a row of x in common: K, or 1
    SWIGLU: tl.constexpr,
    PAIRS: tl.constexpr,
    BY_EXPERT: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid: (tiles of outputs, pairs or experts)."""
    wait_for_previous(PDL)
    expert, place, count = _pairs_of_expert(experts, tl.program_id(1), num_pairs, PAIRS, BY_EXPERT)
    if SWIGLU:  # half of a tile are gates, the other half their ups
        HALF: tl.constexpr = OUTPUTS // 2
        local = tl.arange(0, OUTPUTS)
        output = local // HALF * (OUT // 2) + tl.program_id(0) * HALF + local % HALF
    else:
        output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    of_output = weight + expert.to(tl.int64) * (OUT * IN) + output * IN
    for first in tl.range(0, count, ROWS):
        pair = _rows_at(place, first, ROWS, PAIRS)
        of_row = x + (pair // SHARED).to(tl.int64) * IN
        accumulator = _products(of_output, of_row, IN, INPUTS)
        exists = (first + tl.arange(0, ROWS) < count)[None, :]
        if SWIGLU:
            product = gate_halves(accumulator, x.dtype.element_ty)
            result_at = (
                pair.to(tl.int64)[None, :] * (OUT // 2) + (tl.program_id(0) * HALF + tl.arange(0, HALF))[:, None]
            )
        else:
            product = accumulator
            result_at = pair.to(tl.int64)[None, :] * OUT + output[:, None]
        tl.store(result + result_at, product.to(result.dtype.element_ty), mask=exists)


@triton.jit
def add_shares(
    parts,  # [T * K, SIZE]
    places,  # [T * K] int64, if they are SORTED: where each pair's part is
    shares,  # [T, K]
    result,  # [T, SIZE]
    SIZE: tl.constexpr,
    K: tl.constexpr,
    SORTED: tl.constexpr,
    ELEMENTS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid: (tokens, parts of a row)."""
    wait_for_previous(PDL)
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * ELEMENTS + tl.arange(0, ELEMENTS)
    total = tl.zeros([ELEMENTS], tl.float32)
    for one in tl.static_range(K):
        pair = token * K + one
        share = tl.load(shares + pair).to(tl.float32)
        if SORTED:
            pair = tl.load(places + pair)
        total += tl.load(parts + pair * SIZE + at, mask=at < SIZE, other=0.0).to(tl.float32) * share
    tl.store(result + token * SIZE + at, total.to(result.dtype.element_ty), mask=at < SIZE)


def add_parts(parts: Tensor, shares: Tensor, places: Tensor | None = None) -> Tensor:
    """[T, size]: each token's k parts, weighted by its shares [T, k].

    Args:
        parts: [T * k, size], by token.
        places: [T * k] int64, where in `parts` each of a token's is; None = by token.
    """
    (num_tokens, k), size = shares.shape, parts.shape[1]
    result = parts.new_empty((num_tokens, size))
    given = (parts, parts if places is None else places, shares, result)
    grid = num_tokens, triton.cdiv(size, 512)
    add_shares[grid](*given, SIZE=size, K=k, SORTED=places is not None, ELEMENTS=512, **pdl_options(parts.device))
    return result


ROUTED_ROWS, ROUTED_OUTPUTS, ROUTED_SPLITS = 16, 16, 4
"""Tokens and experts of one program of `route`, and programs that share a sum: 32 for 128 experts and few tokens. Up to
8 tokens it has rows for 8: the last program chooses for all rows, and does so in half the instructions then. Not yet
measured."""


def choose(x: Tensor, router: Tensor, k: int, normalize: bool, arrived: Tensor) -> tuple[Tensor, Tensor]:
    """Experts [T, k] int32 of x [T, hidden], and their shares [T, k].

    Args:
        router: [E, hidden].
        arrived: int32 zeros, at least one for 16 tokens; see counters.py.
    """
    num_tokens, size, num_experts = *x.shape, len(router)
    experts = x.new_empty((num_tokens, k), dtype=torch.int32)
    shares = x.new_empty((num_tokens, k))
    parts = x.new_empty((ROUTED_SPLITS, num_tokens, num_experts), dtype=torch.float32)
    rows = 8 if num_tokens <= 8 else ROUTED_ROWS
    tile = ExpertTile(ROUTED_OUTPUTS, rows, min(128, size // ROUTED_SPLITS), num_warps=4, num_stages=4)
    sizes = dict(SIZE=size, E=num_experts, PADDED=triton.next_power_of_2(num_experts), K=k, SPLITS=ROUTED_SPLITS)
    grid = triton.cdiv(num_experts, tile.outputs), ROUTED_SPLITS, triton.cdiv(num_tokens, tile.rows)
    given = (x, router, parts, arrived, experts, shares, num_tokens)
    route[grid](*given, NORMALIZE=normalize, **sizes, **tile.options(), **pdl_options(x.device))
    return experts, shares


def mix(
    x: Tensor,
    experts: Tensor,
    shares: Tensor,
    gate_up_weight: Tensor,
    down_weight: Tensor,
    first: ExpertTile,
    second: ExpertTile,
) -> Tensor:
    """The sum of each token's k experts, weighted: [T, hidden] of x [T, hidden].

    Args:
        experts, shares: as `choose` returns them.
        gate_up_weight: [E, 2 * inner, hidden]; down_weight: [E, hidden, inner].
        first, second: tiles of the two products. Their outputs divide 2 * inner and hidden, their inputs the others.
    """
    (num_tokens, size), k = x.shape, experts.shape[1]
    num_experts, _, inner = down_weight.shape
    num_pairs = num_tokens * k
    slots, pairs = min(num_pairs, num_experts), max(16, triton.next_power_of_2(num_pairs))
    shared = dict(PAIRS=pairs, BY_EXPERT=num_pairs >= num_experts, **pdl_options(x.device))
    hidden, parts = x.new_empty((num_pairs, inner)), x.new_empty((num_pairs, size))
    given, sizes = (x, gate_up_weight, experts, hidden, num_pairs), dict(IN=size, OUT=2 * inner, SHARED=k, SWIGLU=True)
    multiply_by_experts[(2 * inner // first.outputs, slots)](*given, **sizes, **shared, **first.options())
    given, sizes = (hidden, down_weight, experts, parts, num_pairs), dict(IN=inner, OUT=size, SHARED=1, SWIGLU=False)
    multiply_by_experts[(size // second.outputs, slots)](*given, **sizes, **shared, **second.options())
    return add_parts(parts, shares)


MOST_TOKENS = 64
"""Tokens of a step; with more, an expert has so many rows that a grouped product does well."""


def suits(x: Tensor, experts: StackedExperts) -> bool:
    """Whether there are so few tokens, in 16 bits, and sizes that the tiles divide."""
    size, inner = x.shape[1], experts.down.shape[2]
    few = 0 < len(x) <= MOST_TOKENS and x.element_size() == 2
    return few and size % 512 == 0 and inner % 128 == 0 and experts.k == triton.next_power_of_2(experts.k)


def tile_for(num_tokens: int) -> ExpertTile:
    """The fastest of those tried on an H100, or within 1% of it (course/data/measured/tuned_kernels_h100.json)."""
    return ExpertTile(outputs=64, rows=8 if num_tokens <= 8 else 16, inputs=128, num_warps=4, num_stages=4)


def mixture(x: Tensor, experts: StackedExperts) -> Tensor:
    """The layer, of x [T, hidden]: [T, hidden]."""
    tile = tile_for(len(x))
    chosen, shares = choose(x, experts.router, experts.k, experts.normalize, counters_for(x.device))
    return mix(x, chosen, shares, experts.gate_up, experts.down, tile, tile)
