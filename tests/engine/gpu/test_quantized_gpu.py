"""On a GPU: quantized weights and caches, each against the same on the CPU."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from course.measure.quality import engine_config
from course.measure.scoring import held_text, score_text
from minillm.bench.target import Target
from minillm.core.params import SamplingParams
from minillm.frontend.engine import Engine
from minillm.kernels.attention.cache import QUANTIZED_DTYPES, SCALE_DTYPE
from minillm.kernels.attention.eager import EagerAttention
from minillm.kernels.ops import ForwardContext
from minillm.kernels.quantization import (
    FP8,
    dequantize,
    dequantize_int4,
    dtype_name,
    quantize,
    quantize_int4,
    quantize_rows,
)
from minillm.policies.config import EngineConfig
from minillm.runner.batch_layout import HostBatch
from minillm.runner.kv_pool import make_cache

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
TOKENS = 512


def perplexities(path: Path, fields: dict[str, Any]) -> tuple[float, float]:
    """Without and with the fields, on the GPU in bfloat16."""
    common = dict(dtype="bfloat16", device="cuda")
    engines = [Engine(engine_config(Target(str(path), **common, fields=one))) for one in ({}, fields)]
    score = score_text(*engines, held_text(), TOKENS)
    return score.reference_perplexity, score.candidate_perplexity


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({"quantization": "int8"}, 0.02),
        ({"quantization": "int4"}, 0.04),
        ({"quantization": "fp8"}, 0.1),
        ({"kv_cache_dtype": "int8"}, 0.02),
        ({"kv_cache_dtype": "fp8"}, 0.03),
        ({"kv_cache_dtype": "int8", "attention_backend": "sdpa"}, 0.02),
    ],
    ids=str,
)
def test_perplexity(smollm_path: Path, fields: dict[str, Any], most: float) -> None:
    if fields.get("quantization") == "fp8" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no fp8 on this GPU")
    before, after = perplexities(smollm_path, fields)
    assert abs(after / before - 1) < most


SHAPE = dict(
    architectures=["LlamaForCausalLM"],
    vocab_size=2048,
    hidden_size=512,
    intermediate_size=1024,
    num_hidden_layers=3,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=64,
    max_position_embeddings=1024,
    tie_word_embeddings=False,
)


def logprobs(folder: Path, device: str = "cuda", **fields: Any) -> torch.Tensor:
    """[prompts, V] of random weights, the same on one device whatever the fields."""
    (folder / "config.json").write_text(json.dumps(SHAPE))
    config = EngineConfig(
        model=str(folder / "config.json"),
        load_format="dummy",
        dtype="bfloat16",
        device=device,
        num_kv_blocks=64,
        **fields,
    )
    engine, rows = Engine(config), []
    forward = engine.torch_runner.forward

    def keep(batch: HostBatch) -> torch.Tensor:
        logits = forward(batch)
        rows.append(logits.float().log_softmax(-1).cpu())
        return logits

    engine.torch_runner.forward = keep
    for length in (1, 17, 64, 130):
        prompt = torch.randint(0, 2048, (length,), generator=torch.Generator().manual_seed(length)).tolist()
        engine.add_request(prompt, SamplingParams(temperature=0, max_tokens=1))
    while engine.has_unfinished:
        engine.step()
    return torch.cat(rows)


@pytest.mark.parametrize(
    ("fields", "least", "most"),
    [
        ({"quantization": "int8"}, 1e-6, 1e-3),
        ({"quantization": "int4"}, 1e-4, 5e-2),
        ({"quantization": "fp8"}, 1e-5, 1e-2),
        ({"kv_cache_dtype": "int8"}, 0, 1e-3),
        ({"kv_cache_dtype": "fp8"}, 0, 5e-3),
        ({"kv_cache_dtype": "int8", "attention_backend": "sdpa"}, 0, 1e-3),
    ],
    ids=str,
)
def test_random_weights_rounded_say_nearly_the_same(
    tmp_path: Path, fields: dict[str, Any], least: float, most: float
) -> None:
    """KL divergence, nats a token, of weights that need no download. Rounding shows, and does little."""
    if fields.get("quantization") == "fp8" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no fp8 on this GPU")
    whole, rounded = logprobs(tmp_path), logprobs(tmp_path, **fields)
    divergence = (whole.exp() * (whole - rounded)).sum(-1).mean().item()
    assert least <= divergence < most


def replayed(work: Callable[[], Any], x: torch.Tensor) -> Any:
    """What a recorded graph of `work` makes of random numbers in x, which held others while it was recorded."""
    work()  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    x.normal_()
    graph.replay()
    return result


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [1, 3, 17, 64, 300])
@pytest.mark.parametrize(("size", "out"), [(4096, 6144), (14336, 4096), (577, 130)], ids=str)
def test_kernels_of_linear_layers(size: int, out: int, rows: int, dtype: torch.dtype) -> None:
    """Shapes of 8B, which share sums at few rows, and odd ones. Twenty times: programs must not meet each other's."""
    from minillm.kernels.triton import few_rows, fp8_rows, fragments, widening
    from minillm.kernels.triton.counters import make_counters
    from minillm.kernels.triton.ops import TritonOps

    with torch.device("cuda"):
        x, bias, weight = torch.randn(rows, size).to(dtype), torch.randn(out).to(dtype), torch.randn(out, size) / 50
    numbers, scales = quantize_rows(weight, torch.int8)
    laid = {"int8": (fragments.to_fragments(numbers, scales, "int8"), dequantize(numbers, scales))}
    if size % 64 == 0:
        nibbles, steps = quantize_int4(weight, 64, widening.INT4_BASE)
        rounded = dequantize_int4(nibbles, steps, widening.INT4_BASE).to(dtype)
        laid["int4"] = fragments.to_fragments(nibbles, steps, "int4"), rounded
    if rows <= few_rows.MOST_ROWS["fp8"] and torch.cuda.get_device_capability() >= (8, 9):
        bytes, steps = quantize_rows(weight, FP8)
        laid["fp8"] = fragments.to_fragments(bytes, steps, "fp8"), dequantize(bytes, steps)
    for weights, exactly in laid.values():
        counters = make_counters(x.device)
        for _ in range(20):
            y = replayed(lambda: few_rows.linear(x, weights, bias, counters), x)  # noqa: B023
            exact = F.linear(x.double(), exactly.double(), bias.double())
            assert (y - exact).abs().max() <= 2 * torch.finfo(dtype).eps * exact.abs().max()
            if few_rows.suits_swiglu(x, weights):  # sums in the same order, so equal but for how a GPU divides
                gated = replayed(lambda: few_rows.linear_swiglu(x, weights, bias, counters), x)  # noqa: B023
                apart = TritonOps().silu_mul(few_rows.linear(x, weights, bias, counters))
                assert (gated.double() - apart).abs().max() <= 2 * torch.finfo(dtype).eps * apart.abs().max()
    found, found_scales = replayed(lambda: fp8_rows.quantize_fp8(x), x)
    expected, expected_scales = quantize(x.cpu(), FP8)
    assert torch.equal(found_scales.cpu(), expected_scales)
    assert torch.equal(found.cpu().view(torch.int8), fp8_rows.in_order(expected).view(torch.int8))


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("dtype", QUANTIZED_DTYPES.values(), ids=dtype_name)
def test_keys_and_values_are_rounded_as_they_are_written(dtype: torch.dtype, head_dim: int) -> None:
    """Values as plain operations on a CPU have them, bit for bit."""
    from minillm.kernels.triton.ops import TritonOps, rotate_and_write

    with torch.device("cuda"):
        qkv, (cos, sin) = torch.randn(64, 12, head_dim).bfloat16(), torch.randn(2, 64, 1, head_dim).bfloat16()
        slots = torch.randperm(160)[:64]
    cache = make_cache((10, 16, 2, 2, head_dim), dtype, qkv.device)
    context = ForwardContext(cos, sin, slots, EagerAttention, TritonOps())
    replayed(lambda: rotate_and_write(qkv, 2, None, cache, context), qkv)
    expected = quantize(qkv[:, -2:].cpu(), dtype, SCALE_DTYPE)
    for part, values in zip(cache, expected):
        assert torch.equal(part.flatten(0, 1)[slots, 1].cpu().view(torch.int8), values.view(torch.int8))


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_weights_in_memory(smollm_path: Path, quantization: str) -> None:
    from minillm.model.loader import load_model

    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model = load_model(EngineConfig(model=str(smollm_path), device="cuda", quantization=quantization))
    held = sum(parameter.nbytes for parameter in model.decoder.parameters())
    assert held < 0.55 * 269e6
    head = 49152 * 576
    assert torch.cuda.max_memory_allocated() - before < held + 12 * head, (
        "one matrix at a time, in float32 while rounded"
    )
