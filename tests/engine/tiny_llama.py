"""The smallest models with all the parts of a large one: random weights, and SmolLM2's tokenizer."""

from pathlib import Path
from typing import Any


def make_tiny_llama(folder: Path, tokenizer_from: Path) -> Path:
    """Write a Llama of random weights (hidden 64, 2 layers, 4 heads, 2 KV heads, fp32). Returns the folder."""
    return make_tiny(folder, tokenizer_from, "Llama")


def make_tiny_moe(folder: Path, tokenizer_from: Path) -> Path:
    """The same as a Qwen3-MoE of 4 layers: 8 experts, 2 per token, but one MLP in layer 1."""
    experts = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, mlp_only_layers=[1])
    fields = dict(num_hidden_layers=4, head_dim=16, norm_topk_prob=True, initializer_range=0.1)
    return make_tiny(folder, tokenizer_from, "Qwen3Moe", **experts, **fields)


def make_tiny(folder: Path, tokenizer_from: Path, family: str, **fields: Any) -> Path:
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_from)
    shape = dict(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )
    config = getattr(transformers, f"{family}Config")(**{**shape, **fields})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        getattr(transformers, f"{family}ForCausalLM")(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
