"""The sizes of models that are priced: against published numbers, and against what transformers builds."""

import json
import re
from pathlib import Path

import pytest
import torch

from course.simulator.cost.models import PRICED_SHAPES, PricedModel, find_model
from course.simulator.errors import PricingError
from minillm.model.checkpoints import SHAPES, load_config
from minillm.model.errors import CorruptCheckpointError, UnknownModelError


def test_published_sizes() -> None:
    billions = {"llama-3.1-8b": 8.03, "llama-3-70b": 70.6, "llama-2-70b": 69.0, "llama-2-13b": 13.0, "qwen3-32b": 32.8}
    billions["qwen3-30b-a3b"] = 30.5
    assert find_model("qwen3-30b-a3b").active_params == pytest.approx(3.3e9, rel=0.02)
    for shape, billion in billions.items():
        cost = find_model(shape)
        assert cost.active_params + cost.idle_params == pytest.approx(billion * 1e9, rel=0.005)


@pytest.mark.parametrize(("architecture", "query_rank"), [("DeepseekV2", None), ("DeepseekV3", 6)])
def test_latent_attention_counts_what_transformers_builds(architecture: str, query_rank: int | None) -> None:
    import transformers

    hf = {
        "vocab_size": 100,
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "q_lora_rank": query_rank,
        "kv_lora_rank": 6,
        "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 2,
        "v_head_dim": 4,
        "moe_intermediate_size": 7,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "max_position_embeddings": 64,
    }
    with torch.device("meta"):
        settings = getattr(transformers, f"{architecture}Config")(**hf, n_group=2, topk_group=1)
        model = getattr(transformers, f"{architecture}ForCausalLM")(settings)
    cost = PricedModel.of_latent(hf)
    assert cost.active_params + cost.idle_params == sum(parameter.numel() for parameter in model.parameters())
    routed = sum(parameter.numel() for name, parameter in model.named_parameters() if ".mlp.experts." in name)
    assert cost.expert_params * 8 == routed and cost.idle_params == routed * 6 // 8
    with pytest.raises(CorruptCheckpointError, match="kv_lora_rank"):
        PricedModel.of_latent({name: value for name, value in hf.items() if name != "kv_lora_rank"})


def test_deepseek_v3_has_the_published_sizes() -> None:
    """671B parameters, of which 36.6B work on a token, the output head's 0.9B among them (README_WEIGHTS.md of
    huggingface.co/deepseek-ai/DeepSeek-V3); 70,272 bytes of KV cache a token (table 1 of arXiv 2505.09343).
    """
    cost = find_model("deepseek-ai/DeepSeek-V3")
    assert cost.active_params + cost.idle_params == pytest.approx(671e9, rel=1e-3)
    assert cost.read_params == pytest.approx(36.6e9, rel=1e-3) and cost.head_params == pytest.approx(0.9e9, rel=0.05)
    assert cost.kv_bytes_per_token("bfloat16") == 70_272
    # A decode's head scores 512 + 64 numbers and adds up 512 of them, a prompt's 128 + 64 and 128.
    assert (2 * cost.decode_size, 2 * cost.query_size) == (128 * (576 + 512), 128 * (192 + 128))
    with pytest.raises(PricingError, match="leave kv_heads out"):
        find_model("deepseek-v3", kv_heads=8)


def test_names_are_forgiving_and_errors_say_what_to_do() -> None:
    assert find_model("meta-llama/Llama-3.1-8B") == find_model("llama-3.1-8b")
    with pytest.raises(UnknownModelError, match="llama-3-70b"):
        find_model("lama")
    with pytest.raises(UnknownModelError, match=r"did you mean 'llama-3\.1-8b'\? Give a config\.json") as unknown:
        find_model("llama-3.1-9b")
    assert "load_format" not in str(unknown.value)  # an option of the engine, and none of the simulator
    with pytest.raises(PricingError, match="divide the 64"):
        find_model("llama-3-70b", kv_heads=7)


@pytest.mark.parametrize("shape", ["llama-3.1-8b", "deepseek-v3", "gpt-oss-120b"])
@pytest.mark.parametrize("layers", [None, 0, -3, "36", 1.5])
def test_a_config_json_without_sizes_is_named_with_its_path(tmp_path: Path, shape: str, layers: object) -> None:
    hf = load_config({**SHAPES, **PRICED_SHAPES}[shape])
    (tmp_path / "config.json").write_text(json.dumps({**hf, "num_hidden_layers": layers}))
    with pytest.raises(CorruptCheckpointError, match=f"{re.escape(str(tmp_path))}.*num_hidden_layers"):
        find_model(str(tmp_path))
