"""Counts of parameters and bytes, against transformers, real decoders and chance."""

import random

import pytest
import torch

from course.simulator.cost.sizes import KVCacheSize, ModelCost
from minillm.kernels.attention.window import Window
from minillm.model.arithmetic import ModelBytes
from minillm.model.checkpoints import SHAPES, load_config
from minillm.model.config import ModelConfig
from minillm.model.decoder import Decoder

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


@pytest.mark.parametrize("architecture", ["Llama", "Mistral", "Qwen2", "Qwen3", "Qwen3Moe"])
@pytest.mark.parametrize("biases", [False, True])
def test_the_count_is_what_transformers_builds(architecture: str, biases: bool) -> None:
    import transformers

    extra = {"attention_bias": biases, "mlp_bias": biases, "head_dim": 4, "tie_word_embeddings": biases}
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 5, "mlp_only_layers": [1]}
    hf = TINY | {"architectures": [f"{architecture}ForCausalLM"]} | extra | experts
    with torch.device("meta"):
        settings = getattr(transformers, f"{architecture}Config")(**hf)
        model = getattr(transformers, f"{architecture}ForCausalLM")(settings)
    cost = ModelCost.of(ModelConfig.from_hf(hf))
    assert cost.active_params + cost.idle_params == sum(parameter.numel() for parameter in model.parameters()), (
        "a tied head once"
    )


def test_parameters_are_those_of_the_real_decoder() -> None:
    for shape in SHAPES:
        config = ModelConfig.from_hf(load_config(SHAPES[shape]))
        decoder = Decoder(config, torch.bfloat16, torch.device("meta"))
        cost = ModelCost.of(config)
        stored = sum(parameter.numel() for parameter in decoder.parameters())
        assert cost.active_params + cost.idle_params == stored, shape
        assert cost.stored_bytes("bfloat16") == sum(p.numel() * p.element_size() for p in decoder.parameters()), shape
        is_tied = decoder.lm_head.weight is decoder.embed_tokens
        read = stored - (0 if is_tied else decoder.embed_tokens.numel())
        assert cost.read_bytes("bfloat16", tokens=1e9) == 2 * read, shape
        routed = sum(parameter.numel() for name, parameter in decoder.named_parameters() if ".experts." in name)
        idle = routed * (config.num_experts - config.num_experts_per_tok) // max(config.num_experts, 1)
        assert cost.read_params == read - idle, shape


@pytest.mark.parametrize("tokens", [1, 2, 16, 64])
def test_experts_that_a_step_reads_are_those_that_chance_draws(tokens: int) -> None:
    """A Monte Carlo of tokens that each draw 8 of 128, and the usual way to write its mean."""
    config = ModelConfig.from_hf(load_config(SHAPES["qwen3-30b-a3b"]))
    cost, rng = ModelCost.of(config), random.Random(0)
    draws = [len({e for _ in range(tokens) for e in rng.sample(range(128), 8)}) for _ in range(200)]
    expected = 128 * (1 - (1 - 8 / 128) ** tokens)
    assert expected == pytest.approx(sum(draws) / len(draws), rel=0.02)
    read = cost.read_bytes("bfloat16", tokens)
    assert read == pytest.approx(2 * (cost.read_params + cost.idle_params * (expected - 8) / 120))
    assert read == pytest.approx(ModelBytes.of(config, "bfloat16").step([0] * tokens))


@pytest.mark.parametrize(
    ("size", "kind", "num_bytes"),
    [
        (KVCacheSize.of_heads(80, 64, 64, 128), "MHA", 8 * 327_680),
        (KVCacheSize.of_heads(80, 64, 8, 128), "GQA", 327_680),
        (KVCacheSize.of_heads(80, 64, 1, 128), "MQA", 327_680 // 8),
        # DeepSeek-V3: 576 numbers a layer, 70,272 bytes a token (DeepSeek-AI 2025, table 1 of arXiv 2505.09343).
        (KVCacheSize("MLA", 61, 1, 512 + 64), "MLA", 70_272),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_published_numbers(size: KVCacheSize, kind: str, num_bytes: int) -> None:
    assert (size.kind, size.bytes_per_token("bfloat16")) == (kind, num_bytes)
    assert size.bytes_per_token("float32") == 2 * num_bytes
    scales = 2 * size.vectors * size.layers
    assert size.bytes_per_token("int8") == size.bytes_per_token("fp8") == num_bytes // 2 + scales


def test_a_window_holds_its_blocks_and_the_sinks() -> None:
    size = KVCacheSize.of_heads(2, 4, 2, 8)
    assert size.bytes_of(100, "bfloat16", 4) == 25 * 4 * size.bytes_per_token("bfloat16")
    held = size.bytes_of(100, "bfloat16", 4, Window(24, 5)) // (4 * size.bytes_per_token("bfloat16"))
    assert held == len(Window(24, 5).live_blocks(100, 100, 4)) < 25
