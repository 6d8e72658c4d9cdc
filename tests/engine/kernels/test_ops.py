"""The small operations: PyTorch's against their formulas, the fused ones (C++, Triton) against PyTorch's."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minillm.kernels.attention.cache import QUANTIZED_DTYPES, KVCache, QuantizedKV
from minillm.kernels.cpu import NativeKernels
from minillm.kernels.cpu.ops import NativeOps
from minillm.kernels.ops import ForwardContext, Ops
from minillm.kernels.quantization import quantize
from minillm.kernels.select_ops import select_ops
from minillm.model.decoder import Attention
from minillm.model.linear import Linear
from minillm.model.packed import CPULinear, Packed, PackedForDots, PackedInBands
from minillm.model.rope import RotaryEmbedding

pytestmark = pytest.mark.usefixtures("two_threads")
CPU = torch.device("cpu")
GPU = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""Without one, Triton's interpreter."""
OPS = Ops()
ROPE = dict(rope_type="default", rope_theta=100.0)
Norms = tuple[Tensor, Tensor, float] | None


@pytest.fixture(scope="module")
def native(kernels: NativeKernels) -> NativeOps:
    return NativeOps(kernels)


@pytest.fixture(scope="module")
def triton() -> Ops:
    pytest.importorskip("triton", reason="triton is for Linux")
    from minillm.kernels.triton.ops import TritonOps

    return TritonOps()


@pytest.fixture(params=["native", "triton-float32", "triton-float16"])
def fused(request: pytest.FixtureRequest) -> Iterator[tuple[Ops, torch.dtype]]:
    """Operations, and the dtype of what they compute with; tensors are made where they run."""
    name, _, dtype = request.param.partition("-")
    with CPU if name == "native" else GPU:
        torch.manual_seed(0)
        yield request.getfixturevalue(name), getattr(torch, dtype or "float32")


class Asked:
    """In the place of attention: it says what it is asked, and no more."""

    def attend(self, query: Tensor, kv_cache: KVCache, scale: float) -> Tensor:
        return query


def prepared_query(
    ops: Ops, qkv: Tensor, num_kv_heads: int, norms: Norms, cos: Tensor, sin: Tensor, slots: Tensor, cache: KVCache
) -> Tensor:
    """The queries that a decoder's attention asks with, once keys and values are in the cache. `qkv` stays as it is."""
    num_heads, head_dim = qkv.shape[1] - 2 * num_kv_heads, qkv.shape[2]
    config = SimpleNamespace(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        hidden_size=1,
        rms_norm_eps=0.0,
        qkv_bias=False,
        o_bias=False,
        qk_norm=norms is not None,
    )
    attention = Attention(config, qkv.dtype, qkv.device)
    attention.qkv_proj = nn.Identity()
    if norms is not None:
        attention.q_norm.weight.data, attention.k_norm.weight.data, eps = norms
        attention.q_norm.eps = attention.k_norm.eps = eps
    context = ForwardContext(cos, sin, slots, Asked(), ops)
    return ops.project_and_cache(attention, qkv.clone().flatten(1), cache, context)


@pytest.mark.parametrize("num_tokens", [1, 5, 1030])
def test_pending_tokens_are_filled_in(triton: Ops, num_tokens: int) -> None:
    sampled = torch.tensor([70, -1, 71], dtype=torch.int32, device=GPU)  # the second could not be sampled
    token_ids = torch.tensor([~0, 5, ~1, 0, ~2, 9], dtype=torch.int32, device=GPU).repeat(200)[:num_tokens]
    expected = torch.tensor([70, 5, 0, 0, 71, 9], dtype=torch.int32, device=GPU).repeat(200)[:num_tokens]
    for ops in (OPS, triton):
        torch.testing.assert_close(ops.fill_in(token_ids, sampled), expected, rtol=0, atol=0)


def test_the_norm_and_silu_are_their_formulas() -> None:
    torch.manual_seed(0)
    x, delta, weight = torch.randn(3, 20), torch.randn(3, 20), torch.randn(20)
    before = x.clone()
    total, normed = OPS.add_rms_norm(x, delta, weight, 0.1)
    assert torch.equal(total, before + delta) and torch.equal(x, before)
    expected = total / (total.square().mean(1, keepdim=True) + 0.1).sqrt() * weight
    assert torch.allclose(normed, expected, atol=1e-6)
    gate, up = x, delta
    assert torch.allclose(OPS.silu_mul(torch.cat((gate, up), dim=1)), gate * gate.sigmoid() * up, atol=1e-6)


def test_the_sum_is_rounded_before_it_is_normed() -> None:
    x, delta = torch.tensor([[1.0, 256.0]]), torch.tensor([[2.0**-9, 1.0]])  # both sums round down in bfloat16
    total, normed = OPS.add_rms_norm(x.bfloat16(), delta.bfloat16(), torch.ones(2).bfloat16(), 0.0)
    assert total.tolist() == x.tolist()
    assert torch.equal(normed, F.rms_norm(x, (2,), eps=0.0).bfloat16())


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.float16], ids=str)
def test_norm_rotation_and_write_are_their_formulas(cache_dtype: torch.dtype, norms: bool) -> None:
    torch.manual_seed(0)
    num_heads, num_kv_heads, d = 4, 2, 6
    positions, slots = torch.tensor([5, 0, 9]), torch.tensor([7, 2, 11])
    qkv, weights = torch.randn(3, num_heads + 2 * num_kv_heads, d), torch.randn(2, d)
    cache = torch.full((3, 4, 2, num_kv_heads, d), float("nan"), dtype=cache_dtype)
    parts = list(qkv.split([num_heads, num_kv_heads, num_kv_heads], dim=1))
    for i in (0, 1):
        if norms:
            parts[i] = parts[i] / (parts[i].square().mean(-1, keepdim=True) + 0.1).sqrt() * weights[i]
        # A pair of dimensions is a complex number; the token's position turns it.
        pairs = torch.complex(parts[i][..., : d // 2], parts[i][..., d // 2 :])
        angles = positions[:, None, None] * 100.0 ** (-torch.arange(0, d, 2) / d)
        turned = pairs * torch.polar(torch.ones_like(angles), angles)
        parts[i] = torch.cat((turned.real, turned.imag), dim=-1)

    angles = RotaryEmbedding(ROPE, d, CPU).angles(positions, torch.float32)
    query = prepared_query(OPS, qkv, num_kv_heads, (*weights, 0.1) if norms else None, *angles, slots, cache)
    assert torch.allclose(query, parts[0], atol=1e-5)
    lines = cache.view(-1, 2, num_kv_heads, d)
    assert torch.allclose(lines[slots, 0].float(), parts[1], atol=2e-3 if cache_dtype == torch.float16 else 1e-5)
    assert torch.equal(lines[slots, 1], parts[2].to(cache_dtype))
    untouched = torch.ones(12, dtype=torch.bool).index_fill(0, slots, False)
    assert lines[untouched].isnan().all()


@pytest.mark.parametrize(("num_tokens", "size"), [(1, 1), (1, 64), (3, 15), (3, 576), (2, 2048), (16, 576), (40, 15)])
def test_add_rms_norm(fused: tuple[Ops, torch.dtype], num_tokens: int, size: int) -> None:
    ops, dtype = fused
    x, delta = torch.randn(2, num_tokens, size).to(dtype).unbind()
    weight = torch.randn(size).to(dtype)
    before = x.clone(), delta.clone()
    total, normed = ops.add_rms_norm(x, delta, weight, 1e-5)
    expected_total, expected_normed = OPS.add_rms_norm(x, delta, weight, 1e-5)
    assert torch.equal(total, expected_total) and close(normed, expected_normed)
    if dtype == torch.float16:  # normed from the rounded sum: from the exact one, a third would differ in a bit
        assert (normed == expected_normed).float().mean() > 0.98
    assert torch.equal(x, before[0]) and torch.equal(delta, before[1])


@pytest.mark.parametrize(("num_tokens", "inner"), [(1, 16), (1, 64), (3, 1536), (2, 1025), (3, 7), (16, 1536), (40, 7)])
def test_silu_mul(fused: tuple[Ops, torch.dtype], num_tokens: int, inner: int) -> None:
    ops, dtype = fused
    gate_up = torch.randn(num_tokens, 2 * inner).mul(8).to(dtype)
    assert close(ops.silu_mul(gate_up), OPS.silu_mul(gate_up))


@pytest.mark.parametrize("packing", [PackedInBands, PackedForDots])
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize(
    ("rows", "size", "inner"), [(1, 64, 16), (15, 64, 48), (16, 64, 32), (40, 64, 40), (300, 64, 48), (70, 65, 464)]
)
def test_swiglu(native: NativeOps, packing: type[Packed], bias: bool, rows: int, size: int, inner: int) -> None:
    if packing is PackedForDots and not native.kernels.has_dots:
        pytest.skip("this processor has no products of bfloat16")
    torch.manual_seed(0)
    gate_up = Linear(size, 2 * inner, bias, torch.bfloat16, CPU)
    for parameter in gate_up.parameters():
        parameter.normal_()
    packed, x = CPULinear(gate_up, packing, packing), torch.randn(rows, size)
    assert torch.allclose(native.swiglu(packed, x), OPS.swiglu(packed, x), rtol=1e-4, atol=1e-4)


def close(computed: Tensor, expected: Tensor) -> bool:
    """Equal but for the last bits of their dtype."""
    assert computed.dtype == expected.dtype and computed.shape == expected.shape
    precision = max(2 * torch.finfo(computed.dtype).eps, 1e-6)
    return torch.allclose(computed, expected, rtol=10 * precision, atol=2 * precision)


def test_silu_of_extremes(native: NativeOps) -> None:
    gate = torch.tensor([0.0, -0.0, 1e-20, -1e-20, 50.0, -50.0, 200.0, -200.0, 3e38, -3e38, torch.inf, -torch.inf])
    gate = torch.cat((gate, torch.tensor([torch.nan, 1.0, -1.0, 88.0])))[None]
    gate_up = torch.cat((gate, torch.ones_like(gate)), dim=1)
    found, finite = native.silu_mul(gate_up), ~gate.isinf()
    assert torch.allclose(found[finite], OPS.silu_mul(gate_up)[finite], rtol=1e-5, atol=1e-30, equal_nan=True)
    assert found[0, 12].isnan() and found[0, 10] == torch.inf


@pytest.mark.parametrize("rows", [1, 3, 16, 40])  # from 16 on, threads share them
@pytest.mark.parametrize("norms", [False, True], ids=["plain", "norms"])
@pytest.mark.parametrize(("heads", "kv_heads", "d"), [(9, 3, 64), (4, 4, 16), (2, 1, 6)], ids=str)
def test_rotate_and_write_in_cpp(native: Ops, rows: int, norms: bool, heads: int, kv_heads: int, d: int) -> None:
    angles = RotaryEmbedding(ROPE, d, CPU).angles(torch.randint(0, 500, (rows,)), torch.float32)
    given = (torch.randn(rows, heads + 2 * kv_heads, d), kv_heads)
    weights = (torch.randn(d), torch.randn(d), 1e-6) if norms else None
    slots = torch.randperm(64)[:rows]
    caches = [torch.full((16, 4, 2, kv_heads, d), 7.0, dtype=torch.bfloat16) for _ in range(2)]
    expected, found = (
        prepared_query(ops, *given, weights, *angles, slots, cache) for ops, cache in zip((OPS, native), caches)
    )
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert torch.allclose(caches[1].float(), caches[0].float(), rtol=1e-2, atol=1e-5), "to a bit of bfloat16"
    assert ((caches[1] != 7.0) == (caches[0] != 7.0)).all()


def test_bfloat16_is_rounded_to_nearest_even_and_keeps_nan(native: NativeOps) -> None:
    values = torch.tensor([1.0, 1.00390625, 1.01171875, -1.00390625, 65504.0, 1e-40, torch.inf, -torch.inf, torch.nan])
    values = torch.cat((values, torch.randn(7)))
    cache = torch.zeros(1, 4, 2, 1, 16, dtype=torch.bfloat16)
    qkv = torch.zeros(1, 3, 16)
    qkv[0, 2] = values
    prepared_query(native, qkv, 1, None, torch.ones(1, 1, 16), torch.zeros(1, 1, 16), torch.tensor([2]), cache)
    assert torch.equal(cache[0, 2, 1, 0].nan_to_num(5.0), values.bfloat16().nan_to_num(5.0))


@pytest.mark.parametrize("slot_dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize(("dtype", "cache_dtype"), [("float32",) * 2, ("float16",) * 2, ("float32", "float16")])
@pytest.mark.parametrize(("heads", "head_dim"), [((9, 3), 64), ((16, 8), 128), ((3, 1), 12)], ids=str)
def test_rotate_and_write_in_triton(
    heads: tuple[int, int],
    head_dim: int,
    dtype: str,
    cache_dtype: str,
    norms: bool,
    slot_dtype: torch.dtype,
    triton: Ops,
) -> None:
    kinds = getattr(torch, dtype), getattr(torch, cache_dtype)
    with GPU:
        torch.manual_seed(0)
        qkv = torch.randn(3, heads[0] + 2 * heads[1], head_dim).to(kinds[0])
        weights = torch.randn(2, head_dim).to(kinds[0])
        cos, sin = torch.randn(2, 3, 1, head_dim).to(kinds[0])  # of no real angle: any mix-up shows
        slots = torch.tensor([7, 2, 11])
        shape = (3, 4, 2, heads[1], head_dim)
        cache, expected_cache = (torch.full(shape, 99.0, dtype=kinds[1]) for _ in range(2))
    given = (qkv, heads[1], (*weights, 1e-6) if norms else None, cos, sin)
    query = prepared_query(triton, *given, slots.to(slot_dtype), cache)
    expected_query = prepared_query(OPS, *given, slots, expected_cache)
    tolerance = 5 * torch.finfo(kinds[0]).eps  # Ops rounds three times where this rounds once
    assert (query - expected_query).abs().max() <= tolerance * expected_query.abs().max()
    written = expected_cache != 99
    difference = (cache - expected_cache).abs()
    tolerance = max(tolerance, torch.finfo(kinds[1]).eps)
    assert difference.max() <= tolerance * expected_cache[written].abs().max()
    assert difference[~written].max() == 0 and (cache[..., 1, :, :] == expected_cache[..., 1, :, :]).all()


@pytest.mark.parametrize("kv_format", QUANTIZED_DTYPES)
@pytest.mark.parametrize(
    ("heads", "head_dim", "rows", "norms"),
    [
        pytest.param(*shape, norms, marks=[pytest.mark.slow] * ((place + norms) % 2))
        for place, shape in enumerate([((9, 3), 64, 1), ((8, 2), 128, 3), ((3, 1), 12, 17), ((2, 1), 64, 64)])
        for norms in (False, True)
    ],
    ids=str,
)
def test_triton_rounds_what_it_writes(
    heads: tuple[int, int], head_dim: int, rows: int, norms: bool, kv_format: str, triton: Ops
) -> None:
    """Numbers bit for bit, given the scales: Triton's interpreter cuts to bfloat16 where a GPU rounds."""
    with GPU:
        torch.manual_seed(rows)
        qkv = torch.randn(rows, heads[0] + 2 * heads[1], head_dim) * torch.logspace(-3, 3, rows)[:, None, None]
        qkv[0, -1] = 0
        weights, (cos, sin) = torch.randn(2, head_dim), torch.randn(2, rows, 1, head_dim)
        slots, shape = torch.randperm(80)[:rows], (20, 4, 2, heads[1], head_dim)
        plain, numbers = torch.zeros(shape), torch.full(shape, 9).to(QUANTIZED_DTYPES[kv_format])
        cache = QuantizedKV(numbers, torch.full(shape[:-1], 9.0, dtype=torch.bfloat16))
    given = (qkv, heads[1], (*weights, 1e-6) if norms else None, cos, sin, slots)
    assert torch.equal(prepared_query(triton, *given, cache), prepared_query(triton, *given, plain))
    kept, scales, exact = (part.flatten(0, 1)[slots] for part in (*cache, plain))
    wanted = quantize(exact, numbers.dtype)[1]
    assert ((scales.float() / wanted - 1).abs() < 2**-7).all()
    most = 127 if kv_format == "int8" else 448
    expected = (exact / scales.float()[..., None]).clamp(-most, most)
    expected = (expected.round() if kv_format == "int8" else expected).to(numbers.dtype)
    assert torch.equal(kept.view(torch.int8), expected.view(torch.int8))
    untouched = torch.ones(80, dtype=torch.bool, device=slots.device).index_fill(0, slots, False)
    assert all((part.flatten(0, 1)[untouched].float() == 9).all() for part in cache)


def test_float32_computes_as_hugging_face_does(native: NativeOps) -> None:
    assert isinstance(select_ops(True, CPU, torch.bfloat16, torch.float32), NativeOps)
    assert type(select_ops(True, CPU, torch.float32, torch.float32)) is Ops
    assert type(select_ops(False, CPU, torch.bfloat16, torch.float32)) is Ops
