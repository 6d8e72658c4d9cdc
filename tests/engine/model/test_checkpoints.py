"""Names to folders, and what is said about broken ones."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer

from minillm import LLM
from minillm.bench.target import Target
from minillm.model.checkpoints import (
    PLAIN_TOKENIZERS,
    eos_token_ids,
    iter_weights,
    load_config,
    load_model_config,
    load_tokenizer,
    resolve,
)
from minillm.model.errors import CorruptCheckpointError, UnknownModelError, UnsupportedArchitectureError


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Two shards with an index, and a config; no tokenizer."""
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"], "eos_token_id": 7}))
    save_file({"a": torch.ones(2, 3)}, tmp_path / "model-1.safetensors")
    save_file({"b": torch.zeros(4, dtype=torch.bfloat16)}, tmp_path / "model-2.safetensors")
    weight_map = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return tmp_path


def test_the_default_model_is_smollm2(smollm_path: Path) -> None:
    assert resolve("smollm2-135m") == smollm_path
    config = load_config(smollm_path)
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert "quantization_config" not in config
    weights = dict(iter_weights(smollm_path))
    assert len(weights) == 272
    assert sum(weight.numel() for weight in weights.values()) == 134_515_008
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert eos_token_ids(smollm_path, load_tokenizer(smollm_path)) == {2}


def test_a_local_folder_and_a_config_file_resolve_to_themselves(checkpoint: Path) -> None:
    assert resolve(str(checkpoint)) == checkpoint
    config_file = checkpoint / "config.json"
    assert resolve(str(config_file)) == config_file
    assert load_config(config_file) == load_config(checkpoint)
    assert eos_token_ids(config_file, load_tokenizer(config_file)) == {7}


@pytest.mark.parametrize("name", ["smolm2-135m", "no such model", "/no/such/folder", "./x/y.gguf", ""])
def test_an_unknown_name_is_told_what_there_is(name: str) -> None:
    with pytest.raises(UnknownModelError, match="smollm2-135m"):
        resolve(name)


def test_a_shape_without_a_decoder_is_not_loaded(tmp_path: Path, tiny_llama_path: Path) -> None:
    """Of two models, the error says which."""
    config = tmp_path / "config.json"
    config.write_text('{"architectures": ["DeepseekV3ForCausalLM"]}')
    says = f"^{re.escape(str(tmp_path))}.*DeepseekV3ForCausalLM; minillm implements Llama"
    with pytest.raises(UnsupportedArchitectureError, match=says):
        LLM(model=str(config), load_format="dummy")
    with pytest.raises(UnsupportedArchitectureError, match=says):
        LLM(model=str(tiny_llama_path), speculative={"method": "draft_model", "model": str(tmp_path)})


def test_a_hub_that_cannot_be_reached_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(UnknownModelError, match=r"no route to host.*local folder"):
        resolve("some-org/some-model")


def test_a_hub_id_gives_the_snapshot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: asked.append(name) or str(tmp_path))
    assert resolve("some-org/some-model") == tmp_path
    assert asked == ["some-org/some-model"]


CONFIG, INDEX, SHARD = "config.json", "model.safetensors.index.json", "model-1.safetensors"


@pytest.mark.parametrize(
    ("content", "error", "says"),
    [
        (
            '{"architectures": ["GPT2LMHeadModel"]}',
            UnsupportedArchitectureError,
            "GPT2LMHeadModel.*LlamaForCausalLM.*Qwen3ForCausalLM",
        ),
        ('{"model_type": "mystery"}', UnsupportedArchitectureError, "mystery"),
        *((broken, CorruptCheckpointError, r"config\.json") for broken in ('{"architectures": [', "[]", "\0\0", "")),
        (None, CorruptCheckpointError, r"config\.json is missing"),
    ],
)
def test_a_config_that_cannot_be_read(checkpoint: Path, content: str | None, error: type, says: str) -> None:
    (checkpoint / CONFIG).unlink() if content is None else (checkpoint / CONFIG).write_text(content)
    with pytest.raises(error, match=says):
        load_model_config(checkpoint)


def test_an_error_about_a_config_says_where_it_is(checkpoint: Path) -> None:
    """A command may read the config.json of two models, and `resolve` find one in a cache."""
    (checkpoint / CONFIG).write_text('{"architectures": ["LlamaForCausalLM"], "num_attention_heads": 0}')
    for read in (Target(str(checkpoint)).model_config, lambda: load_model_config(checkpoint)):
        with pytest.raises(CorruptCheckpointError, match=f"^{re.escape(str(checkpoint))}: .*num_attention_heads"):
            read()


def test_shards_are_read_through_the_index(checkpoint: Path) -> None:
    save_file({"a": torch.full((2, 3), 9.0)}, checkpoint / "left-over.safetensors")  # not in the index: not read
    weights = dict(iter_weights(checkpoint))
    assert set(weights) == {"a", "b"}
    assert torch.equal(weights["a"], torch.ones(2, 3))
    assert weights["b"].dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        *((SHARD, lambda old, keep=keep: old[:keep], r"model-1\.safetensors") for keep in (0, 4, 30, -1)),
        (SHARD, None, r"model-1\.safetensors"),
        (INDEX, lambda old: b"{}", "weight_map"),
    ],
)
def test_weights_that_cannot_be_read(checkpoint: Path, file: str, content: Any, says: str) -> None:
    path = checkpoint / file
    path.unlink() if content is None else path.write_bytes(content(path.read_bytes()))
    with pytest.raises(CorruptCheckpointError, match=says):
        list(iter_weights(checkpoint))


def test_a_folder_without_weights_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(CorruptCheckpointError, match="save_pretrained"):
        list(iter_weights(tmp_path))


def test_no_tokenizer_is_none_and_a_broken_one_is_named(checkpoint: Path) -> None:
    assert load_tokenizer(checkpoint) is None
    (checkpoint / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(CorruptCheckpointError, match="tokenizer"):
        load_tokenizer(checkpoint)
    (checkpoint / "tokenizer_config.json").write_text("{")
    with pytest.raises(CorruptCheckpointError, match=r"^[^ ]*tokenizer_config\.json cannot be read.*again$"):
        load_tokenizer(checkpoint)


@pytest.mark.parametrize("name", [None, "Theirs", "Qwen2Tokenizer"])
@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_a_program_that_comes_with_a_tokenizer_is_never_run(
    tmp_path: Path, smollm_path: Path, name: str | None, model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tokenizer.json is read instead."""
    stated = json.loads((smollm_path / "tokenizer_config.json").read_text())
    stated |= {"tokenizer_class": name, "auto_map": {"AutoTokenizer": ["theirs.Theirs", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(stated))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    (tmp_path / "theirs.py").write_text("raise SystemExit")
    monkeypatch.setattr("builtins.input", pytest.fail)
    shutil.copy(smollm_path / "tokenizer.json", tmp_path)
    ours, plain = load_tokenizer(tmp_path), load_tokenizer(smollm_path)
    assert ours is not None and ours.encode("Zoë's 東京") == plain.encode("Zoë's 東京")


def test_a_tokenizer_that_is_only_a_program_is_refused_without_a_question(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stated = {"tokenizer_class": None, "auto_map": {"AutoTokenizer": ["theirs.Tokenizer", None]}}
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(stated))
    (checkpoint / "tokenizer.model").touch()
    monkeypatch.setattr("builtins.input", pytest.fail)
    with pytest.raises(UnsupportedArchitectureError, match=r"auto_map.*tokenizer\.json"):
        load_tokenizer(checkpoint)


@pytest.mark.parametrize(
    ("model_type", "named"), [*(("llama", name) for name in PLAIN_TOKENIZERS), ("qwen2", PLAIN_TOKENIZERS[0])]
)
def test_the_tokenizer_is_the_one_that_transformers_would_choose(
    tmp_path: Path, smollm_path: Path, model_type: str, named: str
) -> None:
    for name in ("tokenizer.json", "chat_template.jinja"):
        shutil.copy(smollm_path / name, tmp_path)
    stated = json.loads((smollm_path / "tokenizer_config.json").read_text()) | {"tokenizer_class": named}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(stated))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    ours, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert type(ours) is type(theirs) and ours.get_vocab() == theirs.get_vocab()
    text = "<|im_start|>It's 12:05.\n\n  Zoë paid 3,40€ for 東京<|im_end|>"
    assert ours.encode(text) == theirs.encode(text)
    assert ours.special_tokens_map == theirs.special_tokens_map
    chat = [{"role": "user", "content": "Hello"}]
    written = [each.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) for each in (ours, theirs)]
    assert written[0] == written[1]


def test_a_llama_loads_without_most_of_transformers(smollm_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from minillm.model.checkpoints import load_tokenizer; "
        f"load_tokenizer(Path({str(smollm_path)!r})); "
        "print([name for name in ('transformers.models.auto', 'torch._dynamo') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"


def test_eos_comes_from_the_generation_config_first(checkpoint: Path) -> None:
    assert eos_token_ids(checkpoint, load_tokenizer(checkpoint)) == {7}
    (checkpoint / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4]}))
    assert eos_token_ids(checkpoint, load_tokenizer(checkpoint)) == {3, 4}


def test_eos_comes_from_the_tokenizer_last(tiny_llama_path: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_llama_path, tmp_path / "copy")
    (folder / "generation_config.json").unlink()
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}))
    assert eos_token_ids(folder, load_tokenizer(folder)) == {2}
