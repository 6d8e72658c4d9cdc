"""The small operations in C++ against PyTorch's, and a model that is served with them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from minillm import Engine, EngineConfig, SamplingParams
from minillm.kernels.attention.native import NativeAttention
from minillm.kernels.cpu import NativeKernels, native_kernels
from minillm.kernels.cpu.ops import NativeOps
from minillm.kernels.ops import Ops, Rotation
from minillm.kernels.select_ops import select_ops
from minillm.model import linear
from minillm.model.loader import load_model
from minillm.model.rope import RotaryEmbedding

pytestmark = pytest.mark.usefixtures("two_threads")
CPU = torch.device("cpu")
ROWS = [1, 3, 16, 40]
"""From 16 on, threads share them."""


@pytest.fixture(scope="module")
def kernels() -> NativeKernels:
    found = native_kernels()
    if found is None:
        pytest.skip("no C++ compiler here")
    return found


@pytest.fixture(scope="module")
def ops(kernels: NativeKernels) -> NativeOps:
    return NativeOps(kernels)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("size", [1, 15, 576])
def test_add_rms_norm(ops: NativeOps, rows: int, size: int) -> None:
    x, delta, weight = torch.randn(rows, size), torch.randn(rows, size), torch.randn(size)
    before = x.clone()
    total, normed = ops.add_rms_norm(x, delta, weight, 1e-5)
    expected_total, expected = Ops().add_rms_norm(x, delta, weight, 1e-5)
    assert torch.equal(total, expected_total) and torch.equal(x, before)
    assert torch.allclose(normed, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("inner", [16, 1536, 7])
def test_silu_mul(ops: NativeOps, rows: int, inner: int) -> None:
    gate_up = torch.randn(rows, 2 * inner) * 8
    assert torch.allclose(ops.silu_mul(gate_up), Ops().silu_mul(gate_up), rtol=1e-5, atol=1e-6)


def test_silu_of_extremes(ops: NativeOps) -> None:
    gate = torch.tensor([0.0, -0.0, 1e-20, -1e-20, 50.0, -50.0, 200.0, -200.0, 3e38, -3e38, torch.inf, -torch.inf])
    gate = torch.cat((gate, torch.tensor([torch.nan, 1.0, -1.0, 88.0])))[None]
    found = ops.silu_mul(torch.cat((gate, torch.ones_like(gate)), dim=1))
    expected = Ops().silu_mul(torch.cat((gate, torch.ones_like(gate)), dim=1))
    finite = ~gate.isinf()
    assert torch.allclose(found[finite], expected[finite], rtol=1e-5, atol=1e-30, equal_nan=True)
    assert found[0, 12].isnan() and found[0, 10] == torch.inf


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("norms", [False, True], ids=["plain", "norms"])
@pytest.mark.parametrize(("heads", "kv_heads", "d"), [(9, 3, 64), (4, 4, 16), (2, 1, 6)], ids=str)
def test_rotate_and_write(ops: NativeOps, rows: int, norms: bool, heads: int, kv_heads: int, d: int) -> None:
    rope = RotaryEmbedding(dict(rope_type="default", rope_theta=100.0), d, CPU)
    slots = torch.randperm(64)[:rows]
    rotation = Rotation(*rope.angles(torch.randint(0, 500, (rows,)), torch.float32), slots)
    qkv = torch.randn(rows, heads + 2 * kv_heads, d)
    weights = (torch.randn(d), torch.randn(d), 1e-6) if norms else None
    caches = [torch.full((16, 4, 2, kv_heads, d), 7.0, dtype=torch.bfloat16) for _ in range(2)]
    expected = Ops().rotate_and_write(qkv.clone(), kv_heads, weights, rotation, caches[0])
    found = ops.rotate_and_write(qkv, kv_heads, weights, rotation, caches[1])
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert torch.allclose(caches[1].float(), caches[0].float(), rtol=1e-2, atol=1e-5), "to a bit of bfloat16"
    assert ((caches[1] != 7.0) == (caches[0] != 7.0)).all()


def test_bfloat16_is_rounded_to_nearest_even_and_keeps_nan(ops: NativeOps) -> None:
    values = torch.tensor([1.0, 1.00390625, 1.01171875, -1.00390625, 65504.0, 1e-40, torch.inf, -torch.inf, torch.nan])
    values = torch.cat((values, torch.randn(7)))
    rotation = Rotation(torch.ones(1, 1, 16), torch.zeros(1, 1, 16), torch.tensor([2]))
    cache = torch.zeros(1, 4, 2, 1, 16, dtype=torch.bfloat16)
    qkv = torch.zeros(1, 3, 16)
    qkv[0, 2] = values
    ops.rotate_and_write(qkv, 1, None, rotation, cache)
    assert torch.equal(cache[0, 2, 1, 0].nan_to_num(5.0), values.bfloat16().nan_to_num(5.0))


def test_float32_computes_as_hugging_face_does(kernels: NativeKernels) -> None:
    assert isinstance(select_ops(True, CPU, torch.bfloat16, torch.float32), NativeOps)
    assert type(select_ops(True, CPU, torch.float32, torch.float32)) is Ops
    assert type(select_ops(False, CPU, torch.bfloat16, torch.float32)) is Ops


def test_where_no_layer_can_be_packed_activations_stay_16_bits_and_pytorch_handles_them(
    tiny_llama_path: Path, kernels: NativeKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "choose_packings", lambda linears: None)
    config = EngineConfig(model=str(tiny_llama_path), device="cpu", dtype="bfloat16", num_kv_blocks=64)
    engine = Engine(config, load_model(config))
    assert engine.model.decoder.activation_dtype == torch.bfloat16
    assert type(engine.runner.ops) is Ops
    engine.add_request([5, 6, 7], SamplingParams(temperature=0, max_tokens=4, ignore_eos=True), stream=False)
    while engine.has_unfinished:
        outputs = engine.step()
    assert len(outputs[0].token_ids) == 4


def test_a_model_served_with_them_gives_the_logits_it_gave_without(
    tiny_llama_path: Path, kernels: NativeKernels
) -> None:
    """bfloat16 weights and cache; the difference is that of adding in another order."""
    model = load_model(EngineConfig(model=str(tiny_llama_path), device="cpu", dtype="bfloat16"))
    logits: list[torch.Tensor] = []
    for fields in (dict(fused_kernels=False, attention_backend="sdpa"), {}):
        engine = Engine(
            EngineConfig(model=model.name, device="cpu", dtype="bfloat16", num_kv_blocks=64, **fields), model
        )
        rows, forward = [], engine.runner.forward

        def keep(batch, rows=rows, forward=forward) -> torch.Tensor:
            rows.append(forward(batch).clone())
            return torch.zeros_like(rows[-1])  # everybody samples token 0, so that inputs stay equal

        engine.runner.forward = keep
        for number in range(11):
            params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
            engine.add_request(list(range(50, 53 + 4 * number)), params, stream=False)
        while engine.has_unfinished:
            engine.step()
        assert (engine.runner.attention is NativeAttention) == (not fields)
        logits.append(torch.cat(rows))
    error = (logits[0] - logits[1]).norm() / logits[0].norm()
    assert 0 < error < 1e-2


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is another reason")
def test_without_a_compiler_it_says_so_and_how_to_get_one() -> None:
    """`make lab` shows what begins with `! `."""
    told = subprocess.run(
        [sys.executable, "-m", "minillm.kernels.cpu"],
        env={**os.environ, "CXX": "no-such-compiler"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.startswith("! no C++ compiler found (g++): decoding will be slower")
    assert "install g++" in told.stdout
