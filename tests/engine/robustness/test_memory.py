"""No room on the device: one message that says who may be there, too, and what to do. (A GPU's is simulated.)"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from integrity import check_engine

from minillm.core.errors import ConfigError
from minillm.frontend.engine import Engine
from minillm.host.device import memory_errors
from minillm.host.errors import OutOfMemoryError
from minillm.model import loader
from minillm.model.checkpoints import load_config, resolve
from minillm.model.config import ModelConfig
from minillm.model.loader import LoadedModel
from minillm.model.parallel import Ranks
from minillm.policies.config import EngineConfig
from minillm.runner import memory_budget, torch_runner
from minillm.runner.memory_budget import NO_CLAIM, size_kv_pool

GPU, CPU = torch.device("cuda"), torch.device("cpu")
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total of 8 GiB\nand so on")


@pytest.fixture(scope="module")
def config(tiny_llama_path: Path) -> EngineConfig:
    return EngineConfig(model=str(tiny_llama_path), dtype="float32", num_kv_blocks=16)


def full(*_: object, **__: object) -> None:
    raise FULL


@pytest.mark.parametrize(
    "error",
    [FULL, MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes")],
    ids=repr,
)
def test_each_way_of_running_out_is_one_line_that_says_what_to_do(error: Exception) -> None:
    with pytest.raises(OutOfMemoryError) as told, memory_errors(GPU, "the weights", "Choose a smaller model"):
        raise error
    said = str(told.value)
    assert said.startswith("the GPU has no room for the weights (") and "Choose a smaller model." in said
    assert "Another notebook" in said and "nvidia-smi" in said and "\n" not in said


def test_on_a_cpu_nobody_speaks_of_gpus() -> None:
    said = pytest.raises(OutOfMemoryError, match="the machine has no room")
    with said as told, memory_errors(torch.device("cpu"), "the weights", "Choose a smaller model"):
        raise MemoryError
    assert "nvidia" not in str(told.value)


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shapes") as told, memory_errors(GPU, "the weights", "Choose"):
        raise RuntimeError("shapes do not match")
    assert not isinstance(told.value, OutOfMemoryError)


def test_a_kv_pool_that_finds_no_room_and_then_does(
    config: EngineConfig, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(torch_runner, "KVPool", full)
        with pytest.raises(OutOfMemoryError, match=r"no room for the KV pool .*Lower num_kv_blocks"):
            Engine(config, model)
    engine = Engine(config, model)
    engine.add_request([1, 2, 3])
    engine.abort_all()
    check_engine(engine)


@pytest.mark.parametrize("fields", [{}, {"kv_cache_memory_gb": 2.0}], ids=["default", "asked for"])
def test_a_gpu_that_somebody_else_has_filled(fields: dict, model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_budget, "free_bytes", lambda device: 1000)
    with pytest.raises(ConfigError, match="Another notebook or server on this GPU"):
        size_kv_pool(EngineConfig(model="m", **fields), model.model_config, 16, torch.float32, GPU, NO_CLAIM)


def test_the_command_shows_one_line(
    config: EngineConfig, run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "Decoder", full)
    status, _, err = run("generate", "hello", "--model", config.model)
    assert status == 2
    assert err.startswith("minillm: the machine has no room for the weights") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("fields", "gigabytes"),
    [({}, 16.06), ({"quantization": "int8"}, 8.03), ({"dtype": "float32"}, 32.12), ({"tensor_parallel_size": 2}, 8.03)],
)
def test_weights_that_no_host_has_room_for_are_refused_before_they_are_read(
    fields: dict[str, Any], gigabytes: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux hands out memory that it doesn't have, and kills whatever writes to it."""
    config = EngineConfig(model="llama-3.1-8b", load_format="dummy", device="cpu", **fields)
    shape = ModelConfig.from_hf(load_config(resolve(config.model)))
    for free, refused in (gigabytes * 1e9 - 1e8, True), (gigabytes * 1e9 + 1e8, False):
        monkeypatch.setattr(loader, "available_bytes", lambda free=free: free)
        with pytest.raises(OutOfMemoryError, match=f"take {gigabytes} GB") if refused else contextlib.nullcontext():
            dtype = loader.choose_dtype(config.dtype, shape, CPU)
            loader.check_memory(config, shape, dtype, config.tensor_parallel_size)
    monkeypatch.setattr(loader, "available_bytes", lambda: 0)
    with pytest.raises(OutOfMemoryError, match="choose a smaller model, or quantization"):
        loader.load_model(config, Ranks(0, config.tensor_parallel_size))
