"""What a subcommand measures: a model on a device, under some engine fields."""

import random
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from minillm.bench.errors import BenchmarkError
from minillm.frontend.engine import Engine
from minillm.frontend.outputs import RequestOutput
from minillm.kernels.attention.cache import cache_dtype
from minillm.kernels.quantization import dtype_name
from minillm.model.arithmetic import ModelBytes, ModelFlops, kv_bytes_per_token
from minillm.model.checkpoints import load_model_config, resolve
from minillm.model.config import ModelConfig
from minillm.model.loader import LoadedModel, choose_device, choose_dtype
from minillm.model.packed import CPULinear
from minillm.policies.config import EngineConfig

LARGEST_BLOCK = 256
"""Tokens in the largest KV block of any attention backend: the most that rounding up to blocks can take."""


@dataclass(frozen=True, slots=True)
class Target:
    """The model, device and settings that the command line names.

    Args:
        fields: EngineConfig fields, from --set. They win over what a benchmark would choose.
    """

    model: str = "smollm2-135m"
    load_format: str = "auto"
    dtype: str = "auto"
    device: str = "auto"
    fields: dict[str, Any] = field(default_factory=dict)

    def config(self, kv_tokens: int | None = None, **chosen: Any) -> EngineConfig:
        """The engine's configuration.

        Args:
            kv_tokens: make the KV pool just as large as this many tokens need, unless `fields` say otherwise.
            chosen: what the benchmark chooses.
        Raises:
            ConfigError: a field is unknown, or out of range.
        """
        named = {"model": self.model, "load_format": self.load_format, "dtype": self.dtype, "device": self.device}
        config = EngineConfig(**{**named, **chosen, **self.fields})
        if kv_tokens is None or config.num_kv_blocks is not None or config.kv_cache_memory_gb is not None:
            return config
        # In bytes, not blocks: how many tokens a block has may be the attention backend's choice.
        model_config = self.model_config()
        dtype = cache_dtype(
            config.kv_cache_dtype, choose_dtype(config.dtype, model_config, choose_device(config.device))
        )
        token_bytes = kv_bytes_per_token(model_config, dtype_name(dtype))
        return config.replace(kv_cache_memory_gb=kv_tokens * token_bytes / 1e9)

    def model_config(self) -> ModelConfig:
        """The model's shape; reads config.json only."""
        return load_model_config(resolve(self.model))

    def torch_device(self) -> torch.device:
        return choose_device(self.config().device)


@dataclass(frozen=True, slots=True)
class Costs:
    """What a loaded model asks of the hardware, in the dtypes it really uses."""

    bytes: ModelBytes
    flops: ModelFlops

    @classmethod
    def of(cls, engine: Engine) -> "Costs":
        model, kv_dtype = engine.loaded_model, dtype_name(engine.torch_runner.kv_dtype)
        needed = ModelBytes.of(model.model_config, dtype_name(model.dtype))
        if model.quantization is not None:
            stored, share = quantized_bytes(model), needed.idle / (needed.weights + needed.idle)
            needed = replace(needed, weights=round(stored * (1 - share)), idle=round(stored * share))
        kept = kv_bytes_per_token(model.model_config, kv_dtype)
        return cls(replace(needed, kv_per_token=kept), ModelFlops.of(model.model_config))


def quantized_bytes(model: LoadedModel) -> int:
    """Weights and scales that a step reads, what pads them included; an embedding table of its own gives a row per
    token only."""
    own_table = model.decoder.embed_tokens
    every = sum(parameter.nbytes for parameter in model.decoder.parameters())
    return every - (0 if own_table is None else own_table.nbytes)


def compute_dtype(model: LoadedModel) -> torch.dtype:
    """What its linear layers multiply many rows in: on a CPU, packed 16-bit weights may be widened to float32."""
    head = model.decoder.lm_head
    return head.many.computes if isinstance(head, CPULinear) else model.decoder.activation_dtype


def finish(engine: Engine) -> list[RequestOutput]:
    """Step until every request is answered. None of them streams.

    Raises:
        BenchmarkError: one failed.
    """
    outputs: list[RequestOutput] = []
    while engine.has_unfinished:
        outputs += engine.step()
    for output in outputs:
        if output.completions[0].error is not None:
            raise BenchmarkError(f"a request failed: {output.completions[0].error}")
    return outputs


def random_prompts(vocab_size: int, lengths: list[int], seed: int = 0) -> list[list[int]]:
    """Token ids that share no prefix. Low ids are control tokens in most vocabularies."""
    rng = random.Random(seed)
    first = min(100, vocab_size // 2)
    return [[rng.randrange(first, vocab_size) for _ in range(length)] for length in lengths]
