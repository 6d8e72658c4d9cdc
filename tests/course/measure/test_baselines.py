"""What `--compare` names: each is found, made, or refused with what to do."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from course.measure.cli import BaselineName
from course.measure.contest import MissingBaselineError
from course.measure.peers.make import MAKERS, check_installed, folder_with_weights, make_baselines
from minillm.cli import app
from minillm.policies.config import EngineConfig


def config_of(model: Path, **changes: Any) -> EngineConfig:
    limits = {"max_num_seqs": 8, "max_num_batched_tokens": 256, "num_kv_blocks": 128, "block_size": 16}
    return EngineConfig(**{"model": str(model), "dtype": "float32", "device": "cpu", **limits, **changes})


def test_every_name_of_the_command_line_has_a_maker() -> None:
    assert {name.value for name in BaselineName} == set(MAKERS)


def test_a_name_given_twice_counts_once(tiny_llama_path: Path) -> None:
    peers = make_baselines(["hf", "hf"], config_of(tiny_llama_path))
    assert [peer.name for peer in peers] == ["hf_generate", "hf_continuous"]


@pytest.mark.parametrize(
    ("name", "install"), [("llama.cpp", "llama-cpp-python"), ("nano-vllm", "pip install git")], ids=str
)
def test_what_is_not_installed_is_said_before_anything_is_loaded(
    name: str, install: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr("course.measure.compare.Minillm", lambda **_: pytest.fail("it loaded the model first"))
    with pytest.raises(MissingBaselineError, match=rf"--compare {name} needs .*{install}"):
        check_installed([name])
    result = CliRunner().invoke(app, ["bench", "--quick", "--compare", name])
    assert isinstance(result.exception, MissingBaselineError)


def test_llama_cpp_gets_the_gguf_file_itself_or_copies_in_both_16_bit_types(
    tiny_llama_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("llama_cpp", reason="the extra `bench` is not installed: pip install llama-cpp-python")
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path / "cache"))
    settings = config_of(tiny_llama_path, dtype="bfloat16")
    peers = make_baselines(["llama.cpp"], settings)
    names = "llama_cpp llama_cpp_per_seq llama_cpp_f16 llama_cpp_per_seq_f16"
    assert [peer.name for peer in peers] == names.split()
    assert [peer.describe()["dtype"] for peer in peers[::2]] == ["BF16", "F16"]
    from course.measure.peers.gguf_export import write_gguf

    write_gguf(tiny_llama_path, tmp_path / "mine.gguf", "float32")
    [unified, _] = make_baselines(["llama.cpp"], config_of(tmp_path / "mine.gguf"))
    assert unified.describe()["dtype"] == "all F32"


def test_a_config_alone_becomes_a_folder_that_others_can_read(
    tiny_llama_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    monkeypatch.setenv("MINILLM_HOME", str(tmp_path / "cache"))
    shape = tmp_path / "shape.json"
    shutil.copy(tiny_llama_path / "config.json", shape)
    folder = folder_with_weights(shape, "bfloat16")
    assert folder_with_weights(shape, "bfloat16") == folder
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert (model.dtype, model.config.hidden_size) == (torch.bfloat16, 64)
    assert AutoTokenizer.from_pretrained(folder).eos_token_id == 0
    assert folder_with_weights(tiny_llama_path, "float32") == tiny_llama_path
