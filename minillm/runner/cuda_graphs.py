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

Any other step is launched kernel by kernel.
"""

import functools
from collections.abc import Callable
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from minillm.core.block_pool import blocks_for
from minillm.host.device import to_device
from minillm.kernels.attention.base import AttentionBackend
from minillm.kernels.ops import Ops
from minillm.model.decoder import Decoder
from minillm.runner.batch_layout import ALIGNMENT, BatchArrays, HostBatch, make_metadata
from minillm.runner.kv_pool import KVPool
from minillm.runner.pending_tokens import PendingTokens

SMALL_BUCKETS = (1, 2, 4)
BUCKET_STEP = 8
WARM_UPS = 2
"""Runs before recording: libraries set themselves up, and Triton compiles."""


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
        self.device, max_batch = pending.sampled.device, len(pending.sampled)
        empty = functools.partial(torch.empty, max_batch, dtype=decoder.activation_dtype, device=self.device)
        self.logits = empty(decoder.config.vocab_size)
        """Where every recording leaves its result: a vocabulary wide, it should not exist once a bucket."""
        self.hidden = empty(decoder.config.hidden_size)
        """What went into the output head, for draft heads."""
        self.padding = np.array([[0], [0], [kv_pool.null_block * kv_pool.block_size], [1]], np.int32)
        """Token id, position, slot and context length of an added row: token 0 at position 0 of a context of one token,
        in the null block. That may be written to, and nothing reads what comes of it."""
        aligned = max_batch + -max_batch % ALIGNMENT
        self.inputs = to_device(self.padding.repeat(aligned, axis=1), self.device)
        """[4, max_batch, rounded up] int32: what each bucket reads the first columns of"""
        self.query_starts = torch.arange(max_batch + 1, dtype=torch.int32, device=self.device)
        shape = (max_batch, blocks_for(max_context, kv_pool.block_size))
        self.block_tables = torch.full(shape, kv_pool.null_block, dtype=torch.int32, device=self.device)
        """[max_batch, table_width]. Only as many columns are renewed as a step needs: a window of 128k tokens has 8192,
        and no row reads past its own length."""
        self.recordings: dict[int, Graph] = {}
        # The largest first: the memory of its activations then serves all the others.
        for bucket in tqdm(bucket_sizes(max_batch)[::-1], desc="recording CUDA graphs", unit="graph", leave=False):
            self.recordings[bucket] = self._record(bucket, make_graph())

    def __call__(self, batch: HostBatch) -> tuple[Tensor, Tensor] | None:
        """Hidden states [R, h] and logits [R, V] of a batch of decodes, good until the next call; None if it is
        anything else."""
        arrays, (n, width) = batch.arrays, batch.arrays.block_tables.shape
        bucket = min((size for size in self.recordings if size >= n), default=None)
        if bucket is None or not batch.only_decodes:
            return None
        inputs = self.padding.repeat(bucket, axis=1)
        inputs[:, :n] = arrays.token_ids, arrays.positions, arrays.slots, arrays.context_lens
        self.inputs[:, :bucket].copy_(to_device(inputs, self.device))
        block_tables = np.full((bucket, width), self.kv_pool.null_block, np.int32)
        block_tables[:n] = arrays.block_tables
        self.block_tables[:bucket, :width].copy_(to_device(block_tables, self.device))
        self.recordings[bucket].replay()
        return self.hidden[:n], self.logits[:n]

    @torch.inference_mode()
    def _record(self, bucket: int, graph: Graph) -> Graph:
        # Only shapes count here: every row is padding.
        token_ids, positions, slots, context_lens = self.inputs[:, :bucket]
        starts, tables = self.query_starts[: bucket + 1], self.block_tables[:bucket]
        arrays = BatchArrays(token_ids, positions, slots, starts, context_lens, tables, logit_rows=starts[:-1])

        def work() -> None:
            metadata = make_metadata(arrays, list(range(bucket + 1)), [1] * bucket, bucket, self.kv_pool.block_size)
            inputs = (self.pending.fill_in(token_ids), positions, self.kv_pool.layers, self.backend(metadata), self.ops)
            hidden = self.hidden[:bucket].copy_(self.decoder.hidden_states(*inputs))
            self.logits[:bucket].copy_(self.decoder.lm_head(hidden))

        return graph.record(work)


def bucket_sizes(max_batch: int) -> list[int]:
    """1, 2, 4, 8, 16, 24, ... below max_batch, and max_batch: little padding at any size."""
    sizes = [*SMALL_BUCKETS, *range(BUCKET_STEP, max_batch + BUCKET_STEP, BUCKET_STEP)]
    return [size for size in sizes if size < max_batch] + [max_batch]
