"""TorchRunner: executes steps on a real model, on a CPU or a GPU."""

import torch

from minillm.attention.select import select_backend
from minillm.clock import Clock
from minillm.config import EngineConfig
from minillm.errors import ConfigError
from minillm.models.loader import LoadedModel
from minillm.runners.base import StepOutput
from minillm.runners.batch_tensors import BatchTensors, build_batch
from minillm.runners.compiled import CompiledDecode
from minillm.runners.kv_pool import KVPool, size_kv_pool, size_swap_pool
from minillm.sampling import Sampler
from minillm.scheduling.batch import ScheduledBatch


class TorchRunner:
    """Runs a LoadedModel over a paged KV pool that it owns.

    Args:
        model: weights; engines may share them.
        config: reads the fields on KV memory, swap space, attention backend and compilation.
        clock: the engine's.
    Raises:
        ConfigError: the KV pool or the swap space does not fit the memory, or compile=True on a GPU.

    It keeps nothing about requests between steps, so a step that fails leaves nothing to clean up.
    """

    def __init__(self, model: LoadedModel, config: EngineConfig, clock: Clock) -> None:
        self.model = model
        self.clock = clock
        self.block_size = config.block_size
        self.num_kv_blocks = size_kv_pool(config, model.model_config, model.dtype, model.device)
        self.num_host_blocks = size_swap_pool(config, model.model_config, model.dtype)
        self.kv_pool = KVPool(
            model.model_config, self.num_kv_blocks, self.num_host_blocks, config.block_size, model.dtype, model.device
        )
        self.attention = select_backend(config.attention_backend)
        self.sampler = Sampler()
        self.compiled: CompiledDecode | None = None
        if config.compile:
            if model.device.type != "cpu":
                raise ConfigError('compile=True compiles for a CPU: set compile=False, or device="cpu"')
            longest = config.max_model_len or model.model_config.max_position_embeddings
            max_context = min(longest, self.num_kv_blocks * config.block_size)
            self.compiled = CompiledDecode(
                model.decoder, self.kv_pool, config.block_size, max_context, config.max_num_seqs
            )

    @torch.inference_mode()
    def execute(self, batch: ScheduledBatch) -> StepOutput:
        """Copy swapped blocks, compute the step's tokens, sample. See :class:`minillm.runners.base.Runner`."""
        start = self.clock.now()
        self.kv_pool.swap_out(batch.swap_out)
        self.kv_pool.swap_in(batch.swap_in)
        if not batch.requests:
            return StepOutput(tokens={}, forward_end=self.clock.now(), stages={"build": self.clock.now() - start})
        tensors = build_batch(batch.requests, self.block_size, self.kv_pool.null_block, self.model.device)
        self._synchronize()
        built = self.clock.now()

        logits = self._forward(tensors)
        self._synchronize()
        forward_end = self.clock.now()

        sampled = self.sampler(logits, tensors.sampling_requests)
        for scheduled in batch.requests:
            if scheduled.request.request_id in sampled.errors:
                self.kv_pool.make_finite(list(scheduled.block_ids))
        ids = [request.request_id for request in tensors.sampling_requests]
        return StepOutput(
            tokens={i: [token] for i, token in zip(ids, sampled.token_ids) if token is not None},
            forward_end=forward_end,
            stages={"build": built - start, "forward": forward_end - built, "sample": self.clock.now() - forward_end},
            logprobs={i: [logprob] for i, logprob in zip(ids, sampled.logprobs) if logprob is not None},
            errors=sampled.errors,
        )

    def _forward(self, tensors: BatchTensors) -> torch.Tensor:
        """Logits [R, V] of the rows that sample."""
        if self.compiled is not None and (logits := self.compiled(tensors)) is not None:
            return logits
        attend = self.attention(tensors.metadata)
        return self.model.decoder(tensors.token_ids, tensors.positions, self.kv_pool.layers, attend, tensors.logit_rows)

    def _synchronize(self) -> None:
        """A GPU works behind the clock's back: wait for it before looking at the clock."""
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)
