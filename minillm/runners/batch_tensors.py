"""From a ScheduledBatch (Python objects) to what a decoder reads (tensors)."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from minillm.attention.base import AttentionMetadata, blocks_for
from minillm.request import Request
from minillm.scheduling.batch import ScheduledRequest


@dataclass(frozen=True, slots=True)
class BatchTensors:
    """One step's inputs: T tokens of B sequences, R of which get a next token."""

    token_ids: Tensor
    """[T] int64"""
    positions: Tensor
    """[T] int64"""
    metadata: AttentionMetadata
    logit_rows: Tensor
    """[R] int64: the last row of each sequence that samples"""
    sampling_requests: list[Request]
    """R requests, in the order of logit_rows"""


def build_batch(
    scheduled: tuple[ScheduledRequest, ...], block_size: int, null_block: int, device: torch.device
) -> BatchTensors:
    """Lay the sequences' new tokens end to end, decodes first. Block tables are padded with the null block."""
    ordered = sorted(scheduled, key=lambda s: s.num_tokens > 1)
    num_tokens = np.array([s.num_tokens for s in ordered])
    query_starts = np.concatenate(([0], num_tokens.cumsum()))
    token_ids = np.concatenate([s.request.token_ids(s.start, s.end) for s in ordered])
    positions = np.concatenate([np.arange(s.start, s.end) for s in ordered])

    max_blocks = max(blocks_for(s.end, block_size) for s in ordered)
    tables = np.full((len(ordered), max_blocks), null_block, dtype=np.int64)
    for row, s in zip(tables, ordered):
        num_blocks = blocks_for(s.end, block_size)
        row[:num_blocks] = s.block_ids[:num_blocks]
    sequence_of_token = np.arange(len(ordered)).repeat(num_tokens)
    slots = tables[sequence_of_token, positions // block_size] * block_size + positions % block_size
    sampling = [b for b, s in enumerate(ordered) if s.samples]

    def to_device(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    metadata = AttentionMetadata(
        query_starts=query_starts.tolist(),
        context_lens=[s.end for s in ordered],
        block_tables=to_device(tables),
        slot_mapping=to_device(slots),
        num_decodes=sum(s.num_tokens == 1 for s in ordered),
        block_size=block_size,
    )
    return BatchTensors(
        token_ids=to_device(token_ids),
        positions=to_device(positions),
        metadata=metadata,
        logit_rows=to_device(query_starts[1:][sampling] - 1),
        sampling_requests=[ordered[b].request for b in sampling],
    )
