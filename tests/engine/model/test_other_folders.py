"""Checkpoint folders as other people leave them: the model that transformers would run, or an error that names the
tensor or the field."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from minillm import SamplingParams
from minillm.frontend.llm import LLM
from minillm.model.checkpoints import eos_token_ids, load_config, load_tokenizer
from minillm.model.config import ModelConfig
from minillm.model.errors import CorruptCheckpointError, ModelError, UnsupportedArchitectureError

from .test_decoder import SHAPE, Cache, load, make_checkpoint, reference, tokens_of

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
HEAD, EMBEDDINGS, NORM = "lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"
DIVISORS = [1.0, 1.1, 2.0, 8.0]


def edit(folder: Path, file: str = "config.json", **fields: Any) -> None:
    """Set fields of a JSON file; None takes one out."""
    path = folder / file
    content = (json.loads(path.read_text()) if path.exists() else {}) | fields
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


def retype(folder: Path, dtype: torch.dtype, *names: str) -> None:
    """Store some tensors, or all, in another type."""
    tensors = load_file(folder / WHOLE)
    save(folder, {name: each.to(dtype) if name in (names or tensors) else each for name, each in tensors.items()})


def save(folder: Path, tensors: dict[str, torch.Tensor], file: str = WHOLE) -> None:
    save_file({name: each.contiguous() for name, each in tensors.items()}, folder / file, metadata={"format": "pt"})


def put(folder: Path, **tensors: torch.Tensor) -> None:
    """Add tensors, or put others in their place; a name's dots are written as two underscores."""
    save(folder, load_file(folder / WHOLE) | {name.replace("__", "."): each for name, each in tensors.items()})


def shard(folder: Path, *, also_in_second: dict[str, torch.Tensor] | None = None, astray: str = "") -> None:
    """Two shards and an index.

    Args:
        also_in_second: tensors that the second shard holds besides its own.
        astray: a tensor that the index gives to the other shard than the one that holds it.
    """
    tensors = load_file(folder / WHOLE)
    (folder / WHOLE).unlink()
    names = sorted(tensors)
    files = {name: f"model-0000{1 + (i >= len(names) // 2)}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        part = {name: each for name, each in tensors.items() if files[name] == file}
        save(folder, part | (also_in_second or {} if "00002-of" in file else {}), file)
    if astray:
        files[astray] = next(file for file in files.values() if file != files[astray])
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}))


def first_matrix(folder: Path) -> dict[str, torch.Tensor]:
    return {"lm_head.weight": load_file(folder / WHOLE)["lm_head.weight"]}


def another_head(folder: Path) -> None:
    edit(folder, tie_word_embeddings=True)


def the_same_head(folder: Path) -> None:
    edit(folder, tie_word_embeddings=True)
    put(folder, lm_head__weight=load_file(folder / WHOLE)[EMBEDDINGS].clone())


def another_head_in_a_shard(folder: Path) -> None:
    another_head(folder)
    shard(folder)


def stale_index(folder: Path) -> None:
    tensors = load_file(folder / WHOLE)
    save(folder, {name: each + 1 for name, each in tensors.items()}, "model-00001-of-00001.safetensors")
    weight_map = dict.fromkeys(tensors, "model-00001-of-00001.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def left_over_shard(folder: Path) -> None:
    shard(folder)
    save(folder, {NORM: torch.zeros(48)}, "model-00003-of-00003.safetensors")


def two_files(folder: Path) -> None:
    (folder / WHOLE).rename(folder / "a.safetensors")
    save(folder, {NORM: torch.zeros(48)}, "b.safetensors")


RUNS: dict[str, Callable[[Path], None]] = {
    "tied, another head stored": another_head,
    "tied, another head in a shard": another_head_in_a_shard,
    "tied, the same head stored": the_same_head,
    "model.safetensors beside a stale index": stale_index,
    "a shard that the index does not name": left_over_shard,
    "an index that gives a tensor to the wrong shard": lambda folder: shard(folder, astray=NORM),
    "a tensor twice, the same": lambda folder: shard(folder, also_in_second=first_matrix(folder)),
    "float16": lambda folder: retype(folder, torch.float16),
    "some bfloat16, some float64": lambda folder: (
        retype(folder, torch.bfloat16, HEAD, NORM),
        retype(folder, torch.float64, EMBEDDINGS),
    )[0],
    "old rotary frequencies": lambda folder: put(
        folder, model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(4)
    ),
    "rope_scaling beside rope_parameters": lambda folder: edit(
        folder, rope_scaling={"type": "linear", "factor": 4.0}, rope_theta=500.0
    ),
    "rope_theta beside rope_parameters": lambda folder: edit(folder, rope_theta=33.0),
    "longrope, one set": lambda folder: edit(
        folder,
        rope_parameters=dict(
            rope_type="longrope",
            rope_theta=300.0,
            short_factor=DIVISORS,
            long_factor=DIVISORS,
            factor=4.0,
            original_max_position_embeddings=16,
        ),
    ),
    "longrope, up to its original length": lambda folder: edit(
        folder,
        original_max_position_embeddings=48,
        rope_parameters=dict(rope_type="longrope", rope_theta=300.0, short_factor=DIVISORS, long_factor=[9.0] * 4),
    ),
    "swish": lambda folder: edit(folder, hidden_act="swish"),
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama of random weights, float32, with a head of its own."""
    folder = tmp_path_factory.mktemp("llama")
    make_checkpoint(folder)
    return folder


@pytest.fixture
def folder(llama: Path, tmp_path: Path) -> Path:
    return shutil.copytree(llama, tmp_path / "model")


@pytest.mark.parametrize("kind", RUNS)
def test_what_runs_is_what_transformers_runs(folder: Path, kind: str) -> None:
    RUNS[kind](folder)
    hf = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = tokens_of(45)
    computed = Cache(load(folder)).step([(tokens, 0)], "sdpa")
    assert (computed - reference(hf, tokens)).abs().max() < 1e-4


def test_a_head_that_config_json_ties_is_warned_of(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    the_same_head(folder)
    load(folder)
    assert not caplog.records
    put(folder, lm_head__weight=torch.ones(97, 48))
    load(folder)
    assert "lm_head.weight" in caplog.text and caplog.records[0].levelno == logging.WARNING


Corrupt, Unsupported = CorruptCheckpointError, UnsupportedArchitectureError
Q = "model.layers.1.self_attn.q_proj.weight"
REFUSED: dict[str, tuple[Callable[[Path], None], type[ModelError], str]] = {
    "a tensor twice, another": (
        lambda folder: shard(folder, also_in_second={HEAD: torch.zeros(97, 48)}),
        Corrupt,
        f"different tensors.*{HEAD}",
    ),
    "a tensor twice, without an index": (two_files, Corrupt, f"different tensors.*{NORM}"),
    **{
        str(dtype): (lambda folder, dtype=dtype: retype(folder, dtype, Q), Corrupt, f"{Q} is stored as {dtype}")
        for dtype in (torch.int8, torch.uint8, torch.int32, torch.float8_e4m3fn, torch.bool)
    },
    "no number": (lambda folder: put(folder, model__norm__weight=torch.full((48,), torch.nan)), Corrupt, NORM),
    "infinite": (lambda folder: put(folder, lm_head__weight=torch.full((97, 48), -torch.inf)), Corrupt, HEAD),
    "another rotary embedding": (
        lambda folder: edit(folder, rope_parameters={"rope_type": "odd", "rope_theta": 1e4}),
        Unsupported,
        "odd",
    ),
    "an adapter": (lambda folder: edit(folder, "adapter_config.json", r=8), Unsupported, "adapter_config.json"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_refused_is_named(folder: Path, kind: str) -> None:
    spoil, error, says = REFUSED[kind]
    spoil(folder)
    with pytest.raises(error, match=says):
        load(folder)


def test_what_float16_cannot_hold_is_named(folder: Path) -> None:
    put(folder, lm_head__weight=torch.full((97, 48), 1e6))
    with pytest.raises(CorruptCheckpointError, match=r"lm_head\.weight.*float16"):
        load(folder, "float16")


@pytest.mark.parametrize(
    "fields",
    [
        dict(quantization_config={"quant_method": "gptq"}),
        dict(compression_config={"quant_method": "compressed-tensors"}),
        dict(transformers_weights="other.safetensors"),
        dict(is_causal=False),
        dict(per_layer_config={"0": {"num_attention_heads": 3}}),
        dict(partial_rotary_factor=0.5),
        dict(rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}),
        dict(rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 1e4}}),
        dict(layer_types=["full_attention", "linear_attention", "full_attention"]),
        dict(layer_types=["sliding_attention"] * 3),
        dict(logits_scaling=8.0),
        dict(residual_multiplier=0.2),
        dict(attn_logit_softcapping=50.0),
        dict(no_rope_layers=[1, 1, 0]),
        dict(use_qk_norm=True),
        dict(model_type="mistral"),
        dict(hidden_act="gelu"),
        dict(head_dim=7),
        dict(hidden_size="48"),
        dict(hidden_size=None),
        dict(num_hidden_layers=3.0),
        dict(rms_norm_eps=-1e-6),
        dict(num_key_value_heads=4),
        dict(tie_word_embeddings="false"),
        dict(attention_bias=1),
        dict(architectures=5),
        dict(architectures=[5]),
        dict(layer_types=1),
        dict(head_dim=2**63),
        dict(num_hidden_layers=2**31 - 1),
        dict(rms_norm_eps=10**31),
    ],
    ids=str,
)
def test_a_field_that_changes_the_computation_is_refused_by_name(folder: Path, fields: dict[str, Any]) -> None:
    edit(folder, **fields)
    with pytest.raises(ModelError, match=next(iter(fields))):
        load(folder)


def test_fields_that_change_nothing_are_read_over(folder: Path) -> None:
    edit(folder, logits_scaling=1.0, attn_logit_softcapping=0, use_qk_norm=False, pretraining_tp=2, is_causal=True)
    load(folder)


def test_rotations_for_a_context_of_millions_are_read(folder: Path) -> None:
    edit(folder, rope_parameters={"rope_type": "default", "rope_theta": 45_913_617_331.0})
    load(folder)


@pytest.mark.parametrize("kind", ["linear", "llama3", "yarn", "longrope"])
@pytest.mark.parametrize("field", ["factor", "attention_factor", "low_freq_factor", "original_max_position_embeddings"])
@pytest.mark.parametrize("value", [2**70, 1e308, -1, "x", ["x"]], ids=str)
def test_a_rotation_that_is_none_is_refused_by_name(folder: Path, kind: str, field: str, value: Any) -> None:
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 32}
    edit(folder, rope_parameters={**rope, "low_freq_factor": 1.0, "high_freq_factor": 4.0, field: value})
    with pytest.raises(CorruptCheckpointError, match=field):
        load(folder)


@pytest.mark.parametrize("fields", [dict(vocab_size=2**31 - 1), dict(num_hidden_layers=9_999)], ids=str)
def test_no_memory_is_asked_for_that_the_weights_cannot_fill(folder: Path, fields: dict[str, Any]) -> None:
    edit(folder, **fields)
    with pytest.raises(CorruptCheckpointError, match="parameters"):
        load(folder)


@pytest.mark.parametrize(
    ("architecture", "fields", "longest"),
    [
        ("Mistral", dict(max_position_embeddings=8192), 4096),  # transformers' window where none is stated
        ("Mistral", dict(sliding_window=32, use_sliding_window=False), 32),  # a switch that is Qwen's
        ("Qwen3", dict(sliding_window=32, use_sliding_window=False), 64),
        ("Llama", dict(sliding_window=32), 32),
        ("Mistral", dict(sliding_window=32), 32),
        ("Mistral", dict(sliding_window=None), 64),
        ("Qwen2", dict(sliding_window=32), 64),
        ("Qwen2", dict(sliding_window=32, use_sliding_window=True), 32),
        ("Llama", dict(rope_scaling=dict(type="yarn", factor=8.0, original_max_position_embeddings=32)), 256),
    ],
)
def test_the_window_is_transformers(architecture: str, fields: dict[str, Any], longest: int) -> None:
    hf = {"architectures": ["Other", f"{architecture}ForCausalLM"], **SHAPE, **fields}
    assert ModelConfig.from_hf(hf).max_position_embeddings == longest


def test_key_value_heads_are_not_guessed() -> None:
    hf = {"architectures": ["Qwen2ForCausalLM"], **SHAPE}
    del hf["num_key_value_heads"]
    with pytest.raises(CorruptCheckpointError, match="num_key_value_heads"):
        ModelConfig.from_hf(hf)
    assert (
        ModelConfig.from_hf({**hf, "architectures": ["LlamaForCausalLM"]}).num_kv_heads == SHAPE["num_attention_heads"]
    )


# ---------------------------------------------------------------- what ends an output


@pytest.fixture
def chatty(tiny_llama_path: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_llama_path, tmp_path / "chatty")


def test_the_tokenizers_end_counts_beside_the_configs(chatty: Path) -> None:
    for file in ("config.json", "generation_config.json"):
        edit(chatty, file, eos_token_id=0)
    assert eos_token_ids(chatty, load_tokenizer(chatty)) == {0, 2}
    llm = LLM(model=str(chatty), dtype="float32")
    ends = SamplingParams(temperature=0, max_tokens=20, logit_bias={2: 100.0})
    [output] = llm.generate("Hello", ends)
    assert (output.finish_reason, len(output.token_ids)) == ("stop", 1)


@pytest.mark.parametrize(("stated", "ends"), [([3, 4], {2, 3, 4}), (-1, {2}), (7, {2, 7})])
def test_eos_as_configs_state_it(chatty: Path, stated: Any, ends: set[int]) -> None:
    edit(chatty, "generation_config.json", eos_token_id=stated)
    assert eos_token_ids(chatty, load_tokenizer(chatty)) == ends


@pytest.mark.parametrize("stated", ["</s>", [[2]], 2.5, True])
def test_eos_that_is_no_token_is_named(chatty: Path, stated: Any) -> None:
    edit(chatty, "generation_config.json", eos_token_id=stated)
    with pytest.raises(CorruptCheckpointError, match=r"generation_config\.json: eos_token_id"):
        eos_token_ids(chatty, load_tokenizer(chatty))


def test_what_changes_transformers_greedy_output_is_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    edit(folder, "generation_config.json", repetition_penalty=1.0, suppress_tokens=[], top_k=20, temperature=0.7)
    load(folder)
    assert not caplog.records
    edit(folder, "generation_config.json", repetition_penalty=1.1, suppress_tokens=[5])
    load(folder)
    assert "repetition_penalty=1.1" in caplog.text and "suppress_tokens=[5]" in caplog.text


def test_files_may_begin_with_a_byte_order_mark(chatty: Path) -> None:
    before = load_config(chatty), eos_token_ids(chatty, load_tokenizer(chatty)), load_tokenizer(chatty).get_vocab()
    for file in [*chatty.glob("*.json"), *chatty.glob("*.jinja")]:
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    tokenizer = load_tokenizer(chatty)
    assert before == (load_config(chatty), eos_token_ids(chatty, load_tokenizer(chatty)), tokenizer.get_vocab())
    assert "\ufeff" not in tokenizer.chat_template
