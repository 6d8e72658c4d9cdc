"""A KV cache in int8 or fp8: each backend against slow attention over what the cache keeps; and what is refused."""

import itertools

import pytest
import torch
from kernels.ragged import SPANS, Ragged, Span

from minillm.core.errors import ConfigError
from minillm.kernels.attention.cache import SCALE_DTYPE, QuantizedKV, gather_blocks, write_kv
from minillm.kernels.attention.native import NativeAttention
from minillm.kernels.attention.sdpa import SDPAAttention
from minillm.kernels.attention.select import BACKENDS, Demands, select_backend, survey
from minillm.kernels.quantization import FP8, dequantize, dtype_name, quantize

CPU = torch.device("cpu")
DTYPES = [torch.int8, FP8]
HUGE = 3e3
"""What nobody may see: see test_backends.py."""
needs_compiler = pytest.mark.skipif(NativeAttention.missing(CPU) is not None, reason="no C++ compiler here")


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
def test_a_key_is_rounded_by_its_own_largest_number(dtype: torch.dtype) -> None:
    kv = torch.randn(20, 2, 3, 64) * torch.logspace(-6, 4, 20)[:, None, None, None]
    numbers, scales = quantize(kv, dtype, SCALE_DTYPE)
    kept = dequantize(numbers, scales)
    largest = kv.abs().amax(-1, keepdim=True)
    # int8: half a step of 1/127, or one where the bfloat16 scale fell short. fp8: 3 bits of mantissa.
    assert ((kept - kv).abs() <= largest / (120 if dtype == torch.int8 else 25)).all()
    zero_numbers, zero_scales = quantize(torch.zeros(1, 2, 1, 8), dtype, SCALE_DTYPE)
    assert (zero_numbers.float() == 0).all() and zero_scales.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
def test_written_and_gathered(dtype: torch.dtype) -> None:
    cache = QuantizedKV(torch.zeros(5, 4, 2, 3, 16).to(dtype), torch.zeros(5, 4, 2, 3, dtype=torch.bfloat16))
    kv = torch.randn(3, 2, 3, 16)
    write_kv(kv, cache, torch.tensor([17, 2, 3]))
    found = gather_blocks(cache, torch.tensor([4, 0]), torch.float32)
    numbers, scales = quantize(kv, dtype, SCALE_DTYPE)
    kept = dequantize(numbers, scales)
    assert torch.equal(found[0, 1], kept[0]) and torch.equal(found[1, 2:], kept[1:])
    assert (found[0, 2:] == 0).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
def test_nan_and_infinity_do_not_become_numbers(dtype: torch.dtype, bad: float) -> None:
    kv = torch.randn(1, 2, 1, 16)
    kv[0, 1, 0, 3] = bad
    numbers, scales = quantize(kv, dtype, SCALE_DTYPE)
    kept = dequantize(numbers, scales)
    assert kept[0, 1].isnan().any() and kept[0, 0].isfinite().all()


@needs_compiler
@pytest.mark.parametrize("spans", SPANS.values(), ids=SPANS)
def test_native_batches(spans: list[Span]) -> None:
    assert Ragged(spans, (6, 2), 64, 16, kv_dtype=torch.int8, poison=HUGE).error(NativeAttention) < 1e-5


HEADS = [((2, 2), 64), ((6, 2), 64), ((8, 1), 128)]
IN_TURN = [(4, torch.int8, HEADS[0]), (4, FP8, HEADS[1]), (4, torch.int8, HEADS[2])]
"""What the interpreter has time for in `make test`: each dtype and each shape in one of them."""


@pytest.mark.parametrize(
    ("splits", "dtype", "shape"),
    [
        pytest.param(*each, marks=[pytest.mark.slow] * (each not in IN_TURN))
        for each in itertools.product((1, 4), DTYPES, HEADS)
    ],
    ids=str,
)
def test_triton(
    splits: int, dtype: torch.dtype, shape: tuple[tuple[int, int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    heads, head_dim = shape
    pytest.importorskip("triton", reason="triton is for Linux")
    from minillm.kernels.triton import attention as triton_paged

    monkeypatch.setattr(triton_paged, "splits_for", lambda *args: splits)
    spans = [(1, 33), (1, 2), (1, 100), (7, 7), (4, 21), (19, 40)]
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        ragged = Ragged(spans, heads, head_dim, block_size=16, kv_dtype=dtype)
        assert ragged.error(triton_paged.TritonAttention) < 1e-5


SHAPES_16 = [((4, 4), 64), ((8, 2), 128), ((6, 3), 32)]
SPLITS_AND_WINDOWS = [(1, None), (4, 40)]


@pytest.mark.parametrize(
    ("dtype", "shape", "split"),
    [
        pytest.param(DTYPES[i], SHAPES_16[j], SPLITS_AND_WINDOWS[k], marks=[pytest.mark.slow] * ((i + j + k) % 2))
        for i, j, k in itertools.product(range(2), range(3), range(2))
    ],
    ids=str,
)
def test_triton_in_16_bits(
    dtype: torch.dtype,
    shape: tuple[tuple[int, int], int],
    split: tuple[int, int | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Decodes are read in pairs, where the number of heads is even. In `make test` every two of the three meet."""
    (heads, head_dim), (splits, window) = shape, split
    pytest.importorskip("triton", reason="triton is for Linux")
    from minillm.kernels.triton import attention as triton_paged

    monkeypatch.setattr(triton_paged, "splits_for", lambda *args: splits)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        spans = [(1, 33), (1, 2), (1, 100), (4, 21)]
        given = dict(kv_dtype=dtype, query_dtype=torch.float16, window=window)
        ragged = Ragged(spans, heads, head_dim, block_size=16, **given)
        assert ragged.error(triton_paged.TritonAttention) < 2e-3


def test_who_reads_it_and_who_says_why_not() -> None:
    for dtype in DTYPES:
        choices = survey(CPU, Demands(kv_dtype=dtype))
        assert choices["eager"] is None and choices["sdpa"] is None
        assert (choices["native"] is None) == (dtype == torch.int8 and NativeAttention.missing(CPU) is None)
    if NativeAttention.missing(CPU) is None:
        with pytest.raises(
            ConfigError, match=r"does not read a KV cache in fp8: choose one that does \(triton, sdpa, eager\)"
        ):
            select_backend("native", CPU, Demands(kv_dtype=FP8))
        assert select_backend("auto", CPU, Demands(dtype=torch.float32, kv_dtype=torch.int8)) is NativeAttention
    assert select_backend("auto", CPU, Demands(kv_dtype=FP8)) is SDPAAttention
    assert not BACKENDS["fa3"].quantized_caches, "FlashAttention-3's fp8 has other scales"
