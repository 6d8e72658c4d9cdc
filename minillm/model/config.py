"""ModelConfig: the shape of a decoder, read from a Hugging Face config.json of any age."""

from dataclasses import dataclass
from typing import Any

from minillm.core.brief import brief
from minillm.model.errors import CorruptCheckpointError, UnsupportedArchitectureError

MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}
"""transformers chooses its code by model_type, so a config.json that says both has to mean the same by them."""
ARCHITECTURES = tuple(MODEL_TYPES)
"""They differ in biases, q/k norm, window and experts; everything else is one decoder."""

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "is_causal": (True,),
    "per_layer_config": ({},),
    "kv_sharing_modes": ([],),
    "partial_rotary_factor": (1,),
    "rotary_pct": (1,),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "logits_scaling": (1,),
    "logit_scale": (1,),
    "residual_multiplier": (1,),
    "embedding_multiplier": (1,),
    "attention_multiplier": (),
    "query_pre_attn_scalar": (),
    "clip_qkv": (0,),
    "no_rope_layers": ([],),
    "use_qk_norm": (False,),
    "qk_layernorm": (False,),
    "alibi": (False,),
    "use_parallel_residual": (False,),
}
"""Fields that change what a decoder computes, in ways that this one cannot, and the values (besides null) at which they
change nothing. A config.json with another value describes another model than the one that would run."""
WINDOW_UNLESS_STATED = 4096
"""transformers' sliding_window where a config.json has the window on and states no size."""
LAYER_TYPES = ("full_attention", "sliding_attention")
MOST, MOST_LAYERS = 2**31 - 1, 10_000
"""Sizes above these are those of a damaged file: PyTorch has 64 bits for them, and layers are made one by one."""
MOST_NUMBER = 1e30
"""The same of other numbers: rope_theta is beyond 2^31 for a context of a million tokens."""
ROPE_NUMBERS = ("factor", "attention_factor", "beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor")
"""Numbers of `rope_parameters` that a type may need, besides rope_theta and lengths."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder-only transformer. Sizes in elements."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    """Longest context it computes exactly, tokens: its trained positions, or its attention window if
    that is shorter: it is not switched on by itself (see EngineConfig.sliding_window), so a longer context is
    refused."""
    rms_norm_eps: float
    rope: dict[str, Any]
    """Rotary embedding: rope_type, rope_theta, and what that type needs; see :mod:`minillm.model.rope`."""
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    """RMSNorm on each head's query and key, before the rotary embedding (Qwen3)."""
    dtype: str | None = None
    """The checkpoint's own dtype, if it states one."""
    num_experts: int = 0
    """Mixture of experts: MLPs of each sparse layer; see :mod:`minillm.model.moe`."""
    num_experts_per_tok: int = 0
    """MLPs that a token goes through there."""
    moe_intermediate_size: int = 0
    """Inner width of each."""
    norm_topk_prob: bool = False
    """The shares of a token's experts sum to 1. If not, they are the router's probabilities."""
    sparse_layers: tuple[int, ...] = ()
    """Layers with experts (mlp_only_layers, decoder_sparse_step). The others have one MLP of intermediate_size."""

    __repr__ = brief

    @classmethod
    def from_hf(cls, hf: dict[str, Any]) -> "ModelConfig":
        """Read the parsed config.json of a checkpoint, each field as transformers understands it.

        Raises:
            UnsupportedArchitectureError: it is not one of ARCHITECTURES, or uses a part minillm lacks.
            CorruptCheckpointError: a size is missing or is no number.
        """
        stated = names_in(hf, "architectures")
        architecture = next((name for name in stated if name in ARCHITECTURES), None)
        if architecture is None:
            found = ", ".join(stated) or f"model of type {hf.get('model_type')!r}, without architectures"
            raise UnsupportedArchitectureError(
                f"config.json describes a {found}; minillm implements {', '.join(ARCHITECTURES)}"
            )
        _refuse_what_is_not_computed(hf, architecture)
        qwen2, qwen3 = architecture.startswith("Qwen2"), architecture.startswith("Qwen3")
        llama, moe = architecture.startswith("Llama"), architecture.startswith("Qwen3Moe")
        attention_bias = _flag(hf, "attention_bias") and (llama or qwen3)
        try:
            num_heads = _count(hf, "num_attention_heads")
            # Null means one for each head, and so does an absent field of Llama: the others' defaults are of one size.
            shared = hf.get("num_key_value_heads") if llama else hf["num_key_value_heads"]
            num_kv_heads = num_heads if shared is None else _count(hf, "num_key_value_heads")
            if num_heads % num_kv_heads:
                raise CorruptCheckpointError(
                    f"config.json: {num_heads} num_attention_heads cannot share {num_kv_heads} num_key_value_heads"
                )
            return cls(
                architecture=architecture,
                vocab_size=_count(hf, "vocab_size"),
                hidden_size=_count(hf, "hidden_size"),
                intermediate_size=_count(hf, "intermediate_size"),
                num_layers=_count(hf, "num_hidden_layers", MOST_LAYERS),
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                head_dim=_head_dim(hf, qwen3 and not moe),
                max_position_embeddings=_longest_context(hf, architecture),
                rms_norm_eps=float(_number(hf, "rms_norm_eps", 1e-6)),
                rope=_rope(hf),
                tie_word_embeddings=_flag(hf, "tie_word_embeddings"),
                qkv_bias=qwen2 or attention_bias,
                o_bias=attention_bias,
                mlp_bias=llama and _flag(hf, "mlp_bias"),
                qk_norm=qwen3,
                dtype=hf.get("dtype") or hf.get("torch_dtype"),
                **(_experts(hf) if moe else {}),
            )
        except KeyError as missing:
            raise CorruptCheckpointError(f"config.json has no {missing}: fetch the model again") from None


def _refuse_what_is_not_computed(hf: dict[str, Any], architecture: str) -> None:
    """Raise UnsupportedArchitectureError, with the field's name, rather than run another model than is described."""
    model_type = hf.get("model_type") or MODEL_TYPES[architecture]
    if model_type != MODEL_TYPES[architecture]:
        raise UnsupportedArchitectureError(
            f"config.json: architectures says {architecture}, and model_type {model_type!r}, by which transformers "
            "chooses its code: they are two models. Mend the one that is wrong"
        )
    if hf.get("hidden_act", "silu") not in ("silu", "swish"):
        raise UnsupportedArchitectureError(f"hidden_act: activation {hf['hidden_act']!r}; these decoders use 'silu'")
    for field, neutral in NEUTRAL.items():
        value = hf.get(field)
        if value is not None and value not in neutral:
            raise UnsupportedArchitectureError(
                f"config.json has {field}={value!r}, which minillm does not compute: run this model with transformers"
            )


def _number(hf: dict[str, Any], field: str, default: float | None = None, most: float = MOST_NUMBER) -> float:
    """A positive number of config.json. KeyError if it is absent and has no default."""
    value = hf[field] if default is None else hf.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
        raise CorruptCheckpointError(f"config.json: {field} is {value!r}, and has to be a positive number up to {most}")
    return value


def _count(hf: dict[str, Any], field: str, most: int = MOST) -> int:
    """A positive whole number of config.json. KeyError if it is absent."""
    value = _number(hf, field, most=most)
    if not isinstance(value, int):
        raise CorruptCheckpointError(f"config.json: {field} is {value!r}, and has to be a whole number up to {most}")
    return value


def names_in(hf: dict[str, Any], field: str) -> list[str]:
    """A list of names in config.json; absent and null mean an empty one."""
    value = hf.get(field)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise CorruptCheckpointError(f"config.json: {field} is {value!r}, and has to be a list of names")
    return value


def _flag(hf: dict[str, Any], field: str) -> bool:
    """A true or false of config.json; absent means false. A text such as "false" would count as true."""
    value = hf.get(field, False)
    if not isinstance(value, bool):
        raise CorruptCheckpointError(f"config.json: {field} is {value!r}, and has to be true or false")
    return value


def _head_dim(hf: dict[str, Any], qwen3: bool) -> int:
    if hf.get("head_dim") is not None:
        head_dim = _count(hf, "head_dim")
    else:
        head_dim = 128 if qwen3 else _count(hf, "hidden_size") // _count(hf, "num_attention_heads")
    if head_dim % 2:
        raise UnsupportedArchitectureError(f"head_dim {head_dim}: rotary embeddings turn pairs of dimensions")
    return head_dim


def _experts(hf: dict[str, Any]) -> dict[str, Any]:
    step, dense = _count({"decoder_sparse_step": 1, **hf}, "decoder_sparse_step"), hf.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise CorruptCheckpointError(f"config.json: mlp_only_layers is {dense!r}, and has to be a list of layers")
    num_experts = _count(hf, "num_local_experts" if hf.get("num_local_experts") else "num_experts")  # transformers 5, 4
    per_token = _count(hf, "num_experts_per_tok")
    if per_token > num_experts:
        raise CorruptCheckpointError(f"config.json: num_experts_per_tok is {per_token}, of {num_experts} experts")
    return {
        "num_experts": num_experts,
        "num_experts_per_tok": per_token,
        "moe_intermediate_size": _count(hf, "moe_intermediate_size"),
        "norm_topk_prob": _flag(hf, "norm_topk_prob"),
        "sparse_layers": tuple(i for i in range(hf["num_hidden_layers"]) if i not in dense and (i + 1) % step == 0),
    }


def _rope(hf: dict[str, Any]) -> dict[str, Any]:
    """transformers 5 writes one `rope_parameters`; before, it was `rope_scaling` beside `rope_theta`. Where a file has
    both, transformers takes `rope_scaling`."""
    field = "rope_scaling" if hf.get("rope_scaling") else "rope_parameters"
    stated = hf.get(field) or {}
    if not isinstance(stated, dict) or any(isinstance(value, dict) for value in stated.values()):
        raise UnsupportedArchitectureError(
            f"config.json: {field} is {stated!r}, and minillm reads one set of numbers for all layers"
        )
    rope = dict(stated)
    rope["rope_type"] = rope.get("rope_type") or rope.pop("type", None) or "default"
    rope.setdefault("rope_theta", hf.get("rope_theta") or 10_000.0)
    rope["rope_theta"] = float(_number(rope, "rope_theta"))
    for name in ROPE_NUMBERS:
        if rope.get(name) not in (None, 0):
            _number(rope, name, most=MOST)
    rope["max_position_embeddings"] = _count(hf, "max_position_embeddings")
    original = hf.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings")
    rope["original_max_position_embeddings"] = original or hf["max_position_embeddings"]
    rope["original_max_position_embeddings"] = int(_number(rope, "original_max_position_embeddings", most=MOST))
    return rope


def _longest_context(hf: dict[str, Any], architecture: str) -> int:
    rope = _rope(hf)
    longest = rope["max_position_embeddings"]
    if rope["rope_type"] == "yarn" and rope.get("factor"):
        # Configs state either the original or the extended length here.
        longest = max(longest, int(rope["original_max_position_embeddings"] * _number(rope, "factor")))
    if rope["rope_type"] == "longrope" and rope.get("short_factor") != rope.get("long_factor"):
        # Beyond the original length all positions turn by other frequencies; keys in the cache have turned already.
        longest = min(longest, rope["original_max_position_embeddings"])
    return min(longest, _window(hf, architecture) or longest)


def _window(hf: dict[str, Any], architecture: str) -> int | None:
    """Tokens that a token attends to at most, in some layers or all; None = all tokens, in all layers."""
    layer_types = names_in(hf, "layer_types")
    if unknown := set(layer_types).difference(LAYER_TYPES):
        raise UnsupportedArchitectureError(f"config.json: layer_types has {sorted(unknown)}; minillm has {LAYER_TYPES}")
    if architecture.startswith("Mistral"):
        is_on = hf.get("sliding_window", WINDOW_UNLESS_STATED) is not None
    elif architecture.startswith("Qwen"):
        is_on = _flag(hf, "use_sliding_window") and hf.get("sliding_window", WINDOW_UNLESS_STATED) is not None
    else:
        is_on = hf.get("sliding_window") is not None  # transformers' Llama has none: up to here both are the same
    if not is_on:
        if "sliding_attention" in layer_types:
            raise UnsupportedArchitectureError("config.json: layer_types has sliding_attention, and no window is on")
        return None
    return _count({"sliding_window": WINDOW_UNLESS_STATED, **hf}, "sliding_window")
