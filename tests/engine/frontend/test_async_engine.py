"""The engine thread and the async front, on a tiny real model."""

import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from fake_runner import FakeRunner
from patience import PATIENCE_S, wait_for

from minillm.core.errors import ConfigError, DuplicateRequestError, PromptTooLongError
from minillm.core.params import SamplingParams
from minillm.core.request import FinishReason
from minillm.core.timeline import VirtualClock
from minillm.frontend.engine import Engine
from minillm.frontend.engine_thread import EngineThread
from minillm.frontend.errors import EngineDeadError
from minillm.frontend.llm import LLM
from minillm.frontend.loading import warm_up
from minillm.host.openmp import BUNDLED
from minillm.model.errors import ModelError
from minillm.model.loader import LoadedModel, load_model
from minillm.policies.config import EngineConfig

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
ENDLESS = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)


@pytest.fixture(scope="module")
def config(tiny_llama_path: Path) -> EngineConfig:
    return EngineConfig(model=str(tiny_llama_path), dtype="float32", num_kv_blocks=128, max_num_seqs=4)


@pytest.fixture(scope="module")
def expected(config: EngineConfig, model: LoadedModel) -> list[int]:
    fields = config.model_dump(exclude_unset=True)
    return LLM(loaded=model, **fields).generate("Hello there", GREEDY, use_tqdm=False)[0].token_ids


def test_a_stream_gives_every_token_and_the_text_adds_up(thread: EngineThread, expected: list[int]):
    outputs = list(thread.submit("Hello there", GREEDY))
    assert outputs[-1].finished and outputs[-1].token_ids == expected
    assert [len(output.token_ids) for output in outputs] == list(range(1, 13))
    assert "".join(output.completions[0].new_text for output in outputs) == outputs[-1].text
    timeline = outputs[-1].timeline
    assert sum(timeline.phases().values()) == pytest.approx(timeline.e2e)
    assert timeline.phases()["stream"] > 0


def test_many_threads_may_submit_at_once(thread: EngineThread, expected: list[int]):
    results: list[list[int]] = []

    def client() -> None:
        results.append(thread.submit("Hello there", GREEDY).result(timeout=PATIENCE_S).token_ids)

    clients = [threading.Thread(target=client) for _ in range(8)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    assert results == [expected] * 8


@pytest.mark.skipif(BUNDLED is None, reason="PyTorch computes with another OpenMP here")
def test_an_idle_engine_keeps_no_workers(thread: EngineThread):
    """They would slow whoever computes next (host/openmp.py)."""

    def compute(_: Engine) -> int:
        torch.set_num_threads(4)  # for this thread; the first call in a process makes a pool that stays
        torch.ones(10**6).exp()
        return num_tasks()

    cores = torch.get_num_threads()
    torch.set_num_threads(4)
    before = num_tasks()
    assert thread.call(compute).result() > before + 1  # three more, and of others' threads one may just have ended
    torch.set_num_threads(cores)
    wait_for(lambda: num_tasks() <= before, "the workers are gone")


def num_tasks() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_errors_at_the_door_reach_the_caller_and_harm_nobody(thread: EngineThread, expected: list[int]):
    stream = thread.submit("Hello there", GREEDY, request_id="a")
    with pytest.raises(DuplicateRequestError):
        thread.submit("Hello", ENDLESS, request_id="a")
        thread.submit("Hello", ENDLESS, request_id="a")  # in case the first had finished
    with pytest.raises(PromptTooLongError):
        thread.submit([1] * 1000)
    assert stream.result(timeout=PATIENCE_S).token_ids == expected


def test_abort_ends_the_stream_and_frees_the_blocks(thread: EngineThread):
    stream = thread.submit("Hello there", ENDLESS)
    next(iter(stream))
    stream.abort()
    output = stream.result(timeout=PATIENCE_S)
    assert output.finish_reason is FinishReason.ABORT and 0 < len(output.token_ids) < 400
    thread.abort_all()
    assert thread.call(lambda engine: engine.scheduler.kv.pool.num_used).result() == 0


def test_abort_all(thread: EngineThread):
    streams = [thread.submit(f"Number {i}", ENDLESS) for i in range(6)]
    thread.abort_all()
    assert {stream.result(timeout=PATIENCE_S).finish_reason for stream in streams} == {FinishReason.ABORT}


def test_stop_ends_every_stream_and_refuses_what_comes_after(config: EngineConfig, model: LoadedModel):
    thread = EngineThread(config, model)
    stream = thread.submit("Hello there", ENDLESS)
    thread.stop()
    assert stream.result(timeout=PATIENCE_S).finish_reason is FinishReason.ABORT
    with pytest.raises(EngineDeadError, match="stopped"):
        thread.submit("Hello")
    thread.stop()


def test_reconfigure_keeps_the_weights_and_refuses_nonsense(thread: EngineThread, expected: list[int]):
    weights = thread.model
    thread.reconfigure(thread.config.replace(enable_prefix_caching=False, max_num_seqs=2))
    assert thread.model is weights and thread.config.max_num_seqs == 2
    with pytest.raises(ConfigError, match="its own window, end at"):
        thread.reconfigure(thread.config.replace(max_model_len=100_000))
    assert thread.submit("Hello there", GREEDY).result(timeout=PATIENCE_S).token_ids == expected


class FakeGPU:
    """Each engine takes most of the memory that is free, as on a GPU, and gives it back once it is gone."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.broken = False

    def build(self, config: EngineConfig, model: object, *, clock: VirtualClock) -> Engine:
        num_blocks = int(0.85 * self.free)
        engine = Engine.on_runner(config, FakeRunner(num_blocks, 4, clock), clock)
        self.free -= num_blocks
        weakref.finalize(engine.runner, self.give_back, num_blocks)
        if self.broken or config.max_num_seqs == 13:
            raise ConfigError("unlucky")
        return engine

    def give_back(self, num_blocks: int) -> None:
        self.free += num_blocks


@pytest.fixture
def gpu() -> FakeGPU:
    return FakeGPU(100)


@pytest.fixture
def gpu_thread(gpu: FakeGPU) -> Iterator[EngineThread]:
    on_gpu = cast(LoadedModel, SimpleNamespace(device=torch.device("cuda")))
    with EngineThread(EngineConfig(max_model_len=200), on_gpu, clock=VirtualClock(), build=gpu.build) as thread:
        yield thread


def num_blocks(thread: EngineThread) -> int:
    return thread.call(lambda engine: len(engine.scheduler.kv.pool)).result()


def test_on_a_gpu_the_next_engine_finds_as_much_memory(gpu_thread: EngineThread):
    blocks = [num_blocks(gpu_thread)]
    for _ in range(3):
        gpu_thread.reconfigure(gpu_thread.config)
        blocks.append(num_blocks(gpu_thread))
    assert blocks == [85] * 4


def test_on_a_gpu_an_engine_that_cannot_be_built_leaves_the_one_before(gpu_thread: EngineThread):
    before, stream = gpu_thread.config, gpu_thread.submit([1, 2, 3], ENDLESS)
    with pytest.raises(ConfigError, match="unlucky"):
        gpu_thread.reconfigure(before.replace(max_num_seqs=13))
    assert stream.result(timeout=PATIENCE_S).finish_reason in (FinishReason.ABORT, FinishReason.LENGTH)
    assert gpu_thread.config == before and num_blocks(gpu_thread) == 85
    assert len(gpu_thread.submit([1, 2, 3], GREEDY).result(timeout=PATIENCE_S).token_ids) == GREEDY.max_tokens


def test_on_a_gpu_nobody_waits_for_an_engine_that_cannot_be_had_again(gpu: FakeGPU, gpu_thread: EngineThread):
    gpu.broken = True
    with pytest.raises(ConfigError, match="unlucky"):
        gpu_thread.reconfigure(gpu_thread.config)
    with pytest.raises(EngineDeadError, match="unlucky"):
        gpu_thread.submit([1, 2, 3], GREEDY)


def test_the_engine_is_loaded_and_built_where_it_runs(config: EngineConfig, monkeypatch: pytest.MonkeyPatch):
    """Two threads that both compute have two teams of OpenMP workers, too many for a small machine's cores."""
    where: list[tuple[str, str]] = []

    def noting(make: Callable) -> Callable:
        def noted(*arguments, **named):
            where.append((make.__name__, threading.current_thread().name))
            return make(*arguments, **named)

        return noted

    for step in (load_model, warm_up):
        monkeypatch.setattr(f"minillm.frontend.loading.{step.__name__}", noting(step))
    with EngineThread(config, build=noting(Engine)) as thread:
        thread.reconfigure(config.replace(dtype="bfloat16"))
        loaded = [(name, "minillm-engine") for name in ("Engine", "load_model", "warm_up")]
        assert where == loaded * 2
        thread.reconfigure(config.replace(dtype="bfloat16", max_num_seqs=3))
        assert where == [*loaded, *loaded, loaded[0]], "weights in memory are warm"


def test_what_keeps_the_engine_from_being_built_reaches_the_caller(config: EngineConfig, model: LoadedModel):
    with pytest.raises(ModelError, match="no-such-model"):
        EngineThread(config.replace(model="no-such-model"))
    with pytest.raises(ConfigError, match="memory"):
        EngineThread(config.replace(num_kv_blocks=10**12), model)


def test_a_client_whose_sink_fails_harms_nobody(config: EngineConfig, model: LoadedModel, expected: list[int]):
    # Regression: a closed event loop makes call_soon_threadsafe raise, in the engine thread.
    def gone(_: object) -> None:
        raise RuntimeError("Event loop is closed")

    thread = EngineThread(config, model)
    thread.submit_nowait("Hello there", ENDLESS, gone, request_id="gone").result()
    assert thread.submit("Hello there", GREEDY).result(timeout=PATIENCE_S).token_ids == expected
    assert thread.submit("Hello there", GREEDY, request_id="gone").result(timeout=PATIENCE_S).token_ids == expected
    thread.submit_nowait("Hello there", ENDLESS, gone).result()
    thread.stop()
    with pytest.raises(EngineDeadError):
        thread.submit("Hello")


def test_a_cancelled_offer_harms_nobody(thread: EngineThread, expected: list[int]):
    busy = thread.submit("Hello there", GREEDY)
    thread.submit_nowait("Never", ENDLESS, lambda _: None).cancel()
    assert busy.result(timeout=PATIENCE_S).token_ids == expected
    assert thread.submit("Hello there", GREEDY).result(timeout=PATIENCE_S).token_ids == expected


def test_when_a_dead_engine_cannot_be_looked_at_nobody_waits_for_ever(
    config: EngineConfig, model: LoadedModel, monkeypatch
):
    thread = EngineThread(config, model)
    release = threading.Event()
    held = thread.call(lambda _: release.wait(60))  # what follows is in the queue when the engine dies
    monkeypatch.setattr(thread, "look_at", lambda engine, is_idle: 1 / 0)
    monkeypatch.setattr(thread._engine, "step", lambda: 1 / 0)
    stream = thread.submit_nowait("Hello there", ENDLESS, (outputs := queue.SimpleQueue()).put)
    release.set()
    assert held.result(60) and stream.result(60)
    assert isinstance(outputs.get(timeout=PATIENCE_S), EngineDeadError)
    with pytest.raises(EngineDeadError):
        thread.call(lambda engine: engine).result(timeout=PATIENCE_S)
    thread.stop()
