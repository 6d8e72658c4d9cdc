"""`minillm bench kv-bill`: the KV cache size of a model, by arithmetic, beside what a KV pool allocates."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from minillm.core.errors import UnsupportedArchitectureError
from minillm.kernels.attention.cache import QUANTIZED_DTYPES, tensors_of
from minillm.model.arithmetic import NUMBER_BYTES, KVCacheSize
from minillm.model.checkpoints import SHAPES, read_config, resolve
from minillm.model.config import ModelConfig
from minillm.observe.tables import text_table
from minillm.policies.window import Window
from minillm.runner.kv_pool import KVPool

GB = 10**9


@dataclass(slots=True)
class Row:
    """Of one dtype. Bytes."""

    dtype: str
    token: int
    allocated: int | None
    """For a token, by a pool made for this model; None if minillm has no decoder for it."""
    blocks_per_gb: int
    request: int
    windowed: int
    """The same request with the sliding window."""


def run(model: str, tokens: int, block_size: int, window: Window) -> dict[str, Any]:
    """The KV cache size of a packaged shape, a config.json, a model folder or a Hub id.

    Raises:
        UnknownModelError: there is no such model.
        ConfigError: its config.json does not describe attention.
    """
    path = SHAPES.get(model) or (Path(model) if model.endswith(".json") else resolve(model))
    hf = read_config(path)
    bill = KVCacheSize.of_config(hf)
    try:
        config = ModelConfig.from_hf(hf)
    except UnsupportedArchitectureError:
        config = None
    rows = [
        Row(
            dtype=dtype,
            token=bill.bytes_per_token(dtype),
            allocated=None if config is None else allocated_bytes(config, dtype, block_size),
            blocks_per_gb=GB // (bill.bytes_per_token(dtype) * block_size),
            request=bill.bytes_of(tokens, dtype, block_size),
            windowed=bill.bytes_of(tokens, dtype, block_size, window),
        )
        for dtype in NUMBER_BYTES
    ]
    return {"model": model, "tokens": tokens, "block_size": block_size, "window": window, "bill": bill, "results": rows}


def allocated_bytes(config: ModelConfig, dtype: str, block_size: int) -> int:
    """What a pool takes for each token: its tensors are made, without memory, and counted."""
    torch_dtype = QUANTIZED_DTYPES.get(dtype) or getattr(torch, dtype)
    pool = KVPool(config, 1, 0, block_size, torch_dtype, torch.device("meta"))
    num_bytes = sum(part.nbytes for layer in pool.layers for part in tensors_of(layer))
    return num_bytes // (2 * block_size)  # one block, and the null block


def table(report: dict[str, Any]) -> str:
    """The report as text."""
    bill, window = report["bill"], report["window"]
    columns = ["", "bytes/token", "allocated", "blocks/GB", f"{report['tokens']:,} tokens, MB"]
    columns += [f"window {window.size} + {window.sinks}, MB"] if window.size else []
    rows = []
    row: Row
    for row in report["results"]:
        allocated = "no decoder" if row.allocated is None else f"{row.allocated:,}"
        cells = [row.dtype, f"{row.token:,}", allocated, f"{row.blocks_per_gb:,}", f"{row.request / 1e6:,.2f}"]
        rows.append([*cells, f"{row.windowed / 1e6:,.2f}"][: len(columns)])
    return (
        f"{report['model']}: {bill.kind}, {bill.layers} layers, {bill.vectors} x {bill.vector_size} numbers of a token "
        f"in each; blocks of {report['block_size']} tokens\n\n{text_table(columns, rows)}"
    )
