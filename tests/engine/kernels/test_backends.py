"""The backends made of PyTorch's own operations, against attention computed the slow way."""

from typing import Any

import pytest
import torch
from kernels.ragged import SPANS, WINDOWS_AND_SINKS, Ragged

from minillm.kernels.attention import sdpa
from minillm.kernels.attention.base import AttentionBackend
from minillm.kernels.attention.cache import QUANTIZED_DTYPES
from minillm.kernels.attention.eager import EagerAttention
from minillm.kernels.attention.sdpa import SDPAAttention

BACKENDS = [EagerAttention, SDPAAttention]
HUGE = 3e3
"""What nobody may see, in the cache. Not NaN: these backends gather whole blocks, then give weight 0 to it."""


SHAPES: list[dict[str, Any]] = [
    *(dict(heads=heads) for heads in [(6, 2), (4, 4), (5, 1)]),
    *(dict(kv_dtype=dtype) for dtype in QUANTIZED_DTYPES.values()),
    *(dict(window=window) for window in (1, 4, 5, 30, 200)),
    *(dict(window=window, sinks=sinks) for window, sinks in WINDOWS_AND_SINKS),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matches_slow_attention(shape: dict[str, Any], backend: type[AttentionBackend]) -> None:
    for name, spans in SPANS.items():
        assert Ragged(spans, poison=HUGE, **shape).error(backend) < 1e-5, name


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_cache_in_16_bits_under_a_float32_query(dtype: torch.dtype, backend: type[AttentionBackend]) -> None:
    assert Ragged(SPANS["mixed"], dtype=dtype, poison=HUGE).error(backend) < 0.03


def test_a_long_chunk_is_taken_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdpa, "MAX_MASK_ELEMENTS", 130)
    sizes = []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def spy(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, attn_mask: torch.Tensor, **kwargs: object):
        sizes.append(attn_mask.numel())
        return kernel(query, keys, values, attn_mask=attn_mask, **kwargs)

    monkeypatch.setattr(sdpa.F, "scaled_dot_product_attention", spy)
    assert Ragged([(17, 50)], poison=HUGE).error(SDPAAttention) < 1e-5
    assert len(sizes) == 9 and max(sizes) <= 130


def test_similar_lengths_share_a_kernel_call_and_others_do_not() -> None:
    metadata = Ragged([(1, 100), (1, 20), (1, 110), (1, 25), (1, 400)], (2, 1)).metadata
    groups = sdpa.group_decodes(metadata)
    assert [group.rows.tolist() for group in groups] == [[1, 3], [0, 2], [4]]
    # 25 tokens take 7 blocks, 110 take 28, 400 take 100.
    assert [len(group.pages) for group in groups] == [2 * 7, 2 * 28, 100]
