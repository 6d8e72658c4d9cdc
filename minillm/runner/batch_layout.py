"""From a ScheduledBatch (Python objects) to what a decoder reads (tensors)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from minillm.core.batch import ScheduledRequest
from minillm.core.block_pool import blocks_for
from minillm.kernels.attention.base import AttentionMetadata
from minillm.kernels.device import to_device
from minillm.runner.rows import DraftPosition, Row

ALIGNMENT = 4
"""int32 numbers in 16 bytes."""
Array = TypeVar("Array", np.ndarray, Tensor)


class BatchArrays(NamedTuple, Generic[Array]):
    """One step's inputs, int32: T tokens of B sequences, R of which get a next token."""

    token_ids: Array
    """[T]; ~row where the token is still pending, see :class:`minillm.runner.pending_tokens.PendingTokens`"""
    positions: Array
    """[T]"""
    slots: Array
    """[T] where each token's key and value go: block * block_size + offset"""
    query_starts: Array
    """[B + 1]"""
    context_lens: Array
    """[B]"""
    block_tables: Array
    """[B, max_blocks]"""
    logit_rows: Array
    """[R] the last row of each sequence that samples"""


@dataclass(frozen=True, slots=True)
class HostBatch:
    """A step laid out on the host. Sequences with one new token come first."""

    scheduled: list[ScheduledRequest]
    """In the order of their tokens"""
    arrays: BatchArrays[np.ndarray]
    rows: list[Row]
    """R, in the order of logit_rows; a request with n draft tokens has n + 1"""
    num_decodes: int
    block_size: int
    has_pending: bool
    """Some tokens were sampled by the step before, and only the device knows them."""

    @property
    def only_decodes(self) -> bool:
        """Every sequence computes one token and samples the next: what can be recorded."""
        return self.num_decodes == len(self.rows) == len(self.arrays.context_lens)


class Span(NamedTuple):
    """A piece of a request that is computed as a sequence of its own."""

    scheduled: ScheduledRequest
    start: int
    end: int
    sampled: Row | None
    """Whose next token its last row yields."""


def spans_of(scheduled: ScheduledRequest) -> list[Span]:
    """One piece; but where drafts are checked, every token by itself, as if each were another request's decode.

    They share a block table, and keys and values are written before any row attends, so each token finds those
    before it in the cache. Checking a draft is then what a step of decodes is, with the same kernels and recorded
    graphs. The price: a context is read once for each of them. The weights, read once for all, are far larger at
    the batch sizes at which drafting pays.
    """
    request, start, end = scheduled.request, scheduled.start, scheduled.end
    if scheduled.num_drafts == 0:
        return [Span(scheduled, start, end, request if scheduled.samples else None)]
    return [Span(scheduled, start + i, start + i + 1, DraftPosition(request, i)) for i in range(end - start)]


def lay_out(
    scheduled: Sequence[ScheduledRequest], block_size: int, null_block: int, pending_rows: Mapping[str, int]
) -> HostBatch:
    """Lay the sequences' new tokens end to end. Block tables are padded with the null block.

    With blocks of 4 tokens, request A (blocks 7 and 2) decodes its token 5, and B (block 9) prefills its tokens 0 to 2:

        token_ids     [A5, B0, B1, B2]
        positions     [5, 0, 1, 2]
        slots         [2 * 4 + 1, 9 * 4 + 0, 9 * 4 + 1, 9 * 4 + 2]
        query_starts  [0, 1, 4]                  A owns row 0, B rows 1 to 3
        context_lens  [6, 3]
        block_tables  [[7, 2], [9, null_block]]
        logit_rows    [0, 3]                     where the next tokens are sampled

    Args:
        pending_rows: by request id, the row of the step before that samples a request's last token.
    """
    ordered = sorted(scheduled, key=lambda part: part.num_tokens - part.num_drafts > 1)
    spans = [span for part in ordered for span in spans_of(part)]
    num_tokens = np.array([span.end - span.start for span in spans])
    query_starts = np.concatenate(([0], num_tokens.cumsum()))
    token_ids: list[int] = []
    has_pending = False
    for span, query_end in zip(spans, query_starts[1:]):
        token_ids += span.scheduled.request.token_ids(span.start, span.end)
        if len(token_ids) < query_end:  # its last token is still being sampled
            token_ids.append(~pending_rows[span.scheduled.request.request_id])
            has_pending = True
    positions = np.concatenate([np.arange(span.start, span.end) for span in spans])

    block_tables = np.full((len(spans), max(blocks_for(span.end, block_size) for span in spans)), null_block)
    for block_table, span in zip(block_tables, spans):
        num_blocks = blocks_for(span.end, block_size)
        block_table[:num_blocks] = span.scheduled.block_ids[:num_blocks]
    span_of_token = np.arange(len(spans)).repeat(num_tokens)
    slots = block_tables[span_of_token, positions // block_size] * block_size + positions % block_size
    arrays = BatchArrays(
        token_ids=np.array(token_ids),
        positions=positions,
        slots=slots,
        query_starts=query_starts,
        context_lens=np.array([span.end for span in spans]),
        block_tables=block_tables,
        logit_rows=np.array([end - 1 for end, span in zip(query_starts[1:], spans) if span.sampled is not None]),
    )
    return HostBatch(
        scheduled=ordered,
        arrays=BatchArrays(*(array.astype(np.int32) for array in arrays)),
        rows=[span.sampled for span in spans if span.sampled is not None],
        num_decodes=int((num_tokens == 1).sum()),
        block_size=block_size,
        has_pending=has_pending,
    )


def pack(arrays: BatchArrays[np.ndarray]) -> np.ndarray:
    """All of them in one piece of memory, so that one copy brings them to the device.

    Each begins at a multiple of 16 bytes: Triton compiles a kernel again for pointers that are not so aligned.
    """
    return np.concatenate([np.pad(array.ravel(), (0, -array.size % ALIGNMENT)) for array in arrays])


def unpack(flat: Tensor, like: BatchArrays[np.ndarray]) -> BatchArrays[Tensor]:
    """Views of the packed piece, with the shapes of `like`."""
    parts = flat.split([array.size + -array.size % ALIGNMENT for array in like])
    return BatchArrays(*(part[: array.size].view(array.shape) for part, array in zip(parts, like)))


def upload(batch: HostBatch, device: torch.device) -> tuple[BatchArrays[Tensor], AttentionMetadata]:
    """Bring a batch to the device with one copy. Returns its arrays there, and what attention needs to know of it."""
    host = batch.arrays
    arrays = unpack(to_device(pack(host), device), host)
    query_starts, context_lens = host.query_starts.tolist(), host.context_lens.tolist()
    return arrays, make_metadata(arrays, query_starts, context_lens, batch.num_decodes, batch.block_size)


def make_metadata(
    arrays: BatchArrays[Tensor], query_starts: list[int], context_lens: list[int], num_decodes: int, block_size: int
) -> AttentionMetadata:
    """What attention needs to know of a batch."""
    return AttentionMetadata(
        query_starts=query_starts,
        context_lens=context_lens,
        query_starts_tensor=arrays.query_starts,
        context_lens_tensor=arrays.context_lens,
        block_tables=arrays.block_tables,
        slot_mapping=arrays.slots.long(),  # PyTorch scatters by int64 only
        num_decodes=num_decodes,
        block_size=block_size,
    )
