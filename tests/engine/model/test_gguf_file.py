"""GGUF files become the model that llama.cpp would run from them, or an error that names the key or the tensor."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tiny_gguf import END, TOKENS, TURN, write_gguf

from minillm.model.checkpoints import eos_token_ids, load_config, load_tokenizer, resolve
from minillm.model.config import ModelConfig
from minillm.model.errors import CorruptCheckpointError, ModelError, UnsupportedArchitectureError
from minillm.model.pull import CONVERSION, sha256_of

from .test_decoder import Cache, load, reference

pytestmark = pytest.mark.usefixtures("home")

DIVISORS = [1.0, 1.25, 4.0, 8.0]
IDS = [token % len(TOKENS) for token in range(5, 320, 7)]


def make_model(family: str = "Llama", **fields: Any) -> Any:
    """A random model whose numbers bfloat16 holds exactly."""
    shape = dict(
        vocab_size=len(TOKENS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
    )
    config = getattr(transformers, f"{family}Config")(**{**shape, **fields})
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(parameter.normal_(1.0 if "norm" in name else 0.0, 0.3).bfloat16())
    return model


def with_rope(model: Any, **rope: Any) -> Any:
    """The same weights, with another rotary embedding of transformers."""
    config = type(model.config)(**{**model.config.to_dict(), "rope_parameters": {"rope_theta": 10000.0, **rope}})
    other = type(model)(config).eval()
    other.load_state_dict(model.state_dict())
    return other


def with_divisors(model: Any, divisors: list[float]) -> Any:
    """The same, its frequencies divided as llama.cpp does."""
    other = with_rope(model, rope_type="default")
    for frequencies in (other.model.rotary_emb.inv_freq, other.model.rotary_emb.original_inv_freq):
        frequencies /= torch.tensor(divisors)
    return other


def assert_is(expected: Any, file: Path) -> Path:
    """Both engines compute `expected` from the folder that the file is converted to."""
    folder = resolve(str(file))
    logits = reference(expected, IDS)
    hf = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert (reference(hf, IDS) - logits).abs().max() < 1e-4, "transformers"
    assert (Cache(load(folder)).step([(IDS, 0)], "sdpa") - logits).abs().max() < 1e-4, "minillm"
    return folder


YARN = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 16}
ROPES: dict[str, tuple[dict[str, Any], dict[str, Any], list[float]]] = {
    "linear": ({"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}, {}, [4.0] * 4),
    "a factor without a type": ({"rope__scaling__factor": 2.0}, {}, [2.0] * 4),
    "a factor's old name": ({"rope__scale_linear": 3.0}, {}, [3.0] * 4),
    "none, whatever the factor": ({"rope__scaling__type": "none", "rope__scaling__factor": 4.0}, {}, [1.0] * 4),
    "rope_freqs": ({}, {"rope_freqs.weight": DIVISORS}, DIVISORS),
    "rope_freqs of ones": ({}, {"rope_freqs.weight": [1.0] * 4}, [1.0] * 4),
    "rope_freqs and linear": (
        {"rope__scaling__type": "linear", "rope__scaling__factor": 2.0},
        {"rope_freqs.weight": DIVISORS},
        [2 * each for each in DIVISORS],
    ),
}


@pytest.mark.parametrize("kind", ROPES)
def test_rotary_scaling_is_carried_over(tmp_path: Path, kind: str) -> None:
    metadata, tensors, divisors = ROPES[kind]
    model = make_model()
    added = {name: np.array(values) for name, values in tensors.items()}
    assert_is(with_divisors(model, divisors), write_gguf(tmp_path / "a.gguf", model, "llama", added, **metadata))


@pytest.mark.parametrize(
    ("metadata", "rope"),
    [
        ({}, {}),
        (
            {"rope__scaling__yarn_beta_fast": 16.0, "rope__scaling__yarn_beta_slow": 2.0},
            dict(beta_fast=16, beta_slow=2),
        ),
        ({"rope__scaling__attn_factor": 0.5}, dict(attention_factor=0.5 * (1 + 0.1 * float(np.log(4.0))))),
    ],
    ids=str,
)
@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_yarn_is_carried_over(tmp_path: Path, family: str, metadata: dict[str, Any], rope: dict[str, Any]) -> None:
    model = make_model(family, head_dim=8)
    file = write_gguf(tmp_path / "a.gguf", model, family.lower(), attention__key_length=8, **YARN, **metadata)
    expected = with_rope(model, rope_type="yarn", factor=4.0, original_max_position_embeddings=16, **rope)
    assert_is(expected, file)


def test_a_linear_factor_of_qwen(tmp_path: Path) -> None:
    model = make_model("Qwen2")
    file = write_gguf(tmp_path / "a.gguf", model, "qwen2", rope__scaling__type="linear", rope__scaling__factor=4.0)
    assert_is(with_divisors(model, [4.0] * 4), file)


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("Llama", dict(tie_word_embeddings=False, rope_theta=500.0, num_key_value_heads=4)),
        ("Llama", dict(head_dim=16)),  # not hidden / heads
        ("Llama", dict(attention_bias=True, mlp_bias=True)),
        ("Qwen2", {}),
        ("Qwen3", dict(head_dim=12, tie_word_embeddings=False)),
        ("Qwen3", dict(head_dim=8, attention_bias=True)),
    ],
    ids=str,
)
def test_what_transformers_reader_leaves_out(tmp_path: Path, family: str, fields: dict[str, Any]) -> None:
    model = make_model(family, **fields)
    head_dim = fields.get("head_dim", 8)
    lengths = dict(attention__key_length=head_dim, attention__value_length=head_dim, rope__dimension_count=head_dim)
    folder = assert_is(model, write_gguf(tmp_path / "a.gguf", model, family.lower(), **lengths))
    assert ModelConfig.from_hf(load_config(folder)).rms_norm_eps == pytest.approx(1e-5)


def test_a_bias_that_is_not_there_is_zero(tmp_path: Path) -> None:
    model = make_model(attention_bias=True)
    for layer in model.model.layers:
        layer.self_attn.o_proj.bias.data.zero_()
    without = {f"blk.{i}.attn_output.bias": None for i in range(2)}
    assert_is(model, write_gguf(tmp_path / "a.gguf", model, "llama", without))


@pytest.mark.parametrize(("family", "named"), [("Llama", "Mistral"), ("Qwen2", "Qwen2")])
def test_a_window_limits_the_context(tmp_path: Path, family: str, named: str) -> None:
    file = write_gguf(tmp_path / "a.gguf", make_model(family), family.lower(), attention__sliding_window=24)
    config = ModelConfig.from_hf(load_config(resolve(str(file))))
    assert (config.architecture, config.max_position_embeddings) == (f"{named}ForCausalLM", 24)


Unsupported, Corrupt = UnsupportedArchitectureError, CorruptCheckpointError


@pytest.mark.parametrize(
    ("metadata", "error", "says"),
    [
        ({"rope__scaling__type": "longrope"}, Unsupported, r"rope\.scaling\.type"),
        ({"rope__scaling__attn_factor": 1.5}, Unsupported, r"attn_factor"),
        ({**YARN, "rope__scaling__yarn_ext_factor": 0.5}, Unsupported, r"yarn_ext_factor"),
        ({"rope__scaling__yarn_log_multiplier": 0.1}, Unsupported, r"yarn_log_multiplier"),
        ({"rope__dimension_count": 4}, Unsupported, r"rope\.dimension_count"),
        ({"attention__value_length": 16}, Unsupported, r"attention\.value_length"),
        ({"attention__clamp_kqv": 8.0}, Unsupported, r"attention\.clamp_kqv"),
        ({"attention__causal": False}, Unsupported, r"attention\.causal"),
        ({"attention__scale": 0.1}, Unsupported, r"attention\.scale"),
        ({"logit_scale": 8.0}, Unsupported, r"logit_scale"),
        ({"expert_count": 8, "expert_used_count": 2}, Unsupported, r"llama\.expert"),
        ({"attention__head_count": [4, 2]}, Unsupported, r"attention\.head_count"),
        ({"attention__head_count": 0}, Corrupt, r"attention\.head_count"),
        ({"embedding_length": "32"}, Corrupt, r"embedding_length"),
        ({"attention__head_count_kv": 3}, Corrupt, r"num_key_value_heads"),
        ({"feed_forward_length": None}, Corrupt, r"llama\.feed_forward_length"),
        ({"attention__layer_norm_rms_epsilon": None}, Corrupt, r"layer_norm_rms_epsilon"),
    ],
    ids=str,
)
def test_a_key_that_is_not_computed_is_refused_by_name(
    tmp_path: Path, metadata: dict[str, Any], error: type[ModelError], says: str
) -> None:
    file = write_gguf(tmp_path / "a.gguf", make_model(), "llama", **metadata)
    with pytest.raises(error, match=says):
        resolve(str(file))


def test_keys_that_say_nothing_are_read_over(tmp_path: Path) -> None:
    says_nothing = dict(expert_count=0, attention__causal=True, logit_scale=1.0, vocab_size=9)
    model = make_model()
    assert_is(model, write_gguf(tmp_path / "a.gguf", model, "llama", **says_nothing))


@pytest.mark.parametrize(
    ("architecture", "tensors", "error"),
    [
        ("llama", {"blk.0.attn_q_norm.weight": np.ones(8)}, Unsupported),
        ("llama", {"blk.2.attn_q.weight": np.ones((32, 32))}, Unsupported),
        ("llama", {"rope_factors_long.weight": np.ones(4)}, Unsupported),
        ("qwen2", {"rope_freqs.weight": np.ones(4)}, Unsupported),
        ("llama", {"blk.1.ffn_up.weight": None}, Corrupt),
        ("llama", {"rope_freqs.weight": np.ones(3)}, Corrupt),
        ("llama", {"rope_freqs.weight": np.zeros(4)}, Corrupt),
    ],
    ids=str,
)
def test_a_tensor_without_a_place_and_a_missing_one_are_named(
    tmp_path: Path, architecture: str, tensors: dict[str, Any], error: type[ModelError]
) -> None:
    file = write_gguf(tmp_path / "a.gguf", make_model(architecture.title()), architecture, tensors)
    with pytest.raises(error, match=next(iter(tensors))):
        resolve(str(file))


def test_a_tokenizer_that_transformers_does_not_know_is_refused(tmp_path: Path) -> None:
    for pre in ("llama-bpe", "smollm"):
        resolve(str(write_gguf(tmp_path / f"{pre}.gguf", make_model(), "llama", pre=pre)))
    file = write_gguf(tmp_path / "a.gguf", make_model(), "llama", pre="viking")
    with pytest.raises(UnsupportedArchitectureError, match=r"tokenizer\.ggml\.pre is 'viking'"):
        resolve(str(file))


@pytest.mark.parametrize(
    ("pre", "add_bos", "words"),
    [
        ("llama-bpe", None, ["<end>", "abba"]),
        ("tekken", True, ["<end>", "abba"]),
        ("llama-bpe", False, ["abba"]),
        ("smollm", None, ["ab", "b", "a"]),
        ("smollm", True, ["<end>", "ab", "b", "a"]),
    ],
)
def test_texts_become_the_tokens_of_llama_cpp(tmp_path: Path, pre: str, add_bos: bool | None, words: list[str]) -> None:
    """With vocabularies like Llama 3's it puts the BOS first and takes a word that is a token as that."""
    file = write_gguf(tmp_path / "a.gguf", make_model(), "llama", pre=pre, add_bos=add_bos)
    tokenizer = load_tokenizer(resolve(str(file)))
    assert tokenizer("abba")["input_ids"] == [TOKENS.index(word) for word in words]
    assert tokenizer("<end>", add_special_tokens=False)["input_ids"] == [END]


def test_a_turn_ends_where_its_end_is_no_key_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = TOKENS.index("abba")
    monkeypatch.setattr("tiny_gguf.TOKENS", [*TOKENS[:place], "<|eot_id|>", *TOKENS[place + 1 :]])
    folder = resolve(str(write_gguf(tmp_path / "a.gguf", make_model(), "llama")))
    assert eos_token_ids(folder, load_tokenizer(folder)) == {END, TURN, place}


@pytest.mark.parametrize(
    ("metadata", "tensors", "before", "after"),
    [
        ({}, {"blk.0.attn_x.weight": np.ones((32, 32))}, b"attn_x", b"attn_q"),
        ({"rope__freq_bass": 500.0}, {}, b"freq_bass", b"freq_base"),
    ],
)
def test_a_second_tensor_or_key_of_one_name_is_refused(
    tmp_path: Path, metadata: dict[str, Any], tensors: dict[str, Any], before: bytes, after: bytes
) -> None:
    file = write_gguf(tmp_path / "a.gguf", make_model(), "llama", tensors, **metadata)
    file.write_bytes(file.read_bytes().replace(before, after))
    with pytest.raises(CorruptCheckpointError, match=f"uplicate.*{after.decode()}"):
        resolve(str(file))


def test_what_an_older_version_converted_is_converted_anew(tmp_path: Path, home: Path) -> None:
    file = write_gguf(tmp_path / "a.gguf", make_model(), "llama", **YARN)
    first = home / "models" / f"gguf-a-{sha256_of(file)[:16]}"
    outdated = [first, first.with_name(f"{first.name}-v2")]
    for folder in outdated:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"rope_parameters": {"rope_type": "default"}}))
    folder = resolve(str(file))
    assert folder.name == f"{first.name}-v{CONVERSION}"
    assert load_config(folder)["rope_parameters"]["rope_type"] == "yarn"
    assert not any(path.exists() for path in outdated), "they take room, and nothing reads them"
