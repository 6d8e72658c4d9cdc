"""On a GPU: quantized weights and caches, each against the same on the CPU."""

from pathlib import Path
from typing import Any

import pytest
import torch

from minillm.bench.quality import engine_config
from minillm.bench.scoring import held_text, score_text
from minillm.bench.target import Target
from minillm.frontend.engine import Engine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
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


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_weights_in_memory(smollm_path: Path, quantization: str) -> None:
    from minillm.model.loader import load_model
    from minillm.policies.config import EngineConfig

    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model = load_model(EngineConfig(model=str(smollm_path), device="cuda", quantization=quantization))
    held = sum(parameter.nbytes for parameter in model.decoder.parameters())
    assert held < 0.55 * 269e6
    head = 49152 * 576
    assert torch.cuda.max_memory_allocated() - before < held + 12 * head, (
        "one matrix at a time, in float32 while rounded"
    )
