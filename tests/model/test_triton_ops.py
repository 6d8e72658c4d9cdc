"""The fused operations against Ops, and both Triton parts in a whole model: on a GPU, or in Triton's interpreter."""

from collections.abc import Iterator

import pytest
import torch
from kernels.ragged import Ragged, Span
from torch import Tensor

from minillm.kernels.attention.base import AttentionMetadata
from minillm.kernels.attention.sdpa import SDPAAttention
from minillm.kernels.ops import Ops, Rotation
from minillm.kernels.triton.attention import TritonAttention
from minillm.model.config import ModelConfig
from minillm.model.decoder import Decoder

pytest.importorskip("triton", reason="triton is for Linux")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.float16]


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    """Where all tensors are made."""
    with DEVICE:
        yield


@pytest.fixture(scope="module")
def fused() -> Ops:
    from minillm.kernels.triton.ops import TritonOps

    return TritonOps()


def close(computed: Tensor, expected: Tensor) -> bool:
    """Equal but for the last bit or two of their dtype."""
    assert computed.dtype == expected.dtype and computed.shape == expected.shape
    precision = 2 * torch.finfo(computed.dtype).eps
    return torch.allclose(computed, expected, rtol=precision, atol=precision)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("num_tokens", "size"), [(1, 64), (3, 576), (2, 2048)])
def test_add_rms_norm(num_tokens: int, size: int, dtype: torch.dtype, fused: Ops) -> None:
    torch.manual_seed(0)
    x, delta = torch.randn(2, num_tokens, size).to(dtype).unbind()
    weight = torch.randn(size).to(dtype)
    before = x.clone(), delta.clone()
    total, normed = fused.add_rms_norm(x, delta, weight, 1e-5)
    expected_total, expected_normed = Ops().add_rms_norm(x, delta, weight, 1e-5)
    assert torch.equal(total, expected_total) and close(normed, expected_normed)
    if dtype == torch.float16:  # normed from the rounded sum: from the exact one, a third would differ in a bit
        assert (normed == expected_normed).float().mean() > 0.98
    assert torch.equal(x, before[0]) and torch.equal(delta, before[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("num_tokens", "inner"), [(1, 64), (3, 1536), (2, 1025)])
def test_silu_mul(num_tokens: int, inner: int, dtype: torch.dtype, fused: Ops) -> None:
    torch.manual_seed(0)
    gate_up = torch.randn(num_tokens, 2 * inner).mul(4).to(dtype)
    assert close(fused.silu_mul(gate_up), Ops().silu_mul(gate_up))


@pytest.mark.parametrize("slot_dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize(
    ("dtype", "cache_dtype"), [(DTYPES[0],) * 2, (DTYPES[1],) * 2, (DTYPES[0], DTYPES[1])], ids=str
)
@pytest.mark.parametrize(("heads", "head_dim"), [((9, 3), 64), ((16, 8), 128), ((3, 1), 12)], ids=str)
def test_rotate_and_write(
    heads: tuple[int, int], head_dim: int, dtype: torch.dtype, cache_dtype: torch.dtype, norms: bool,
    slot_dtype: torch.dtype, fused: Ops,
) -> None:  # fmt: skip
    torch.manual_seed(0)
    num_heads, num_kv_heads = heads
    num_tokens = 3
    qkv = torch.randn(num_tokens, num_heads + 2 * num_kv_heads, head_dim).to(dtype)
    weights = torch.randn(2, head_dim).to(dtype)
    cos, sin = torch.randn(2, num_tokens, 1, head_dim).to(dtype)  # of no real angle: any mix-up shows
    slots = torch.tensor([7, 2, 11])

    def run(ops: Ops, slot_mapping: Tensor) -> tuple[Tensor, Tensor]:
        cache = torch.full((3, 4, 2, num_kv_heads, head_dim), 99.0, dtype=cache_dtype)
        rotation = Rotation(cos, sin, slot_mapping)
        query = ops.rotate_and_write(qkv.clone(), num_kv_heads, (*weights, 1e-6) if norms else None, rotation, cache)
        return query, cache

    query, cache = run(fused, slots.to(slot_dtype))
    expected_query, expected_cache = run(Ops(), slots)
    tolerance = 5 * torch.finfo(dtype).eps  # Ops rounds three times where this rounds once
    assert (query - expected_query).abs().max() <= tolerance * expected_query.abs().max()
    written = expected_cache != 99
    difference = (cache - expected_cache).abs()
    tolerance = max(tolerance, torch.finfo(cache_dtype).eps)
    assert difference.max() <= tolerance * expected_cache[written].abs().max()
    assert difference[~written].max() == 0 and (cache[..., 1, :, :] == expected_cache[..., 1, :, :]).all()


def tiny_model(architecture: str) -> Decoder:
    """Random weights; 9 query heads and 3 key/value heads, as SmolLM2."""
    config = ModelConfig.from_hf(
        dict(
            architectures=[f"{architecture}ForCausalLM"],
            vocab_size=97,
            hidden_size=72,
            intermediate_size=80,
            num_hidden_layers=2,
            num_attention_heads=9,
            num_key_value_heads=3,
            head_dim=16,
            max_position_embeddings=128,
            rms_norm_eps=1e-6,
            rope_theta=300.0,
        )
    )
    torch.manual_seed(1)
    decoder = Decoder(config, torch.float32, DEVICE)
    for name, parameter in decoder.named_parameters():
        parameter.data.normal_(1.0 if "norm" in name else 0.0, 0.3 if "norm" in name or "bias" in name else 0.15)
    return decoder


@pytest.mark.parametrize("architecture", ["Llama", "Qwen3"])
@torch.inference_mode()
def test_a_whole_model_in_triton(architecture: str, fused: Ops) -> None:
    """Prompts, then a mixed step, then decodes: logits of every token as with PyTorch's operations."""
    decoder = tiny_model(architecture)
    shape = (16, 16, 2, 3, 16)
    caches = [[torch.zeros(shape) for _ in decoder.layers] for _ in range(2)]
    tables = torch.arange(16, dtype=torch.int32).view(4, 4)
    steps: list[list[Span]] = [
        [(20, 20), (3, 3)],
        [(1, 21), (1, 4), (17, 17), (2, 2)],
        [(1, 22), (1, 5), (1, 18), (1, 3)],
        [(3, 25), (3, 8)],
    ]
    for number, spans in enumerate(steps):
        positions = torch.cat([torch.arange(context - n, context) for n, context in spans])
        sequences = torch.arange(len(spans)).repeat_interleave(torch.tensor([n for n, _ in spans]))
        layout = Ragged(spans, (9, 3), 16, 16).metadata
        metadata = AttentionMetadata(
            query_starts=layout.query_starts,
            context_lens=layout.context_lens,
            query_starts_tensor=layout.query_starts_tensor,
            context_lens_tensor=layout.context_lens_tensor,
            block_tables=tables[: len(spans)],
            slot_mapping=tables[sequences, positions // 16].long() * 16 + positions % 16,
            num_decodes=layout.num_decodes,
            block_size=16,
        )
        token_ids = torch.randint(97, positions.shape, generator=torch.Generator(DEVICE).manual_seed(number))
        expected = decoder(token_ids, positions, caches[0], SDPAAttention(metadata), Ops())
        logits = decoder(token_ids, positions, caches[1], TritonAttention(metadata), fused)
        assert (logits - expected).abs().max() < 1e-4
    assert all(torch.allclose(ours, theirs, atol=1e-4) for ours, theirs in zip(*caches))
