"""The decode attention in C++, against attention computed the slow way. NaN lies wherever nobody may read."""

from typing import Any

import pytest
import torch
from kernels.ragged import SPANS, WINDOWS_AND_SINKS, Ragged, Span

from minillm.kernels.attention import native
from minillm.kernels.attention.native import NativeAttention

pytestmark = pytest.mark.usefixtures("kernels", "two_threads")
DECODES = [(1, context) for context in (1, 2, 15, 16, 17, 63, 64, 65, 129, 400)]
BF16, INT8 = dict(dtype=torch.bfloat16), dict(kv_dtype=torch.int8)


SHAPES = [
    *(dict(heads=heads, head_dim=d) for heads in [(9, 3), (4, 4), (8, 1), (16, 1), (2, 2)] for d in (16, 64, 128, 256)),
    *(dict(block_size=size) for size in (1, 4, 16, 48)),
    *(dict(window=window) for window in (1, 5, 64, 100, 1000)),
    *(dict(window=window, sinks=sinks, **kv) for window, sinks in WINDOWS_AND_SINKS for kv in ({}, INT8)),
    *(dict(heads=heads, head_dim=d, **INT8) for heads in [(9, 3), (4, 4), (8, 1)] for d in (16, 64, 128)),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_decodes_of_any_length(shape: dict[str, Any]) -> None:
    fields = {"heads": (6, 2), "head_dim": 64, "block_size": 16, **BF16, **shape}
    ragged = Ragged(DECODES, **fields)
    assert native.suits(ragged.query.dtype, *ragged.query.shape[1:], ragged.kv_cache)
    assert ragged.error(NativeAttention) < 1e-4


@pytest.mark.parametrize("spans", SPANS.values(), ids=SPANS)
@pytest.mark.parametrize("head_dim", [48, 64])  # matrix units take whole tiles of 32
def test_prefills_and_decodes_in_one_step(spans: list[Span], head_dim: int) -> None:
    assert Ragged(spans, (6, 2), head_dim, 16, poison=3e3, **BF16).error(NativeAttention) < 0.03, (
        "prefills round to bfloat16"
    )


@pytest.mark.parametrize(
    "shape", [dict(head_dim=24), dict(heads=(17, 1)), dict(dtype=torch.float16), dict(head_dim=272)], ids=str
)
def test_what_it_is_not_written_for_goes_through_sdpa(shape: dict) -> None:
    fields = {"heads": (6, 2), "head_dim": 64, **BF16, **shape}
    ragged = Ragged([(1, 30), (1, 40)], poison=3e3, block_size=16, **fields)
    assert not native.suits(ragged.query.dtype, *ragged.query.shape[1:], ragged.kv_cache)
    assert ragged.error(NativeAttention) < 0.03


def test_nan_among_the_keys_or_values_that_are_read_comes_out() -> None:
    for part in (0, 1):
        ragged = Ragged([(1, 70), (1, 70)], (6, 2), 64, 16, **BF16)
        block = ragged.metadata.block_tables[1, 2]
        ragged.kv_cache[block, 3, part, 0, 5] = float("nan")
        output = NativeAttention(ragged.metadata).attend(ragged.query, ragged.kv_cache, ragged.scale)
        assert output[1, :3].isnan().any() and not output[0].isnan().any() and not output[1, 3:].isnan().any()


def test_large_scores_do_not_overflow() -> None:
    ragged = Ragged([(1, 100)], (6, 2), 64, 16, **BF16)
    ragged.query *= 1000
    expected = Ragged([(1, 100)], (6, 2), 64, 16, poison=0.0, **BF16)
    expected.query *= 1000
    from minillm.kernels.attention.eager import EagerAttention

    reference = EagerAttention(expected.metadata).attend(expected.query, expected.kv_cache, expected.scale)
    found = NativeAttention(ragged.metadata).attend(ragged.query, ragged.kv_cache, ragged.scale)
    assert torch.allclose(found, reference, atol=1e-3)
