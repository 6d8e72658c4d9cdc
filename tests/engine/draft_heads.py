"""Draft heads of random weights, and what a head computes, by plain PyTorch over a whole conversation at once."""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

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
    angles = torch.arange(first, first + len(states))[:, None, None] * head.rope.frequencies
    query, key = turn(query, angles), turn(key, angles)
    by_head = (each.transpose(0, 1) for each in (query, key, value))
    attended = F.scaled_dot_product_attention(*by_head, is_causal=True, enable_gqa=True)
    x = x + layer.attention.o_proj(attended.transpose(0, 1).flatten(1))
    gate, up = layer.mlp.gate_up_proj(norm(x, layer.post_attention_norm)).chunk(2, dim=-1)
    x = x + layer.mlp.down_proj(F.silu(gate) * up)
    return norm(x, head.norm), torch.stack((key, value), dim=1)


def norm(x: Tensor, layer: RMSNorm) -> Tensor:
    return F.rms_norm(x, layer.weight.shape, layer.weight, layer.eps)


def turn(x: Tensor, angles: Tensor) -> Tensor:
    """Heads [n, heads, d] by angles [n, 1, d/2]: RoFormer, dimensions i and i + d/2 are a pair."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), dim=-1)
