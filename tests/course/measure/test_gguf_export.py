"""The GGUF file that llama.cpp gets holds the checkpoint's own weights: read back, they are what they were."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFReader

from course.measure.conform.checkpoint import write_checkpoint
from course.measure.peers.gguf_export import export_once, write_gguf
from minillm.bench.errors import BenchmarkError
from minillm.model.checkpoints import iter_weights
from minillm.model.config import ModelConfig
from minillm.model.errors import UnsupportedArchitectureError
from minillm.model.rope import inverse_frequencies

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def with_config(folder: Path, target: Path, **changes: Any) -> Path:
    """The same weights under a changed config.json."""
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, **changes}))
    return target


def tensors_of(file: Path) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in GGUFReader(file).tensors}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_what_transformers_reads_back_is_the_checkpoint(
    tiny_llama_path: Path, tmp_path: Path, kind: str, dtype: str
) -> None:
    from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

    folder = tiny_llama_path
    if kind == "qwen3":
        folder = tmp_path / "qwen3"
        config = Qwen3Config(
            vocab_size=300,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=128,  # transformers reads no other from a Qwen3 GGUF file
            tie_word_embeddings=True,
        )
        Qwen3ForCausalLM(config).save_pretrained(folder)
    write_gguf(folder, tmp_path / "model.gguf", dtype)
    read = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32)
    expected = dict(iter_weights(folder))
    found = read.state_dict()
    assert set(expected) == set(found) - ({"lm_head.weight"} if kind == "qwen3" else set())
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor.to(getattr(torch, dtype)).float()), name
    for key in ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"):
        assert getattr(read.config, key) == json.loads((folder / "config.json").read_text())[key]


def test_vectors_stay_in_float32(tiny_llama_path: Path, tmp_path: Path) -> None:
    write_gguf(tiny_llama_path, tmp_path / "model.gguf", "bfloat16")
    types = {name: tensor.tensor_type.name for name, tensor in tensors_of(tmp_path / "model.gguf").items()}
    assert types["blk.0.attn_norm.weight"] == types["output_norm.weight"] == "F32"
    assert types["blk.1.ffn_down.weight"] == types["token_embd.weight"] == types["output.weight"] == "BF16"


def test_stretched_frequencies_are_written_as_divisors(tiny_llama_path: Path, tmp_path: Path) -> None:
    folder = with_config(tiny_llama_path, tmp_path / "llama3", rope_parameters=LLAMA3)
    write_gguf(folder, tmp_path / "model.gguf", "float32")
    divisors = torch.tensor(tensors_of(tmp_path / "model.gguf")["rope_freqs.weight"].data)
    config = ModelConfig.from_hf(json.loads((folder / "config.json").read_text()))
    plain, _ = inverse_frequencies({**config.rope, "rope_type": "default"}, config.head_dim)
    stretched, _ = inverse_frequencies(config.rope, config.head_dim)
    torch.testing.assert_close(plain / divisors, stretched)
    assert divisors.max() == pytest.approx(8.0)


def test_what_cannot_be_told_to_llama_cpp_is_refused(tiny_llama_path: Path, tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}
    folder = with_config(tiny_llama_path, tmp_path / "yarn", rope_parameters=yarn)
    with pytest.raises(UnsupportedArchitectureError, match="rope type 'yarn' of a LlamaForCausalLM"):
        write_gguf(folder, tmp_path / "model.gguf", "float32")
    with pytest.raises(BenchmarkError, match="in bfloat16 or float16 or float32, not in float64"):
        write_gguf(tiny_llama_path, tmp_path / "model.gguf", "float64")


def test_a_value_that_float16_cannot_hold_is_refused(
    tiny_llama_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = [(name, torch.full_like(tensor, 1e5)) for name, tensor in iter_weights(tiny_llama_path)]
    monkeypatch.setattr("course.measure.peers.gguf_export.iter_weights", lambda folder: large)
    write_gguf(tiny_llama_path, tmp_path / "model.gguf", "bfloat16")
    with pytest.raises(BenchmarkError, match="has values beyond 65504: float16 cannot hold them"):
        write_gguf(tiny_llama_path, tmp_path / "model.gguf", "float16")


def test_it_is_made_once_for_one_content(
    tiny_llama_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path / "cache"))
    first = export_once(tiny_llama_path, "bfloat16")
    made = first.stat().st_mtime_ns
    assert export_once(tiny_llama_path, "bfloat16") == first
    assert first.stat().st_mtime_ns == made
    assert export_once(tiny_llama_path, "float32") != first
    other = with_config(tiny_llama_path, tmp_path / tiny_llama_path.name, rope_parameters=LLAMA3)
    assert export_once(other, "bfloat16") != first


def test_a_tokenizer_that_is_read_back_splits_text_as_before(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = write_checkpoint(tmp_path / "tiny")
    write_gguf(folder, tmp_path / "tiny.gguf", "float32", with_tokenizer=True)
    own, back = AutoTokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(tmp_path, gguf_file="tiny.gguf")
    text = "  Two engines' caches, 1,024 blocks each:\n\n\tнет\U0001f336"
    assert own.encode(text) == back.encode(text, add_special_tokens=False)
    assert (own.eos_token_id, own.chat_template) == (back.eos_token_id, back.chat_template)
