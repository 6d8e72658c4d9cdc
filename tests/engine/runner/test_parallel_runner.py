"""Tensor parallelism: two ranks, here processes on the CPU, give token by token what one gives."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from model.test_decoder import make_checkpoint

from course.simulator.cost.models import PricedModel
from course.simulator.cost.placement import Placement
from minillm import LLM, EngineConfig, SamplingParams
from minillm.core.errors import ConfigError, DeviceLostError
from minillm.kernels.cpu.layers import pack_layers
from minillm.model.checkpoints import load_config
from minillm.model.config import ModelConfig
from minillm.model.errors import UnsupportedArchitectureError
from minillm.model.loader import LoadedModel, load_model
from minillm.model.parallel import Ranks, split
from minillm.runner.parallel_runner import end_all, meet

SHAPE = dict(vocab_size=96, num_attention_heads=4, hidden_size=64, intermediate_size=128, max_position_embeddings=128)
LLAMA = dict(architecture="Llama", attention_bias=True, mlp_bias=True, tie_word_embeddings=False)
QWEN3 = dict(architecture="Qwen3", head_dim=16, tie_word_embeddings=True)
LOOKUP = dict(method="ngram", ngram_min=1, k=3, min_output_tokens=2, acceptance_floor=0)
FIELDS = dict(dtype="float32", device="cpu", max_num_batched_tokens=32, block_size=4, num_kv_blocks=30)
DRAFT_MODEL = dict(method="draft_model", model="smollm2-135m")
PROMPTS = [[*([5, 6, 7, 8, 9] * 8), i] for i in range(6)]


@pytest.fixture(scope="module", params=[(LLAMA, "swap"), (QWEN3, "recompute")], ids=["llama", "qwen3"])
def fields(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict:
    (shape, preemption), folder = request.param, tmp_path_factory.mktemp("tiny")
    make_checkpoint(folder, **SHAPE, **shape)
    return dict(FIELDS, model=str(folder), preemption=preemption, speculative=LOOKUP)


@pytest.fixture(scope="module")
def llm(fields: dict) -> Iterator[LLM]:
    yield (llm := LLM(**fields, tensor_parallel_size=2))
    llm.engine.close()


def answers(llm: LLM) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    return [output.token_ids for output in llm.generate(PROMPTS, params, use_tqdm=False)]


def test_two_ranks_give_the_tokens_of_one(llm: LLM, fields: dict) -> None:
    assert answers(llm) == answers(LLM(**fields))
    shares = [share for step in llm.engine.steps for share in step.shares]
    assert llm.engine.scheduler.num_preemptions > 0 and llm.engine.scheduler.prefix_hits > 0
    assert 10 < sum(share.num_accepted for share in shares) < sum(share.num_drafts for share in shares) - 10


def test_a_rank_holds_what_the_simulator_counts(llm: LLM, fields: dict) -> None:
    """But for norms, and biases after a sum, which each rank has whole: the simulator counts them once."""
    cost, half = PricedModel.of(ModelConfig.from_hf(load_config(Path(fields["model"])))), Placement(2, *["float32"] * 2)
    weights = {name: weight.nbytes for name, weight in llm.engine.loaded_model.decoder.named_parameters()}
    whole = sum(weights[name] for name in weights if "norm" in name or name.endswith("part.bias"))
    assert sum(weights.values()) == (half.weight_bytes(cost) + whole) / 2
    pool = llm.engine.torch_runner.kv_pool
    assert sum(layer.nbytes for layer in pool.layers) == (30 + 1) * 4 * half.kv_bytes_per_token(cost)


def test_layers_with_an_all_reduce_are_not_one_call_of_our_cpp(fields: dict) -> None:
    config = EngineConfig(model=fields["model"], dtype="bfloat16", device="cpu")
    assert pack_layers(load_model(config, Ranks(1, 2)).decoder.layers) is None


def test_ranks_end_together(llm: LLM, fields: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """Llama's rank 1 is killed; Qwen3's rank 0 gets Ctrl-C in the middle of a step."""
    (process,) = llm.engine.torch_runner.processes
    if fields["preemption"] == "swap":
        process.kill()
    else:
        monkeypatch.setattr(llm.engine.loaded_model.decoder.norm, "add_and_norm", press)
        with pytest.raises(KeyboardInterrupt):
            answers(llm)
    with pytest.raises(DeviceLostError, match="start the engine again"):
        answers(llm)
    assert process.poll() is not None


SCRIPT = """
import pathlib, sys
sys.path.append(pathlib.Path("/nowhere"))
from minillm import LLM, SamplingParams
print("once")
llm = LLM(model={model!r}, tensor_parallel_size=2, device="cpu", dtype="float32", num_kv_blocks=9)
print(len(llm.generate([[5, 6]], SamplingParams(max_tokens=2, ignore_eos=True))[0].token_ids))
print(llm.engine.torch_runner.processes[0].pid)
"""


def test_a_script_without_a_guard_runs_once_and_its_ranks_end_with_it(tiny: LoadedModel, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(model=tiny.name))
    once, length, pid = subprocess.check_output([sys.executable, script], cwd=tmp_path, text=True).split()
    assert (once, length) == ("once", "2")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_a_process_that_was_forked_off_ends_no_ranks() -> None:
    ranks = [mock.Mock(wait=mock.Mock(side_effect=KeyboardInterrupt)), mock.Mock()]
    end_all(ranks, owner=os.getppid())
    assert not any(rank.kill.called for rank in ranks)
    with pytest.raises(KeyboardInterrupt):
        end_all(ranks, owner=os.getpid())
    assert all(rank.kill.called for rank in ranks), "Ctrl-C spares none"


def press(*_: object) -> None:
    raise KeyboardInterrupt


def test_ranks_agree_on_the_smallest_pool(tmp_path: Path) -> None:
    config, cpu = EngineConfig(tensor_parallel_size=2, device="cpu"), torch.device("cpu")
    with ThreadPoolExecutor() as pool:
        smallest = pool.map(lambda rank: meet(rank, config, str(tmp_path)).smallest(5 - rank, cpu), (0, 1))
        assert list(smallest) == [4, 4]


@pytest.mark.parametrize("field", [{"quantization": "int8"}, {"async_scheduling": True}, {"speculative": DRAFT_MODEL}])
def test_what_cannot_be_had_yet(field: dict) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(field))} is read only with tensor_parallel_size=1"):
        EngineConfig(tensor_parallel_size=2, **field)


def test_what_cannot_be_divided(run: Callable[..., tuple[int, str, str]], tiny: LoadedModel) -> None:
    code, _, err = run("generate", "hi", "--model", tiny.name, "--tensor-parallel-size", 4, "--set", "device=cpu")
    assert code == 2 and "tensor_parallel_size=4 does not divide num_kv_heads (2)" in err
    with pytest.raises(UnsupportedArchitectureError, match="Mamba"):
        split(replace(tiny.model_config, architecture="Mamba"), 2)
