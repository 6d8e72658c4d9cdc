"""Draft heads of random weights, and what a head computes, by plain PyTorch over a whole conversation at once."""

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from minillm.model.decoder import RMSNorm
from minillm.model.loader import LoadedModel
from minillm.speculation.head import DraftHead
from minillm.speculation.head_file import FACTS, SHAPE, WEIGHTS, own_weights


def make_head(folder: Path, model: LoadedModel, every: int = 5) -> None:
    """Write an untrained head into the folder, that can name one in so many tokens."""
    config = model.model_config
    draws, weights = torch.Generator().manual_seed(0), {}
    for name, each in own_weights(DraftHead(config, 1, torch.float32, torch.device("cpu"))).items():
        is_norm = each.dim() == 1
        drawn = torch.ones(each.shape) if is_norm else torch.randn(each.shape, generator=draws) / each.shape[1] ** 0.5
        weights[name] = drawn.half()
    # What it foretells is to be of the size of the model's own states.
    weights["norm.weight"] = model.decoder.norm.weight.half()
    folder.mkdir(exist_ok=True)
    save_file({**weights, "token_ids": torch.arange(0, config.vocab_size, every).int()}, folder / WEIGHTS)
    (folder / FACTS).write_text(json.dumps({"shape": {name: getattr(config, name) for name in SHAPE}}))


@torch.no_grad()
def run_densely(head: DraftHead, states: Tensor, token_ids: list[int], first: int = 0) -> tuple[Tensor, Tensor]:
    """What the head foretells from n tokens in a row, without a cache and without our kernels.

    Args:
        states: [n, h] the model's hidden states, those foretold behind them.
        token_ids: [n] the token chosen at each.
        first: position of the first state.
    Returns:
        ~h [n, h], and the keys and values of the n rows [n, 2, n_kv_heads, d].
    """
    config, [layer] = head.config, head.layers
    embedded = head.embed_tokens[torch.tensor(token_ids)].float()
    x = head.fuse(torch.cat((norm(states, head.hidden_norm), norm(embedded, head.embedding_norm)), dim=-1))
    qkv = layer.attention.qkv_proj(norm(x, layer.input_norm)).unflatten(-1, (-1, config.head_dim))
    query, key, value = qkv.split((config.num_heads, config.num_kv_heads, config.num_kv_heads), dim=1)
    angles = torch.arange(first, first + len(states))[:, None, None] * head.rope.frequencies.chunk(2)[1]
    query, key = turn(query, angles), turn(key, angles)
    by_head = (each.transpose(0, 1) for each in (query, key, value))
    attended = F.scaled_dot_product_attention(*by_head, is_causal=True, enable_gqa=True)
    x = x + layer.attention.o_proj(attended.transpose(0, 1).flatten(1))
    gate, up = layer.mlp.gate_up_proj(norm(x, layer.post_attention_norm)).chunk(2, dim=-1)
    x = x + layer.mlp.down_proj(F.silu(gate) * up)
    return norm(x, head.norm), torch.stack((key, value), dim=1)


def make_eagle3(folder: Path, model: LoadedModel, depths: list[int] | None = None, **fields: Any) -> dict[str, Any]:
    """Write an untrained EAGLE-3 head, in the published format, that can name one token in five. Returns config.json.

    Args:
        depths: where it reads the model; None = where it does by default.
        fields: of config.json.
    """
    target = model.model_config
    hidden, inner, d, vocab = target.hidden_size, 96, 16, target.vocab_size
    stated = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": depths}} if depths else {}
    rope = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    hf = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": d,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500.0,
        "rope_scaling": {**rope, "original_max_position_embeddings": 16},
        "max_position_embeddings": 512,
        "vocab_size": vocab,
        "draft_vocab_size": len(range(0, vocab, 5)),
        **stated,
        **fields,
    }
    size, named = hf["hidden_size"], torch.arange(0, vocab, 5)
    shapes = {
        "fc": (size, len(depths or "123") * hidden),
        "midlayer.self_attn.q_proj": (8 * d, 2 * size),
        "midlayer.self_attn.k_proj": (4 * d, 2 * size),
        "midlayer.self_attn.v_proj": (4 * d, 2 * size),
        "midlayer.self_attn.o_proj": (size, 8 * d),
        "midlayer.mlp.gate_proj": (inner, size),
        "midlayer.mlp.up_proj": (inner, size),
        "midlayer.mlp.down_proj": (size, inner),
        "lm_head": (len(named), size),
        **({"embed_tokens": (vocab, size)} if size != hidden else {}),
        "norm": (size,),
        **{f"midlayer.{name}": (size,) for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm")},
    }
    draws, tensors = torch.Generator().manual_seed(3), {}
    for name, shape in shapes.items():
        drawn = torch.randn(shape, generator=draws)
        tensors[f"{name}.weight"] = 1 + 0.2 * drawn if len(shape) == 1 else drawn / shape[1] ** 0.5
    tensors["d2t"] = named - torch.arange(len(named))
    tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, named, True)
    folder.mkdir(exist_ok=True)
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(hf))
    return hf


@torch.no_grad()
def run_eagle3_densely(
    hf: dict[str, Any], w: dict[str, Tensor], features: Tensor, embedded: Tensor, first: int = 0
) -> tuple[Tensor, Tensor]:
    """What a published EAGLE-3 head makes of n tokens in a row, from its files alone.

    Args:
        features: [n, h] fc of the model's streams, those foretold behind them.
        embedded: [n, h] the token chosen at each.
    Returns:
        The next features [n, h], and the keys and values of the n rows [n, 2, n_kv_heads, d].
    """

    def normed(x: Tensor, name: str) -> Tensor:
        return x * (x.pow(2).mean(-1, keepdim=True) + hf["rms_norm_eps"]).rsqrt() * w[f"midlayer.{name}.weight"]

    def projected(x: Tensor, name: str) -> Tensor:
        return x @ w[f"midlayer.{name}.weight"].T

    x, n, d = normed(features, "hidden_norm"), len(features), hf["head_dim"]
    residual = x if hf.get("norm_before_residual") else features
    both = torch.cat((normed(embedded, "input_layernorm"), x), dim=-1)
    query, key, value = (projected(both, f"self_attn.{name}_proj").view(n, -1, d) for name in "qkv")
    angles = torch.arange(first, first + n)[:, None, None] * LlamaRotaryEmbedding(LlamaConfig(**hf)).inv_freq
    query, key = turn(query, angles), turn(key, angles)
    shared = query.shape[1] // key.shape[1]
    scores = torch.einsum("qhd,khd->hqk", query, key.repeat_interleave(shared, dim=1)) / d**0.5
    shares = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf).softmax(dim=-1)
    attended = torch.einsum("hqk,khd->qhd", shares, value.repeat_interleave(shared, dim=1)).flatten(1)
    x = residual + projected(attended, "self_attn.o_proj")
    inner = normed(x, "post_attention_layernorm")
    swiglu = F.silu(projected(inner, "mlp.gate_proj")) * projected(inner, "mlp.up_proj")
    return x + projected(swiglu, "mlp.down_proj"), torch.stack((key, value), dim=1)


def norm(x: Tensor, layer: RMSNorm) -> Tensor:
    return F.rms_norm(x, layer.weight.shape, layer.weight, layer.eps)


def turn(x: Tensor, angles: Tensor) -> Tensor:
    """Heads [n, heads, d] by angles [n, 1, d/2]: RoFormer, dimensions i and i + d/2 are a pair."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), dim=-1)
