"""`minillm bench kv-bill` prints what a KV pool allocates."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from minillm.bench.cli import bench_app

DEEPSEEK_V3 = {
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "hidden_size": 7168,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128,
}  # fmt: skip


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
