"""Both backends against attention computed the slow way, on ragged batches over scattered blocks."""

import math

import pytest
import torch

from minillm.attention import sdpa
from minillm.attention.base import AttentionMetadata, blocks_for, write_kv
from minillm.attention.select import select_backend

BLOCK_SIZE = 4
BACKENDS = ["eager", "sdpa"]


def slow_attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    """Token by token, head by head, in float64. query [n, H, d]; keys, values [context, K, d]."""
    n, num_heads, _ = query.shape
    context_len, num_kv_heads, _ = keys.shape
    output = torch.empty_like(query, dtype=torch.float64)
    for i in range(n):
        visible = context_len - n + i + 1
        for head in range(num_heads):
            kv_head = head // (num_heads // num_kv_heads)
            scores = keys[:visible, kv_head].double() @ query[i, head].double() * scale
            output[i, head] = scores.softmax(0) @ values[:visible, kv_head].double()
    return output


class Ragged:
    """Random sequences (new tokens, context) with their keys and values scattered over blocks.

    Everything in the cache that belongs to nobody is huge, so that reading it cannot go unnoticed.
    """

    def __init__(self, spans: list[tuple[int, int]], heads: tuple[int, int], dtype: torch.dtype, seed: int = 0) -> None:
        torch.manual_seed(seed)
        num_heads, num_kv_heads = heads
        self.dtype, self.scale = dtype, 1 / math.sqrt(16)
        num_blocks = sum(blocks_for(context, BLOCK_SIZE) for _, context in spans)
        free = torch.randperm(num_blocks + 3).tolist()
        self.kv_cache = torch.full((num_blocks + 3, BLOCK_SIZE, 2, num_kv_heads, 16), 3e3, dtype=dtype)
        self.query = torch.randn(sum(n for n, _ in spans), num_heads, 16)
        tables = torch.zeros(len(spans), max(blocks_for(c, BLOCK_SIZE) for _, c in spans) + 2, dtype=torch.int64)
        starts, slots, expected = [0], [], []
        new_kv = []
        for b, (n, context) in enumerate(spans):
            blocks = torch.tensor([free.pop() for _ in range(blocks_for(context, BLOCK_SIZE))])
            tables[b, : len(blocks)] = blocks
            kv = torch.randn(context, 2, num_kv_heads, 16).to(dtype)
            positions = torch.arange(context)
            own = blocks[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
            write_kv(kv[: context - n], self.kv_cache, own[: context - n])
            new_kv.append(kv[context - n :])
            slots.append(own[context - n :])
            starts.append(starts[-1] + n)
            query = self.query[starts[b] : starts[b + 1]]
            expected.append(slow_attention(query, *kv.unbind(1), self.scale))
        self.expected, self.kv = torch.cat(expected), torch.cat(new_kv)
        self.metadata = AttentionMetadata(
            starts, [c for _, c in spans], tables, torch.cat(slots), sum(n == 1 for n, _ in spans), BLOCK_SIZE
        )

    def error(self, backend: str) -> float:
        attend = select_backend(backend)(self.metadata)
        output = attend(self.query, self.kv, self.kv_cache, self.scale)
        assert output.shape == self.query.shape and output.dtype == self.query.dtype
        return (output - self.expected).abs().max().item()


SPANS = {
    "one decode": [(1, 13)],
    "first token": [(1, 1)],
    "decodes of one length": [(1, 8)] * 5,
    "decodes of many lengths": [(1, 40), (1, 3), (1, 17), (1, 41), (1, 4), (1, 90), (1, 1)],
    "one prefill": [(11, 11)],
    "a later chunk": [(5, 19)],
    "two tokens at the end": [(2, 30)],
    "mixed": [(1, 33), (1, 2), (1, 30), (7, 7), (4, 21), (16, 16), (2, 3)],
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("heads", [(6, 2), (4, 4), (5, 1)], ids=str)
@pytest.mark.parametrize("spans", SPANS.values(), ids=SPANS)
def test_matches_slow_attention(spans: list[tuple[int, int]], heads: tuple[int, int], backend: str) -> None:
    assert Ragged(spans, heads, torch.float32).error(backend) < 1e-5


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_cache_in_16_bits_under_a_float32_query(dtype: torch.dtype, backend: str) -> None:
    assert Ragged(SPANS["mixed"], (6, 2), dtype).error(backend) < 0.03


def test_a_long_chunk_is_taken_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdpa, "MAX_MASK_ELEMENTS", 130)
    sizes = []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def spy(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, attn_mask: torch.Tensor, **kwargs: object):
        sizes.append(attn_mask.numel())
        return kernel(query, keys, values, attn_mask=attn_mask, **kwargs)

    monkeypatch.setattr(sdpa.F, "scaled_dot_product_attention", spy)
    assert Ragged([(17, 50)], (6, 2), torch.float32).error("sdpa") < 1e-5
    assert len(sizes) == 9 and max(sizes) <= 130


def test_similar_lengths_share_a_kernel_call_and_others_do_not() -> None:
    metadata = Ragged([(1, 100), (1, 20), (1, 110), (1, 25), (1, 400)], (2, 1), torch.float32).metadata
    groups = sdpa.group_decodes(metadata)
    assert [group.rows.tolist() for group in groups] == [[1, 3], [0, 2], [4]]
    # 25 tokens take 7 blocks, 110 take 28, 400 take 100.
    assert [len(group.pages) for group in groups] == [2 * 7, 2 * 28, 100]


def test_auto_is_the_fast_one() -> None:
    assert select_backend("auto") is select_backend("sdpa")
