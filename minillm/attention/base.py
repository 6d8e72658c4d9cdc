"""What every attention backend gets, and gives. Passed as arguments: there is no global context."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """One step's ragged batch. Its T tokens are the sequences' new tokens, one after the other.

    Sequences that compute a single token (decode) come first, then the rest.
    """

    query_starts: list[int]
    """[B + 1] sequence b owns rows query_starts[b] : query_starts[b + 1]"""
    context_lens: list[int]
    """[B] tokens in the cache after this step's keys and values are written"""
    block_tables: Tensor
    """[B, max_blocks] int64: block of position p of sequence b is [b, p // block_size]; padded with the
    null block, which nobody owns"""
    slot_mapping: Tensor
    """[T] int64: where each new token's key and value go: block * block_size + offset"""
    num_decodes: int
    """the first this many sequences have exactly one new token"""
    block_size: int


class StepAttention(Protocol):
    """Causal attention of one step's T new tokens over the paged cache. Every layer calls it.

    It writes the step's keys and values to the cache first, for all sequences, and then attends: so a
    sequence may read blocks that another one fills in the very same step.
    """

    def __call__(self, query: Tensor, kv: Tensor, kv_cache: Tensor, scale: float) -> Tensor:
        """Attend.

        Args:
            query: [T, n_heads, d]
            kv: [T, 2, n_kv_heads, d], keys and values of the new tokens.
            kv_cache: [num_blocks, block_size, 2, n_kv_heads, d]
        Returns:
            [T, n_heads, d], in the query's dtype.
        """
        ...


class AttentionBackend(Protocol):
    """Prepares, once a step, what all layers share (page lists, masks); a backend is such a class."""

    def __call__(self, metadata: AttentionMetadata) -> StepAttention: ...


def write_kv(kv: Tensor, kv_cache: Tensor, slot_mapping: Tensor) -> None:
    """Scatter new keys and values [T, 2, n_kv_heads, d] into the paged cache, in place and in its dtype."""
    kv_cache.view(-1, *kv.shape[1:]).index_copy_(0, slot_mapping, kv.to(kv_cache.dtype))


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold this many tokens."""
    return -(-num_tokens // block_size)
