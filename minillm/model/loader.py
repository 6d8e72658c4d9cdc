"""From an EngineConfig to a model that is ready to run: resolve, build, fill, pack or quantize."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minillm.core.errors import ConfigError
from minillm.host.device import before_ampere, memory_errors
from minillm.host.errors import OutOfMemoryError
from minillm.host.memory import available_bytes
from minillm.model import checkpoints
from minillm.model.arithmetic import ModelSize
from minillm.model.config import ModelConfig
from minillm.model.cpu import optimize_for_cpu
from minillm.model.decoder import Decoder, Layer
from minillm.model.errors import CorruptCheckpointError, UnsupportedArchitectureError
from minillm.model.linear import Linear
from minillm.model.moe import MoE, groups_on_device
from minillm.model.parallel import ALONE, ParallelDecoder, Ranks
from minillm.model.quantized import Quantizer, make_recipe
from minillm.policies.config import EngineConfig

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
READABLE = (*DTYPES.values(), torch.float64)
"""Types of stored tensors. Those of 8 bits mean something only together with scales."""
BYTES_QUANTIZED = {"int8": 1, "int4": 0.5}
"""Bytes of a weight at least; scales come on top."""
FAR_TOO_MANY = 16
"""Parameters for each byte of the weights. Memory for more is not even asked for: a size in config.json is wrong."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Weights and what belongs to them. Engines may share one: no technique is stored in it."""

    name: str
    decoder: Decoder
    tokenizer: Any | None
    """transformers' tokenizer; None if the checkpoint has none."""
    eos_token_ids: frozenset[int]
    """Tokens of the vocabulary that end an output; see `checkpoints.eos_token_ids`."""
    model_config: ModelConfig
    dtype: torch.dtype
    """Dtype of the weights and the KV cache, as far as they are not quantized."""
    device: torch.device
    quantization: str | None = None
    """How the weights are quantized; see EngineConfig."""
    ranks: Ranks = ALONE
    """The ranks that share the model. With tensor parallelism, decoder and model_config are this rank's part."""


def load_model(config: EngineConfig, ranks: Ranks = ALONE) -> LoadedModel:
    """Load `config.model` in `config.dtype` onto `config.device`: all of it, or one rank's part.

    Raises:
        ConfigError: device="cuda" without one, or a quantization that the device has not.
        UnknownModelError, UnsupportedArchitectureError, CorruptCheckpointError: see checkpoints.py.
        OutOfMemoryError: the device has no room for the weights.
    """
    device = choose_device(config.device)
    path = checkpoints.resolve(config.model)
    with memory_errors(device, f"the weights of {config.model}", "Choose a smaller model, or quantization"):
        return _load(config, device, path, ranks)


def _load(config: EngineConfig, device: torch.device, path: Path, ranks: Ranks) -> LoadedModel:
    is_dummy = config.load_format == "dummy"
    model_config = checkpoints.load_model_config(path) if is_dummy else stored_config(path)
    dtype = choose_dtype(config.dtype, model_config, device)
    recipe = make_recipe(config, device)
    if device.type == "cpu":
        check_memory(config, model_config, dtype, ranks.size)
    # Weights that are to be quantized come through the host, so that a GPU never holds them in 16 bits.
    make: Callable[..., Decoder] = Decoder if ranks.size == 1 else partial(ParallelDecoder, ranks)
    decoder = make(model_config, dtype, device if recipe is None or is_dummy else torch.device("cpu"))
    quantizer = None if recipe is None else Quantizer(decoder, recipe, device)
    if is_dummy:
        fill_randomly(decoder)
    else:
        weights = ((name, ranks.part_of(name, tensor)) for name, tensor in checkpoints.iter_weights(path))
        fill(decoder, weights, path, quantizer)
    if quantizer is not None:
        quantizer.finish()
    elif groups_on_device(device, dtype):
        for mlp in decoder.sparse_mlps:
            mlp.stack()
    elif device.type == "cpu":
        optimize_for_cpu(decoder)
    if isinstance(decoder, ParallelDecoder):
        decoder.connect()
    tokenizer = checkpoints.load_tokenizer(path)
    warn_of_other_output(path)
    return LoadedModel(
        name=config.model,
        decoder=decoder.eval(),
        tokenizer=tokenizer,
        eos_token_ids=frozenset(
            token for token in checkpoints.eos_token_ids(path, tokenizer) if token < model_config.vocab_size
        ),
        model_config=decoder.config,
        dtype=dtype,
        device=device,
        quantization=config.quantization,
        ranks=ranks,
    )


def check_memory(config: EngineConfig, model_config: ModelConfig, dtype: torch.dtype, num_ranks: int) -> None:
    """Raise OutOfMemoryError where the weights alone take more of the host's memory than is free. A GPU says so itself;
    a host hands out memory that it doesn't have, and kills the process that uses it."""
    size = ModelSize.of(model_config)
    table = 0 if model_config.tie_word_embeddings else size.head_params
    num_params = (size.read_params + size.idle_params + table) / num_ranks
    num_bytes = num_params * BYTES_QUANTIZED.get(config.quantization or "", dtype.itemsize)
    if num_bytes > (free := available_bytes()):
        raise OutOfMemoryError(
            f"the weights of {config.model} take {num_bytes / 1e9:.2f} GB, and {free / 1e9:.2f} GB of memory are free: "
            "choose a smaller model, or quantization"
        )


def warn_of_other_output(path: Path) -> None:
    """Say where transformers' generate would give other text, even a greedy one."""
    if asks := checkpoints.other_greedy_output(path):
        logger.warning(
            "generation_config.json in %s sets %s: transformers' generate applies that, and minillm only what each "
            "request asks for",
            path,
            ", ".join(f"{name}={value!r}" for name, value in asks.items()),
        )


def stored_config(path: Path) -> ModelConfig:
    """The model that a folder's files hold.

    Raises:
        UnsupportedArchitectureError: config.json names what minillm lacks, or weights that are kept in another way.
        CorruptCheckpointError: a file cannot be read.
    """
    config, hf = checkpoints.load_model_config(path), checkpoints.load_config(path)
    for field in ("quantization_config", "compression_config"):
        if stored := hf.get(field):
            method = stored.get("quant_method") if isinstance(stored, dict) else stored
            raise UnsupportedArchitectureError(
                f"{path}: config.json has a {field}: its weights are stored as {method!r}. Take 16-bit ones, and set "
                "quantization"
            )
    if elsewhere := hf.get("transformers_weights"):
        raise UnsupportedArchitectureError(
            f"{path}: config.json: transformers_weights is {elsewhere!r}, and minillm reads model.safetensors: rename "
            "the file"
        )
    whole, index = checkpoints.WHOLE, checkpoints.INDEX
    if (path / whole).is_file() and (path / index).is_file():
        logger.warning("%s has %s and %s: the first is read, as transformers does", path, whole, index)
    size, num_bytes = ModelSize.of(config), checkpoints.stored_bytes(path)
    num_params = size.read_params + size.idle_params
    if num_params > FAR_TOO_MANY * num_bytes:  # what is a little too large is named tensor by tensor, by `fill`
        raise CorruptCheckpointError(
            f"config.json describes a model of {num_params:,} parameters, and the weights in {path} have "
            f"{num_bytes:,} bytes: one of them is damaged. Fetch the model again; in a git checkout, `git lfs pull`"
        )
    if config.tie_word_embeddings and checkpoints.has_own_head(path):
        logger.warning(
            "%s: config.json has tie_word_embeddings, and the weights have another lm_head.weight. It is used, as "
            "transformers does; set tie_word_embeddings to false",
            path,
        )
        return replace(config, tie_word_embeddings=False)
    return config


def choose_device(wanted: str) -> torch.device:
    """The device that a configuration means.

    Raises:
        ConfigError: CUDA is asked for, and there is none.
    """
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError('device="cuda", but PyTorch sees no GPU: use device="cpu" or "auto"')
    return torch.device(wanted)


def choose_dtype(wanted: str, model_config: ModelConfig, device: torch.device) -> torch.dtype:
    """auto = the checkpoint's own; on a CPU bfloat16, since half the bytes are half the time of a decode; on a GPU that
    has no bfloat16, float16.

    Raises:
        ConfigError: the checkpoint's own is not one that is computed in.
    """
    if wanted == "auto":
        wanted = "bfloat16" if device.type == "cpu" else model_config.dtype or "bfloat16"
        if wanted not in DTYPES:
            raise ConfigError(f"the checkpoint is in {wanted}: choose dtype={', dtype='.join(DTYPES)}")
        if wanted == "bfloat16" and device.type == "cuda" and before_ampere(device):
            wanted = "float16"
    return DTYPES[wanted]


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """The place that a tensor of a checkpoint fills."""

    part: Tensor
    """A view of the parameter."""
    linear: Linear | None = None
    """The matrix product whose parameter it is, if it is one's."""


def weight_slots(decoder: Decoder) -> dict[str, WeightSlot]:
    """Each tensor of a Hugging Face checkpoint: its name, and the part of ours it fills."""
    head = decoder.lm_head
    tied = head if decoder.config.tie_word_embeddings else None
    assert decoder.embed_tokens is not None, "not quantized yet"
    slots = {
        "model.embed_tokens.weight": WeightSlot(decoder.embed_tokens, tied),
        "model.norm.weight": WeightSlot(decoder.norm.weight),
    }
    if tied is None:
        slots["lm_head.weight"] = WeightSlot(head.weight, head)
    for i, layer in enumerate(decoder.layers):
        slots |= layer_slots(layer, f"model.layers.{i}")
    return slots


def layer_slots(layer: Layer, prefix: str) -> dict[str, WeightSlot]:
    """The tensors of one layer, whose names begin with `prefix`."""
    attention = layer.attention
    query, key = attention.num_heads * attention.head_dim, attention.num_kv_heads * attention.head_dim
    slots = {
        f"{prefix}.input_layernorm.weight": WeightSlot(layer.input_norm.weight),
        f"{prefix}.post_attention_layernorm.weight": WeightSlot(layer.post_attention_norm.weight),
        **stacked_slots(attention.qkv_proj, f"{prefix}.self_attn", {"q_proj": query, "k_proj": key, "v_proj": key}),
        **linear_slots(attention.o_proj, f"{prefix}.self_attn.o_proj"),
    }
    if attention.q_norm is not None and attention.k_norm is not None:
        slots[f"{prefix}.self_attn.q_norm.weight"] = WeightSlot(attention.q_norm.weight)
        slots[f"{prefix}.self_attn.k_norm.weight"] = WeightSlot(attention.k_norm.weight)
    mlps: dict[str, Any] = {f"{prefix}.mlp": layer.mlp}
    if isinstance(layer.mlp, MoE):
        slots[f"{prefix}.mlp.gate.weight"] = WeightSlot(layer.mlp.router.weight)
        mlps = {f"{prefix}.mlp.experts.{i}": expert for i, expert in enumerate(layer.mlp.experts)}
    for name, mlp in mlps.items():
        inner = mlp.down_proj.weight.shape[1]
        slots |= stacked_slots(mlp.gate_up_proj, name, {"gate_proj": inner, "up_proj": inner})
        slots |= linear_slots(mlp.down_proj, f"{name}.down_proj")
    return slots


def linear_slots(linear: Linear, name: str) -> dict[str, WeightSlot]:
    """The weight, and the bias if there is one, of a matrix that is one in checkpoints, too."""
    return {f"{name}.{kind}": WeightSlot(whole, linear) for kind, whole in linear.named_parameters()}


def stacked_slots(linear: Linear, prefix: str, rows: dict[str, int]) -> dict[str, WeightSlot]:
    """Views of a matrix in which several of a checkpoint's lie one below the other.

    Args:
        rows: those of each, by its name.
    """
    return {
        f"{prefix}.{name}.{kind}": WeightSlot(part, linear)
        for kind, whole in linear.named_parameters()
        for name, part in zip(rows, whole.split([*rows.values()]))
    }


@torch.no_grad()
def fill(
    decoder: Decoder,
    weights: Iterable[tuple[str, Tensor]],
    source: Path,
    when_complete: Callable[[Linear], None] | None = None,
) -> None:
    """Copy a checkpoint's tensors into the decoder.

    Args:
        when_complete: called with each matrix product whose last part has come.
    Raises:
        CorruptCheckpointError: tensors are missing, left over, of another shape, stored as something else than
            floating-point numbers of 16 bits or more, or not finite; all are named.
    """
    slots, tied = weight_slots(decoder), decoder.config.tie_word_embeddings
    parts_left = Counter(id(slot.linear) for slot in slots.values())
    problems = []
    for name, tensor in weights:
        if name not in slots:
            # Old checkpoints store the rotary frequencies, and some store a tied head a second time: `stored_config`
            # has compared it.
            if not (name.endswith("rotary_emb.inv_freq") or (tied and name == checkpoints.HEAD)):
                problems.append(f"unexpected tensor {name}")
            continue
        slot = slots.pop(name)  # so that its memory may go when the matrix is replaced
        if problem := copy_weight(tensor, slot.part):
            problems.append(f"{name} {problem}")
            continue
        parts_left[id(slot.linear)] -= 1
        if slot.linear is not None and parts_left[id(slot.linear)] == 0 and when_complete is not None:
            when_complete(slot.linear)
    problems += [f"missing tensor {name}" for name in sorted(slots)]
    if problems:
        shown = "; ".join(problems[:8]) + (f"; and {len(problems) - 8} more" if len(problems) > 8 else "")
        raise CorruptCheckpointError(f"{source} does not hold the model that its config.json describes: {shown}")


def copy_weight(stored: Tensor, part: Tensor, shaped_by: str = "config.json") -> str | None:
    """Copy a checkpoint's tensor to where it belongs, or say what is wrong with it."""
    if stored.shape != part.shape:
        return f"is {list(stored.shape)}, {shaped_by} makes it {list(part.shape)}"
    if stored.dtype not in READABLE:
        return f"is stored as {stored.dtype}, and no quantization_config in config.json says what its numbers mean"
    part.copy_(stored)
    if not all(extreme.isfinite() for extreme in part.aminmax()):  # many times as fast as isfinite() of each
        return f"has numbers that are infinite or no numbers, in {part.dtype}"
    return None


@torch.no_grad()
def fill_randomly(decoder: Decoder) -> None:
    """Random weights, always the same, at a scale that keeps activations finite."""
    generator = torch.Generator(decoder.norm.weight.device).manual_seed(0)
    for name, parameter in decoder.named_parameters():
        if name.endswith("norm.weight"):
            parameter.fill_(1)
        elif name.endswith("bias"):
            parameter.zero_()
        else:
            parameter.uniform_(-0.035, 0.035, generator=generator)  # a standard deviation of 0.02
