"""The small operations between a decoder's matrix products: norms, rotation, SwiGLU. Cache writes: attention/cache.py.
And two places where a backend may do more in one go: what comes before attention, and all layers.

Each moves a few bytes and computes little. On a GPU they cost launches and trips through memory, on a CPU
PyTorch's dispatch, so `minillm.kernels.triton.ops` and `minillm.kernels.cpu.ops` fuse them. The versions here are
PyTorch's own, for every device, and the reference that the fused ones are tested against.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from minillm.kernels.attention.base import AttentionFn
from minillm.kernels.attention.cache import KVCache


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """What all layers of one forward pass share: where its T tokens are, and the kernels that it runs on."""

    cos: Tensor
    """[T, 1, d]: cosines of each token's rotary angles"""
    sin: Tensor
    """[T, 1, d]: their sines, the first half negated, see RotaryEmbedding.angles"""
    slot_mapping: Tensor
    """[T] int64: where each token's key and value go in the cache"""
    attention: AttentionFn
    ops: "Ops"


DecoderLayer = Callable[[Tensor, Tensor, KVCache, ForwardContext], tuple[Tensor, Tensor]]
"""Takes the residual stream and what is yet to be added to it, both [T, hidden], and gives the same."""


QKNorms = tuple[Tensor, Tensor, float]
"""Weights [d] of the query and key norms, and their epsilon (Qwen3)."""


class Projection(Protocol):
    """y = x W^T + b."""

    def __call__(self, x: Tensor) -> Tensor: ...


class GatedProjection(Projection, Protocol):
    """One whose outputs are gates, then ups."""

    def swiglu(self, x: Tensor) -> Tensor | None:
        """silu(gate) * up, [T, inner], of x [T, hidden], in the product's own launch. None = not fused in this form of
        the weights, for so many rows, or for such sizes."""


class AttentionBlock(Protocol):
    """A layer's attention, as far as it looks at no other token."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def qkv_proj(self) -> Projection: ...

    @property
    def qk_norms(self) -> QKNorms | None: ...

    def project_and_cache(self, x: Tensor, kv_cache: KVCache, context: ForwardContext) -> Tensor:
        """q [T, n_heads, d] of x [T, hidden], whose k and v are written to the cache: step by step, for
        `Ops.project_and_cache`."""


@dataclass(frozen=True, slots=True)
class StackedExperts:
    """A layer's experts and their router, see minillm/model/moe.py."""

    router: Tensor
    """[E, hidden]"""
    gate_up: Tensor
    """[E, 2 * inner, hidden]"""
    down: Tensor
    """[E, hidden, inner]"""
    k: int
    """Experts of a token"""
    normalize: bool
    """Their shares add up to 1."""


class Ops:
    """The operations, one PyTorch call after the other."""

    def fill_in(self, token_ids: Tensor, sampled: Tensor) -> Tensor:
        """Token ids [T] int32, each `~row` replaced by sampled[row]; see minillm/runner/pending_tokens.py."""
        newest = sampled[(~token_ids).clamp(min=0)]
        # A row that could not be sampled ends its request as soon as that is seen; until then, any token will do.
        return torch.where(token_ids < 0, newest, token_ids).clamp(min=0)

    def likeliest(self, logits: Tensor) -> Tensor:
        """[R] int64: the id of the largest of each row of logits [R, V], the first of equal ones; -1 where a logit is
        NaN, or the largest one infinite."""
        # max() gives the largest logit along with its token, and hands NaN on, so the check costs nothing.
        largest, token_ids = logits.max(dim=-1)
        return torch.where(largest.isfinite(), token_ids, -1)

    def add_rms_norm(self, x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """The residual stream x + delta [T, hidden], and its RMS norm: what enters the next block."""
        x = x + delta
        return x, rms_norm(x, weight, eps)

    def swiglu(self, gate_up_proj: GatedProjection, x: Tensor) -> Tensor:
        """silu(gate) * up, [T, inner], of x [T, hidden] (SwiGLU, Shazeer 2020)."""
        return self.silu_mul(gate_up_proj(x))

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up, for [T, 2 * inner] = (gate, up)."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    def mix_experts(self, x: Tensor, experts: StackedExperts) -> Tensor | None:
        """A layer of experts of x [T, hidden]: [T, hidden]. None = not fused for so many tokens, or such sizes: then
        it goes step by step."""
        return None

    def add_shares(self, parts: Tensor, order: Tensor, shares: Tensor) -> Tensor:
        """[T, hidden]: of each token, what its k experts have made of it, weighted by its shares [T, k].

        Args:
            parts: [T * k, hidden], sorted by expert.
            order: [T * k] int64, the pair (token * k + place) that each of these rows is of.
        """
        parts = torch.empty_like(parts).index_copy_(0, order, parts)
        return (parts.view(*shares.shape, -1) * shares[:, :, None]).sum(dim=1)

    def project_and_cache(self, block: AttentionBlock, x: Tensor, kv_cache: KVCache, context: ForwardContext) -> Tensor:
        """q [T, n_heads, d] of x [T, hidden], whose k and v are written to the cache. Here as the decoder has it, step
        by step."""
        return block.project_and_cache(x, kv_cache, context)

    def run_layers(
        self,
        layers: Iterable[DecoderLayer],
        x: Tensor,
        delta: Tensor,
        kv_caches: Sequence[KVCache],
        context: ForwardContext,
    ) -> tuple[Tensor, Tensor]:
        """All layers, one after the other, each with its own KV cache.

        Returns:
            The residual stream and what the last layer adds to it, both [T, hidden].
        """
        for layer, kv_cache in zip(layers, kv_caches, strict=True):
            x, delta = layer(x, delta, kv_cache, context)
        return x, delta


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last dimension (Zhang & Sennrich 2019); sums in float32."""
    if x.dtype != torch.float32:
        return F.rms_norm(x, weight.shape, weight, eps)
    # F.rms_norm says the same, but on a CPU it is composed of twice as many operations.
    scale = x.square().sum(dim=-1, keepdim=True).mul_(1 / x.shape[-1]).add_(eps).rsqrt_()
    return (x * scale).mul_(weight)


def rotate_(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Turn heads x [T, n, d] by the angles of their tokens, in place: dimensions i and i + d/2 are a pair."""
    swapped = x.roll(x.shape[-1] // 2, dims=-1)
    x.mul_(cos).addcmul_(swapped, sin)
