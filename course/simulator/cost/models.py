"""The models that can be priced: those minillm has a decoder for, and those it hasn't, of which it knows the sizes.

What a price needs beyond a decoder's sizes is how attention looks back, layer by layer:

    every layer at all tokens                           Llama, Qwen3, MiniMax-M2
    every layer at one latent vector of each token      DeepSeek-V3, Kimi-K2 (MLA)
    ... but only at those that an indexer picks         GLM-5 (DSA)
    every other layer at a window                       gpt-oss
    one layer in four; the others keep a fixed state    Qwen3.5 (gated DeltaNet)

`PricedModel.seen` brings all of that down to one number, which prices take in place of the context's length.
"""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from course.simulator.cost.hardware import Hardware
from course.simulator.cost.sizes import LAYER_BYTES, KVCacheSize, ModelCost
from course.simulator.errors import PricingError
from minillm.model.checkpoints import SHAPES, errors_naming, find_checkpoint, load_config, unknown_model
from minillm.model.config import MOST, ModelConfig, names_in
from minillm.model.errors import CorruptCheckpointError

LATENT_ARCHITECTURES = (
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "GlmMoeDsaForCausalLM",
    "KimiK25ForConditionalGeneration",
)
"""Models with latent attention: there is no decoder for them, only a price."""
HEADED_ARCHITECTURES = ("GptOssForCausalLM", "MiniMaxM2ForCausalLM", "Qwen3_5MoeForConditionalGeneration")
"""Mixtures of experts with keys and values of heads, for which there is no decoder either."""
PRICED_SHAPES = {file.stem: file for file in sorted((Path(__file__).parent / "shapes").glob("*.json"))}
"""Short names of shapes without a decoder, as their publishers' config.json states them."""
LATENT_SHAPES = {name: PRICED_SHAPES[name] for name in ("deepseek-v3",)}
"""The one that lessons take for latent attention."""
EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")
"""What publishers call the number of a layer's experts."""
COUNTS = (
    *EXPERTS,
    "num_experts_per_tok",
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "intermediate_size",
    "moe_intermediate_size",
    "max_position_embeddings",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "v_head_dim",
)
"""Sizes of those mixtures that divide or multiply the others."""
STATE_BYTES = 4
"""Bytes of a number in the state of a layer with linear attention: it stays in float32."""
INDEX_SCALE_BYTES = 4
"""Sparse attention's index keys are fp8, with one float32 scale for each."""


@dataclass(frozen=True)
class PricedModel(ModelCost):
    """A model's sizes, and those that only a price needs: of adapters, of how attention looks back, of copies."""

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
    attention_params: int = 0
    """Matrices of layer_params that belong to attention: data-parallel attention has them once for each rank, and some
    checkpoints keep them in a wider dtype than experts. copied_params are part of them."""
    num_heads: int = 0
    """Query heads."""
    growing_layers: int = 0
    """Layers that keep something of every token. The others keep `fixed_bytes` for a request, however long. query_size
    is then the mean over all layers, those others counted as 0."""
    window: int = 0
    """Tokens that a layer with a sliding window sees; 0 = no layer has one. All that have none are growing_layers."""
    fixed_bytes: int = 0
    """What a request keeps in all layers with linear attention; a step reads it and writes it back."""
    picked_tokens: int = 0
    """Sparse attention: tokens that an indexer picks for a query, of all before it. 0 = it sees them all."""
    index_size: int = 0
    """Sparse attention: numbers in the key that the indexer keeps of a token, in each layer."""
    index_share: float = 0.0
    """Sparse attention: what a query's look at one index key costs, in looks at one latent vector."""
    met_by: str = "fp4"
    """Dtype of what weights of four bits are multiplied with, on chips that can multiply such: fp4 as well (NVFP4), or
    fp8 (MXFP4, where the product runs at the pace of fp8)."""

    @classmethod
    def of(cls, config: ModelConfig) -> "PricedModel":
        """The sizes of a model that minillm has a decoder for."""
        cost = ModelCost.of(config)
        kv = config.num_kv_heads * config.head_dim
        projections = 2 * (cost.hidden + cost.query_size) + 2 * (cost.hidden + kv)
        mlp = 3 * (cost.hidden + config.intermediate_size)
        sizes = {each.name: getattr(cost, each.name) for each in fields(cost)}
        return cls(
            **sizes,
            lora_params=0 if config.sparse_layers else cost.layers * (projections + mlp),
            attention_params=cost.layers * cost.hidden * 2 * (cost.query_size + kv),
            num_heads=config.num_heads,
            growing_layers=cost.layers,
        )

    @classmethod
    def of_latent(cls, hf: dict[str, Any]) -> "PricedModel":
        """The sizes in a config.json of LATENT_ARCHITECTURES: multi-head latent attention (MLA) and shared
        experts (DeepSeek-V2, arXiv 2405.04434, section 2.1; V3). The module that predicts a second token isn't counted.

        Prompts expand the latent vectors to keys and values of each head. Decodes multiply their queries by that
        expansion instead ("absorbed"): as many parameters and FLOPs, but every head then scores the latent vectors
        themselves, as if they were the one KV head of multi-query attention.

        With `index_topk`, an indexer with small heads of its own scores all tokens, and attention sees only the best
        (DeepSeek-V3.2, arXiv 2512.02556, section 2.1).

        Raises:
            CorruptCheckpointError: a size is missing, or isn't a positive number.
        """
        hf = _checked(hf)
        try:
            layers, hidden, heads = hf["num_hidden_layers"], hf["hidden_size"], hf["num_attention_heads"]
            latent, rotated = hf["kv_lora_rank"], hf["qk_rope_head_dim"]
            key, value = hf["qk_nope_head_dim"] + rotated, hf["v_head_dim"]
            query_rank = hf.get("q_lora_rank") or 0  # 0: queries come from the hidden state itself
            picked, index_size = hf.get("index_topk", 0), hf.get("index_head_dim", 0)
            index_width = hf.get("index_n_heads", 0) * index_size
            down = hidden * (query_rank + latent + rotated) + hidden * index_size
            up = (query_rank or hidden) * (heads * key + index_width) + latent * heads * (key - rotated + value)
            attention = down + up + heads * value * hidden
            absorbed = heads * (latent + rotated + latent) // 2
            return cls(
                **_mixture(hf, attention * layers, query_rank + latent),
                query_size=heads * (key + value) // 2,
                num_kv_heads=1,
                head_dim=(key + value) // 2,
                latent_size=latent + rotated,
                absorbed_size=absorbed,
                copied_params=layers * down,
                attention_params=layers * attention,
                num_heads=heads,
                growing_layers=layers,
                picked_tokens=picked,
                index_size=index_size,
                index_share=index_width / 2 / absorbed,  # keys only: it has no values
            )
        except KeyError as missing:
            raise CorruptCheckpointError(f"config.json has no {missing}: fetch the model again") from None

    @classmethod
    def of_heads(cls, hf: dict[str, Any]) -> "PricedModel":
        """The sizes in a config.json of HEADED_ARCHITECTURES.

        - gpt-oss (arXiv 2508.10925): every other layer sees a window of 128 tokens; its experts are MXFP4, which
          serving engines multiply with fp8 on Blackwell
        - Qwen3.5: in three layers of four a gated DeltaNet (Yang et al. 2024, arXiv 2412.06464) keeps one matrix for
          each head in place of keys and values; a gate as wide as the output follows each attention

        Raises:
            CorruptCheckpointError: a size is missing, or isn't a positive number.
        """
        hf = _checked({**hf, **(hf.get("text_config") or {})})
        try:
            layers, hidden, heads = hf["num_hidden_layers"], hf["hidden_size"], hf["num_attention_heads"]
            kv_heads, head_dim = hf["num_key_value_heads"], hf["head_dim"]
            kinds = names_in(hf, "layer_types") or ["full_attention"] * layers
            windowed, linear = kinds.count("sliding_attention"), kinds.count("linear_attention")
            query, kv = heads * head_dim, kv_heads * head_dim
            gate = query if hf.get("attn_output_gate") else 0
            attention = (layers - linear) * hidden * (2 * query + gate + 2 * kv)
            state = 0
            if linear:
                keys = hf["linear_num_key_heads"] * hf["linear_key_head_dim"]
                values = hf["linear_num_value_heads"] * hf["linear_value_head_dim"]
                attention += linear * hidden * (2 * keys + 3 * values + 2 * hf["linear_num_value_heads"])
                state = values * hf["linear_key_head_dim"] + (hf["linear_conv_kernel_dim"] - 1) * (2 * keys + values)
            growing = layers - linear - windowed
            return cls(
                **_mixture(hf, attention, 2 * head_dim),
                query_size=query * growing // layers,
                num_kv_heads=kv_heads,
                head_dim=head_dim,
                attention_params=attention,
                num_heads=heads,
                growing_layers=growing,
                window=hf["sliding_window"] if windowed else 0,
                fixed_bytes=STATE_BYTES * linear * state,
                met_by="fp8" if hf["model_type"] == "gpt_oss" else "fp4",
            )
        except KeyError as missing:
            raise CorruptCheckpointError(f"config.json has no {missing}: fetch the model again") from None

    def wide_params(self, dtype: str) -> int:
        """Those of layer_params that stay in bfloat16: four bits are for experts, not for a mixture's attention."""
        return self.attention_params if dtype == "fp4" and self.num_experts else 0

    def multiplied_in(self, dtype: str, hardware: Hardware) -> str:
        """The dtype whose peak products with these weights have."""
        return self.met_by if dtype == "fp4" and dtype in hardware.flops else dtype

    def attention_bytes(self, dtype: str) -> float:
        """Bytes of each of attention's parameters."""
        return LAYER_BYTES["bfloat16" if self.wide_params(dtype) else dtype]

    def read_bytes(self, dtype: str, tokens: float = 1) -> float:
        """As of any model, with what stays wide."""
        wider = self.attention_bytes(dtype) - LAYER_BYTES[dtype]
        return super().read_bytes(dtype, tokens) + self.wide_params(dtype) * wider

    def fixed_kv_bytes(self, kv_dtype: str) -> float:
        """Bytes that each request takes beside those of its tokens: a recurrent state, and what windows show."""
        return self.fixed_bytes + self._window_tokens * self.kv_bytes_per_token(kv_dtype)

    @property
    def decode_size(self) -> int:
        """The width of attention in a decode; query_size is that of a prompt."""
        return self.absorbed_size or self.query_size

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Keys and values of one token, or its latent vectors, over all layers that keep some, with their scales."""
        if not self.latent_size:
            heads = self.num_kv_heads
            return KVCacheSize.of_heads(self.growing_layers, 0, heads, self.head_dim).bytes_per_token(dtype)
        index = self.layers * (self.index_size + INDEX_SCALE_BYTES) if self.index_size else 0
        return KVCacheSize("MLA", self.layers, 1, self.latent_size).bytes_per_token(dtype) + index

    @property
    def sees_everything(self) -> bool:
        """Whether every layer looks at all tokens, and keeps nothing else."""
        return not (self.picked_tokens or self.window or self.fixed_bytes)

    def seen(self, context: float, requests: float, kv_dtype: str) -> float:
        """What a step reads of the cache, in tokens of `kv_bytes_per_token`.

        Args:
            context: tokens that the requests have in the cache, all together.
            requests: how many those are. For a prompt's (query, key) pairs: queries.
        """
        if self.sees_everything:
            return context
        per_token = self.kv_bytes_per_token(kv_dtype)
        read = context
        if self.picked_tokens:
            index = self.layers * (self.index_size + INDEX_SCALE_BYTES) / per_token
            picked = requests * self.picked_tokens
            read = index * context + (1 - index) * min(context, picked)
        windows = self._window_share * min(context, requests * self.window)
        return read + requests * 2 * self.fixed_bytes / per_token + windows

    def scored(self, pairs: float, queries: float) -> float:
        """What attention computes, in (query, key) pairs of layers that see everything.

        Args:
            pairs: causal pairs, of all `queries` together.
        """
        if self.sees_everything:
            return pairs
        if self.picked_tokens:
            pairs = self.index_share * pairs + min(pairs, queries * self.picked_tokens)
        return pairs + self._window_share * min(pairs, queries * self.window)

    @property
    def _window_share(self) -> float:
        """Layers with a window, in layers without."""
        return self.layers / self.growing_layers - 1 if self.window else 0.0

    @property
    def _window_tokens(self) -> float:
        """Tokens that layers with a window keep of a request, in tokens of those without."""
        return self.window * self._window_share


def _checked(hf: dict[str, Any]) -> dict[str, Any]:
    """A config.json of a mixture without what is null. Raises CorruptCheckpointError: one of COUNTS isn't positive."""
    stated = {name: value for name, value in hf.items() if value is not None}
    for name in COUNTS:
        count = stated.get(name, 1)
        if type(count) is not int or not 0 < count <= MOST:
            raise CorruptCheckpointError(
                f"config.json: {name} is {count!r}, and has to be a positive number up to {MOST}"
            )
    return stated


def _mixture(hf: dict[str, Any], attention: int, norms: int) -> dict[str, Any]:
    """Sizes of a mixture of experts, all but those of its attention.

    Args:
        attention: parameters of attention's matrices, over all layers.
        norms: numbers in the norms within attention, of one layer.
    """
    layers, hidden = hf["num_hidden_layers"], hf["hidden_size"]
    experts = hf[next((name for name in EXPERTS if name in hf), EXPERTS[0])]
    chosen, inner = hf["num_experts_per_tok"], hf.get("moe_intermediate_size") or hf["intermediate_size"]
    dense, expert = hf.get("first_k_dense_replace", 0), 3 * hidden * inner
    shared = hidden * 3 * hf.get("shared_expert_intermediate_size", 0) + (hf.get("n_shared_experts") or 0) * expert
    sparse, table = layers - dense, hf["vocab_size"] * hidden
    mlps = dense and dense * 3 * hidden * hf["intermediate_size"]
    mlps += sparse * (experts * hidden + chosen * expert + shared)
    return {
        "layers": layers,
        "hidden": hidden,
        "vocab_size": hf["vocab_size"],
        "max_context": hf["max_position_embeddings"],
        "layer_params": attention + mlps,
        "small_params": layers * (2 * hidden + norms) + hidden,
        "head_params": table,
        "embedding_params": 0 if hf.get("tie_word_embeddings") else table,
        "idle_params": sparse * (experts - chosen) * expert,
        "skip": 1 - chosen / experts,
        "num_experts": experts,
        "experts_per_token": chosen,
        "expert_params": sparse * expert,
        "sparse_layers": sparse,
    }


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
    shapes = SHAPES | PRICED_SHAPES
    path = shapes[shape] if shape in shapes and not name.endswith(".json") else find_checkpoint(name)
    if path is None:
        raise unknown_model(
            name, shapes, f"a config.json, a model folder, a Hub id such as org/name, or one of {', '.join(shapes)}"
        )
    hf = load_config(path)
    with errors_naming(path):
        architectures = set(names_in(hf, "architectures"))
        if architectures.intersection(LATENT_ARCHITECTURES):
            if kv_heads is not None:
                raise PricingError("latent attention keeps one vector for all heads: leave kv_heads out")
            return PricedModel.of_latent(hf)
        if architectures.intersection(HEADED_ARCHITECTURES):
            if kv_heads is not None:
                raise PricingError(f"{name} has the KV heads that it was trained with: leave kv_heads out")
            return PricedModel.of_heads(hf)
        config = ModelConfig.from_hf(hf)
    if kv_heads is not None:
        if kv_heads < 1 or config.num_heads % kv_heads:
            raise PricingError(f"kv_heads must divide the {config.num_heads} query heads; got {kv_heads}")
        config = replace(config, num_kv_heads=kv_heads)
    return PricedModel.of(config)
