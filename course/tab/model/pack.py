"""A checkpoint's weights in one file, rounded as the engine rounds them for `quantization="int4"`.

    python -m course.tab.model.pack FOLDER FILE

reads a Hugging Face folder of a Llama whose head is its embedding table, as SmolLM2-135M is. NumPy is all it takes:
the numbers are those of minillm/kernels/quantization.py, to the last bit. The file is what decoder.cpp lays out: a
Shape, then arrays, each at a multiple of 16 bytes.
"""

import argparse
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from minillm.core.errors import MinillmError
from minillm.model.checkpoints import load_model_config, weight_files
from minillm.model.config import ModelConfig
from minillm.model.errors import UnsupportedArchitectureError
from minillm.model.gguf_file import GGUFFile

Floats = npt.NDArray[np.float32]
MAGIC = 0x314D4C4D
"""MLM1: another layout gets another."""
GROUP, INT4_LEVELS, INT8_MAX, SMALLEST_SCALE = 32, 15, 127, 1e-12
"""As minillm/kernels/quantization.py has them."""
ALIGNMENT = 16
DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
SHAPE_BYTES = 64
CONTROL = 3
"""The type of special tokens in a GGUF file's `tokenizer.ggml.token_type`."""


class NotPackedError(MinillmError):
    """The checkpoint is of a kind that the tab's decoder doesn't compute."""


Tensors = Mapping[str, Callable[[], Floats]]
"""What reads each tensor, by Hugging Face's name: one at a time, for all of them are half a gigabyte."""


def safetensors_of(folder: Path) -> Tensors:
    """Reads a Hugging Face folder."""
    found: dict[str, Callable[[], Floats]] = {}
    for file in weight_files(folder):
        with file.open("rb") as opened:
            (size,) = struct.unpack("<Q", opened.read(8))
            header = json.loads(opened.read(size))
        found |= {name: partial(_read, file, 8 + size, told) for name, told in header.items() if name != "__metadata__"}
    return found


def _read(file: Path, base: int, told: dict[str, Any]) -> Floats:
    begin, end = told["data_offsets"]
    with file.open("rb") as opened:
        opened.seek(base + begin)
        raw = np.frombuffer(opened.read(end - begin), DTYPES[told["dtype"]]).reshape(told["shape"])
    return from_bfloat16(raw) if told["dtype"] == "BF16" else raw.astype(np.float32)


def from_bfloat16(bits: npt.NDArray[np.uint16]) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bfloat16(x: Floats) -> npt.NDArray[np.uint16]:
    """To the nearest; of two as near, to the even one."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def quantize_int4(weight: Floats) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint16]]:
    """[out, in] to numbers in 0 .. 15, [out, in / 32, 16]: inputs i and i + 16 of a group in one byte; and bfloat16
    (scale, low) [out, in / 32, 2], with w = low + scale x number."""
    groups = weight.reshape(len(weight), -1, GROUP)
    low = to_bfloat16(groups.min(axis=2))
    wide = groups.max(axis=2) - from_bfloat16(low)
    scale = to_bfloat16(np.maximum(wide / np.float32(INT4_LEVELS), np.float32(SMALLEST_SCALE)))
    steps = (groups - from_bfloat16(low)[..., None]) / from_bfloat16(scale)[..., None]
    numbers = np.clip(np.rint(steps), 0, INT4_LEVELS).astype(np.uint8)
    half = GROUP // 2
    return numbers[..., :half] | numbers[..., half:] << 4, np.stack((scale, low), axis=2)


def quantize_int8(weight: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """[out, in] to numbers in -127 .. 127, and a scale for each output."""
    scales = np.maximum(np.abs(weight).max(axis=1) / np.float32(INT8_MAX), np.float32(SMALLEST_SCALE))
    return np.clip(np.rint(weight / scales[:, None]), -INT8_MAX, INT8_MAX).astype(np.int8), scales


def shape_of(config: ModelConfig) -> bytes:
    """decoder.cpp's Shape.

    Raises:
        NotPackedError: that decoder doesn't compute it.
    """
    neutral = {"qkv_bias": False, "o_bias": False, "mlp_bias": False, "qk_norm": False, "num_experts": 0}
    told = {**neutral, "tie_word_embeddings": True}
    other = [name for name, value in told.items() if getattr(config, name) != value]
    if config.rope["rope_type"] != "default":
        other.append("rope_type")
    widths = (config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim)
    if any(width % GROUP for width in widths) or config.head_dim % 4:
        other.append("sizes that are no multiples of 32")
    if other:
        raise NotPackedError(f"the decoder in the tab has no {', '.join(other)}: it computes plain tied Llamas")
    sizes = (config.hidden_size, config.intermediate_size, config.num_layers, config.num_heads)
    more = (config.num_kv_heads, config.head_dim, config.vocab_size)
    return struct.pack("<8if", MAGIC, *sizes, *more, config.rms_norm_eps).ljust(SHAPE_BYTES, b"\0")


def arrays_of(tensors: Tensors, config: ModelConfig) -> Iterator[npt.NDArray[Any]]:
    """Everything behind the shape, in decoder.cpp's order."""
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
    yield np.float32(1) / np.power(np.float32(config.rope["rope_theta"]), exponents)
    yield from quantize_int8(tensors["model.embed_tokens.weight"]())
    yield tensors["model.norm.weight"]()
    for i in range(config.num_layers):
        layer = f"model.layers.{i}."
        joined = {
            "qkv": [f"self_attn.{name}_proj" for name in "qkv"],
            "o": ["self_attn.o_proj"],
            "gate_up": ["mlp.gate_proj", "mlp.up_proj"],
            "down": ["mlp.down_proj"],
        }
        rounded = {
            name: quantize_int4(np.concatenate([tensors[f"{layer}{part}.weight"]() for part in parts]))
            for name, parts in joined.items()
        }
        yield tensors[f"{layer}input_layernorm.weight"]()
        yield from rounded["qkv"]
        yield from rounded["o"]
        yield tensors[f"{layer}post_attention_layernorm.weight"]()
        yield from rounded["gate_up"]
        yield from rounded["down"]


def pack(folder: Path, file: Path) -> None:
    """Write the file, of a Hugging Face folder.

    Raises:
        NotPackedError: the decoder in the tab doesn't compute this model.
        CorruptCheckpointError: the folder holds no checkpoint.
    """
    write(safetensors_of(folder), load_model_config(folder), file)


def pack_gguf(gguf: Path, file: Path) -> dict[str, Any]:
    """Write the same file as of the folder that a GGUF file is converted to (pull.py), without PyTorch. Returns what
    the folder's tokenizer.json says.

    Raises:
        NotPackedError: the decoder in the tab doesn't compute this model.
        CorruptCheckpointError, UnsupportedArchitectureError: see GGUFFile.
    """
    source = GGUFFile(gguf)
    config = source.config()
    rounded = {name: partial(_rounded, read) for name, read in source.arrays(config).items()}
    write(rounded, ModelConfig.from_hf(config), file)
    return read_tokenizer(source)


def read_tokenizer(source: GGUFFile) -> dict[str, Any]:
    """What tokenizer.json says of a byte-level BPE: its vocabulary, merges and special tokens.

    Raises:
        UnsupportedArchitectureError: the tokenizer is of another kind.
    """
    if (kind := source.metadata("tokenizer.ggml.model", "gpt2")) != "gpt2":
        raise UnsupportedArchitectureError(f"{source.file}: tokenizer.ggml.model is {kind!r}: only gpt2's is read here")
    tokens, kinds = source.metadata("tokenizer.ggml.tokens", []), source.metadata("tokenizer.ggml.token_type", [])
    special = [i for i, each in enumerate(kinds) if each == CONTROL]
    return {
        "model": {
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": source.metadata("tokenizer.ggml.merges", []),
        },
        "added_tokens": [{"id": i, "content": tokens[i], "special": True} for i in special],
    }


def _rounded(read: Callable[[], Floats]) -> Floats:
    return from_bfloat16(to_bfloat16(read()))


def write(tensors: Tensors, config: ModelConfig, file: Path) -> None:
    with file.open("wb") as opened:
        opened.write(shape_of(config))
        for array in arrays_of(tensors, config):
            write_aligned(opened, array.tobytes())


def write_aligned(opened: BinaryIO, data: bytes) -> None:
    opened.write(data)
    opened.write(bytes(-len(data) % ALIGNMENT))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m course.tab.model.pack", description="Weights for the tab's model.")
    parser.add_argument("folder", type=Path, help="a Hugging Face folder")
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    pack(options.folder, options.file)
    print(f"{options.file.stat().st_size / 1e6:.1f} MB in {options.file}")


if __name__ == "__main__":
    main()
