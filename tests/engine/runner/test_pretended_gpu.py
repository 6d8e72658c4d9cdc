"""What a GPU, or a machine with one, would do to the engine: each trouble pretended on a CPU."""

import contextlib
import functools
import importlib.metadata
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import make_dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from patience import wait_for

from course.measure.gpu_check import PARITY, ROOT
from course.measure.peers.hf import block_size_name
from minillm import Engine, EngineConfig, SamplingParams
from minillm.core.batch import ScheduledBatch
from minillm.core.errors import ConfigError, DeviceLostError
from minillm.core.request import FinishReason
from minillm.core.timeline import WallClock
from minillm.frontend.engine_thread import EngineThread
from minillm.frontend.errors import EngineDeadError
from minillm.host.device import RECORDING, answers, peak_bytes
from minillm.host.errors import OutOfMemoryError
from minillm.kernels.attention.cache import cache_dtype
from minillm.kernels.attention.select import BACKENDS, select_backend, survey
from minillm.kernels.ops import Ops
from minillm.kernels.quantization import dtype_name
from minillm.model.arithmetic import kv_bytes_per_token
from minillm.model.loader import LoadedModel, choose_dtype
from minillm.runner import memory_budget
from minillm.runner.cuda_graphs import CudaGraph
from minillm.runner.memory_budget import MemoryClaim, free_bytes, size_kv_pool
from minillm.runner.parallel_runner import ParallelRunner
from minillm.runner.torch_runner import DeviceEvent, TorchRunner

GPU = torch.device("cuda")
LOST = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
IMAGE = ["torch", "transformers", "triton", "pytest", "psutil", "setuptools", "pydantic"]
"""Packages that images for GPUs have, with what these require; pydantic some lack."""
WITHOUT = """
import importlib.machinery, runpy, sys
class Hiding:  # an object: wherever a class keeps it, it doesn't turn into a method
    known = importlib.machinery.PathFinder.find_spec
    def __call__(self, name, *rest):
        return None if name in {hidden} else Hiding.known(name, *rest)
importlib.machinery.PathFinder.find_spec = Hiding()
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__")
"""


@functools.cache
def not_in_the_image() -> set[str]:
    """Modules of all packages that are installed here, but neither in the image nor with what's in it."""
    there, left = set[str](), list(IMAGE)
    while left:
        if (name := canonicalize_name(left.pop())) not in there:
            there.add(name)
            needs = map(Requirement, importlib.metadata.requires(name) or [])
            left += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    owners = importlib.metadata.packages_distributions().items()
    elsewhere = {module for module, of in owners if there.isdisjoint(map(canonicalize_name, of))}
    return elsewhere - {"minillm", "course"}


def in_image(module: str, *arguments: object, lacking: str = "") -> subprocess.CompletedProcess[str]:
    """`python3 -m module` where nothing but the image's packages is installed."""
    hidden = {lacking} | not_in_the_image()
    command = [sys.executable, "-c", WITHOUT.format(hidden=hidden), module, *map(str, arguments)]
    without_plugins = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=ROOT, env=without_plugins, capture_output=True, text=True)


@pytest.mark.parametrize("lacking", ["pydantic", "typer"])
def test_an_image_is_told_what_it_lacks_and_where_it_says_how_to_bring_it(lacking: str) -> None:
    pytest.importorskip("triton")
    ended = in_image("course.measure.gpu_check", lacking=lacking)
    assert ended.returncode == 2 and f"this Python lacks {lacking}: docs/gpu-box.md" in ended.stderr
    assert "pip download" in (ROOT / "docs" / "gpu-box.md").read_text()


@pytest.mark.slow
def test_an_image_with_pydantic_runs_all_but_the_server(tiny_llama_path: Path) -> None:
    target = ("--quick", "--model", tiny_llama_path)
    compared = in_image("minillm", "bench", "throughput", "--compare", "hf", *target)
    assert compared.returncode == 0, compared.stderr
    served = in_image("minillm", "bench", "serve-overhead", *target)
    assert served.returncode == 2 and "this needs the package http" in served.stderr


def test_parity_wants_no_more_than_the_image_has() -> None:
    collected = in_image("pytest", *PARITY.split(), "--collect-only")
    assert collected.returncode == 0, collected.stdout


def test_both_names_of_a_kv_blocks_size_in_transformers() -> None:
    new, old = make_dataclass("New", ["page_size", "num_blocks"]), make_dataclass("Old", ["block_size"])
    assert (block_size_name(new), block_size_name(old)) == ("page_size", "block_size")


@pytest.mark.parametrize(("capability", "triton_runs"), [((7, 5), False), ((8, 0), True)])
def test_before_ampere_there_is_neither_triton_nor_bfloat16(
    capability: tuple[int, int], triton_runs: bool, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert (survey(GPU)["triton"] is None) == triton_runs
    assert select_backend("auto", GPU).__name__ == ("TritonAttention" if triton_runs else "SDPAAttention")
    own = torch.bfloat16 if triton_runs else torch.float16
    in_16_bits = replace(model.model_config, dtype="bfloat16")
    assert choose_dtype("auto", in_16_bits, GPU) is own
    assert choose_dtype("bfloat16", in_16_bits, GPU) is torch.bfloat16, "as asked for"


def engine_config(model: LoadedModel, **fields: Any) -> EngineConfig:
    return EngineConfig(model=model.name, dtype="float32", device="cpu", num_kv_blocks=64, **fields)


def lose(monkeypatch: pytest.MonkeyPatch, place: type = DeviceEvent, name: str = "wait", lasting: bool = True) -> None:
    """A call meets an error of CUDA, which all that follow meet as well, or it alone."""

    def lost(*_: object) -> None:
        raise LOST

    monkeypatch.setattr(place, name, lost)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lost if lasting else lambda: None)


def test_a_launch_with_wrong_arguments_is_no_lost_gpu(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(engine_config(model), model)
    for failing in (True, False):
        engine.add_request([1, 2, 3], SamplingParams(max_tokens=2, temperature=0, ignore_eos=True))
        with monkeypatch.context() as patch:
            if failing:
                lose(patch, TorchRunner, "forward", lasting=False)
            while engine.has_unfinished:
                engine.step()
    reasons = [request.finish_reason for request in engine.core.recent_requests]
    assert reasons == [FinishReason.ERROR, FinishReason.LENGTH]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(("place", "name"), [(DeviceEvent, "wait"), (TorchRunner, "forward")])
def test_a_lost_gpu_ends_every_request_and_is_said(
    ahead: bool, place: type, name: str, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(engine_config(model, async_scheduling=ahead, max_num_seqs=1), model)
    for request_id in ("running", "waiting"):
        engine.add_request([1, 2, 3], SamplingParams(max_tokens=9), request_id=request_id)
    engine.step()
    lose(monkeypatch, place, name)
    with pytest.raises(DeviceLostError, match=r"illegal memory access.*start it again"):
        for _ in range(2):
            engine.step()
    assert not engine.has_unfinished
    assert [request.finish_reason for request in engine.core.recent_requests] == [FinishReason.ERROR] * 2


def test_a_server_whose_gpu_is_lost_does_not_look_alive(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noticed in a step, or when the last client leaves while one is in flight."""
    for leaves in (False, True):
        thread = EngineThread(engine_config(model, async_scheduling=True), model)
        stream = thread.submit("Hello", SamplingParams(max_tokens=400, ignore_eos=True))
        next(iter(stream))
        with monkeypatch.context() as patch:
            lose(patch)
            if leaves:
                stream.abort()
            with pytest.raises(EngineDeadError, match="illegal memory access"):
                stream.result(timeout=60)
            with pytest.raises(EngineDeadError):
                thread.check_alive()


def test_all_graphs_are_recorded_on_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuBLAS keeps a workspace for every stream; and what other threads do meanwhile must not end a recording. What
    another engine records would become part of it."""

    class Stream:
        def wait_stream(self, other: "Stream") -> None:
            pass

    used = []

    @contextlib.contextmanager
    def on(stream: Stream) -> Iterator[None]:
        used.append(stream)
        yield

    @contextlib.contextmanager
    def graph(graph: object, pool: object, stream: Stream, capture_error_mode: str) -> Iterator[None]:
        assert pool == "pool" and capture_error_mode == "thread_local"
        used.append(stream)
        yield

    for name, fake in (("CUDAGraph", object), ("current_stream", Stream), ("stream", on), ("graph", graph)):
        monkeypatch.setattr(torch.cuda, name, fake)
    side = Stream()
    for _ in range(3):
        CudaGraph("pool", side).capture(lambda: torch.zeros(1))
    assert used == [side] * 6

    other = threading.Event()
    with ThreadPoolExecutor(1) as thread:

        def work() -> None:
            thread.submit(CudaGraph("pool", side).capture, other.set)
            assert not other.wait(0.1)

        CudaGraph("pool", side).capture(work)
        wait_for(other.is_set, "its turn has come")


def step_on_several_ranks() -> None:
    runner = object.__new__(ParallelRunner)
    runner.processes = []
    with runner.in_step():
        pass


@pytest.mark.parametrize(
    "wait",
    [
        answers,
        functools.partial(peak_bytes, lambda: None, GPU),
        step_on_several_ranks,
        functools.partial(free_bytes, GPU),
    ],
)
def test_no_engine_waits_for_the_device_while_another_records_a_graph(
    wait: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA refuses that, and the recording fails with it. Nor does one ask for memory back, which it wouldn't get."""
    waited = threading.Event()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: waited.set())
    monkeypatch.setattr(torch.cuda, "empty_cache", waited.set)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 0))
    for name in ("reset_peak_memory_stats", "memory_allocated", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda device: 0)
    with ThreadPoolExecutor(1) as thread:
        with RECORDING:
            thread.submit(wait)
            assert not waited.wait(0.1)
        wait_for(waited.is_set, "the recording has ended")


@pytest.mark.parametrize(
    ("fields", "longest", "lengths"),
    [
        ({"max_num_seqs": 4, "max_num_batched_tokens": 16}, 100, [13, 1, 1, 1]),
        ({"max_num_seqs": 4, "max_num_batched_tokens": 16}, 6, [6, 6, 3, 1]),
        ({"max_num_seqs": 2, "max_num_batched_tokens": 16, "enable_chunked_prefill": False}, 100, [99, 1]),
        ({"max_num_seqs": 1, "max_num_batched_tokens": 4, "speculative": {"method": "ngram", "k": 2}}, 9, [2, 1, 1]),
    ],
)
def test_the_largest_step_has_all_tokens_and_all_rows(fields: dict[str, Any], longest: int, lengths: list[int]) -> None:
    parts = memory_budget.largest_step(EngineConfig(**fields), longest, 4)
    assert [part.num_tokens for part in parts] == lengths and all(part.samples for part in parts)
    assert len(parts[0].block_ids) * 4 >= max(lengths)


def test_a_kernel_that_does_not_fit_this_gpu_is_told_from_other_errors(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = pytest.importorskip("triton.runtime.errors", reason="triton is for Linux")
    too_large = errors.OutOfResources(131072, 101376, "shared memory")
    runner = TorchRunner(model, config := EngineConfig(model=model.name, num_kv_blocks=4), WallClock())
    for trouble, expected in (too_large, ConfigError), (KeyError("ours"), KeyError):
        for method, use in (
            ("_reset", lambda: TorchRunner(model, config, WallClock())),  # graphs are captured there
            ("prepare", lambda: runner.launch(ScheduledBatch(0, ()))),
        ):
            with monkeypatch.context() as patch, pytest.raises(expected, match=r"101376.*Try attention_backend|ours"):
                patch.setattr(TorchRunner, method, mock.Mock(side_effect=trouble))
                use()


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"max_num_seqs": 10**9}, "lower max_num_batched_tokens, max_num_seqs"),  # laid out, it'd take minutes and 8 GB
        ({"max_num_seqs": 1, "max_num_batched_tokens": 10**9}, None),  # a request has no more than the window
        ({"max_num_seqs": 10**30, "num_kv_blocks": 3}, "lower max_num_batched_tokens, max_num_seqs"),
    ],
)
def test_a_step_that_cannot_fit_is_refused_before_it_is_laid_out(
    fields: dict[str, Any], refused: str | None, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_budget, "peak_bytes", lambda work, device: 0)
    monkeypatch.setattr(memory_budget, "free_bytes", lambda device: 80e9)
    rest = (select_backend("sdpa", torch.device("cpu")), Ops(), 16, model.dtype)
    with pytest.raises(OutOfMemoryError, match=f"(?i){refused}") if refused else contextlib.nullcontext():
        memory_budget.largest_step_bytes(model, EngineConfig(model=model.name, **fields), *rest)


def test_a_backend_that_copies_contexts_gets_room_for_a_layer_of_them(model: LoadedModel) -> None:
    shape = model.model_config
    of_a_layer = kv_bytes_per_token(shape, dtype_name(model.dtype)) // shape.num_layers
    found = {
        name: memory_budget.gathered_bytes_per_token(model, BACKENDS[name]) for name in ("sdpa", "eager", "triton")
    }
    assert found == {"sdpa": of_a_layer, "eager": of_a_layer, "triton": 0}


def test_more_slots_than_tokens_are_refused_only_if_both_are_asked_for() -> None:
    """Which budget a device has is not known before the device is."""
    many = EngineConfig(max_num_seqs=2000)
    assert [many.for_device(kind).max_num_batched_tokens for kind in ("cpu", "cuda")] == [2000, 8192]
    assert EngineConfig(max_num_seqs=9000).for_device("cuda").max_num_batched_tokens == 9000
    with pytest.raises(ConfigError, match="must be at least max_num_seqs"):
        EngineConfig(max_num_seqs=2000, max_num_batched_tokens=1024)


def test_what_the_largest_step_takes_is_not_given_to_the_kv_pool(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def peak(work: Any, device: torch.device) -> int:
        work()
        return 10**6

    monkeypatch.setattr(memory_budget, "peak_bytes", peak)
    config = EngineConfig(model=model.name, max_num_seqs=4, max_num_batched_tokens=32, max_model_len=64)
    attention, dtype = select_backend("sdpa", torch.device("cpu")), cache_dtype("auto", model.dtype)
    taken = memory_budget.largest_step_bytes(model, config, attention, Ops(), 16, dtype)
    assert taken == 10**6
    monkeypatch.setattr("minillm.runner.memory_budget.free_bytes", lambda device: 4 * 10**6)
    monkeypatch.setattr("minillm.runner.memory_budget.DEFAULT_CPU_BYTES", 1e12)
    many = config.replace(max_num_seqs=256, max_num_batched_tokens=256)
    blocks = [
        size_kv_pool(many, model.model_config, 1, torch.float32, torch.device("cpu"), MemoryClaim(num_bytes=claimed))
        for claimed in (0, taken)
    ]
    per_block = model.model_config.num_layers * 2 * model.model_config.num_kv_heads * model.model_config.head_dim * 4
    assert blocks[0] - blocks[1] == pytest.approx(taken / per_block, abs=1)
