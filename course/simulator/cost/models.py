"""The models that can be priced: those minillm has a decoder for, and those it hasn't (latent attention)."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from course.simulator.errors import PricingError
from minillm.model.arithmetic import KVCacheSize, ModelCost
from minillm.model.checkpoints import SHAPES, load_config, read_config, resolve
from minillm.model.config import ModelConfig
from minillm.model.errors import CorruptCheckpointError, UnknownModelError

LATENT_ARCHITECTURES = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM")
"""Models with latent attention: there is no decoder for them, only a price."""
LATENT_SHAPES = {file.stem: file for file in sorted((Path(__file__).parent / "shapes").glob("*.json"))}
"""Short names of such shapes, as their publishers' config.json states them."""


@dataclass(frozen=True)
class PricedModel(ModelCost):
    """A model's sizes, and those that only a price needs: of adapters, of latent attention, of copies."""

    lora_params: int = 0
    """Parameters of a LoRA adapter of rank 1: inputs and outputs of every linear layer. 0 = not counted, as for a
    mixture of experts."""
    latent_size: int = 0
    """Latent attention: numbers in the one vector that a layer keeps of a token. 0 = keys and values of heads."""
    absorbed_size: int = 0
    """Latent attention: what query_size is to a decode, whose queries meet the latent vectors themselves. `query_size`
    is then the mean of two widths: keys and values differ in size."""
    copied_params: int = 0
    """Matrices of layer_params that tensor parallelism doesn't slice."""

    @classmethod
    def of(cls, config: ModelConfig) -> "PricedModel":
        """The sizes of a model that minillm has a decoder for."""
        cost = ModelCost.of(config)
        kv = config.num_kv_heads * config.head_dim
        projections = 2 * (cost.hidden + cost.query_size) + 2 * (cost.hidden + kv)
        mlp = 3 * (cost.hidden + config.intermediate_size)
        sizes = {each.name: getattr(cost, each.name) for each in fields(cost)}
        return cls(**sizes, lora_params=0 if config.sparse_layers else cost.layers * (projections + mlp))

    @classmethod
    def of_latent(cls, hf: dict[str, Any]) -> "PricedModel":
        """The sizes in a config.json of LATENT_ARCHITECTURES: multi-head latent attention (MLA) and shared
        experts (DeepSeek-V2, arXiv 2405.04434, section 2.1; V3). The module that predicts a second token isn't counted.

        Prompts expand the latent vectors to keys and values of each head. Decodes multiply their queries by that
        expansion instead ("absorbed"): as many parameters and FLOPs, but every head then scores the latent vectors
        themselves, as if they were the one KV head of multi-query attention.

        Raises:
            CorruptCheckpointError: a size is missing.
        """
        try:
            layers, hidden, heads = hf["num_hidden_layers"], hf["hidden_size"], hf["num_attention_heads"]
            latent, rotated = hf["kv_lora_rank"], hf["qk_rope_head_dim"]
            key, value = hf["qk_nope_head_dim"] + rotated, hf["v_head_dim"]
            query_rank = hf.get("q_lora_rank") or 0  # 0: queries come from the hidden state itself
            down = hidden * (query_rank + latent + rotated)
            up = (query_rank or hidden) * heads * key + latent * heads * (key - rotated + value)
            all_experts, chosen = hf["n_routed_experts"], hf["num_experts_per_tok"]
            dense, expert = hf["first_k_dense_replace"], 3 * hidden * hf["moe_intermediate_size"]
            sparse, shared = layers - dense, hf.get("n_shared_experts") or 0
            table = hf["vocab_size"] * hidden
            mlps = dense * 3 * hidden * hf["intermediate_size"]
            mlps += sparse * (all_experts * hidden + (chosen + shared) * expert)
            return cls(
                layers=layers,
                hidden=hidden,
                query_size=heads * (key + value) // 2,
                num_kv_heads=1,
                head_dim=(key + value) // 2,
                vocab_size=hf["vocab_size"],
                max_context=hf["max_position_embeddings"],
                layer_params=layers * (down + up + heads * value * hidden) + mlps,
                small_params=layers * (2 * hidden + query_rank + latent) + hidden,
                head_params=table,
                embedding_params=0 if hf.get("tie_word_embeddings") else table,
                idle_params=sparse * (all_experts - chosen) * expert,
                skip=1 - chosen / all_experts,
                num_experts=all_experts,
                experts_per_token=chosen,
                expert_params=sparse * expert,
                sparse_layers=sparse,
                latent_size=latent + rotated,
                absorbed_size=heads * (latent + rotated + latent) // 2,
                copied_params=layers * down,
            )
        except KeyError as missing:
            raise CorruptCheckpointError(f"config.json has no {missing}: fetch the model again") from None

    @property
    def decode_size(self) -> int:
        """The width of attention in a decode; query_size is that of a prompt."""
        return self.absorbed_size or self.query_size

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Keys and values of one token, or its latent vectors, over all layers, with their scales."""
        if self.latent_size:
            return KVCacheSize("MLA", self.layers, 1, self.latent_size).bytes_per_token(dtype)
        return ModelCost.kv_bytes_per_token(self, dtype)


def find_model(name: str, kv_heads: int | None = None) -> PricedModel:
    """The sizes of a packaged shape (any spelling: `Llama-3.1-8B`, `meta-llama/Llama-3.1-8B`), a config.json, a
    model folder or a Hub id.

    Args:
        kv_heads: replaces the model's own: as many as query heads is multi-head attention, 1 is multi-query.
    Raises:
        UnknownModelError: there is no such model.
        PricingError: kv_heads does not divide the query heads, or the model has no KV heads.
    """
    shape = name.rpartition("/")[2].lower()
    shapes = SHAPES | LATENT_SHAPES
    if shape in shapes and not name.endswith(".json"):
        path = shapes[shape]
    elif "/" in name or "." in name:
        path = resolve(name)
    else:
        raise UnknownModelError(f"no model {name!r}: give a config.json, a model folder, or one of {', '.join(shapes)}")
    hf = read_config(path)
    if set(LATENT_ARCHITECTURES).intersection(hf.get("architectures") or ()):
        if kv_heads is not None:
            raise PricingError("latent attention keeps one vector for all heads: leave kv_heads out")
        return PricedModel.of_latent(hf)
    config = ModelConfig.from_hf(load_config(path))
    if kv_heads is not None:
        if kv_heads < 1 or config.num_heads % kv_heads:
            raise PricingError(f"kv_heads must divide the {config.num_heads} query heads; got {kv_heads}")
        config = replace(config, num_kv_heads=kv_heads)
    return PricedModel.of(config)
