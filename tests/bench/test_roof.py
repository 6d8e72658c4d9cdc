"""The memory floor: bytes counted right, bandwidth in a believable range."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from minillm.bench.roof import ModelBytes, measure_bandwidth


def write_model(folder: Path, *, tied: bool) -> Path:
    tensors = {"model.embed_tokens.weight": torch.zeros(100, 8), "model.layers.0.mlp.weight": torch.zeros(8, 8)}
    if not tied:
        tensors["lm_head.weight"] = torch.zeros(100, 8)
    save_file(tensors, folder / "model.safetensors")
    config = {"tie_word_embeddings": tied, "num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 8}
    (folder / "config.json").write_text(json.dumps(config | {"num_key_value_heads": 2}))
    return folder


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_a_step_reads_the_output_head_once_and_an_untied_embedding_table_not_at_all(
    tmp_path: Path, tied: bool, dtype: str, size: int
) -> None:
    counted = ModelBytes.of(write_model(tmp_path, tied=tied), dtype)
    assert counted.weights == (100 * 8 + 8 * 8) * size
    assert counted.kv_per_token == 2 * 3 * 2 * 2 * size  # keys and values, layers, KV heads, head dim


def test_default_model_is_the_size_that_it_is_known_to_be(smollm_path: Path) -> None:
    counted = ModelBytes.of(smollm_path, "bfloat16")
    assert counted.weights == 2 * 134_515_008
    assert counted.kv_per_token == 2 * 30 * 3 * 64 * 2


def test_floor_is_weights_once_and_every_context() -> None:
    size = ModelBytes(weights=1000, kv_per_token=10)
    assert size.step_floor([], 100.0) == 10.0
    assert size.step_floor([5, 15], 100.0) == 12.0


def test_bandwidth_is_measured_in_bytes_per_second() -> None:
    bandwidth = measure_bandwidth(buffer_bytes=4_000_000, repeats=2)
    # A thousand-fold slip of units would leave this range on any machine of this age.
    assert 1e8 < bandwidth.read < 1e13
    assert 1e8 < bandwidth.copy < 1e13
