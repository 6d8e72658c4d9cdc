"""TorchRunner: executes steps on a real model, on a CPU or a GPU. A step is prepare -> forward -> sample -> collect."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from minillm.core.batch import ScheduledBatch, ScheduledRequest, StepOutput
from minillm.core.errors import ConfigError
from minillm.core.request import TokenLogprob
from minillm.core.timeline import Clock
from minillm.host.device import device_errors, kernel_errors, memory_errors
from minillm.kernels.attention.base import AttentionBackend
from minillm.kernels.attention.cache import cache_dtype
from minillm.kernels.attention.select import Demands, select_backend, with_window
from minillm.kernels.attention.window import Window
from minillm.kernels.select_ops import select_ops
from minillm.kernels.triton.counters import counting_with, make_counters
from minillm.model.loader import LoadedModel
from minillm.policies.config import EngineConfig
from minillm.runner.batch_layout import BlockTables, HostBatch, lay_out, upload
from minillm.runner.cuda_graphs import CudaGraph, Graph, GraphedDecode, side_stream
from minillm.runner.grammar_masks import apply_grammars
from minillm.runner.hidden_states import HiddenStateReader
from minillm.runner.kv_pool import KVPool
from minillm.runner.memory_budget import (
    NO_CLAIM,
    STEP_FIELDS,
    MemoryClaim,
    check_claim,
    size_kv_pool,
    size_swap_pool,
    step_claim,
)
from minillm.runner.pending_tokens import PendingTokens
from minillm.runner.piecewise_graphs import PiecewiseForward
from minillm.runner.rejection_sampler import RejectionSampler, num_kept
from minillm.runner.sampler import SampleInFlight

LEAST_ROWS = 128
"""Rows that a runner has room for at least, so that an engine with more slots than the one before finds the memory that
graphs are recorded on: 40 MB of logits with a large vocabulary."""


class TorchRunner:
    """Runs a LoadedModel over a paged KV pool that it owns.

    Engines may use it one after the other: `reuse`. Whether it is the one that the next engine wants is decided in
    kept_runners.py.

    Args:
        model: weights; engines may share them.
        config: reads the fields on KV memory, swap space, attention backend, kernels and graphs.
        clock: the engine's.
        make_graph: how steps are captured and replayed; None = by CUDA graphs, where there is CUDA.
        claim: memory that the KV pool leaves free, for what drafts.
        depths: what draft heads read of the model; see HiddenStateReader.
    Raises:
        ConfigError: the KV pool or the swap space does not fit the memory, the attention backend cannot
            run here, one of the kernels can't, or the weights are quantized in another way.
        OutOfMemoryError: another process took the memory meanwhile.

    All it keeps about requests is the last step's block tables and what it sampled, so a step that fails leaves nothing
    to clean up.
    """

    @kernel_errors()
    def __init__(
        self,
        model: LoadedModel,
        config: EngineConfig,
        clock: Clock,
        make_graph: Callable[[], Graph] | None = None,
        claim: MemoryClaim = NO_CLAIM,
        depths: tuple[int, ...] = (),
    ) -> None:
        if config.quantization != model.quantization:
            raise ConfigError(
                f"quantization is {config.quantization!r}, and these weights were loaded with {model.quantization!r}: "
                "load them again"
            )
        self.model, self.device, self.clock, self.config = model, model.device, clock, config
        self.claim = claim
        self.counters = make_counters(self.device)
        """Engines on the same weights each count with their own."""
        self.runs_beside_python = self.device.type == "cuda"
        self.kv_dtype = cache_dtype(config.kv_cache_dtype, model.dtype)
        self.attention = choose_attention(config, model)
        self.ops = select_ops(config.fused_kernels, self.device, self.kv_dtype, model.decoder.activation_dtype)
        self.block_size = config.block_size or self.attention.block_size
        shape = (model.model_config, self.block_size, self.kv_dtype)
        claim += self._step_claim(config)
        self.pool_config = config
        """The configuration that the pool was sized by."""
        self.num_kv_blocks = model.ranks.smallest(size_kv_pool(config, *shape, self.device, claim), self.device)
        """Blocks of the pool that the present engine hands out."""
        self.num_host_blocks = size_swap_pool(config, *shape)
        with memory_errors(self.device, "the KV pool", "Lower num_kv_blocks or kv_cache_memory_gb"):
            self.kv_pool = KVPool(model.model_config, self.num_kv_blocks, self.num_host_blocks, *shape[1:], self.device)
        self.sampler = RejectionSampler(self.ops)
        host_counts = any(mlp.stacked is None for mlp in model.decoder.sparse_mlps)  # see MoE.one_by_one
        self.make_graph = make_graph
        can_capture = make_graph is not None or self.device.type == "cuda"
        self.uses_graphs = can_capture and config.cuda_graphs and not host_counts
        """Steps are captured as CUDA graphs, as far as their attention can be."""
        self.pending = PendingTokens(0, self.device)
        self.fast_decode: GraphedDecode | None = None
        """Steps that only decode, a CUDA graph each; None = they are steps like any others."""
        self.fast_pieces: PiecewiseForward | None = None
        """Other steps, as CUDA graphs between their calls of attention; None = they're launched kernel by kernel."""
        self.depths = depths
        """What is shown to a reader of hidden states, and left by graphs; see HiddenStateReader."""
        self._reset(config)

    @torch.inference_mode()
    @device_errors()
    @kernel_errors()
    def launch(self, batch: ScheduledBatch) -> "TorchStep":
        """Copy swapped blocks, compute the step's tokens, sample. See :class:`minillm.core.batch.Runner`."""
        start = self.clock.now()
        self.copy_blocks(batch)
        prepared = self.prepare(batch.requests)
        built = self.clock.now()
        logits = self.forward(prepared)
        forward_done = DeviceEvent(self.clock, self.device)
        unmasked = self.clock.now()
        allowed = apply_grammars(logits, prepared.rows)
        mask_s = 0.0 if allowed is None else self.clock.now() - unmasked
        samples = self.sampler.launch(logits, prepared.rows, allowed)
        self.pending.keep(prepared.rows, samples.token_ids)
        return TorchStep(prepared.scheduled, start, built, forward_done, mask_s, samples, self.make_finite)

    def copy_blocks(self, batch: ScheduledBatch) -> None:
        """Copy what the batch saves to the host and loads from there."""
        self.kv_pool.save(batch.saves)
        self.kv_pool.load(batch.loads)

    def make_finite(self, block_ids: Sequence[int]) -> None:
        """Replace NaN and infinity in blocks that the next request will get. See KVPool."""
        self.kv_pool.make_finite(block_ids)

    def close(self) -> None:
        """End what it has started beside this process: nothing."""

    def prepare(self, scheduled: Sequence[ScheduledRequest]) -> HostBatch:
        """Lay the requests' new tokens out, on the host."""
        num_padding = self.fast_decode.num_padding(scheduled) if self.fast_decode else 0
        return lay_out(scheduled, self.block_tables, self.pending.rows, num_padding)

    def forward(self, batch: HostBatch) -> Tensor:
        """Logits [R, V] of the rows that sample."""
        with counting_with(self.counters):
            graphed = self.fast_decode(batch) if self.fast_decode else None
            shown, logits = self._launch_forward(batch) if graphed is None else graphed
        if self.hidden_state_reader is not None:
            self.hidden_state_reader.read_hidden_states(batch.scheduled, shown)
        return logits

    def _launch_forward(self, batch: HostBatch) -> tuple[Tensor, Tensor]:
        """What a reader of hidden states is shown, and logits [R, V], with attention launched for just this batch."""
        arrays, metadata = upload(batch, self.device)
        attention, decoder = self.attention(metadata), self.model.decoder
        computed = self.fast_pieces(batch, attention) if self.fast_pieces else None
        if computed is None:
            token_ids = self.pending.fill_in(arrays.token_ids, self.ops) if batch.has_pending else arrays.token_ids
            inputs = (token_ids, arrays.positions, self.kv_pool.layers, attention, self.ops)
            computed = decoder.hidden_states(*inputs, self.depths)
        hidden, shown = computed
        return shown, decoder.lm_head(hidden[arrays.logit_rows])

    # ---------------------------------------------------------------- engines, one after the other

    @kernel_errors()
    def reuse(
        self,
        config: EngineConfig,
        clock: Clock,
        claim: MemoryClaim = NO_CLAIM,
        depths: tuple[int, ...] = (),
    ) -> None:
        """Go on for another engine, for which it is the right runner and there is room; the one before has ended. What
        that left in the KV pool is in blocks that belong to no request, and is overwritten.

        Raises:
            OutOfMemoryError: as when it was made.
        """
        self.config, self.clock, self.claim = config, clock, claim
        self.num_kv_blocks = self.num_blocks_for(config)
        if depths != self.depths:
            self.depths = depths
            self._make_graphs()
        self._reset(config)

    def check_room(self, config: EngineConfig, claim: MemoryClaim = NO_CLAIM) -> None:
        """Before `reuse`: raise unless what the engine's drafts and steps need fits beside the KV pool.

        Raises:
            ConfigError: it does not.
            OutOfMemoryError: not even a step does.
        """
        if claim != self.claim or not config.same_in(self.config, STEP_FIELDS):
            num_tokens = self.num_blocks_for(config) * self.block_size
            check_claim(claim + self._step_claim(config), num_tokens, self.device)

    def _reset(self, config: EngineConfig) -> None:
        """Know of no request, and be ready for the steps that an engine of this configuration can meet."""
        self.block_tables = BlockTables(self.block_size, self.kv_pool.null_block)
        self.hidden_state_reader: HiddenStateReader | None = None
        """Sees what the model computes on the way to its logits."""
        self._make_room(self.most_decode_rows(config))
        self.pending.rows = {}
        self._capture(config)

    def _capture(self, config: EngineConfig) -> None:
        """The graphs of all steps that an engine of this configuration can meet."""
        with counting_with(self.counters):
            if self.fast_decode is not None:
                self.fast_decode.capture(self.most_decode_rows(config), config.lazy_graphs)
            if self.fast_pieces is not None:
                self.fast_pieces.capture(config.max_num_batched_tokens, config.lazy_graphs)

    def show_hidden_states(self, reader: HiddenStateReader) -> None:
        """Show them to the reader from the next step on. A runner that was made without its depths records its graphs
        anew, which leave what it reads."""
        self.hidden_state_reader = reader
        if reader.depths != self.depths:
            self.depths = reader.depths
            self._make_graphs()
            self._capture(self.config)

    def _make_room(self, num_rows: int) -> None:
        """Memory for what `num_rows` rows sample, and for graphs that read it."""
        if num_rows <= len(self.pending.sampled):
            return
        self.pending = PendingTokens(max(num_rows, LEAST_ROWS), self.device)
        self._make_graphs()

    def _make_graphs(self) -> None:
        """Forget all graphs, and be ready to record others."""
        self.fast_decode = self.fast_pieces = None  # before others ask for their memory
        if not self.uses_graphs:
            return
        # A memory pool of their own for graphs that are recorded anew: PyTorch ends a pool with the last graph in it.
        make_graph = self.make_graph or partial(CudaGraph, torch.cuda.graph_pool_handle(), side_stream(self.device))
        decoder, shared = self.model.decoder, (self.kv_pool, self.pending)
        if self.config.piecewise_graphs:
            self.fast_pieces = PiecewiseForward(decoder, self.ops, *shared, make_graph, self.depths)
        if self.attention.capturable:
            max_context = self.longest_context(self.pool_config)
            self.fast_decode = GraphedDecode(
                decoder, self.ops, self.attention, *shared, max_context, make_graph, self.depths
            )

    def num_blocks_for(self, config: EngineConfig) -> int:
        """Blocks of its pool that an engine of this configuration hands out."""
        return self.kv_pool.num_blocks if config.num_kv_blocks is None else config.num_kv_blocks

    def most_decode_rows(self, config: EngineConfig) -> int:
        """Most rows of a step that only decodes. However many slots there are, no more requests run than the pool has
        blocks."""
        rows_per_request = 1 + (config.speculative.k if config.speculative else 0)
        return min(config.max_decode_rows, self.num_blocks_for(config) * rows_per_request)

    def longest_context(self, config: EngineConfig) -> int:
        """Most tokens that a request of an engine of this configuration can have."""
        longest = config.max_model_len or self.model.model_config.max_position_embeddings
        return longest if config.sliding_window else min(longest, self.num_blocks_for(config) * self.block_size)

    def _step_claim(self, config: EngineConfig) -> MemoryClaim:
        """What the steps of an engine of this configuration take."""
        with counting_with(self.counters):
            return step_claim(self.model, config, self.attention, self.ops, self.block_size, self.kv_dtype)


def choose_attention(config: EngineConfig, model: LoadedModel) -> type[AttentionBackend]:
    """The backend that a configuration asks for. Raises ConfigError if it cannot do what else is asked for."""
    kv_dtype = None if config.kv_cache_dtype == "auto" else cache_dtype(config.kv_cache_dtype, model.dtype)
    sinks, head_dim = config.attention_sinks > 0, model.model_config.head_dim
    demands = Demands(config.block_size, model.dtype, kv_dtype=kv_dtype, sinks=sinks, head_dim=head_dim)
    backend = select_backend(config.attention_backend, model.device, demands)
    return with_window(backend, Window(config.sliding_window, config.attention_sinks))


class DeviceEvent:
    """A point in the device's work, and when it got there. A GPU works behind the clock's back."""

    def __init__(self, clock: Clock, device: torch.device) -> None:
        self.clock = clock
        self.event = torch.cuda.Event() if device.type == "cuda" else None
        if self.event is not None:
            self.event.record()
        self.time = clock.now()

    def wait(self) -> float:
        """Wait for it. Returns when it was reached, or on a GPU when that was seen; clock seconds."""
        if self.event is None:
            return self.time
        self.event.synchronize()
        return self.clock.now()


@dataclass(frozen=True, slots=True)
class TorchStep:
    """A step that has begun; a GPU may still be at it."""

    scheduled: Sequence[ScheduledRequest]
    """The requests, in the order of their rows."""
    start: float
    built: float
    forward_done: DeviceEvent
    mask_s: float
    """Seconds the host spent on grammar masks. A GPU is at the forward pass meanwhile."""
    samples: SampleInFlight
    make_finite: Callable[[Sequence[int]], None]

    @device_errors()
    def wait(self) -> StepOutput:
        """Wait for the device, and collect what each request keeps of its rows."""
        forward_end = self.forward_done.wait()
        sampled = self.samples.wait()
        tokens: dict[str, list[int]] = {}
        logprobs: dict[str, list[TokenLogprob]] = {}
        end_row = 0
        for request, _, num_tokens, block_ids, samples, num_drafts in self.scheduled:
            name, row = request.request_id, end_row
            end_row += num_tokens if num_drafts else samples
            if sampled.errors and name in sampled.errors:
                self.make_finite(list(block_ids))
            elif samples:
                tokens[name] = kept = sampled.token_ids[row:end_row]
                if num_drafts:
                    del kept[num_kept(kept, request.draft.token_ids[:num_drafts]) :]
                if sampled.logprobs[row] is not None:
                    logprobs[name] = [p for p in sampled.logprobs[row : row + len(kept)] if p is not None]
        end = self.forward_done.clock.now()
        stages = {"build": self.built - self.start, "forward": forward_end - self.built, "sample": end - forward_end}
        if self.mask_s:  # a stage of its own, taken out of the one that it ran in
            ran_in = "sample" if self.forward_done.event is None else "forward"
            stages[ran_in] -= self.mask_s
            stages["mask"] = self.mask_s
        return StepOutput(tokens, forward_end, stages, logprobs, sampled.errors)
