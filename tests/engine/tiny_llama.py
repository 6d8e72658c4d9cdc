"""The smallest models with all the parts of a large one: random weights, and the first 4,096 of SmolLM2's tokens."""

import json
import shutil
from pathlib import Path
from typing import Any

VOCAB_SIZE = 4096
"""Tokens of a tiny model. With 49,152 most of its work would be logits that no test looks at."""


def make_tiny_llama(folder: Path, tokenizer_from: Path) -> Path:
    """Write a Llama of random weights (hidden 64, 2 layers, 4 heads, 2 KV heads, fp32). Returns the folder."""
    return make_tiny(folder, tokenizer_from, "Llama")


def make_lively_llama(folder: Path, tokenizer_from: Path) -> Path:
    """A Llama of 4 layers whose answers depend on all of the prompt, and of which its first 2 layers foretell half.

    Another token somewhere in the prompt changes most answers, which the first layers of a trained model don't do:
    they write the same token forever. Every third token repeats the one before, so that what's looked up is accepted.
    """
    return make_tiny(
        folder,
        tokenizer_from,
        "Llama",
        later_layers=0.3,
        num_hidden_layers=4,
        max_position_embeddings=4096,
        initializer_range=0.12,
        tie_word_embeddings=True,
    )


def make_tiny_moe(folder: Path, tokenizer_from: Path) -> Path:
    """The same as a Qwen3-MoE of 4 layers: 8 experts, 2 per token, but one MLP in layer 1."""
    experts = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, mlp_only_layers=[1])
    fields = dict(num_hidden_layers=4, head_dim=16, norm_topk_prob=True, initializer_range=0.1)
    return make_tiny(folder, tokenizer_from, "Qwen3Moe", **experts, **fields)


def make_tiny(folder: Path, tokenizer_from: Path, family: str, later_layers: float = 1.0, **fields: Any) -> Path:
    """Write a model of random weights.

    Args:
        later_layers: how much of its share the second half of the layers adds; less, and the first half drafts better.
    """
    import torch
    import transformers

    write_small_tokenizer(folder, tokenizer_from)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    shape = dict(
        vocab_size=VOCAB_SIZE,
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
        model = getattr(transformers, f"{family}ForCausalLM")(config)
    if later_layers != 1:
        with torch.no_grad():
            for layer in model.model.layers[len(model.model.layers) // 2 :]:
                layer.self_attn.o_proj.weight.mul_(later_layers)
                layer.mlp.down_proj.weight.mul_(later_layers)
    model.save_pretrained(folder)
    return folder


def write_small_tokenizer(folder: Path, tokenizer_from: Path) -> None:
    """The same tokenizer without its later tokens: byte pairs were merged in the order of their ids."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tokenizer_from / name, folder)
    told = json.loads((tokenizer_from / "tokenizer.json").read_text(encoding="utf-8"))
    pairs = told["model"]
    pairs["vocab"] = {token: token_id for token, token_id in pairs["vocab"].items() if token_id < VOCAB_SIZE}
    pairs["merges"] = [pair for pair in pairs["merges"] if "".join(pair) in pairs["vocab"]]
    (folder / "tokenizer.json").write_text(json.dumps(told), encoding="utf-8")
