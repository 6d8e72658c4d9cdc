"""TorchRunner: executes steps on a real model, on a CPU or a GPU."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from minillm.core.batch import ScheduledBatch, ScheduledRequest, StepOutput
from minillm.core.errors import ConfigError
from minillm.core.known import known
from minillm.core.request import TokenLogprob
from minillm.core.timeline import Clock
from minillm.kernels.attention.base import AttentionBackend
from minillm.kernels.attention.cache import cache_dtype
from minillm.kernels.attention.select import Demands, select_backend, with_window
from minillm.kernels.device import memory_errors
from minillm.kernels.select_ops import select_ops
from minillm.model.loader import LoadedModel
from minillm.policies.config import EngineConfig
from minillm.policies.window import Window
from minillm.runner.batch_tensors import HostBatch, lay_out, upload
from minillm.runner.compiled import CompiledDecode
from minillm.runner.cuda_graphs import CudaGraph, Graph, GraphedDecode
from minillm.runner.kv_pool import NO_CLAIM, KVPool, MemoryClaim, size_kv_pool, size_swap_pool
from minillm.runner.rejection_sampler import Verifier, num_kept
from minillm.runner.sampler import Row, SampleInFlight
from minillm.speculation.base import HiddenStateReader
from minillm.speculation.gates import row_price


class TorchRunner:
    """Runs a LoadedModel over a paged KV pool that it owns.

    Args:
        model: weights; engines may share them.
        config: reads the fields on KV memory, swap space, attention backend, kernels, graphs and compilation.
        clock: the engine's.
        make_graph: how decode steps are recorded and replayed; None = by CUDA graphs, where there is CUDA.
        claim: memory that the KV pool leaves free.
    Raises:
        ConfigError: the KV pool or the swap space does not fit the memory, the attention backend cannot
            run here, the weights are quantized in another way, or compile=True on a GPU.
        OutOfMemoryError: somebody else took the memory meanwhile.

    All it keeps about requests is what the last step sampled, so a step that fails leaves nothing to clean up.
    """

    def __init__(
        self,
        model: LoadedModel,
        config: EngineConfig,
        clock: Clock,
        make_graph: Callable[[], Graph] | None = None,
        claim: MemoryClaim = NO_CLAIM,
    ) -> None:
        if config.quantization != model.quantization:
            raise ConfigError(
                f"quantization is {config.quantization!r}, and these weights were loaded with {model.quantization!r}: "
                "load them again"
            )
        self.model = model
        self.clock = clock
        self.device = model.device
        self.runs_beside_python = model.device.type == "cuda"
        self.row_price = row_price(model.device)
        self.kv_dtype = cache_dtype(config.kv_cache_dtype, model.dtype)
        window = Window(config.sliding_window, config.attention_sinks)
        self.attention = with_window(choose_attention(config, model), window)
        self.ops = select_ops(config.fused_kernels, model.device, self.kv_dtype, model.decoder.activation_dtype)
        self.block_size = config.block_size or self.attention.block_size
        shape = (model.model_config, self.block_size, self.kv_dtype)
        self.num_kv_blocks = size_kv_pool(config, *shape, model.device, claim)
        self.num_host_blocks = size_swap_pool(config, *shape)
        with memory_errors(self.device, "the KV pool", "Lower num_kv_blocks or kv_cache_memory_gb"):
            self.kv_pool = KVPool(
                model.model_config,
                self.num_kv_blocks,
                self.num_host_blocks,
                self.block_size,
                self.kv_dtype,
                self.device,
            )
        self.sampler = Verifier()
        self.hidden_state_reader: HiddenStateReader | None = None
        """Who wants to see what goes into the output head."""
        self.fast_decode = self._prepare_decode(config, make_graph)
        self._previous_tokens: Tensor | None = None
        """[R] what the last step sampled, on the device: the next one may need it before the host sees it."""
        self._previous_rows: dict[Row, int] = {}

    @torch.inference_mode()
    def launch(self, batch: ScheduledBatch) -> "TorchStep":
        """Copy swapped blocks, compute the step's tokens, sample. See :class:`minillm.core.batch.Runner`."""
        start = self.clock.now()
        self.swap(batch)
        laid_out = self.lay_out(batch.requests)
        built = self.clock.now()
        logits = self.forward(laid_out)
        forward_done = Moment(self.clock, self.device)
        samples = self.sampler.launch(logits, laid_out.requests)
        self._previous_tokens = samples.token_ids
        self._previous_rows = {request: row for row, request in enumerate(laid_out.requests)}
        return TorchStep(self, batch, laid_out.requests, (start, built), forward_done, samples)

    def swap(self, batch: ScheduledBatch) -> None:
        """Copy the batch's swapped blocks."""
        self.kv_pool.swap_out(batch.swap_out)
        self.kv_pool.swap_in(batch.swap_in)

    def lay_out(self, scheduled: Sequence[ScheduledRequest]) -> HostBatch:
        return lay_out(scheduled, self.block_size, self.kv_pool.null_block, self._previous_rows)

    def forward(self, batch: HostBatch) -> Tensor:
        """Logits [R, V] of the rows that sample."""
        decoder, reader = self.model.decoder, self.hidden_state_reader
        # What is compiled or recorded gives logits only.
        if self.fast_decode is not None and reader is None:
            logits = self.fast_decode(batch, self._previous_tokens)
            if logits is not None:
                return logits
        tensors = upload(batch, self.device, self._previous_tokens)
        inputs = (tensors.token_ids, tensors.positions, self.kv_pool.layers, self.attention(tensors.metadata), self.ops)
        if reader is None:
            return decoder(*inputs, tensors.logit_rows)
        hidden = decoder.hidden_states(*inputs)
        reader.read_hidden_states(batch.scheduled, hidden)
        return decoder.lm_head(hidden[tensors.logit_rows])

    def _prepare_decode(
        self, config: EngineConfig, make_graph: Callable[[], Graph] | None
    ) -> CompiledDecode | GraphedDecode | None:
        """The special way of steps that decode only, if one is configured."""
        longest = config.max_model_len or self.model.model_config.max_position_embeddings
        max_context = longest if config.sliding_window else min(longest, self.num_kv_blocks * self.block_size)
        if config.compile:
            if self.device.type != "cpu":
                raise ConfigError('compile=True compiles for a CPU: set compile=False, or device="cpu"')
            return CompiledDecode(
                self.model.decoder,
                self.kv_pool,
                self.block_size,
                max_context,
                config.max_decode_rows,
                tune=config.compile == "max",
                window=Window(config.sliding_window, config.attention_sinks),
            )
        if make_graph is None and self.device.type == "cuda":
            pool = torch.cuda.graph_pool_handle()
            make_graph = lambda: CudaGraph(pool)  # noqa: E731
        if make_graph is None or not config.cuda_graphs or not self.attention.capturable:
            return None
        return GraphedDecode(
            self.model.decoder,
            self.ops,
            self.attention,
            self.kv_pool,
            self.block_size,
            max_context,
            config.max_decode_rows,
            make_graph,
        )


class TorchStep:
    """A step that has begun; a GPU may still be at it."""

    def __init__(
        self,
        runner: TorchRunner,
        batch: ScheduledBatch,
        requests: list[Row],
        began: tuple[float, float],
        forward_done: "Moment",
        samples: SampleInFlight,
    ) -> None:
        self.runner = runner
        self.batch = batch
        self.requests = requests
        self.began = began
        self.forward_done = forward_done
        self.samples = samples

    def wait(self) -> StepOutput:
        """Wait for the device, and gather what it gives."""
        start, built = self.began
        forward_end = self.forward_done.wait()
        sampled = self.samples.wait()
        for scheduled in self.batch.requests:
            if scheduled.request.request_id in sampled.errors:
                self.runner.kv_pool.make_finite(list(scheduled.block_ids))
        tokens: dict[str, list[int]] = {}
        logprobs: dict[str, list[TokenLogprob]] = {}
        for row, token, logprob in zip(self.requests, sampled.token_ids, sampled.logprobs):
            if row.request_id not in sampled.errors:
                tokens.setdefault(row.request_id, []).append(known(token))
                if logprob is not None:
                    logprobs.setdefault(row.request_id, []).append(logprob)
        for scheduled in self.batch.requests:
            request_id = scheduled.request.request_id
            if scheduled.num_drafts and request_id in tokens:
                drafts = scheduled.request.draft.token_ids[: scheduled.num_drafts]
                kept = num_kept(tokens[request_id], drafts)
                del tokens[request_id][kept:], logprobs.get(request_id, [])[kept:]
        end = self.runner.clock.now()
        return StepOutput(
            tokens=tokens,
            forward_end=forward_end,
            stages={"build": built - start, "forward": forward_end - built, "sample": end - forward_end},
            logprobs=logprobs,
            errors=sampled.errors,
        )


def choose_attention(config: EngineConfig, model: LoadedModel) -> type[AttentionBackend]:
    """The backend that a configuration asks for. Raises ConfigError if it cannot do what else is asked for."""
    kv_dtype = cache_dtype(config.kv_cache_dtype, model.dtype)
    demands = Demands(
        config.block_size,
        model.dtype,
        kv_dtype=None if config.kv_cache_dtype == "auto" else kv_dtype,
        sinks=config.attention_sinks > 0,
    )
    return select_backend(config.attention_backend, model.device, demands)


class Moment:
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
