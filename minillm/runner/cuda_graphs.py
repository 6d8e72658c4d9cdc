"""Decode steps as CUDA graphs: a whole forward pass in one launch.

A decode step of a small model is hundreds of kernels of a few microseconds each, and launching one from
Python costs about as much. A CUDA graph captures the launches once, and replays them with a single call
(CUDA 10, 2018; in serving since FasterTransformer and vLLM). The price: every replay runs the same
kernels on the same memory with the same shapes. So

- batch sizes are rounded up to those captured, by sequences of no request, which write to the null block;
- inputs are copied into the memory the graph was captured on;
- nothing that differs from step to step may have been decided on the host while capturing. Context
  lengths above all: a backend that plans with them (`capturable = False`) is not captured. Engines that
  overlooked this returned wrong text without any error.

Steps that don't only decode are captured in pieces: see piecewise_graphs.py.
"""

import bisect
import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from minillm.core.batch import ScheduledRequest
from minillm.core.block_pool import blocks_for
from minillm.host.device import RECORDING, to_device
from minillm.kernels.attention.base import AttentionBackend
from minillm.kernels.ops import Ops
from minillm.model.decoder import Decoder
from minillm.runner.batch_layout import ALIGNMENT, BatchArrays, HostBatch, make_metadata
from minillm.runner.kv_pool import KVPool
from minillm.runner.pending_tokens import PendingTokens

WARM_UPS = 2
"""Runs before capturing: libraries set themselves up, and Triton compiles."""
MOST_ROWS = 1024
"""Sequences of the largest graph, as in pieces (TOKENS). A larger step is launched kernel by kernel."""


@functools.cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """The one that graphs are captured on, for all engines: cuBLAS keeps 32 MiB for every stream it has seen."""
    return torch.cuda.Stream(device)


class Graph(Protocol):
    """Records what `work` does, and can do it again."""

    def capture(self, work: Callable[[], object]) -> Self:
        """Remember `work`, which may be run for that, more than once. What it finds, it leaves in tensors that were
        there before: the memory of all others is reused as soon as it ends."""
        ...

    def replay(self) -> None: ...


class CudaGraph:
    """torch.cuda.CUDAGraph. All of one runner share a memory pool, since only one of them runs at a time.

    Args:
        pool: torch.cuda.graph_pool_handle().
        side: see side_stream; the current stream can't be captured.
    """

    def __init__(self, pool: Any, side: torch.cuda.Stream) -> None:
        self.graph = torch.cuda.CUDAGraph()
        self.pool, self.side = pool, side

    def capture(self, work: Callable[[], object]) -> Self:
        with RECORDING:
            self.side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.side):
                for _ in range(WARM_UPS):
                    work()
            torch.cuda.current_stream().wait_stream(self.side)
            # What other threads do meanwhile (another engine's copies, a notebook's cell) is none of this graph's.
            with torch.cuda.graph(self.graph, pool=self.pool, stream=self.side, capture_error_mode="thread_local"):
                work()
        return self

    def replay(self) -> None:
        self.graph.replay()


def is_regular(size: int) -> bool:
    """Whether graphs of this size serve every engine with at least as many slots."""
    return size in (1, 2, 4) or size % 8 == 0


def graph_sizes(max_batch: int) -> list[int]:
    """1, 2, 4, 8, 16, 24, ... below max_batch, and max_batch: little padding at any size."""
    sizes = [1, 2, 4, *range(8, max_batch, 8)]
    return [size for size in sizes if size < max_batch] + [max_batch]


def to_capture(sizes: Sequence[int], captured: Collection[int], lazily: bool, title: str) -> Iterable[int]:
    """The sizes that are to be captured now, under a progress bar: all that haven't been, or lazily only the largest.

    The largest comes first: the memory of its activations then serves all the others.
    """
    wanted = sizes[-1:] if lazily else sizes
    return tqdm([size for size in reversed(wanted) if size not in captured], desc=title, unit="size", leave=False)


class GraphedDecode:
    """Decode steps of at most as many sequences as `pending` has rows (and MOST_ROWS), in the sizes that `capture` was
    asked for.

    Graphs of regular sizes are kept: one engine after the other may use them, as long as they share the runner.

    Args:
        decoder, ops, backend: the forward pass to capture; the backend must be capturable.
        max_context: longest context any request can have, tokens: as wide as block tables are made.
        pending: read by every replay, at one address.
        make_graph: CudaGraph; tests put something in its place that runs without a GPU.
        depths: what a reader of hidden states is shown, see HiddenStateReader.
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
        depths: tuple[int, ...] = (),
    ) -> None:
        self.decoder, self.ops, self.backend, self.depths = decoder, ops, backend, depths
        self.kv_pool, self.pending = kv_pool, pending
        self.device, max_batch = pending.sampled.device, min(len(pending.sampled), MOST_ROWS)
        empty = functools.partial(torch.empty, max_batch, dtype=decoder.activation_dtype, device=self.device)
        self.logits = empty(decoder.config.vocab_size)
        """Where every graph leaves its result: a vocabulary wide, there shouldn't be one for each of them."""
        self.shown = empty(max(len(depths), 1) * decoder.config.hidden_size)
        """What draft heads read of the model."""
        self.token_inputs = torch.zeros(4, max_batch + -max_batch % ALIGNMENT, dtype=torch.int32, device=self.device)
        """[4, max_batch rounded up to ALIGNMENT]: what `inputs` has for each token, in one piece for one copy."""
        token_ids, positions, slots, context_lens = self.token_inputs
        query_starts = torch.arange(max_batch + 1, dtype=torch.int32, device=self.device)
        shape = (max_batch, blocks_for(max_context, kv_pool.block_size))
        # A step renews only as many columns of the block tables as it needs: a window of 128k tokens has 8192, and no
        # row reads past its own length.
        block_tables = torch.full(shape, kv_pool.null_block, dtype=torch.int32, device=self.device)
        self.inputs = BatchArrays(
            token_ids, positions, slots, query_starts, context_lens, block_tables, logit_rows=query_starts[:-1]
        )
        """What graphs read; one of `size` sequences reads the first `size` of everything."""
        self.make_graph = make_graph
        self.graphs: dict[int, Graph] = {}
        self.sizes: list[int] = []
        """Those in use: what the present engine would capture by itself. A step is padded to the same size whatever ran
        before, so it computes, and costs, the same."""

    def capture(self, max_batch: int, lazily: bool = False) -> None:
        """Be ready for any batch of up to `max_batch` sequences, or MOST_ROWS: capture the sizes that have no graph.

        Args:
            lazily: only the largest now, each of the others when it is first met. Capturing takes as long as many
                steps, and that step is timed with it.
        """
        self.sizes = graph_sizes(min(max_batch, MOST_ROWS))
        for size in to_capture(self.sizes, self.graphs, lazily, "capturing CUDA graphs"):
            self._capture(size)
        # Else a tour through all numbers of slots would leave a graph for each. Last, as their memory pool ends with
        # the last graph in it.
        self.graphs = {size: graph for size, graph in self.graphs.items() if size in self.sizes or is_regular(size)}

    def _fill_with_padding(self) -> None:
        """While capturing, every sequence is token 0 in the null block, in a context of one token."""
        null_block = self.kv_pool.null_block
        self.token_inputs.zero_()
        self.inputs.slots.fill_(null_block * self.kv_pool.block_size)
        self.inputs.context_lens.fill_(1)
        self.inputs.block_tables.fill_(null_block)

    def num_padding(self, scheduled: Sequence[ScheduledRequest]) -> int:
        """Sequences to add to a step of decodes, so that a graph of its size exists; 0 for any other step, and for
        one that is larger than all graphs."""
        num_rows = 0
        for part in scheduled:
            if not part.samples or part.num_tokens - part.num_drafts > 1:
                return 0
            num_rows += part.num_tokens
        at = bisect.bisect_left(self.sizes, num_rows)
        return self.sizes[at] - num_rows if at < len(self.sizes) else 0

    def __call__(self, batch: HostBatch) -> tuple[Tensor, Tensor] | None:
        """What draft heads read, and logits [R, V], of a padded batch of decodes, good until the next call; None if it
        is anything else."""
        arrays, (size, width) = batch.arrays, batch.arrays.block_tables.shape
        if not batch.only_decodes or size not in self.sizes:
            return None
        if size not in self.graphs:
            self._capture(size)
        of_tokens = (arrays.token_ids, arrays.positions, arrays.slots, arrays.context_lens)
        # In one copy: the GPU waits for each.
        flat = to_device(np.concatenate((*of_tokens, arrays.block_tables), axis=None), self.device)
        token_inputs, block_tables = flat.split((4 * size, width * size))
        self.token_inputs[:, :size].copy_(token_inputs.view(4, size))
        self.inputs.block_tables[:size, :width].copy_(block_tables.view(size, width))
        self.graphs[size].replay()
        num_rows = size - batch.num_padding
        return self.shown[:num_rows], self.logits[:num_rows]

    @torch.inference_mode()
    def _capture(self, size: int) -> None:
        self._fill_with_padding()
        first = BatchArrays(*(array[:size] for array in self.inputs))
        inputs = first._replace(query_starts=self.inputs.query_starts[: size + 1])

        def decode() -> None:
            metadata = make_metadata(inputs, list(range(size + 1)), [1] * size, size, self.kv_pool.block_size)
            token_ids, attention = self.pending.fill_in(inputs.token_ids, self.ops), self.backend(metadata)
            step = (token_ids, inputs.positions, self.kv_pool.layers, attention, self.ops)
            hidden, shown = self.decoder.hidden_states(*step, self.depths)
            self.shown[:size].copy_(shown)
            self.decoder.write_logits(hidden, self.logits[:size])

        self.graphs[size] = self.make_graph().capture(decode)
