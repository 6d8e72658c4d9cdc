"""From an EngineConfig to a model that is ready to run: resolve, build, fill, pack."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minillm.config import EngineConfig
from minillm.errors import ConfigError, CorruptCheckpointError
from minillm.models import checkpoints
from minillm.models.config import ModelConfig
from minillm.models.decoder import Decoder

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Weights and what belongs to them. Engines may share one: no technique is stored in it."""

    name: str
    decoder: Decoder
    tokenizer: Any | None
    """transformers' tokenizer; None if the checkpoint has none."""
    eos_token_ids: frozenset[int]
    model_config: ModelConfig
    dtype: torch.dtype
    """Of the weights and the KV cache."""
    device: torch.device


def load_model(config: EngineConfig) -> LoadedModel:
    """Load `config.model` in `config.dtype` onto `config.device`.

    Raises:
        ConfigError: device="cuda" without one.
        UnknownModelError, UnsupportedArchitectureError, CorruptCheckpointError: see checkpoints.py.
    """
    device = choose_device(config.device)
    path = checkpoints.resolve(config.model)
    model_config = ModelConfig.from_hf(checkpoints.load_config(path))
    dtype = choose_dtype(config.dtype, model_config, device)
    decoder = Decoder(model_config, dtype, device)
    if config.load_format == "dummy":
        fill_randomly(decoder)
    else:
        fill(decoder, checkpoints.iter_weights(path), path)
    if device.type == "cpu":
        decoder.optimise_for_cpu()
    return LoadedModel(
        name=config.model,
        decoder=decoder.eval(),
        tokenizer=checkpoints.load_tokenizer(path),
        eos_token_ids=frozenset(checkpoints.eos_token_ids(path)),
        model_config=model_config,
        dtype=dtype,
        device=device,
    )


def choose_device(wanted: str) -> torch.device:
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError('device="cuda", but PyTorch sees no GPU: use device="cpu" or "auto"')
    return torch.device(wanted)


def choose_dtype(wanted: str, model_config: ModelConfig, device: torch.device) -> torch.dtype:
    """auto = the checkpoint's own; on a CPU bfloat16, since half the bytes are half the time of a decode."""
    if wanted == "auto":
        wanted = "bfloat16" if device.type == "cpu" else model_config.dtype or "bfloat16"
    return DTYPES[wanted]


def weight_slots(decoder: Decoder) -> dict[str, Tensor]:
    """Where each tensor of a Hugging Face checkpoint goes: its name, and the part of ours it fills.

    Queries, keys and values lie in one matrix here, gate and up in another, so slots are views.
    """
    config = decoder.config
    slots = {"model.embed_tokens.weight": decoder.embed_tokens, "model.norm.weight": decoder.norm.weight}
    if not config.tie_word_embeddings:
        slots["lm_head.weight"] = decoder.lm_head.weight
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    for i, layer in enumerate(decoder.layers):
        attention, mlp, prefix = layer.attention, layer.mlp, f"model.layers.{i}"
        slots[f"{prefix}.input_layernorm.weight"] = layer.input_norm.weight
        slots[f"{prefix}.post_attention_layernorm.weight"] = layer.post_attention_norm.weight
        for kind, linear, names, sizes in (
            ("self_attn", attention.qkv_proj, ("q_proj", "k_proj", "v_proj"), (query, key, key)),
            ("self_attn", attention.o_proj, ("o_proj",), (config.hidden_size,)),
            ("mlp", mlp.gate_up_proj, ("gate_proj", "up_proj"), (config.intermediate_size,) * 2),
            ("mlp", mlp.down_proj, ("down_proj",), (config.hidden_size,)),
        ):
            for parameter, whole in linear.named_parameters():
                for name, part in zip(names, whole.split(sizes)):
                    slots[f"{prefix}.{kind}.{name}.{parameter}"] = part
        if config.qk_norm:
            slots[f"{prefix}.self_attn.q_norm.weight"] = attention.q_norm.weight
            slots[f"{prefix}.self_attn.k_norm.weight"] = attention.k_norm.weight
    return slots


@torch.no_grad()
def fill(decoder: Decoder, weights: Iterable[tuple[str, Tensor]], source: Path) -> None:
    """Copy a checkpoint's tensors into the decoder.

    Raises:
        CorruptCheckpointError: tensors are missing, left over, or of another shape; all are named.
    """
    slots, tied = weight_slots(decoder), decoder.config.tie_word_embeddings
    missing, problems = set(slots), []
    for name, tensor in weights:
        if name not in slots:
            # Old checkpoints store the rotary frequencies, and some store a tied head a second time.
            if not (name.endswith("rotary_emb.inv_freq") or (tied and name == "lm_head.weight")):
                problems.append(f"unexpected tensor {name}")
        elif tensor.shape != slots[name].shape:
            problems.append(f"{name} is {list(tensor.shape)}, config.json makes it {list(slots[name].shape)}")
        else:
            slots[name].copy_(tensor)
        missing.discard(name)
    problems += [f"missing tensor {name}" for name in sorted(missing)]
    if problems:
        shown = "; ".join(problems[:8]) + (f"; and {len(problems) - 8} more" if len(problems) > 8 else "")
        raise CorruptCheckpointError(f"{source} does not hold the model that its config.json describes: {shown}")


@torch.no_grad()
def fill_randomly(decoder: Decoder) -> None:
    """Random weights, always the same, at a scale that keeps activations finite."""
    generator = torch.Generator(decoder.embed_tokens.device).manual_seed(0)
    for name, parameter in decoder.named_parameters():
        if name.endswith("norm.weight"):
            parameter.fill_(1)
        elif name.endswith("bias"):
            parameter.zero_()
        else:
            parameter.uniform_(-0.035, 0.035, generator=generator)  # a standard deviation of 0.02
