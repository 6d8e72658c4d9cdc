"""Model arithmetic against published numbers, checkpoints, transformers, and what the engine allocates."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from minillm import Engine, EngineConfig, SamplingParams
from minillm.kernels.attention.cache import tensors_of
from minillm.kernels.attention.window import Window
from minillm.model.arithmetic import ModelBytes, ModelFlops, causal_pairs, kv_bytes_per_token
from minillm.model.checkpoints import load_config
from minillm.model.config import ModelConfig
from minillm.model.loader import load_model
from minillm.runner.kv_pool import KVPool

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
"""Head dim 2; per layer q 64, k 32, v 32, o 64, gate, up and down 96 each."""


def config(**changes: object) -> ModelConfig:
    return ModelConfig.from_hf(TINY | changes)


def test_a_step_reads_the_output_head_once_and_an_untied_embedding_table_not_at_all() -> None:
    layer = 64 + 32 + 32 + 64 + 3 * 96 + 2 * 8
    for tied in (True, False):
        for dtype, size in (("float32", 4), ("bfloat16", 2)):
            counted = ModelBytes.of(config(tie_word_embeddings=tied), dtype)
            assert counted.weights == (3 * layer + 8 + 100 * 8) * size
            assert counted.kv_per_token == 2 * 3 * 2 * 2 * size  # keys and values, layers, KV heads, head dim
    small = ModelBytes(weights=1000, kv_per_token=10)
    assert [small.step_floor(contexts, 100.0) for contexts in ([], [5, 15])] == [10.0, 12.0]


def test_flops_by_hand() -> None:
    flops = ModelFlops.of(config())
    layers = 3 * (64 + 32 + 32 + 64 + 3 * 96)
    assert flops.per_token == 2 * layers
    assert flops.per_logit_row == 2 * 800
    assert flops.per_pair == 2 * 2 * 3 * 4 * 2  # two products, 2 FLOP each, layers, heads, head dim
    assert flops.prefill(10) == 10 * 2 * layers + 2 * 800 + 96 * 50
    assert causal_pairs(8) == 32 and causal_pairs(8, num_cached=100) == 832, "the cache, and half of the square"


@pytest.mark.parametrize("kv_heads", [1, 2, 4], ids=["MQA", "GQA", "MHA"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "fp8"])
def test_what_the_pool_allocates(tiny_llama_path: Path, kv_heads: int, dtype: str) -> None:
    config = replace(ModelConfig.from_hf(load_config(tiny_llama_path)), num_kv_heads=kv_heads)
    torch_dtype = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}.get(dtype) or getattr(torch, dtype)
    pool = KVPool(config, 10, 3, 16, torch_dtype, torch.device("cpu"))
    held = sum(part.nbytes for layer in pool.layers for part in tensors_of(layer))
    assert held == (10 + 1) * 16 * kv_bytes_per_token(config, dtype), "and the null block"
    assert sum(part.nbytes for layer in pool.host_layers for part in tensors_of(layer)) == held * 3 // 11


@pytest.mark.parametrize("fields", [{}, {"sliding_window": 24, "attention_sinks": 5}], ids=["whole", "window"])
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_what_a_request_holds(tiny_llama_path: Path, fields: dict, kv_cache_dtype: str) -> None:
    common = {"model": str(tiny_llama_path), "dtype": "float32", "device": "cpu"}
    model = load_model(EngineConfig(**common))
    config = EngineConfig(**common, block_size=4, num_kv_blocks=60, kv_cache_dtype=kv_cache_dtype, **fields)
    engine = Engine(config, model)
    engine.add_request(list(range(100, 150)), SamplingParams(temperature=0, max_tokens=80, ignore_eos=True))
    window = Window(config.sliding_window, config.attention_sinks)
    dtype = "float32" if kv_cache_dtype == "auto" else kv_cache_dtype
    block_bytes = sum(part[0].nbytes for layer in engine.runner.kv_pool.layers for part in tensors_of(layer))
    checked = 0
    while engine.has_unfinished:
        engine.step()
        if engine.scheduler.running and engine.steps[-1].num_prefill_tokens == 0:
            (request,) = engine.scheduler.running
            held = engine.scheduler.kv.pool.num_used * block_bytes
            # Blocks are given back when the next step is put together: the size as it was before this one.
            before = request.num_computed_tokens - 1
            blocks = len(window.live_blocks(before, before + 1, 4))
            assert held == blocks * 4 * kv_bytes_per_token(model.model_config, dtype)
            checked += 1
    assert checked > 70
