"""The KV bill against published numbers, and against the tensors and blocks that the engine really holds."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from minillm import Engine, EngineConfig, SamplingParams
from minillm.bench.cli import bench_app
from minillm.core.errors import ConfigError
from minillm.kernels.attention.cache import tensors_of
from minillm.model.checkpoints import SHAPES, load_config
from minillm.model.config import ModelConfig
from minillm.model.kv_cache_size import KVCacheSize
from minillm.model.loader import load_model
from minillm.policies.window import Window
from minillm.runner.kv_pool import KVPool

HEADS = {"hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64}
DEEPSEEK_V3 = {
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "hidden_size": 7168,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "kind", "num_bytes"),
    [
        (HEADS, "MHA", 8 * 327_680),
        ({**HEADS, "num_key_value_heads": 8}, "GQA", 327_680),
        ({**HEADS, "num_key_value_heads": 1}, "MQA", 327_680 // 8),
        # DeepSeek-V3: 576 numbers a layer, 70,272 bytes a token (DeepSeek-AI 2025, table 1 of arXiv 2505.09343).
        (DEEPSEEK_V3, "MLA", 70_272),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_published_numbers(config: dict, kind: str, num_bytes: int) -> None:
    bill = KVCacheSize.of_config(config)
    assert (bill.kind, bill.bytes_per_token("bfloat16")) == (kind, num_bytes)
    assert bill.bytes_per_token("float32") == 2 * num_bytes
    scales = 2 * bill.vectors * bill.layers
    assert bill.bytes_per_token("int8") == bill.bytes_per_token("fp8") == num_bytes // 2 + scales


def test_the_command_prints_what_is_allocated(tmp_path: Path) -> None:
    arguments = ["kv-bill", "--model", "llama-3-70b", "--window", "512", "--sinks", "4", "--json"]
    report = json.loads(CliRunner().invoke(bench_app, arguments, catch_exceptions=False).stdout)
    rows = {row["dtype"]: row for row in report["results"]}
    assert all(row["allocated"] == row["token"] for row in rows.values())
    assert rows["bfloat16"]["token"] == 327_680 and rows["bfloat16"]["request"] == 4096 * 327_680
    assert rows["int8"]["windowed"] == (512 + 16) * (327_680 // 2 + 2 * 2 * 8 * 80)
    assert rows["int8"]["blocks_per_gb"] / rows["bfloat16"]["blocks_per_gb"] == pytest.approx(2 * 128 / 130, abs=0.01)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**DEEPSEEK_V3, "architectures": ["DeepseekV3ForCausalLM"]}))
    table = CliRunner().invoke(bench_app, ["kv-bill", "--model", str(path)], catch_exceptions=False).stdout
    assert "MLA, 61 layers, 1 x 576 numbers" in table and "70,272  no decoder" in table


def test_a_config_without_attention() -> None:
    with pytest.raises(ConfigError, match="no 'num_attention_heads'"):
        KVCacheSize.of_config({"num_hidden_layers": 2})


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_it_reads_configs_as_the_model_does(shape: str) -> None:
    hf = load_config(SHAPES[shape])
    assert KVCacheSize.of_config(hf) == ModelConfig.from_hf(hf).kv_bill


@pytest.mark.parametrize("kv_heads", [1, 2, 4], ids=["MQA", "GQA", "MHA"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "fp8"])
def test_what_the_pool_allocates(tiny_llama_path: Path, kv_heads: int, dtype: str) -> None:
    config = replace(ModelConfig.from_hf(load_config(tiny_llama_path)), num_kv_heads=kv_heads)
    torch_dtype = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}.get(dtype) or getattr(torch, dtype)
    pool = KVPool(config, 10, 3, 16, torch_dtype, torch.device("cpu"))
    held = sum(part.nbytes for layer in pool.layers for part in tensors_of(layer))
    assert held == (10 + 1) * 16 * config.kv_bill.bytes_per_token(dtype), "and the null block"
    assert sum(part.nbytes for layer in pool.host_layers for part in tensors_of(layer)) == held * 3 // 11


@pytest.mark.parametrize("fields", [{}, {"sliding_window": 24, "attention_sinks": 5}], ids=["whole", "window"])
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_what_a_request_holds(tiny_llama_path: Path, fields: dict, kv_cache_dtype: str) -> None:
    common = {"model": str(tiny_llama_path), "dtype": "float32", "device": "cpu"}
    model = load_model(EngineConfig(**common))
    config = EngineConfig(**common, block_size=4, num_kv_blocks=60, kv_cache_dtype=kv_cache_dtype, **fields)
    engine = Engine(config, model)
    engine.add_request(list(range(100, 150)), SamplingParams(temperature=0, max_tokens=80, ignore_eos=True))
    bill, window = model.model_config.kv_bill, Window(config.sliding_window, config.attention_sinks)
    dtype = "float32" if kv_cache_dtype == "auto" else kv_cache_dtype
    block_bytes = sum(part[0].nbytes for layer in engine.runner.kv_pool.layers for part in tensors_of(layer))
    checked = 0
    while engine.has_unfinished:
        engine.step()
        if engine.scheduler.running and engine.steps[-1].num_prefill_tokens == 0:
            (request,) = engine.scheduler.running
            held = engine.scheduler.kv.pool.num_used * block_bytes
            # Blocks are given back when the next step is put together: the bill as it was before this one.
            before = request.num_computed_tokens - 1
            blocks = len(window.live_blocks(before, before + 1, 4))
            assert held == blocks * 4 * bill.bytes_per_token(dtype)
            assert abs(held - bill.bytes_of(before, dtype, 4, window)) <= block_bytes
            checked += 1
    assert checked > 70
