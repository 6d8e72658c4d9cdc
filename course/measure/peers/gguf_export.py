"""A Hugging Face folder as a GGUF file: what lets llama.cpp run on the very weights that minillm runs on.

The values are the checkpoint's own, rounded to the dtype that is measured, exactly as minillm rounds them.
The vocabulary is a number only where prompts are token ids, as a benchmark's are. Names and keys are those of the GGUF
format (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from gguf import (
    MODEL_ARCH,
    MODEL_ARCH_NAMES,
    GGMLQuantizationType,
    GGUFWriter,
    LlamaFileType,
    TensorNameMap,
    TokenType,
    get_tensor_name_map,
)

from minillm.bench.errors import BenchmarkError
from minillm.host.storage import build_once, cache_home, say
from minillm.model.checkpoints import iter_weights
from minillm.model.config import ModelConfig
from minillm.model.errors import UnsupportedArchitectureError
from minillm.model.loader import stored_config
from minillm.model.pull import sha256_of
from minillm.model.rope import inverse_frequencies
from minillm.text_files import read_text

GGUF_ARCHITECTURES = {
    "LlamaForCausalLM": MODEL_ARCH.LLAMA,
    "MistralForCausalLM": MODEL_ARCH.LLAMA,  # its window is never reached: minillm refuses longer contexts
    "Qwen2ForCausalLM": MODEL_ARCH.QWEN2,
    "Qwen3ForCausalLM": MODEL_ARCH.QWEN3,
}
EXPORT = 2
"""The version of what :func:`write_gguf` writes. 1 left out a stored output head that config.json ties."""
FILE_TYPES = {
    "bfloat16": (LlamaFileType.MOSTLY_BF16, GGMLQuantizationType.BF16),
    "float16": (LlamaFileType.MOSTLY_F16, GGMLQuantizationType.F16),
    "float32": (LlamaFileType.ALL_F32, GGMLQuantizationType.F32),
}


def export_once(folder: Path, dtype: str) -> Path:
    """The GGUF file of a Hugging Face folder, made once and kept in the cache, known by the folder's content.

    Args:
        dtype: bfloat16, float16 or float32.
    Raises:
        UnsupportedArchitectureError, BenchmarkError: see :func:`write_gguf`.
        CorruptCheckpointError: the folder cannot be read.
        StorageError: the disk is full, or the cache folder cannot be written.
    """
    shards = sorted(folder.glob("*.safetensors"))
    digest = hashlib.sha256("".join(map(sha256_of, [folder / "config.json", *shards])).encode()).hexdigest()
    target = cache_home() / "gguf" / f"{folder.name}-{dtype}-{digest[:16]}-v{EXPORT}"

    def build(work: Path) -> None:
        say(f"writing {folder.name} as a {dtype} GGUF file once, for llama.cpp")
        write_gguf(folder, work / "model.gguf", dtype)

    # At most twice as large: bfloat16 that is written as float32.
    build_once(target, build, 2 * sum(shard.stat().st_size for shard in shards))
    return target / "model.gguf"


def write_gguf(folder: Path, file: Path, dtype: str, *, with_tokenizer: bool = False) -> None:
    """Write the folder's weights and shape to `file`: matrices in `dtype`, vectors in fp32 (as llama.cpp wants).

    Rounding is to nearest: float16 turns the smallest of bfloat16's values into zero.

    Args:
        with_tokenizer: for prompts of text; see `_write_tokenizer`.
    Raises:
        UnsupportedArchitectureError: it has experts, or its rotary embedding cannot be told to llama.cpp.
        BenchmarkError: a tensor has no place in llama.cpp's layout, the dtype has no GGUF type, or it
            cannot hold a value.
        CorruptCheckpointError: the folder cannot be read.
    """
    if dtype not in FILE_TYPES:
        raise BenchmarkError(f"llama.cpp is compared in {' or '.join(FILE_TYPES)}, not in {dtype}")
    config = stored_config(folder)
    if config.architecture not in GGUF_ARCHITECTURES:
        raise UnsupportedArchitectureError(f"{config.architecture} is not compared with llama.cpp: leave it out")
    architecture = GGUF_ARCHITECTURES[config.architecture]
    writer = GGUFWriter(file, MODEL_ARCH_NAMES[architecture])
    _write_shape(writer, config)
    writer.add_file_type(FILE_TYPES[dtype][0])
    if with_tokenizer:
        _write_tokenizer(writer, folder)
    else:
        writer.add_tokenizer_model("no_vocab")
    try:
        # The header lists every tensor before the first one's data: two passes, one tensor in memory.
        for name, array, kind in _tensors(folder, config, dtype):
            writer.add_tensor_info(name, array.shape, array.dtype, array.nbytes, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for _, array, _ in _tensors(folder, config, dtype):
            writer.write_tensor_data(array)
    finally:
        writer.close()


def _write_shape(writer: GGUFWriter, config: ModelConfig) -> None:
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope["rope_theta"])


def _write_tokenizer(writer: GGUFWriter, folder: Path) -> None:
    """A byte-level BPE that splits text as GPT-2's does, with its end token and chat template."""
    stored = json.loads(read_text(folder / "tokenizer.json"))
    about = json.loads(read_text(folder / "tokenizer_config.json"))
    special = {each["content"] for each in stored["added_tokens"]}
    token_ids = stored["model"]["vocab"]
    tokens = sorted(token_ids, key=token_ids.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if token in special else TokenType.NORMAL for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in stored["model"]["merges"]])
    writer.add_eos_token_id(token_ids[about["eos_token"]])
    writer.add_add_bos_token(False)
    if (template := folder / "chat_template.jinja").is_file():
        writer.add_chat_template(read_text(template))


def _tensors(folder: Path, config: ModelConfig, dtype: str) -> Iterator[tuple[str, np.ndarray, GGMLQuantizationType]]:
    """Every tensor as (GGUF name, array of values or of raw bytes, GGUF type), in an order that repeats."""
    architecture = GGUF_ARCHITECTURES[config.architecture]
    names = get_tensor_name_map(architecture, config.num_layers)
    divisors = _rope_divisors(config)
    if divisors is not None:
        yield "rope_freqs.weight", divisors.numpy(), GGMLQuantizationType.F32
    for name, tensor in iter_weights(folder):
        if name.endswith("rotary_emb.inv_freq") or (config.tie_word_embeddings and name == "lm_head.weight"):
            continue  # what old checkpoints store although it follows from the rest
        if architecture is MODEL_ARCH.LLAMA and ".q_proj." in name:
            tensor = interleave_halves(tensor, config.num_heads)
        if architecture is MODEL_ARCH.LLAMA and ".k_proj." in name:
            tensor = interleave_halves(tensor, config.num_kv_heads)
        yield _gguf_name(names, name), *_encode(name, tensor, dtype)


def _gguf_name(names: TensorNameMap, name: str) -> str:
    found = names.get_name(name, try_suffixes=(".weight", ".bias"))
    if found is None:
        raise BenchmarkError(f"llama.cpp has no place for the tensor {name}: give the model as a .gguf file instead")
    return found


def _encode(name: str, tensor: torch.Tensor, dtype: str) -> tuple[np.ndarray, GGMLQuantizationType]:
    rounded = tensor.to(getattr(torch, dtype)).contiguous()
    if rounded.isinf().any():
        raise BenchmarkError(f"{name} has values beyond {torch.finfo(rounded.dtype).max:g}: {dtype} cannot hold them")
    if rounded.ndim == 1 or dtype == "float32":
        return rounded.float().numpy(), GGMLQuantizationType.F32
    return rounded.view(torch.uint8).numpy(), FILE_TYPES[dtype][1]  # numpy has no bfloat16: its bytes


def interleave_halves(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Reorder a query or key projection [heads * d, ...] for llama.cpp's Llama.

    Hugging Face turns dimensions i and i + d/2 of a head together, llama.cpp's Llama (as Meta's own code)
    2i and 2i + 1. Moving the rows makes both compute the same scores. The Qwen models are left alone.
    """
    halves = rows.view(num_heads, 2, rows.shape[0] // num_heads // 2, *rows.shape[1:])
    return halves.transpose(1, 2).reshape(rows.shape)


def _rope_divisors(config: ModelConfig) -> torch.Tensor | None:
    """What llama.cpp divides each pair's frequency by [d/2], fp32; None where all would be 1."""
    frequencies, magnitude = inverse_frequencies(config.rope, config.head_dim)
    plain, _ = inverse_frequencies({**config.rope, "rope_type": "default"}, config.head_dim)
    divisors = plain / frequencies
    if magnitude == 1.0 and bool((divisors == 1).all()):
        return None
    if magnitude != 1.0 or GGUF_ARCHITECTURES[config.architecture] is not MODEL_ARCH.LLAMA:
        raise UnsupportedArchitectureError(
            f"rope type {config.rope['rope_type']!r} of a {config.architecture} cannot be handed to llama.cpp here: "
            "compare with a .gguf file of the model, or leave out --compare llama.cpp"
        )
    return divisors
