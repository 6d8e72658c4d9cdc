"""The adapters to other kernels: fakes with the real names of what is passed, and its documented meaning, stand in.

They read the paged cache through the block table, in plain torch, so a swapped or missing argument shows.
"""

import sys
from types import ModuleType

import pytest
import torch
from kernels.ragged import SPANS, Ragged, Span, slow_attention
from torch import Tensor

from minillm.kernels.attention.base import AttentionBackend
from minillm.kernels.attention.flash import FlashAttention2, FlashAttention3, FlashBackend
from minillm.kernels.attention.hopper import HopperAttention

BACKENDS = [FlashAttention3, FlashAttention2]
WITH_OURS = [*BACKENDS, HopperAttention]


def paged(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    query_starts: Tensor,
    lens: Tensor,
    table: Tensor,
    scale: float,
    window: tuple[int, int],
) -> Tensor:
    """The contract they share: causal, aligned at the lower right, left window, strided pages."""
    for tensor in (query_starts, lens, table):
        assert tensor.dtype == torch.int32 and tensor.stride(-1) == 1
    assert keys.stride() == values.stride() and keys.stride(-1) == 1 and not keys.is_contiguous()
    assert len(lens) == len(table) == len(query_starts) - 1
    assert query_starts[-1] == len(query) and window[1] == 0
    output = torch.empty_like(query)
    page_size = keys.shape[1]
    for b, (length, row) in enumerate(zip(lens.tolist(), table.tolist())):
        blocks = torch.tensor(row[: -(-length // page_size)])
        own = slice(int(query_starts[b]), int(query_starts[b + 1]))
        k, v = (cache[blocks].flatten(0, 1)[:length] for cache in (keys, values))
        output[own] = slow_attention(query[own], k, v, scale, None if window[0] < 0 else window[0] + 1)
    return output


def fa3_with_kvcache(
    q,
    k_cache,
    v_cache,
    *,
    cache_seqlens,
    page_table,
    cu_seqlens_q,
    max_seqlen_q,
    softmax_scale,
    causal,
    window_size,
    num_splits,
):
    assert causal and num_splits == 0
    assert max_seqlen_q == cu_seqlens_q.diff().max()  # cu_seqlens_q need not begin at 0: these rows it leaves alone
    return paged(q, k_cache, v_cache, cu_seqlens_q, cache_seqlens, page_table, softmax_scale, window_size)


def fa2_with_kvcache(q, k_cache, v_cache, *, cache_seqlens, block_table, softmax_scale, causal, window_size):
    assert causal and k_cache.shape[1] % 256 == 0
    left, right = window_size
    assert right == -1, "a right side of 0 would keep the package from reading keys once for a group of heads"
    starts = torch.arange(q.shape[0] + 1, dtype=torch.int32) * q.shape[1]
    args = (k_cache, v_cache, starts, cache_seqlens, block_table, softmax_scale, (left, 0))
    return paged(q.flatten(0, 1), *args).view_as(q)


def fa2_varlen(
    q,
    k,
    v,
    *,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    softmax_scale,
    causal,
    window_size,
    block_table,
):
    assert causal and k.shape[1] % 256 == 0
    lens = cu_seqlens_k.diff()
    assert cu_seqlens_k.dtype == torch.int32 and cu_seqlens_k[0] == 0
    assert max_seqlen_q >= cu_seqlens_q.diff().max() and max_seqlen_k >= lens.max() and cu_seqlens_q[0] == 0
    return paged(q, k, v, cu_seqlens_q, lens, block_table, softmax_scale, window_size)


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    fa3, fa2 = ModuleType("flash_attn_interface"), ModuleType("flash_attn")
    fa3.flash_attn_with_kvcache = fa3_with_kvcache
    fa2.flash_attn_with_kvcache, fa2.flash_attn_varlen_func = fa2_with_kvcache, fa2_varlen
    monkeypatch.setitem(sys.modules, "flash_attn_interface", fa3)
    monkeypatch.setitem(sys.modules, "flash_attn", fa2)


def ragged(spans: list[Span], backend: type[AttentionBackend], window: int | None = None, seed: int = 0) -> Ragged:
    """With blocks as large as the backend wants them, and sequences that fill more than one."""
    longer = [(n, context + 250) for n, context in spans]
    half = torch.float16
    return Ragged(longer, block_size=backend.block_size, dtype=half, query_dtype=half, window=window, seed=seed)


@pytest.mark.parametrize("window", [None, 3, 255])
@pytest.mark.parametrize("backend", WITH_OURS)
@pytest.mark.parametrize("spans", ["decodes of many lengths", "a later chunk", "mixed"])
def test_arguments_are_where_they_belong(spans: str, backend: type[AttentionBackend], window: int | None) -> None:
    assert ragged(SPANS[spans], backend, window).error(backend) < 2e-3


@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_and_values_are_views_of_the_cache(backend: type[FlashBackend], monkeypatch: pytest.MonkeyPatch) -> None:
    batch, seen = ragged(SPANS["one decode"], backend), []

    def call(self: FlashBackend, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        seen.extend([keys, values])
        return query

    monkeypatch.setattr(backend, "call", call)
    backend(batch.metadata).attend(batch.query, batch.kv_cache, batch.scale)
    assert [view.untyped_storage().data_ptr() for view in seen] == [batch.kv_cache.untyped_storage().data_ptr()] * 2


@pytest.mark.parametrize("backend", WITH_OURS)
def test_lengths_of_a_replay_come_from_the_tensors(backend: type[AttentionBackend]) -> None:
    assert backend.capturable
    before = ragged([(1, 9), (1, 300), (3, 40)], backend)
    after = ragged([(1, 298), (1, 7), (3, 3)], backend, seed=1)
    assert before.metadata.block_tables.shape == after.metadata.block_tables.shape
    attention = backend(before.metadata)
    assert before.error_of(attention.attend(before.query, before.kv_cache, before.scale)) < 2e-3
    before.metadata.context_lens_tensor.copy_(after.metadata.context_lens_tensor)
    before.metadata.block_tables.copy_(after.metadata.block_tables)
    assert after.error_of(attention.attend(after.query, after.kv_cache, after.scale)) < 2e-3
