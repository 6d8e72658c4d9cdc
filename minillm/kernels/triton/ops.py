"""The small operations of a decoder, each as one Triton kernel.

At batch 1 a layer of an 8B model reads 436 MB of weights: 130 µs at the 3.35 TB/s that an H100 has on paper. A
launch costs a microsecond or more, whatever it does. PyTorch needs a dozen launches a layer for norms, rotation,
cache writes and SwiGLU, or 16 with norms of queries and keys. These need 4.

Numbers are computed in float32 and rounded where Ops rounds them, but for the rotation, which rounds once.
On an H100 at batch 1 each of three took 1.6 to 2 µs (course/data/measured/gpu_check_h100.json).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from minillm.kernels.attention.cache import KVCache, as_kernels_read
from minillm.kernels.ops import (
    AttentionBlock,
    ForwardContext,
    GatedProjection,
    Ops,
    QKNorms,
    StackedExperts,
)
from minillm.kernels.triton.dependent_launch import pdl_options, wait_for_previous
from minillm.kernels.triton.gpu import warps_for
from minillm.kernels.triton.likeliest import likeliest
from minillm.kernels.triton.rounding import quantize
from minillm.kernels.triton.swiglu import gated

ELEMENTS_PER_PROGRAM = 1024
"""Two 16-byte accesses a thread, at 4 warps and 16 bits: enough to hide a launch's cost, and many programs."""


class TritonOps(Ops):
    """Same methods, same results to rounding; see Ops."""

    def fill_in(self, token_ids: Tensor, sampled: Tensor) -> Tensor:
        output = torch.empty_like(token_ids)
        _fill_in[(triton.cdiv(len(token_ids), ELEMENTS_PER_PROGRAM),)](
            token_ids, sampled, output, len(token_ids), ELEMENTS_PER_PROGRAM
        )
        return output

    def likeliest(self, logits: Tensor) -> Tensor:
        return likeliest(logits)

    def add_rms_norm(self, x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        x, delta = x.contiguous(), delta.contiguous()
        total, normed = torch.empty_like(x), torch.empty_like(x)
        size = x.shape[1]
        padded = triton.next_power_of_2(size)
        options = dict(num_warps=warps_for(padded), **pdl_options(x.device))
        _add_rms_norm[(x.shape[0],)](x, delta, weight, total, normed, eps, size, padded, **options)
        return total, normed

    def swiglu(self, gate_up_proj: GatedProjection, x: Tensor) -> Tensor:
        fused = gate_up_proj.swiglu(x)
        return super().swiglu(gate_up_proj, x) if fused is None else fused

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate_up = gate_up.contiguous()
        num_tokens, inner = gate_up.shape[0], gate_up.shape[1] // 2
        output = gate_up.new_empty((num_tokens, inner))
        grid = (num_tokens, triton.cdiv(inner, ELEMENTS_PER_PROGRAM))
        _silu_mul[grid](gate_up, output, inner, ELEMENTS_PER_PROGRAM, **pdl_options(gate_up.device))
        return output

    def mix_experts(self, x: Tensor, experts: StackedExperts) -> Tensor | None:
        from minillm.kernels.triton.experts import mixture, suits

        return mixture(x, experts) if suits(x, experts) else None

    def add_shares(self, parts: Tensor, order: Tensor, shares: Tensor) -> Tensor:
        from minillm.kernels.triton.experts import add_parts

        # The parts are read where they lie, once: sorted back first, each would go through memory five times.
        places = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        return add_parts(parts, shares, places)

    def project_and_cache(self, block: AttentionBlock, x: Tensor, kv_cache: KVCache, context: ForwardContext) -> Tensor:
        qkv = block.qkv_proj(x).view(x.shape[0], -1, block.head_dim)
        return rotate_and_write(qkv, block.num_kv_heads, block.qk_norms, kv_cache, context)


def rotate_and_write(
    qkv: Tensor, num_kv_heads: int, norms: QKNorms | None, kv_cache: KVCache, context: ForwardContext
) -> Tensor:
    """Norm and rotate queries and keys, and write keys and values to the cache.

    Args:
        qkv: [T, n_heads + 2 * n_kv_heads, d]: queries, then keys, then values.
        kv_cache: [num_blocks, block_size, 2, n_kv_heads, d]
    Returns:
        The queries [T, n_heads, d].
    """
    numbers, scales, kv_format = as_kernels_read(kv_cache)
    num_tokens, num_all, head_dim = qkv.shape
    num_heads = num_all - 2 * num_kv_heads
    query = qkv.new_empty((num_tokens, num_heads, head_dim))
    query_weight, key_weight, eps = norms or (qkv, qkv, 0.0)  # not read without norms
    padded = triton.next_power_of_2(head_dim)
    heads = max(1, ELEMENTS_PER_PROGRAM // padded)
    grid = (num_tokens, triton.cdiv(num_all, heads))
    strides = (*qkv.stride()[:2], *numbers.stride()[1:4])
    sizes = (num_heads, num_kv_heads, head_dim, padded, heads, norms is not None, kv_format)
    given = (qkv, query_weight, key_weight, eps, context.cos, context.sin, context.slot_mapping)
    _rotate_and_write[grid](*given, query, numbers, scales, *strides, *sizes, **pdl_options(qkv.device))
    return query


@triton.jit(do_not_specialize=["num_tokens"])
def _fill_in(token_ids, sampled, output, num_tokens, ELEMENTS: tl.constexpr):
    """Grid: (parts of the step,). Done by PyTorch it is seven launches, for a few numbers."""
    at = tl.program_id(0) * ELEMENTS + tl.arange(0, ELEMENTS)
    inside = at < num_tokens
    token_id = tl.load(token_ids + at, mask=inside, other=0)
    newest = tl.load(sampled + ~token_id, mask=inside & (token_id < 0), other=0)
    tl.store(output + at, tl.maximum(tl.where(token_id < 0, newest, token_id), 0), mask=inside)


@triton.jit
def _rms_norm(x, weight, eps, SIZE: tl.constexpr):
    """Norm along the last dimension of x [rows, padded], whose padding is 0."""
    return x * tl.rsqrt(tl.sum(x * x, 1, keep_dims=True) / SIZE + eps) * weight


@triton.jit
def _add_rms_norm(x, delta, weight, total, normed, eps, SIZE: tl.constexpr, PADDED: tl.constexpr, PDL: tl.constexpr):
    """Grid: (tokens,). A row stays in registers between the sum and its norm."""
    wait_for_previous(PDL)
    at = tl.arange(0, PADDED)
    inside = at < SIZE
    row = tl.program_id(0).to(tl.int64) * SIZE + at
    a = tl.load(x + row, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(delta + row, mask=inside, other=0.0).to(tl.float32)
    # What the next block adds to is the rounded sum, so that is what gets normed.
    rounded = (a + b).to(total.dtype.element_ty)
    tl.store(total + row, rounded, mask=inside)
    w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    result = _rms_norm(rounded.to(tl.float32)[None, :], w[None, :], eps, SIZE)
    tl.store(normed + row[None, :], result.to(normed.dtype.element_ty), mask=inside[None, :])


@triton.jit
def _silu_mul(gate_up, output, INNER: tl.constexpr, ELEMENTS: tl.constexpr, PDL: tl.constexpr):
    """Grid: (tokens, parts of a row)."""
    wait_for_previous(PDL)
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * ELEMENTS + tl.arange(0, ELEMENTS)
    inside = at < INNER
    gate = tl.load(gate_up + token * 2 * INNER + at, mask=inside, other=0.0)
    up = tl.load(gate_up + token * 2 * INNER + INNER + at, mask=inside, other=0.0)
    dtype: tl.constexpr = output.dtype.element_ty
    tl.store(output + token * INNER + at, gated(gate, up, dtype).to(dtype), mask=inside)


@triton.jit
def _norm_head(x, query_weight, key_weight, is_query, dim, eps, HEAD_DIM: tl.constexpr, dtype: tl.constexpr):
    """Norm queries or keys x [heads, padded d], whose columns are dimensions `dim`; rounded to `dtype`."""
    of_query = tl.load(query_weight + dim, mask=dim < HEAD_DIM, other=0.0)
    of_key = tl.load(key_weight + dim, mask=dim < HEAD_DIM, other=0.0)
    weight = tl.where(is_query, of_query, of_key).to(tl.float32)
    return _rms_norm(x, weight, eps, HEAD_DIM).to(dtype).to(tl.float32)


@triton.jit
def _rotate_and_write(
    qkv,  # [T, n_heads + 2 n_kv_heads, d]
    query_weight,  # [d]
    key_weight,  # [d]
    eps,
    cos,  # [T, 1, d]
    sin,  # [T, 1, d], its first half negated
    slot_mapping,  # [T]
    query,  # [T, n_heads, d]
    kv_cache,  # [num_blocks, block_size, 2, n_kv_heads, d]
    kv_scales,  # [num_blocks, block_size, 2, n_kv_heads], if the cache has a FORMAT
    stride_token,
    stride_head,
    kv_stride_token,
    kv_stride_kv,
    kv_stride_head,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    HEADS: tl.constexpr,  # per program
    NORMS: tl.constexpr,
    FORMAT: tl.constexpr,  # of a quantized cache: "int8", or "fp8", which comes as int8; else ""
    PDL: tl.constexpr,
):
    """Grid: (tokens, groups of heads). A head is a query, a key or a value: its number tells which."""
    wait_for_previous(PDL)
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    dim = tl.arange(0, PADDED_DIM)[None, :]
    partner = (dim + HEAD_DIM // 2) % HEAD_DIM  # dimensions i and i + d/2 are turned as a pair
    exists = head < NUM_HEADS + 2 * NUM_KV_HEADS
    inside = exists & (dim < HEAD_DIM)
    is_query = head < NUM_HEADS
    is_value = head >= NUM_HEADS + NUM_KV_HEADS

    row = qkv + token * stride_token + head * stride_head
    x = tl.load(row + dim, mask=inside, other=0.0).to(tl.float32)
    swapped = tl.load(row + partner, mask=inside & ~is_value, other=0.0).to(tl.float32)
    turned, turned_swapped = x, swapped
    if NORMS:
        # A pair's two dimensions have weights of their own, and queries have others than keys.
        turned = _norm_head(x, query_weight, key_weight, is_query, dim, eps, HEAD_DIM, query.dtype.element_ty)
        turned_swapped = _norm_head(
            swapped, query_weight, key_weight, is_query, partner, eps, HEAD_DIM, query.dtype.element_ty
        )
    c = tl.load(cos + token * HEAD_DIM + dim, mask=dim < HEAD_DIM, other=0.0).to(tl.float32)
    s = tl.load(sin + token * HEAD_DIM + dim, mask=dim < HEAD_DIM, other=0.0).to(tl.float32)
    result = tl.where(is_value, x, turned * c + turned_swapped * s)

    query_at = (token * NUM_HEADS + head) * HEAD_DIM + dim
    tl.store(query + query_at, result.to(query.dtype.element_ty), mask=inside & is_query)
    kv_head = (head - NUM_HEADS) % NUM_KV_HEADS
    slot = tl.load(slot_mapping + token).to(tl.int64)
    kv_at = slot * kv_stride_token + is_value.to(tl.int32) * kv_stride_kv + kv_head * kv_stride_head
    if FORMAT != "":  # the numbers that a model of this dtype has, rounded again, with a scale for HEAD_DIM of them
        result = result.to(query.dtype.element_ty).to(tl.float32)
        result, scale = quantize(result, kv_scales.dtype.element_ty, FORMAT)
        tl.store(kv_scales + kv_at // HEAD_DIM, scale, mask=exists & ~is_query)
    tl.store(kv_cache + kv_at + dim, result.to(kv_cache.dtype.element_ty), mask=inside & ~is_query)
