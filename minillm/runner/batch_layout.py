"""From a ScheduledBatch (Python objects) to what a decoder reads (tensors)."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from minillm.core.batch import ScheduledRequest
from minillm.core.params import SamplingParams
from minillm.core.request import Request
from minillm.core.timeline import Timeline
from minillm.host.device import to_device
from minillm.kernels.attention.base import AttentionMetadata
from minillm.runner.rows import DraftPosition, Row

ALIGNMENT = 4
"""int32 numbers in 16 bytes."""
NO_REQUEST = Request("padding", [0], SamplingParams(), Timeline(0.0))
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

    scheduled: Sequence[ScheduledRequest]
    """The requests, in the order of their tokens."""
    arrays: BatchArrays[np.ndarray]
    rows: list[Row]
    """R, in the order of logit_rows; a request with n draft tokens has n + 1"""
    num_decodes: int
    block_size: int
    has_pending: bool
    """Some tokens were sampled by the step before, and only the device knows them."""
    num_padding: int
    """Sequences of no request, the last ones; see :func:`lay_out`."""

    @property
    def only_decodes(self) -> bool:
        """Every sequence computes one token, and each one but the padding samples the next: a CUDA graph can do it."""
        return self.num_decodes == len(self.arrays.context_lens) == len(self.arrays.logit_rows) + self.num_padding


class KeptTables(NamedTuple):
    """Block tables as a step had them."""

    lists: Sequence[Sequence[int]]
    """Block ids of each of the N requests, padding included; the scheduler goes on filling these lists."""
    num_blocks: np.ndarray
    """[N + 1] how many blocks of each list are in the array"""
    array: np.ndarray
    """[N + 1, max_blocks]; the last row is empty: the one of a request that was not there."""


class BlockTables:
    """The block tables of the step before, from which those of the next are made.

    From one step to the next most tables stay what they are, and some get a block more. To read all of them again
    would cost a step as much as its requests have blocks.
    """

    def __init__(self, block_size: int, null_block: int) -> None:
        self.block_size, self.null_block = block_size, null_block
        self.padding = ScheduledRequest(NO_REQUEST, 0, 1, [null_block], samples=False)
        """A sequence of one token, in the null block: that may be written to, and nothing reads what comes of it."""
        self._kept = KeptTables([], np.zeros(1, np.int64), np.full((1, 0), null_block, np.int32))

    def update(self, lists: Sequence[Sequence[int]], starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """[N, max_blocks] int32: the blocks of each request's tokens [0, end), padded with the null block.

        A list that it has seen before is unchanged before `start` (:attr:`ScheduledRequest.block_ids`).
        """
        num_blocks = -(-ends // self.block_size)
        most = num_blocks.max()
        tables, num_held = self._carry_over(lists, most)
        num_known = np.minimum(num_held, -(-starts // self.block_size))
        num_new = num_blocks - num_known
        (grown,) = num_new.nonzero()
        new = [lists[row][num_known[row] : num_blocks[row]] for row in grown.tolist()]
        tables[grown.repeat(num_new[grown]), ranges(num_known, num_new)] = list(chain.from_iterable(new))
        if (num_held > num_blocks).any():  # blocks of rejected drafts
            tables[:-1][np.arange(tables.shape[1]) >= num_blocks[:, None]] = self.null_block
        # In one stroke, as Ctrl-C may come at any line.
        self._kept = KeptTables(lists, np.append(num_blocks, 0), tables)
        return tables[:-1, :most]

    def _carry_over(self, lists: Sequence[Sequence[int]], most: int) -> tuple[np.ndarray, np.ndarray]:
        """The array of the step before with a row for each of these lists, at least `most` wide; and [N] how many
        blocks of each are in it: none of a list that was not there."""
        before, num_held, tables = self._kept
        if most <= tables.shape[1] and len(lists) == len(before) and all(map(operator.is_, lists, before)):
            return tables, num_held[:-1]  # most often: the batch is the same
        row_of = {id(block_ids): row for row, block_ids in enumerate(before)}
        rows = np.array([row_of.get(id(block_ids), -1) for block_ids in lists])
        kept = tables[rows, :most]
        carried = np.full((len(lists) + 1, most), self.null_block, np.int32)
        carried[:-1, : kept.shape[1]] = kept
        return carried, num_held[rows]


def ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """start, start + 1, ... of each range, laid end to end: starts (5, 0) with lengths (1, 3) give 5, 0, 1, 2."""
    ends = lengths.cumsum()
    return np.arange(ends[-1]) + (starts - ends + lengths).repeat(lengths)


def decodes_first(scheduled: Sequence[ScheduledRequest]) -> Sequence[ScheduledRequest]:
    """Requests whose tokens are sequences of one come before the others; else the order stays."""
    is_long = [part.num_tokens - part.num_drafts > 1 for part in scheduled]
    if is_long == sorted(is_long):  # nearly always: a scheduler takes running requests first
        return scheduled
    return [scheduled[i] for i in np.argsort(is_long, kind="stable")]


def read_token_ids(scheduled: Sequence[ScheduledRequest], pending_rows: Mapping[str, int]) -> tuple[list[int], bool]:
    """The requests' new tokens end to end, and whether some of them are pending: those are ~row, see `BatchArrays`."""
    token_ids: list[int] = []
    has_pending = False
    for request, start, num_tokens, _, samples, _ in scheduled:
        is_pending = samples and request.num_pending_tokens > 1  # besides the one that this step yields
        if num_tokens > is_pending:
            token_ids += request.token_ids(start, start + num_tokens)
        if is_pending:
            token_ids.append(~pending_rows[request.request_id])
            has_pending = True
    return token_ids, has_pending


def rows_to_sample(scheduled: Sequence[ScheduledRequest]) -> list[Row]:
    """Whose next token each row of logits is about: one for a request that samples, one for each token of a draft and
    the one before it."""
    rows: list[Row] = []
    for part in scheduled:
        if part.num_drafts:
            rows += [DraftPosition(part.request, i) for i in range(part.num_tokens)]
        elif part.samples:
            rows.append(part.request)
    return rows


def lay_out(
    scheduled: Sequence[ScheduledRequest],
    tables: BlockTables,
    pending_rows: Mapping[str, int],
    num_padding: int = 0,
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

    A request is one sequence; but where drafts are checked, every token is one by itself, as if each were another
    request's decode. They share a block table, and keys and values are written before any row attends, so each token
    finds those before it in the cache. Checking a draft is then what a step of decodes is, with the same kernels and
    CUDA graphs. The price: a context is read once for each of them. The weights, read once for all, are far larger
    at the batch sizes at which drafting pays.

    Args:
        tables: those of the step before; they're brought up to date.
        pending_rows: by request id, the row of the step before that samples a request's last token.
        num_padding: sequences to add at the end (`BlockTables.padding`): a CUDA graph computes just as many as it was
            captured with.
    """
    scheduled = decodes_first(scheduled)
    padded = [*scheduled, *[tables.padding] * num_padding]
    token_ids, has_pending = read_token_ids(padded, pending_rows)
    _, start_column, length_column, block_lists, samples_column, drafts_column = zip(*padded)
    starts, num_tokens = np.array(start_column), np.array(length_column)
    samples, has_drafts = np.array(samples_column), np.array(drafts_column) > 0

    # For each token: whose it is (an index in `padded`), where in its request, and in which block.
    request_of_token = np.arange(len(padded)).repeat(num_tokens)
    positions = ranges(starts, num_tokens)
    block_tables = tables.update(block_lists, starts, starts + num_tokens)
    blocks = block_tables[request_of_token, positions // tables.block_size]

    # For each sequence: where it begins and ends among the tokens, and whose it is.
    is_first = (positions == starts[request_of_token]) | has_drafts[request_of_token]
    query_starts = np.append(is_first.nonzero()[0], len(positions))
    last_rows = query_starts[1:] - 1
    request_of_sequence = request_of_token[last_rows]
    arrays = BatchArrays(
        token_ids=np.array(token_ids),
        positions=positions,
        slots=blocks * tables.block_size + positions % tables.block_size,
        query_starts=query_starts,
        context_lens=positions[last_rows] + 1,
        block_tables=block_tables[request_of_sequence],
        logit_rows=last_rows[samples[request_of_sequence]],
    )
    return HostBatch(
        scheduled=scheduled,
        arrays=BatchArrays(*(array.astype(np.int32, copy=False) for array in arrays)),
        rows=rows_to_sample(scheduled),
        num_decodes=int((np.diff(query_starts) == 1).sum()),
        block_size=tables.block_size,
        has_pending=has_pending,
        num_padding=num_padding,
    )


def pack(arrays: BatchArrays[np.ndarray]) -> np.ndarray:
    """All arrays in one piece of memory, so that one copy brings them to the device.

    Each begins at a multiple of 16 bytes: Triton compiles a kernel again for pointers that are not so aligned.
    """
    ends = np.cumsum([aligned_size(array) for array in arrays])
    flat = np.zeros(ends[-1], np.int32)
    for array, end in zip(arrays, ends.tolist()):
        start = end - aligned_size(array)
        flat[start : start + array.size] = array.ravel()
    return flat


def aligned_size(array: np.ndarray) -> int:
    """Numbers that an array takes when packed."""
    return array.size + -array.size % ALIGNMENT


def unpack(flat: Tensor, like: BatchArrays[np.ndarray]) -> BatchArrays[Tensor]:
    """Views of the packed piece, with the shapes of `like`."""
    parts = flat.split([aligned_size(array) for array in like])
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
