"""The small operations between a decoder's matrix products: norms, rotation, cache writes, SwiGLU.

Each moves a few bytes and computes next to nothing. On a GPU what they cost is their launches and
their trips through memory, so `minillm.kernels.triton.ops` fuses each of these methods into one kernel.
The versions here are PyTorch's own, for every device, and the reference the fused ones are tested against.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from minillm.kernels.attention.cache import KVCache, write_kv
from minillm.model.rope import rotate_

if TYPE_CHECKING:
    from minillm.model.decoder import Layer, Pass


@dataclass(frozen=True, slots=True)
class Rotation:
    """What happens to queries and keys before they meet: norm (Qwen3), then rotation by position."""

    cos: Tensor
    """[T, 1, d]"""
    sin: Tensor
    """[T, 1, d], its first half negated: see RotaryEmbedding.angles"""
    slot_mapping: Tensor
    """[T] int64: where each token's key and value go in the cache"""


class Ops:
    """The operations, one PyTorch call after the other."""

    def run_layers(
        self, layers: "Sequence[Layer]", x: Tensor, delta: Tensor, kv_caches: Sequence[KVCache], step: "Pass"
    ) -> tuple[Tensor, Tensor]:
        """A decoder's layers. Returns the residual stream and what the last one adds to it, both [T, hidden]."""
        for layer, kv_cache in zip(layers, kv_caches, strict=True):
            x, delta = layer(x, delta, kv_cache, step)
        return x, delta

    def add_rms_norm(self, x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """The residual stream x + delta [T, hidden], and its RMS norm: what enters the next block."""
        x = x + delta
        return x, rms_norm(x, weight, eps)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up, for [T, 2 * inner] = (gate, up)."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    def rotate_and_write(
        self,
        qkv: Tensor,
        num_kv_heads: int,
        norms: tuple[Tensor, Tensor, float] | None,
        rotation: Rotation,
        kv_cache: KVCache,
    ) -> Tensor:
        """Norm and rotate queries and keys, write keys and values to the cache. `qkv` is overwritten.

        Args:
            qkv: [T, n_heads + 2 * n_kv_heads, d]: queries, then keys, then values.
            norms: weights [d] of the query and key norms, and their epsilon (Qwen3); None = no norms.
            kv_cache: [num_blocks, block_size, 2, n_kv_heads, d]
        Returns:
            The queries [T, n_heads, d].
        """
        num_tokens, num_all, head_dim = qkv.shape
        num_heads = num_all - 2 * num_kv_heads
        query, key = qkv[:, :num_heads], qkv[:, num_heads : num_heads + num_kv_heads]
        if norms is not None:
            query_weight, key_weight, eps = norms
            query.copy_(rms_norm(query, query_weight, eps))
            key.copy_(rms_norm(key, key_weight, eps))
        rotate_(qkv[:, : num_heads + num_kv_heads], rotation.cos, rotation.sin)
        kv = qkv[:, num_heads:].view(num_tokens, 2, num_kv_heads, head_dim)
        self.write(kv, kv_cache, rotation.slot_mapping)
        return query

    def write(self, kv: Tensor, kv_cache: KVCache, slot_mapping: Tensor) -> None:
        """New keys and values [T, 2, n_kv_heads, d] go to their slots of the cache."""
        write_kv(kv, kv_cache, slot_mapping)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last dimension (Zhang & Sennrich 2019); sums in float32."""
    if x.dtype != torch.float32:
        return F.rms_norm(x, weight.shape, weight, eps)
    # F.rms_norm says the same, but on a CPU it is composed of twice as many operations.
    scale = x.square().sum(dim=-1, keepdim=True).mul_(1 / x.shape[-1]).add_(eps).rsqrt_()
    return (x * scale).mul_(weight)
