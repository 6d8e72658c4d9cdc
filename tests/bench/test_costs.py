"""Bytes and FLOP are counted right: by hand on small shapes, and equal to what lies in checkpoints."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from minillm.bench.costs import ModelBytes, ModelFlops, causal_pairs, parameters_read_per_step
from minillm.model.checkpoints import load_config
from minillm.model.config import ModelConfig

QWEN3_06B = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}

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


def stored_parameters(folder: Path) -> int:
    """What a decode step reads of a checkpoint: an embedding table only if it is the head, too."""
    tied = json.loads((folder / "config.json").read_text()).get("tie_word_embeddings")
    count = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - safe_open is not a dict
                if "embed_tokens" not in name or tied:
                    count += torch.Size(tensors.get_slice(name).get_shape()).numel()
    return count


def test_the_count_is_what_the_checkpoint_holds(tiny_llama_path: Path, smollm_path: Path) -> None:
    for folder in (tiny_llama_path, smollm_path):
        assert parameters_read_per_step(ModelConfig.from_hf(load_config(folder))) == stored_parameters(folder)


@pytest.mark.parametrize("architecture", ["Llama", "Mistral", "Qwen2", "Qwen3"])
@pytest.mark.parametrize("biases", [False, True])
def test_the_count_is_what_transformers_builds(architecture: str, biases: bool) -> None:
    import transformers

    extra = {"attention_bias": biases, "mlp_bias": biases, "head_dim": 4, "tie_word_embeddings": biases}
    hf = TINY | {"architectures": [f"{architecture}ForCausalLM"]} | extra
    with torch.device("meta"):
        settings = getattr(transformers, f"{architecture}Config")(**hf)
        model = getattr(transformers, f"{architecture}ForCausalLM")(settings)
    built = sum(parameter.numel() for parameter in model.parameters())  # a tied head is counted once
    if not biases:
        built -= model.get_input_embeddings().weight.numel()
    assert parameters_read_per_step(ModelConfig.from_hf(hf)) == built


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_a_step_reads_the_output_head_once_and_an_untied_embedding_table_not_at_all(
    tied: bool, dtype: str, size: int
) -> None:
    counted = ModelBytes.of(config(tie_word_embeddings=tied), dtype)
    layer = 64 + 32 + 32 + 64 + 3 * 96 + 2 * 8
    assert counted.weights == (3 * layer + 8 + 100 * 8) * size
    assert counted.kv_per_token == 2 * 3 * 2 * 2 * size  # keys and values, layers, KV heads, head dim


def test_known_models_are_the_size_that_they_are_known_to_be(smollm_path: Path) -> None:
    smollm = ModelBytes.of(ModelConfig.from_hf(load_config(smollm_path)), "bfloat16")
    assert smollm.weights == 2 * 134_515_008
    assert smollm.kv_per_token == 2 * 30 * 3 * 64 * 2
    qwen = ModelBytes.of(ModelConfig.from_hf(QWEN3_06B), "bfloat16")
    assert qwen.weights == 2 * 596_049_920
    assert qwen.kv_per_token == 114_688


def test_floor_is_weights_once_and_every_context() -> None:
    size = ModelBytes(weights=1000, kv_per_token=10)
    assert size.step_floor([], 100.0) == 10.0
    assert size.step_floor([5, 15], 100.0) == 12.0


def test_flops_by_hand() -> None:
    flops = ModelFlops.of(config())
    layers = 3 * (64 + 32 + 32 + 64 + 3 * 96)
    assert flops.per_token == 2 * layers
    assert flops.per_logit_row == 2 * 800
    assert flops.per_pair == 2 * 2 * 3 * 4 * 2  # two products, 2 FLOP each, layers, heads, head dim
    assert flops.prefill(10) == 10 * 2 * layers + 2 * 800 + 96 * 50
    assert flops.decode([5, 7]) == 2 * (2 * layers + 2 * 800) + 96 * 12


def test_causal_pairs_are_all_of_the_cache_and_half_of_the_square() -> None:
    assert causal_pairs(8) == 32
    assert causal_pairs(8, num_cached=100) == 832
