"""Decode steps as CUDA graphs: a whole forward pass launched at once.

A decode step of a small model is hundreds of kernels of a few microseconds each, and launching one from
Python costs about as much. A CUDA graph records the launches once, and replays them with a single call
(CUDA 10, 2018; in serving since FasterTransformer and vLLM). The price: every replay runs the same
kernels on the same memory with the same shapes. So

- batch sizes are rounded up to buckets, and rows added as padding write to the null block;
- inputs are copied into the memory the graph was recorded on;
- nothing that differs from step to step may have been decided on the host while recording. Context
  lengths above all: a backend that plans with them (`capturable = False`) is not captured. Engines that
  overlooked this returned wrong text without any error.

Other steps, and those of such a backend, are recorded in pieces: see piecewise_graphs.py.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from minillm.core.block_pool import blocks_for
from minillm.kernels.attention.base import AttentionBackend
from minillm.kernels.device import to_device
from minillm.kernels.ops import Ops
from minillm.model.decoder import Decoder
from minillm.runner.batch_layout import BatchArrays, HostBatch, make_metadata, pack, unpack
from minillm.runner.kv_pool import KVPool
from minillm.runner.pending_tokens import PendingTokens

SMALL_BUCKETS = (1, 2, 4)
BUCKET_STEP = 8
WARM_UPS = 2
"""Runs before recording: libraries set themselves up, and Triton compiles."""


NOTHING = np.zeros(0, np.int32)
NO_ROWS = BatchArrays(NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, np.zeros((0, 0), np.int32), NOTHING)


@functools.cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """The one that graphs are recorded on, of all engines: cuBLAS keeps 32 MiB for every stream it has seen."""
    return torch.cuda.Stream(device)


class Graph(Protocol):
    """Records what `work` does, and can do it again."""

    def record(self, work: Callable[[], object]) -> Self:
        """Remember `work`, which may be run for that, more than once. What it finds, it leaves in tensors that were
        there before: the memory of all others is reused as soon as it ends."""
        ...

    def replay(self) -> None: ...


class CudaGraph:
    """torch.cuda.CUDAGraph. All of one runner share a memory pool, since only one of them runs at a time.

    Args:
        pool: torch.cuda.graph_pool_handle().
        side: see side_stream; the current stream cannot be recorded.
    """

    def __init__(self, pool: Any, side: torch.cuda.Stream) -> None:
        self.graph = torch.cuda.CUDAGraph()
        self.pool, self.side = pool, side

    def record(self, work: Callable[[], object]) -> Self:
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            for _ in range(WARM_UPS):
                work()
        torch.cuda.current_stream().wait_stream(self.side)
        # What other threads do meanwhile (another engine's copies, a notebook's cell) is none of the recording's.
        with torch.cuda.graph(self.graph, pool=self.pool, stream=self.side, capture_error_mode="thread_local"):
            work()
        return self

    def replay(self) -> None:
        self.graph.replay()


@dataclass(frozen=True, slots=True)
class Recording:
    """One bucket: a graph, and the memory it reads."""

    graph: Graph
    flat: Tensor
    """int32: all inputs but the block tables, packed"""
    block_tables: Tensor
    """[bucket, table_width] int32. Only as many columns are renewed as a step needs: a window of 128k tokens has
    8192, and no row reads past its own length."""


class GraphedDecode:
    """Decode steps of as many sequences as `pending` has rows, recorded in buckets.

    Args:
        decoder, ops, backend: the forward pass to record; the backend must be capturable.
        max_context: longest context any request can have, tokens: as wide as block tables are made.
        pending: read by every replay, at one address.
        make_graph: CudaGraph; tests put something in its place that runs without a GPU.
    """

    def __init__(
        self,
        decoder: Decoder,
        ops: Ops,
        backend: type[AttentionBackend],
        kv_pool: KVPool,
        pending: PendingTokens,
        max_context: int,
        make_graph: Callable[[], Graph],
    ) -> None:
        self.decoder, self.ops, self.backend = decoder, ops, backend
        self.kv_pool, self.pending = kv_pool, pending
        self.table_width = blocks_for(max_context, kv_pool.block_size)
        self.device, max_batch = pending.sampled.device, len(pending.sampled)
        empty = functools.partial(torch.empty, max_batch, dtype=decoder.activation_dtype, device=self.device)
        self.logits = empty(decoder.config.vocab_size)
        """Where every recording leaves its result: a vocabulary wide, it should not exist once a bucket."""
        self.hidden = empty(decoder.config.hidden_size)
        """What went into the output head, for draft heads."""
        self.recordings: dict[int, Recording] = {}
        # The largest first: the memory of its activations then serves all the others.
        for bucket in tqdm(bucket_sizes(max_batch)[::-1], desc="recording CUDA graphs", unit="graph", leave=False):
            self.recordings[bucket] = self._record(bucket, make_graph())

    def __call__(self, batch: HostBatch) -> tuple[Tensor, Tensor] | None:
        """Hidden states [R, h] and logits [R, V] of a batch of decodes, good until the next call; None if it is
        anything else."""
        n = len(batch.arrays.context_lens)
        bucket = min((size for size in self.recordings if size >= n), default=None)
        if bucket is None or not batch.only_decodes:
            return None
        recording, width = self.recordings[bucket], batch.arrays.block_tables.shape[1]
        arrays = pad_decodes(batch.arrays, bucket, width, self.kv_pool.null_block, batch.block_size)
        recording.flat.copy_(to_device(pack(without_tables(arrays)), self.device))
        recording.block_tables[:, :width].copy_(to_device(arrays.block_tables, self.device))
        recording.graph.replay()
        return self.hidden[:n], self.logits[:n]

    @torch.inference_mode()
    def _record(self, bucket: int, graph: Graph) -> Recording:
        # Only shapes count here: every row is padding.
        null_block, block_size = self.kv_pool.null_block, self.kv_pool.block_size
        like = pad_decodes(NO_ROWS, bucket, self.table_width, null_block, block_size)
        flat = to_device(pack(without_tables(like)), self.device).clone()
        block_tables = to_device(like.block_tables, self.device).clone()
        arrays = unpack(flat, without_tables(like))._replace(block_tables=block_tables)

        def work() -> None:
            token_ids = self.pending.fill_in(arrays.token_ids)
            metadata = make_metadata(arrays, list(range(bucket + 1)), [1] * bucket, bucket, block_size)
            attention = self.backend(metadata)
            inputs = (token_ids, arrays.positions, self.kv_pool.layers, attention, self.ops)
            hidden = self.hidden[:bucket].copy_(self.decoder.hidden_states(*inputs))
            self.logits[:bucket].copy_(self.decoder.lm_head(hidden))

        return Recording(graph.record(work), flat, block_tables)


def pad_decodes(
    arrays: BatchArrays[np.ndarray], num_rows: int, table_width: int, null_block: int, block_size: int
) -> BatchArrays[np.ndarray]:
    """A batch of decodes with rows added up to `num_rows`, and tables `table_width` blocks wide.

    An added row computes token 0 at position 0 of a context of one token, in the null block: it may be
    written to, and nothing reads what comes of it.
    """
    present = len(arrays.context_lens)

    def pad(array: np.ndarray, value: int) -> np.ndarray:
        return np.append(array, np.full(num_rows - present, value, np.int32))

    tables = np.full((num_rows, table_width), null_block, dtype=np.int32)
    tables[:present, : arrays.block_tables.shape[1]] = arrays.block_tables
    return BatchArrays(
        token_ids=pad(arrays.token_ids, 0),
        positions=pad(arrays.positions, 0),
        slots=pad(arrays.slots, null_block * block_size),
        query_starts=np.arange(num_rows + 1, dtype=np.int32),
        context_lens=pad(arrays.context_lens, 1),
        block_tables=tables,
        logit_rows=np.arange(num_rows, dtype=np.int32),
    )


def without_tables(arrays: BatchArrays[np.ndarray]) -> BatchArrays[np.ndarray]:
    """The arrays without block tables, which have buffers of their own."""
    return arrays._replace(block_tables=NO_ROWS.block_tables)


def bucket_sizes(max_batch: int) -> list[int]:
    """1, 2, 4, 8, 16, 24, ... below max_batch, and max_batch: little padding at any size."""
    sizes = [*SMALL_BUCKETS, *range(BUCKET_STEP, max_batch + BUCKET_STEP, BUCKET_STEP)]
    return [size for size in sizes if size < max_batch] + [max_batch]
