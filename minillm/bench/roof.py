"""The memory floor: how fast this machine could decode if nothing but reading memory took time.

A decode step reads every weight once, however many sequences are in it, and every key and value of
their contexts. At small batches that reading, not arithmetic, is what a step costs: bytes over
bandwidth is a floor no engine gets under (Williams et al. 2009, the roofline model).
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Measured memory bandwidth, bytes per second."""

    read: float
    copy: float
    """Bytes read plus bytes written."""


def measure_bandwidth(buffer_bytes: int = 1_000_000_000, repeats: int = 7) -> Bandwidth:
    """Stream through buffers far larger than any cache, on all of torch's threads; the best of `repeats`.

    The best, because anything else that runs can only slow it down. Reading is measured twice, by a sum
    and by a dot product, since either alone may be held up by its own arithmetic on some CPUs.
    """
    source = torch.ones(buffer_bytes // 4)
    target = torch.empty_like(source)
    read = min(_best_seconds(source.sum, repeats), _best_seconds(lambda: source.dot(source), repeats))
    copy = _best_seconds(lambda: target.copy_(source), repeats)
    return Bandwidth(read=source.nbytes / read, copy=2 * source.nbytes / copy)


def _best_seconds(work: Callable[[], object], repeats: int) -> float:
    work()  # The first touch makes the pages.
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


@dataclass(frozen=True, slots=True)
class ModelBytes:
    """What a decode step must read."""

    weights: int
    """Bytes of all matrices and norms; an embedding table only if it is also the output head."""
    kv_per_token: int
    """Bytes of keys and values of one token, over all layers."""

    @classmethod
    def of(cls, folder: Path, dtype: str) -> "ModelBytes":
        """Count them in a Hugging Face folder, as if stored in `dtype`."""
        size = DTYPE_BYTES[dtype]
        config = json.loads((folder / "config.json").read_text())
        num_parameters = 0
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - safe_open is not a dict
                    # An untied embedding table gives one row per token: nothing beside the rest.
                    if "embed_tokens" not in name or config.get("tie_word_embeddings"):
                        num_parameters += torch.Size(tensors.get_slice(name).get_shape()).numel()
        heads = config.get("num_key_value_heads") or config["num_attention_heads"]
        head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        kv_per_token = 2 * config["num_hidden_layers"] * heads * head_dim * size
        return cls(weights=num_parameters * size, kv_per_token=kv_per_token)

    def step_floor(self, context_lens: Sequence[float], read_bandwidth: float) -> float:
        """Seconds of reading in a decode step over sequences of these context lengths (tokens)."""
        return (self.weights + self.kv_per_token * sum(context_lens)) / read_bandwidth
