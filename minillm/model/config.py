"""ModelConfig: the shape of a decoder, read from a Hugging Face config.json of any age."""

from dataclasses import dataclass
from typing import Any

from minillm.core.brief import brief
from minillm.core.errors import CorruptCheckpointError, UnsupportedArchitectureError

ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
)
"""They differ in biases, q/k norm, window and experts; everything else is one decoder."""
PRICED_ARCHITECTURES = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM")
"""Latent attention: there is no decoder for it, but the simulator knows its sizes (`ModelCost.of_latent`)."""


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
        """Read the parsed config.json of a checkpoint.

        Raises:
            UnsupportedArchitectureError: it is not one of ARCHITECTURES, or uses a part minillm lacks.
            CorruptCheckpointError: a size is missing.
        """
        architecture = next((name for name in hf.get("architectures") or [] if name in ARCHITECTURES), None)
        if architecture is None:
            raise UnsupportedArchitectureError(
                f"architecture {hf.get('architectures')}: minillm has {', '.join(ARCHITECTURES)}"
            )
        if hf.get("hidden_act", "silu") != "silu":
            raise UnsupportedArchitectureError(f"activation {hf['hidden_act']!r}: these decoders use 'silu'")
        qwen2, qwen3 = architecture.startswith("Qwen2"), architecture.startswith("Qwen3")
        llama, moe = architecture.startswith("Llama"), architecture.startswith("Qwen3Moe")
        attention_bias = bool(hf.get("attention_bias", False)) and (llama or qwen3)
        try:
            return cls(
                architecture=architecture,
                vocab_size=hf["vocab_size"],
                hidden_size=hf["hidden_size"],
                intermediate_size=hf["intermediate_size"],
                num_layers=hf["num_hidden_layers"],
                num_heads=hf["num_attention_heads"],
                num_kv_heads=hf.get("num_key_value_heads") or hf["num_attention_heads"],
                head_dim=_head_dim(hf, qwen3 and not moe),
                max_position_embeddings=_longest_context(hf),
                rms_norm_eps=hf.get("rms_norm_eps", 1e-6),
                rope=_rope(hf),
                tie_word_embeddings=bool(hf.get("tie_word_embeddings", False)),
                qkv_bias=qwen2 or attention_bias,
                o_bias=attention_bias,
                mlp_bias=llama and bool(hf.get("mlp_bias", False)),
                qk_norm=qwen3,
                dtype=hf.get("dtype") or hf.get("torch_dtype"),
                **(_experts(hf) if moe else {}),
            )
        except KeyError as missing:
            raise CorruptCheckpointError(f"config.json has no {missing}: fetch the model again") from None


def _head_dim(hf: dict[str, Any], qwen3: bool) -> int:
    if hf.get("head_dim"):
        return hf["head_dim"]
    return 128 if qwen3 else hf["hidden_size"] // hf["num_attention_heads"]


def _experts(hf: dict[str, Any]) -> dict[str, Any]:
    step, dense = hf.get("decoder_sparse_step", 1), hf.get("mlp_only_layers") or ()
    return {
        "num_experts": hf.get("num_local_experts") or hf["num_experts"],  # transformers 5, and before
        "num_experts_per_tok": hf["num_experts_per_tok"],
        "moe_intermediate_size": hf["moe_intermediate_size"],
        "norm_topk_prob": bool(hf.get("norm_topk_prob", False)),
        "sparse_layers": tuple(i for i in range(hf["num_hidden_layers"]) if i not in dense and (i + 1) % step == 0),
    }


def _rope(hf: dict[str, Any]) -> dict[str, Any]:
    """transformers 5 writes one `rope_parameters`; before, it was `rope_scaling` beside `rope_theta`."""
    rope = dict(hf.get("rope_parameters") or hf.get("rope_scaling") or {})
    rope["rope_type"] = rope.get("rope_type") or rope.pop("type", None) or "default"
    rope.setdefault("rope_theta", hf.get("rope_theta") or 10_000.0)
    rope["rope_theta"] = float(rope["rope_theta"])
    rope["max_position_embeddings"] = hf["max_position_embeddings"]
    original = hf.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings")
    rope["original_max_position_embeddings"] = original or hf["max_position_embeddings"]
    return rope


def _longest_context(hf: dict[str, Any]) -> int:
    longest = hf["max_position_embeddings"]
    rope = _rope(hf)
    if rope["rope_type"] == "yarn" and rope.get("factor"):
        # Configs state either the original or the extended length here.
        longest = max(longest, int(rope["original_max_position_embeddings"] * rope["factor"]))
    # Mistral's window is on wherever it is stated; Qwen's has a switch of its own, off by default.
    window = hf.get("sliding_window") if hf.get("use_sliding_window", "Mistral" in hf["architectures"][0]) else None
    return min(longest, window or longest)
