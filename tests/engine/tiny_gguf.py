"""Tiny GGUF files, by the gguf package's writer."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers.pre_tokenizers import ByteLevel

TOKENS = [*sorted(ByteLevel.alphabet()), "ab", "abba", "<turn>", "<end>"]
"""No merges lead to "abba"."""
END, TURN = len(TOKENS) - 1, len(TOKENS) - 2


def write_gguf(
    path: Path,
    model: Any,
    architecture: str,
    tensors: dict[str, Any] | None = None,
    pre: str = "default",
    add_bos: bool | None = None,
    **metadata: Any,
) -> Path:
    """A transformers model as llama.cpp's converter writes it.

    Args:
        tensors: further ones, or others; None takes one out.
        pre: how the vocabulary splits texts into words.
        add_bos: whether texts begin with the BOS; None: the file doesn't say.
        metadata: further keys of the architecture, or others; None takes one out. Two underscores stand for a dot.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    keys = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
    } | {name.replace("__", "."): value for name, value in metadata.items()}
    for key, value in keys.items():
        if value is not None:
            add(writer, f"{architecture}.{key}", value)
    add_tokenizer(writer)
    writer.add_tokenizer_pre(pre)
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)
    for name, values in (gguf_tensors(model, architecture) | (tensors or {})).items():
        if values is not None:
            writer.add_tensor(name, np.ascontiguousarray(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    kinds.get(type(value), writer.add_array)(key, value)


def add_tokenizer(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([gguf.TokenType.NORMAL] * (len(TOKENS) - 2) + [gguf.TokenType.CONTROL] * 2)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(END)
    writer.add_eos_token_id(END)
    writer.add_eot_token_id(TURN)


def gguf_tensors(model: Any, architecture: str) -> dict[str, np.ndarray]:
    """The model's tensors by GGUF's names, in GGUF's order of rows."""
    config = model.config
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config.num_hidden_layers)
    found = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for part, num_heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if architecture == "llama" and part in name:
                tensor = interleaved(tensor, num_heads)
        found[names.get_name(name, try_suffixes=(".weight", ".bias"))] = tensor.numpy()
    return found


def interleaved(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Hugging Face's order of rotary rows (two halves) to that of GGUF's Llama (pairs side by side)."""
    halves = rows.view(num_heads, 2, rows.shape[0] // num_heads // 2, *rows.shape[1:])
    return halves.transpose(1, 2).reshape(rows.shape)
