"""Ragged batches over scattered blocks, and attention computed the slow way to compare with."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from minillm.core.block_pool import blocks_for
from minillm.kernels.attention.base import AttentionBackend, AttentionMetadata
from minillm.kernels.attention.cache import SCALE_DTYPE, QuantizedKV, write_kv
from minillm.kernels.quantization import dequantize, quantize

Span = tuple[int, int]
"""One sequence: (new tokens, context after them)."""


def slow_attention(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None = None, sinks: int = 0
) -> Tensor:
    """Token by token, in float64. query [n, H, d]; keys, values [context, K, d]."""
    n, num_heads, _ = query.shape
    context_len, num_kv_heads, _ = keys.shape
    keys, values = (each.double().repeat_interleave(num_heads // num_kv_heads, dim=1) for each in (keys, values))
    positions = torch.arange(context_len)
    output = torch.empty_like(query, dtype=torch.float64)
    for i in range(n):
        end = context_len - n + i + 1
        visible = positions < end
        if window is not None:
            visible &= (positions >= end - window) | (positions < sinks)
        scores = torch.einsum("hd,chd->hc", query[i].double(), keys[visible]) * scale
        output[i] = torch.einsum("hc,chd->hd", scores.softmax(-1), values[visible])
    return output


@dataclass
class Ragged:
    """Random sequences with their keys and values scattered over blocks, decodes first.

    Everything in the cache that nobody may read is `poison`: blocks that belong to nobody (one of them pads
    the tables), what follows a sequence's last token in its block, what precedes the window of all its tokens.
    """

    spans: Sequence[Span]
    heads: tuple[int, int] = (6, 2)
    head_dim: int = 16
    block_size: int = 4
    dtype: torch.dtype = torch.float32
    """Type of the cache."""
    query_dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype | None = None
    """Type of a quantized cache."""
    window: int | None = None
    sinks: int = 0
    poison: float = float("nan")
    spare_columns: int = 2
    """Width of the block table beyond what the longest sequence needs."""
    seed: int = 0
    scale: float = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        num_heads, num_kv_heads = self.heads
        self.scale = 1 / math.sqrt(self.head_dim)
        contexts = [context for _, context in self.spans]
        num_blocks = sum(blocks_for(context, self.block_size) for context in contexts) + 3
        *free, null_block = torch.randperm(num_blocks).tolist()
        shape = (num_blocks, self.block_size, 2, num_kv_heads, self.head_dim)
        self.kv_cache = torch.full(shape, self.poison, dtype=self.dtype)
        if self.kv_dtype is not None:
            scales = torch.full(shape[:-1], self.poison, dtype=torch.bfloat16)
            self.kv_cache = QuantizedKV(torch.ones(shape).to(self.kv_dtype), scales)
        self.query = torch.randn(sum(n for n, _ in self.spans), num_heads, self.head_dim).to(self.query_dtype)
        columns = max(blocks_for(context, self.block_size) for context in contexts) + self.spare_columns
        tables = torch.full((len(self.spans), columns), null_block, dtype=torch.int32)
        starts, slots, expected = [0], [], []
        for b, (n, context) in enumerate(self.spans):
            blocks = torch.tensor([free.pop() for _ in range(blocks_for(context, self.block_size))])
            tables[b, : len(blocks)] = blocks
            kv = torch.randn(context, 2, num_kv_heads, self.head_dim).to(self.dtype)
            starts.append(starts[-1] + n)
            query = self.query[starts[b] : starts[b + 1]]
            expected.append(slow_attention(query, *self.kept(kv).unbind(1), self.scale, self.window, self.sinks))
            if self.window is not None:
                kv[self.sinks : max(self.sinks, context - n + 1 - self.window)] = self.poison
            positions = torch.arange(context)
            own = blocks[positions // self.block_size] * self.block_size + positions % self.block_size
            write_kv(kv, self.kv_cache, own)
            slots.append(own[context - n :])
        self.expected = torch.cat(expected)
        self.metadata = AttentionMetadata(
            query_starts=starts,
            context_lens=contexts,
            query_starts_tensor=torch.tensor(starts, dtype=torch.int32),
            context_lens_tensor=torch.tensor(contexts, dtype=torch.int32),
            block_tables=tables,
            slot_mapping=torch.cat(slots),
            num_decodes=sum(n == 1 for n, _ in self.spans),
            block_size=self.block_size,
            window=self.window,
            sinks=self.sinks,
        )

    def kept(self, kv: Tensor) -> Tensor:
        """What the cache makes of keys and values."""
        if self.kv_dtype is None:
            return kv
        return dequantize(*quantize(kv, self.kv_dtype, SCALE_DTYPE))

    def error(self, backend: type[AttentionBackend]) -> float:
        """The largest difference from slow attention."""
        return self.error_of(backend(self.metadata).attend(self.query, self.kv_cache, self.scale))

    def error_of(self, output: Tensor) -> float:
        assert output.shape == self.query.shape and output.dtype == self.query.dtype
        difference = (output - self.expected).abs().max().item()
        return math.inf if math.isnan(difference) else difference


WINDOWS_AND_SINKS = [(1, 1), (4, 3), (5, 4), (9, 1), (30, 17), (16, 100), (200, 4)]
SPANS: dict[str, list[Span]] = {
    "one decode": [(1, 13)],
    "first token": [(1, 1)],
    "decodes of one length": [(1, 8)] * 5,
    "decodes of many lengths": [(1, 40), (1, 3), (1, 17), (1, 41), (1, 4), (1, 90), (1, 1)],
    "one prefill": [(11, 11)],
    "a later chunk": [(5, 19)],
    "two tokens at the end": [(2, 30)],
    "mixed": [(1, 33), (1, 2), (1, 30), (7, 7), (4, 21), (16, 16), (2, 3)],
}
