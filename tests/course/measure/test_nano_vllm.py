"""nano-vllm as a baseline, as far as it can be told without a GPU: what it cannot run is refused."""

from pathlib import Path

import pytest
import torch

from course.measure.contest import MissingBaselineError
from course.measure.peers.nano_vllm import NanoVLLM, check_model
from minillm.bench.errors import BenchmarkError


def test_what_it_cannot_run_is_refused() -> None:
    check_model({"architectures": ["Qwen3ForCausalLM"], "dtype": "bfloat16"}, "bfloat16")
    with pytest.raises(BenchmarkError, match="implements Qwen3ForCausalLM only"):
        check_model({"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}, "bfloat16")
    with pytest.raises(BenchmarkError, match="compare with --dtype float32"):
        check_model({"architectures": ["Qwen3ForCausalLM"], "dtype": "float32"}, "bfloat16")


def test_without_a_gpu_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MissingBaselineError, match="sees no GPU"):
        NanoVLLM(tmp_path, "bfloat16")
