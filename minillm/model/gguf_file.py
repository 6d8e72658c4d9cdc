"""GGUF files as Hugging Face checkpoints: config, generation config and tensors.

    metadata `llama.*`           -> config.json, each key read, neutral, or refused by name
    tensors `blk.0.attn_q.weight` -> model.layers.0.self_attn.q_proj.weight, each placed or refused by name

transformers has such a reader, too. It passes over what it has no name for, rotary scaling and experts among it, and
what it then returns is another model than llama.cpp would run. Keys, names and their meaning are those of the format
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md) and of llama.cpp.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minillm.model.config import MODEL_TYPES
from minillm.model.errors import CorruptCheckpointError, UnsupportedArchitectureError

if TYPE_CHECKING:
    import numpy as np
    import torch

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""`general.architecture`, with transformers' name of the decoder that computes it. Mistral's files say `llama`."""
INTERLEAVED = ("llama",)
"""Rotary embeddings turn dimensions 2i and 2i + 1 of a head there; i and i + d/2 in the others, and here."""

WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
PER_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
"""The norms of queries and keys that Qwen3 has."""
QKV, MLP = ("attn_q", "attn_k", "attn_v"), ("ffn_gate", "ffn_up", "ffn_down")
ROPE_DIVISORS = "rope_freqs.weight"

SAYS_NOTHING = ("vocab_size", "rope.scaling.finetuned", "tensor_data_layout", "pooling_type", "expert_weights_norm")
"""Keys of the architecture that change no logit; the vocabulary's size is that of the embeddings."""
NEUTRAL: dict[str, Any] = {"attention.causal": True, "logit_scale": 1.0, "embedding_scale": 1.0, "residual_scale": 1.0}
"""Values at which a key says nothing. The others say nothing when they are 0, False or empty."""
END_TOKENS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""llama.cpp ends an output at the end of the text, of a turn and of a message."""
TURN_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<｜end▁of▁sentence｜>")
"""Tokens at which it does so also where the file doesn't name them: many name the base model's end of text alone."""
GPT2_SPLITS = ("default", "gpt-2", "mpt", "olmo", "phi-2", "codeshell", "exaone", "refact", "smollm", "starcoder")
"""tokenizer.ggml.pre of vocabularies that are split like GPT-2's, which is what transformers does where it doesn't know
the name. Some split digits apart besides: these vocabularies have no tokens that would join them."""
WHOLE_WORDS = (
    *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),  # Llama 3's splits
    *("jina-v5-nano", "tekken"),
)
"""tokenizer.ggml.pre of vocabularies in which llama.cpp takes a word that is a token as that, whatever the merges say,
and begins a text with its BOS unless the file says otherwise. transformers' reader does neither by itself."""
SHOWN = 8


class GGUFFile:
    """An open GGUF file.

    Raises:
        CorruptCheckpointError: it is damaged, or no GGUF file, or has a key or a tensor twice.
        UnsupportedArchitectureError: it holds a model that minillm has no decoder for, or a part of one.
    """

    def __init__(self, file: Path) -> None:
        from gguf import GGUFReader

        try:
            reader = GGUFReader(file)
            self.architecture: str = reader.fields["general.architecture"].contents()
        except Exception as error:  # The reader trips over damaged bytes in many ways.
            raise CorruptCheckpointError(
                f"{file} is damaged or is not a GGUF file ({type(error).__name__}: {error}). Fetch it again"
            ) from error
        if self.architecture not in ARCHITECTURES:
            raise UnsupportedArchitectureError(
                f"{file} holds a {self.architecture!r} model; minillm reads GGUF files of {', '.join(ARCHITECTURES)}"
            )
        self.file = file
        self._fields = reader.fields
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self._read: set[str] = set()
        if (kind := self.metadata("general.type", "model")) != "model":
            raise UnsupportedArchitectureError(f"{file} holds no whole model: its general.type is {kind!r}")
        if int(self.metadata("split.count", 1)) > 1:
            raise UnsupportedArchitectureError(
                f"{file} is one of several parts of a model (split.count): join them with llama.cpp's "
                "`llama-gguf-split --merge`"
            )

    def config(self) -> dict[str, Any]:
        """What config.json has to say for transformers, and minillm, to compute what the file describes."""
        hidden, heads = self._count("embedding_length"), self._count("attention.head_count")
        head_dim = self._get("attention.key_length", hidden // heads)
        for key in ("attention.value_length", "rope.dimension_count"):
            if (found := self._get(key, head_dim)) != head_dim:
                raise self._unsupported(key, found, f"heads have {head_dim} dimensions here, and all of them turn")
        window = self._get("attention.sliding_window", None) or None
        name = ARCHITECTURES[self.architecture]
        if window and self.architecture == "llama":
            name = "MistralForCausalLM"  # the same decoder, with a window
        config = {
            "architectures": [name],
            "model_type": MODEL_TYPES[name],
            "dtype": "bfloat16",
            "vocab_size": self._shape("token_embd.weight")[0],
            "hidden_size": hidden,
            "intermediate_size": self._count("feed_forward_length"),
            "num_hidden_layers": self._count("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._get("attention.head_count_kv", heads),
            "head_dim": head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": self._count("context_length"),
            "rms_norm_eps": self._need("attention.layer_norm_rms_epsilon"),
            "rope_parameters": self._rope(head_dim),
            "tie_word_embeddings": "output.weight" not in self._tensors,
            "bos_token_id": self._token("bos_token_id"),
            "eos_token_id": self._token("eos_token_id"),
            "pad_token_id": self._token("padding_token_id"),
        }
        if name in ("LlamaForCausalLM", "Qwen3ForCausalLM"):
            config["attention_bias"] = self._has_bias((*QKV, "attn_output"))
        if name == "LlamaForCausalLM":
            config["mlp_bias"] = self._has_bias(MLP)
        if name == "MistralForCausalLM":
            config["sliding_window"] = window
        elif window:
            config |= {"use_sliding_window": True, "sliding_window": window, "max_window_layers": 0}
        self._refuse_the_rest()
        return config

    def generation_config(self) -> dict[str, Any]:
        """What generation_config.json has to say: which tokens end an output."""
        ends = [token for name in END_TOKENS if (token := self._token(name)) is not None]
        ids = {text: token for token, text in enumerate(self.metadata("tokenizer.ggml.tokens", []))}
        ends = list(dict.fromkeys([*ends, *(ids[text] for text in TURN_ENDS if text in ids)]))
        return {
            "bos_token_id": self._token("bos_token_id"),
            "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
            "pad_token_id": self._token("padding_token_id"),
        }

    def check_tokenizer(self) -> None:
        """Raise UnsupportedArchitectureError if transformers would split texts otherwise than the vocabulary wants."""
        try:
            from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
        except ImportError:  # another version of transformers keeps them elsewhere, or knows none
            return
        if self._split not in (None, *GPT2_SPLITS, *GGUF_PRE_TOKENIZER_SPLITS):
            raise UnsupportedArchitectureError(
                f"{self.file}: tokenizer.ggml.pre is {self._split!r}, and transformers, which reads the tokenizer, "
                "does not know how that one splits words: use the model's safetensors folder"
            )

    @property
    def takes_whole_words(self) -> bool:
        """Whether a word that is a token becomes that token, also where merges would not lead to it."""
        return self._split in WHOLE_WORDS

    @property
    def _split(self) -> str | None:
        """How a byte-level vocabulary wants texts split into words, by llama.cpp's name; None for other kinds."""
        is_bytes = self.metadata("tokenizer.ggml.model", "gpt2") == "gpt2"
        return self.metadata("tokenizer.ggml.pre", "default") if is_bytes else None

    @property
    def begins_with_bos(self) -> bool | None:
        """Whether a text begins with the BOS; None: what transformers makes of the file is right."""
        return self.metadata("tokenizer.ggml.add_bos_token", True) if self.takes_whole_words else None

    def tensors(self, config: dict[str, Any]) -> "Iterator[tuple[str, torch.Tensor]]":
        """Every tensor of the checkpoint, dequantized, in bfloat16. Otherwise as `arrays`."""
        import torch

        for name, read in self.arrays(config).items():
            yield name, torch.from_numpy(read()).to(torch.bfloat16)

    def arrays(self, config: dict[str, Any]) -> "dict[str, Callable[[], np.ndarray]]":
        """What reads each tensor of the checkpoint, dequantized, in float32.

        Args:
            config: from :meth:`config`.
        Raises:
            CorruptCheckpointError, UnsupportedArchitectureError: tensors are missing, have no place in the model, or
                are stored in a way that cannot be read; all are named.
        """
        places = self._places(config)
        known = {*places, *([ROPE_DIVISORS] if self.architecture in INTERLEAVED else [])}
        if left_over := sorted(self._tensors.keys() - known):
            raise UnsupportedArchitectureError(
                f"{self.file} has tensors that a {config['architectures'][0]} has no place for: {_listed(left_over)}"
            )
        # llama.cpp adds the biases that are there.
        if missing := sorted(name for name in places.keys() - self._tensors.keys() if not name.endswith(".bias")):
            raise CorruptCheckpointError(f"{self.file} lacks the tensors {_listed(missing)}. Fetch it again")
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
        return {place: partial(self._array, name, heads) for name, place in places.items()}

    def _places(self, config: dict[str, Any]) -> dict[str, str]:
        """Each tensor of the model: its GGUF name, and Hugging Face's."""
        whole = {part: place for part, place in WHOLE.items() if part != "output" or not config["tie_word_embeddings"]}
        places = {f"{part}.weight": f"{place}.weight" for part, place in whole.items()}
        per_layer = PER_LAYER | (QK_NORMS if self.architecture == "qwen3" else {})
        biased: tuple[str, ...] = QKV if self.architecture == "qwen2" else ()
        if config.get("attention_bias"):
            biased = (*QKV, "attn_output")
        if config.get("mlp_bias"):
            biased = (*biased, *MLP)
        for i in range(config["num_hidden_layers"]):
            at = f"model.layers.{i}"
            places |= {f"blk.{i}.{part}.weight": f"{at}.{place}.weight" for part, place in per_layer.items()}
            places |= {f"blk.{i}.{part}.bias": f"{at}.{per_layer[part]}.bias" for part in biased}
        return places

    def _array(self, name: str, heads: dict[str, int]) -> "np.ndarray":
        """A tensor of the checkpoint.

        Args:
            heads: how many the parts have whose rows are reordered.
        """
        import numpy as np

        layer_part = name.rpartition(".")[0]
        if name not in self._tensors:  # a bias that isn't there counts as zeros, one for each row of its matrix
            return np.zeros(self._shape(f"{layer_part}.weight")[0], np.float32)
        values, part = self._values(name).astype(np.float32), layer_part.split(".")[-1]
        if self.architecture in INTERLEAVED and part in heads:
            return _halves(values, heads[part], name)
        return values

    def _values(self, name: str) -> "np.ndarray":
        from gguf import dequantize

        tensor = self._tensors[name]
        try:
            return dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError:
            raise UnsupportedArchitectureError(
                f"{self.file}: {name} is stored as {tensor.tensor_type.name}, which cannot be turned into numbers"
            ) from None

    def _shape(self, name: str) -> list[int]:
        """Rows first."""
        if name not in self._tensors:
            raise CorruptCheckpointError(f"{self.file} lacks the tensor {name}. Fetch it again")
        return [int(size) for size in reversed(self._tensors[name].shape)]

    def _has_bias(self, parts: tuple[str, ...]) -> bool:
        return any(name.endswith(".bias") and name.split(".")[-2] in parts for name in self._tensors)

    def _rope(self, head_dim: int) -> dict[str, Any]:
        """rope_parameters. llama.cpp's scaling types are transformers'; rope_freqs has what each pair's frequency is
        divided by (Llama 3.1), which is transformers' longrope with one set of divisors for all lengths."""
        context, theta = self._count("context_length"), self._get("rope.freq_base", 10_000.0)
        kind = self._get("rope.scaling.type", "linear")
        factor = self._get("rope.scaling.factor", 0.0) or self._get("rope.scale_linear", 0.0) or 1.0
        original = self._get("rope.scaling.original_context_length", context) or context
        sharper = self._get("rope.scaling.attn_factor", 1.0) * self._get("rope.scaling.yarn_attn_factor", 1.0)
        fast, slow = self._get("rope.scaling.yarn_beta_fast", 32.0), self._get("rope.scaling.yarn_beta_slow", 1.0)
        extrapolates = self._get("rope.scaling.yarn_ext_factor", 1.0)
        if kind not in ("none", "linear", "yarn"):
            raise self._unsupported("rope.scaling.type", kind, "none, linear and yarn are computed")
        if not 0 < factor < float("inf"):
            raise self._unsupported("rope.scaling.factor", factor, "a factor is a number above 0")
        if kind == "none" or factor == 1.0:
            kind, factor = "none", 1.0
        if sharper != 1.0 and kind != "yarn":
            raise self._unsupported("rope.scaling.attn_factor", sharper, "it is computed with yarn only")
        divisors = self._rope_divisors(head_dim)
        if kind == "yarn":
            if divisors:
                raise self._unsupported("rope.scaling.type", kind, f"not together with {ROPE_DIVISORS}")
            if extrapolates != 1.0:
                raise self._unsupported("rope.scaling.yarn_ext_factor", extrapolates, "only 1 is computed")
            attention = {} if sharper == 1.0 else {"attention_factor": sharper * (1.0 + 0.1 * math.log(factor))}
            yarn = {"factor": factor, "original_max_position_embeddings": original, "beta_fast": fast}
            return {"rope_type": "yarn", "rope_theta": theta, **yarn, "beta_slow": slow, **attention}
        if divisors:
            each = [divisor * factor for divisor in divisors]
            length = {"factor": 1.0, "attention_factor": 1.0, "original_max_position_embeddings": context}
            return {"rope_type": "longrope", "rope_theta": theta, "short_factor": each, "long_factor": each, **length}
        if kind == "linear":
            return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
        return {"rope_type": "default", "rope_theta": theta}

    def _rope_divisors(self, head_dim: int) -> list[float]:
        """[d/2]; none if all are 1."""
        if ROPE_DIVISORS not in self._tensors or self.architecture not in INTERLEAVED:
            return []
        divisors = [float(each) for each in self._values(ROPE_DIVISORS)]
        if len(divisors) != head_dim // 2 or not all(0 < each < float("inf") for each in divisors):
            raise CorruptCheckpointError(
                f"{self.file}: {ROPE_DIVISORS} has to be {head_dim // 2} positive numbers, one for each pair that turns"
            )
        return divisors if any(each != 1.0 for each in divisors) else []

    def _need(self, key: str) -> Any:
        found = self._get(key, None)
        if found is None:
            raise CorruptCheckpointError(f"{self.file} has no {self.architecture}.{key}. Fetch it again")
        return found

    def _count(self, key: str) -> int:
        found = self._need(key)
        if not isinstance(found, int) or found < 1:
            raise CorruptCheckpointError(f"{self.file}: {self.architecture}.{key} is {found!r}, which is no size")
        return found

    def _get(self, key: str, default: Any) -> Any:
        """A value of the architecture's metadata."""
        self._read.add(key)
        found = self.metadata(f"{self.architecture}.{key}", default)
        if isinstance(found, list):
            raise self._unsupported(key, found, "all layers have one size here")
        return found

    def _token(self, name: str) -> int | None:
        return self.metadata(f"tokenizer.ggml.{name}", None)

    def metadata(self, key: str, default: Any) -> Any:
        """The value of a key, whatever it is about."""
        return self._fields[key].contents() if key in self._fields else default

    def _refuse_the_rest(self) -> None:
        """Raise for a key of the architecture that nothing has read, unless it says nothing."""
        prefix = f"{self.architecture}."
        for key in (name.removeprefix(prefix) for name in self._fields if name.startswith(prefix)):
            if key not in self._read and key not in SAYS_NOTHING:
                value = self.metadata(prefix + key, None)
                if (value and value != NEUTRAL.get(key)) or (value is False and NEUTRAL.get(key) is True):
                    raise self._unsupported(key, value, "no decoder here computes it")

    def _unsupported(self, key: str, value: Any, reason: str) -> UnsupportedArchitectureError:
        return UnsupportedArchitectureError(
            f"{self.file}: {self.architecture}.{key} is {value!r}: {reason}. Run this file with llama.cpp"
        )


def _halves(values: "np.ndarray", num_heads: int, name: str) -> "np.ndarray":
    """Reorder a query or key projection [heads * d, ...]: rows 2i and 2i + 1 of a head become i and i + d/2."""
    if values.shape[0] % (2 * num_heads):
        raise CorruptCheckpointError(f"{name} has {values.shape[0]} rows, which are no {num_heads} heads")
    pairs = values.reshape(num_heads, -1, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f", and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
