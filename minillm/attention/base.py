"""What every attention backend gets, and gives. Passed as arguments: there is no global context."""

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """One step's ragged batch. Its T tokens are the sequences' new tokens, one after the other.

    Sequences that compute a single token (decode) come first: B_decode of them, then the rest.
    """

    query_starts: list[int]
    """[B + 1] sequence b owns rows query_starts[b] : query_starts[b + 1]"""
    context_lens: list[int]
    """[B] tokens in the cache after this step's keys and values are written"""
    block_tables: torch.Tensor
    """[B, max_blocks] int64: block of position p of sequence b is [b, p // block_size]; padded with 0"""
    slot_mapping: torch.Tensor
    """[T] int64: where each new token's key and value go: block * block_size + offset"""
    num_decodes: int
    """the first this many sequences have exactly one new token"""


class AttentionBackend(Protocol):
    """Causal attention of T new tokens over the paged cache that already holds them.

    A decoder writes the step's keys and values first (see :func:`write_kv`), for all sequences, then
    calls this: so a sequence may read blocks that another one fills in the very same step.
    """

    def __call__(
        self,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        metadata: AttentionMetadata,
        scale: float,
    ) -> torch.Tensor:
        """query [T, n_heads, d]; caches [num_blocks, block_size, n_kv_heads, d]; returns [T, n_heads, d]."""
        ...


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Scatter new keys and values [T, n_kv_heads, d] into the paged cache, in place."""
    key_cache.view(-1, *key.shape[1:]).index_copy_(0, slot_mapping, key)
    value_cache.view(-1, *value.shape[1:]).index_copy_(0, slot_mapping, value)
