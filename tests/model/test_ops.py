"""The small operations in PyTorch, against their formulas written out."""

import pytest
import torch
import torch.nn.functional as F

from minillm.kernels.ops import Ops, Rotation
from minillm.model.rope import RotaryEmbedding

OPS = Ops()
ROPE = dict(rope_type="default", rope_theta=100.0)


def test_add_rms_norm() -> None:
    torch.manual_seed(0)
    x, delta, weight = torch.randn(3, 20), torch.randn(3, 20), torch.randn(20)
    before = x.clone()
    total, normed = OPS.add_rms_norm(x, delta, weight, 0.1)
    assert torch.equal(total, before + delta) and torch.equal(x, before)
    expected = total / (total.square().mean(1, keepdim=True) + 0.1).sqrt() * weight
    assert torch.allclose(normed, expected, atol=1e-6)


def test_the_sum_is_rounded_before_it_is_normed() -> None:
    x, delta = torch.tensor([[1.0, 256.0]]), torch.tensor([[2.0**-9, 1.0]])  # both sums round down in bfloat16
    total, normed = OPS.add_rms_norm(x.bfloat16(), delta.bfloat16(), torch.ones(2).bfloat16(), 0.0)
    assert total.tolist() == x.tolist()
    assert torch.equal(normed, F.rms_norm(x, (2,), eps=0.0).bfloat16())


def test_silu_mul() -> None:
    gate, up = torch.randn(3, 7), torch.randn(3, 7)
    assert torch.allclose(OPS.silu_mul(torch.cat((gate, up), dim=1)), gate * gate.sigmoid() * up, atol=1e-6)


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.float16], ids=str)
def test_rotate_and_write(cache_dtype: torch.dtype, norms: bool) -> None:
    torch.manual_seed(0)
    num_heads, num_kv_heads, d = 4, 2, 6
    positions, slots = torch.tensor([5, 0, 9]), torch.tensor([7, 2, 11])
    qkv = torch.randn(3, num_heads + 2 * num_kv_heads, d)
    weights = torch.randn(2, d)
    rotation = Rotation(*RotaryEmbedding(ROPE, d, torch.device("cpu")).angles(positions, torch.float32), slots)
    cache = torch.full((3, 4, 2, num_kv_heads, d), float("nan"), dtype=cache_dtype)

    parts = list(qkv.clone().split([num_heads, num_kv_heads, num_kv_heads], dim=1))
    for i in (0, 1):
        if norms:
            parts[i] = parts[i] / (parts[i].square().mean(-1, keepdim=True) + 0.1).sqrt() * weights[i]
        # A pair of dimensions is a complex number; the token's position turns it.
        pairs = torch.complex(parts[i][..., : d // 2], parts[i][..., d // 2 :])
        angles = positions[:, None, None] * 100.0 ** (-torch.arange(0, d, 2) / d)
        turned = pairs * torch.polar(torch.ones_like(angles), angles)
        parts[i] = torch.cat((turned.real, turned.imag), dim=-1)

    query = OPS.rotate_and_write(qkv, num_kv_heads, (*weights, 0.1) if norms else None, rotation, cache)
    assert torch.allclose(query, parts[0], atol=1e-5)
    lines = cache.view(-1, 2, num_kv_heads, d)
    assert torch.allclose(lines[slots, 0].float(), parts[1], atol=2e-3 if cache_dtype == torch.float16 else 1e-5)
    assert torch.equal(lines[slots, 1], parts[2].to(cache_dtype))
    untouched = torch.ones(12, dtype=torch.bool).index_fill(0, slots, False)
    assert lines[untouched].isnan().all()
