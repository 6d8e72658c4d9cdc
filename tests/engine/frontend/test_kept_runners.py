"""One runner for engines that follow each other: what is recorded again, what is forgotten, and what is let go."""

import gc
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from draft_heads import make_eagle3, make_head
from fake_graph import FakeGraph, TensorLengthAttention

from minillm import Engine, EngineConfig, SamplingParams
from minillm.core.errors import ConfigError
from minillm.core.timeline import WallClock
from minillm.frontend.engine_thread import EngineThread
from minillm.frontend.parts import EngineParts
from minillm.kernels.attention import select
from minillm.model.loader import LoadedModel
from minillm.runner import kept_runners, memory_budget, torch_runner
from minillm.runner.cuda_graphs import graph_sizes
from minillm.runner.kept_runners import POOL_FIELDS, RUNNER_FIELDS, KeptRunners, suits
from minillm.runner.memory_budget import STEP_FIELDS
from minillm.runner.torch_runner import LEAST_ROWS, TorchRunner
from minillm.speculation import make

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = [list(range(10, 10 + length)) for length in (3, 17, 30, 17, 9)]


class Recorder:
    """Makes runners whose graphs are fakes, and notes what is recorded, in which runner's life."""

    def __init__(self) -> None:
        self.graphs: list[FakeGraph] = []
        self.runners: list[weakref.ref[TorchRunner]] = []
        self.most = 1
        """Runners of one engine."""

    def make_graph(self) -> FakeGraph:
        self.graphs.append(FakeGraph())
        return self.graphs[-1]

    def make_runner(self, *arguments: Any, **named: Any) -> TorchRunner:
        alive = [runner for runner in self.runners if runner() is not None]
        assert len(alive) < self.most, "more KV pools than an engine wants"
        runner = TorchRunner(*arguments, make_graph=self.make_graph, **named)
        runner.itself = runner  # type: ignore[attr-defined]  # whatever refers to itself is let go of all the same
        self.runners.append(weakref.ref(runner))
        return runner

    @property
    def runner(self) -> TorchRunner:
        """The one in use."""
        runner = self.runners[-1]()
        assert runner is not None
        return runner


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setitem(select.BACKENDS, "eager", TensorLengthAttention)
    monkeypatch.setattr(kept_runners, "TorchRunner", recorder.make_runner)
    return recorder


@pytest.fixture(scope="module")
def config(tiny_llama_path: Path) -> EngineConfig:
    return EngineConfig(
        model=str(tiny_llama_path),
        dtype="float32",
        device="cpu",
        attention_backend="eager",
        num_kv_blocks=64,
        block_size=4,
        max_model_len=96,
        max_num_seqs=4,
        max_num_batched_tokens=16,
    )


@pytest.fixture
def thread(config: EngineConfig, model: LoadedModel, recorder: Recorder) -> Iterator[EngineThread]:
    with EngineThread(config, model) as thread:
        yield thread


def serve(thread: EngineThread) -> list[list[int]]:
    streams = [thread.submit(prompt, GREEDY) for prompt in PROMPTS]
    return [stream.result(timeout=60).token_ids for stream in streams]


def serve_alone(config: EngineConfig, model: LoadedModel) -> list[list[int]]:
    """By an engine of its own, without graphs."""
    clock = WallClock()
    engine = Engine.on_runner(config, TorchRunner(model, config, clock), clock, model=model)
    names = [engine.add_request(prompt, GREEDY, stream=False) for prompt in PROMPTS]
    answers: dict[str, list[int]] = {}
    while engine.has_unfinished:
        answers |= {output.request_id: output.token_ids for output in engine.step() if output.finished}
    return [answers[name] for name in names]


def num_graphs(recorder: Recorder) -> tuple[int, int]:
    """Recorded so far, by all runners: of steps that only decode, and of other sizes of steps, in pieces."""
    works = [getattr(graph.work, "func", graph.work) for graph in recorder.graphs]
    in_pieces = sum("PiecewiseForward" in work.__qualname__ for work in works)
    return len(recorder.graphs) - in_pieces, in_pieces // (len(recorder.runner.model.decoder.layers) + 1)


def test_graphs_for_a_head_that_reads_between_layers_are_recorded_once_and_end_with_it(
    thread: EngineThread, config: EngineConfig, model: LoadedModel, recorder: Recorder, tmp_path: Path
) -> None:
    make_eagle3(tmp_path, model, depths=[0, 1])
    for speculative, depths in (({"method": "draft_head", "model": str(tmp_path), "k": 3}, (0, 1)), (None, ())):
        decodes, pieces = num_graphs(recorder)
        thread.reconfigure(config.replace(speculative=speculative))
        runner = recorder.runner
        assert runner.depths == runner.fast_decode.depths == depths
        in_use = len(runner.fast_decode.graphs), len(runner.fast_pieces.graphs)
        assert num_graphs(recorder) == (decodes + in_use[0], pieces + in_use[1])


def test_a_change_of_the_scheduler_records_nothing_and_a_larger_pool_everything(
    thread: EngineThread, config: EngineConfig, recorder: Recorder
) -> None:
    assert sorted(recorder.runner.fast_decode.graphs) == [1, 2, 4] and num_graphs(recorder) == (3, 1)
    thread.reconfigure(config.replace(enable_chunked_prefill=False, max_num_batched_tokens=96))
    assert num_graphs(recorder) == (3, 4), "steps of up to 96 tokens"
    for fields in (
        {"enable_prefix_caching": False},
        {"batching": "static"},
        {"batching": "none"},
        {"scheduling_order": "shortest_prompt"},
        {"kv_reservation": "max_len"},
        {"max_num_seqs": 2},
        {"max_queue_len": 9, "max_prompt_tokens": 40},
        {"num_kv_blocks": 32},
        {"num_kv_blocks": 64},
    ):
        thread.reconfigure(config.replace(**fields))
    assert num_graphs(recorder) == (3, 4) and len(recorder.runners) == 1
    thread.reconfigure(config.replace(num_kv_blocks=65))
    assert num_graphs(recorder) == (6, 5) and len(recorder.runners) == 2
    thread.reconfigure(config.replace(num_kv_blocks=65, sliding_window=8))
    assert num_graphs(recorder) == (9, 6) and len(recorder.runners) == 3


def test_an_engine_with_a_smaller_pool_takes_a_part_of_a_larger_one(
    thread: EngineThread, config: EngineConfig, model: LoadedModel, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And answers, reports and preempts as if it were all there is; unless its drafts want the memory of the rest."""
    small = config.replace(num_kv_blocks=12)
    thread.reconfigure(small)
    assert serve(thread) == serve_alone(small, model) and len(recorder.runners) == 1
    steps = thread.call(lambda engine: list(engine.steps)).result()
    assert max(step.kv_blocks_used for step in steps) <= 12 == steps[-1].kv_blocks_total
    assert any(step.preempted for step in steps)

    def no_room(runner: TorchRunner, *_: object) -> None:
        raise ConfigError("no room beside it")

    monkeypatch.setattr(TorchRunner, "check_room", no_room)
    thread.reconfigure(small.replace(max_num_seqs=2))
    assert len(recorder.runners) == 2, "its pool has 12 blocks"
    with pytest.raises(ConfigError, match="no room beside it"):
        thread.reconfigure(small)


def test_more_slots_record_only_the_sizes_they_add(
    thread: EngineThread, config: EngineConfig, recorder: Recorder
) -> None:
    thread.reconfigure(config.replace(max_num_seqs=16))
    assert sorted(recorder.runner.fast_decode.graphs) == [1, 2, 4, 8, 16]
    drafting = config.replace(speculative={"method": "ngram", "k": 3})
    thread.reconfigure(drafting)  # 4 requests check 4 tokens each
    assert num_graphs(recorder) == (5, 1)
    thread.reconfigure(drafting.replace(max_num_seqs=10**6, max_num_batched_tokens=10**6))
    more = 64 * 4  # each has a block, so no more run
    assert more > LEAST_ROWS, "or the memory of the graphs would have room for them"
    assert len(recorder.runners) == 1 and num_graphs(recorder)[0] == 5 + len(graph_sizes(more))


def test_a_step_is_padded_as_if_no_other_engine_had_recorded(
    thread: EngineThread, config: EngineConfig, recorder: Recorder
) -> None:
    """Or its time, and the last bits of its logits, would depend on what was run before."""
    thread.reconfigure(config.replace(max_num_seqs=16))
    thread.reconfigure(config.replace(max_num_seqs=6))
    graphed = recorder.runner.fast_decode
    assert sorted(graphed.graphs) == [1, 2, 4, 6, 8, 16] and graphed.sizes == [1, 2, 4, 6]
    thread.submit(PROMPTS[0], GREEDY).result(timeout=60)
    assert graphed.graphs[1].num_replays > 0
    streams = [thread.submit([7, number], GREEDY) for number in range(6)]
    assert [len(stream.result(timeout=60).token_ids) for stream in streams] == [12] * 6
    assert graphed.graphs[6].num_replays > 0
    assert graphed.graphs[8].num_replays == graphed.graphs[16].num_replays == 0


def test_graphs_that_are_recorded_anew_get_a_memory_pool_of_their_own(
    model: LoadedModel, config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch ends a pool with the last of its graphs."""
    monkeypatch.setitem(select.BACKENDS, "eager", TensorLengthAttention)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch_runner, "side_stream", lambda device: None)
    pools: list[object] = []

    def make_graph(pool: object, side: None) -> FakeGraph:
        pools.append(pool)
        return FakeGraph()

    monkeypatch.setattr(torch_runner, "CudaGraph", make_graph)
    config = config.replace(num_kv_blocks=2 * LEAST_ROWS)
    runner = TorchRunner(model, config, WallClock())
    assert not runner.uses_graphs and not pools
    runner.uses_graphs, runner.pending.sampled = True, runner.pending.sampled[:0]  # as on a GPU
    recorded = []
    for max_num_seqs in (4, 16, LEAST_ROWS + 1):
        runner.reuse(config.replace(max_num_seqs=max_num_seqs, max_num_batched_tokens=256), WallClock())
        recorded.append(set(pools))
        pools.clear()
    assert recorded[0] == recorded[1] and recorded[0].isdisjoint(recorded[2])
    assert [len(each) for each in recorded] == [1, 1, 1]


def test_every_engine_answers_as_one_of_its_own(
    thread: EngineThread, config: EngineConfig, model: LoadedModel, recorder: Recorder
) -> None:
    """Whatever the one before has left: keys and values, block tables, requests in flight, a cached prefix."""
    for fields in (
        {"async_scheduling": True},
        {"enable_prefix_caching": False},
        {"max_num_seqs": 2, "async_scheduling": True},
        {"speculative": {"method": "ngram", "k": 3, "acceptance_floor": 0, "min_output_tokens": 1}},
        {"enable_chunked_prefill": False, "max_num_batched_tokens": 96},
        {"max_num_seqs": 6},
    ):
        wanted = config.replace(**fields)
        in_flight = thread.submit(PROMPTS[2], SamplingParams(temperature=0, max_tokens=60, ignore_eos=True))
        next(iter(in_flight))
        thread.reconfigure(wanted)
        assert recorder.runner.pending.rows == {}
        for layer in recorder.runner.kv_pool.layers:
            layer[:-1].fill_(7.0)
        assert serve(thread) == serve_alone(wanted, model)
    assert len(recorder.runners) == 1


def test_a_kept_runner_goes_by_the_clock_of_its_engine(model: LoadedModel, config: EngineConfig) -> None:
    runners, clocks = KeptRunners(), (WallClock(), WallClock())
    for clock in clocks:
        runner = Engine(config, model, clock=clock, runners=runners).runner
        assert isinstance(runner, TorchRunner) and runner.clock is clock
        assert runners.turn_to(model, config)


def test_a_draft_head_is_shown_nothing_after_its_engine(
    thread: EngineThread, config: EngineConfig, model: LoadedModel, recorder: Recorder, tmp_path: Path
) -> None:
    make_head(tmp_path, model)
    thread.reconfigure(config.replace(speculative={"method": "draft_head", "model": str(tmp_path), "k": 2}))
    reader = weakref.ref(recorder.runner.hidden_state_reader)
    assert reader() is not None
    thread.reconfigure(config)
    assert recorder.runner.hidden_state_reader is None and reader() is None and len(recorder.runners) == 1


def test_a_drafting_model_stays_as_long_as_it_drafts(
    thread: EngineThread, config: EngineConfig, recorder: Recorder
) -> None:
    expected, recorder.most = serve(thread), 2
    found = []
    for k in (2, 3):
        drafting = {"method": "draft_model", "model": config.model, "k": k, "acceptance_floor": 0}
        thread.reconfigure(config.replace(speculative=drafting))
        found.append(serve(thread))
        assert thread.call(lambda engine: engine.speculator.proposer.runner.num_kv_blocks).result() == 64
        assert len(recorder.runners) == 2, "of the model and of its double"
    drafts = recorder.runners[1]
    assert found == [expected] * 2 and drafts() is not None
    thread.reconfigure(config)
    gc.collect()  # it refers to itself here
    assert drafts() is None and len(recorder.runners) == 2
    assert serve(thread) == expected
    thread.reconfigure(config.replace(speculative=drafting))
    thread.reconfigure(config.replace(speculative=drafting, num_kv_blocks=65))
    assert len(recorder.runners) == 5, "one more that drafts, and two over other pools"


def test_a_kept_drafting_models_pool_is_not_counted_twice(
    thread: EngineThread, config: EngineConfig, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where both pools fit, but not a third, more slots are had as by an engine that finds nothing there."""
    recorder.most = 2
    drafting = config.replace(speculative={"method": "draft_model", "model": config.model, "k": 2})
    thread.reconfigure(drafting)
    alive = [runner() for runner in recorder.runners]
    pools = [sum(layer.nbytes for layer in runner.kv_pool.layers) for runner in alive if runner is not None]
    del alive
    assert len(pools) == 2

    def free_bytes(device: object) -> int:
        taken = [pool for pool, runner in zip(pools, recorder.runners) if runner() is not None]
        return int(1.2 * sum(pools)) - sum(taken)

    monkeypatch.setattr(memory_budget, "free_bytes", free_bytes)
    thread.reconfigure(drafting.replace(max_num_seqs=5))
    assert thread.config.max_num_seqs == 5
    assert [runner() is not None for runner in recorder.runners] == [True, False, True]


def test_a_drafting_model_is_gone_before_another_is_loaded(
    thread: EngineThread,
    config: EngineConfig,
    model: LoadedModel,
    recorder: Recorder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both, and the old one's KV pool beside them, may not fit."""
    recorder.most = 2
    shutil.copytree(config.model, another := tmp_path / "another")
    make_head(head := tmp_path / "head", model)
    drafting = [{"method": "draft_model", "model": path, "k": 2} for path in (config.model, str(another))]
    drafting.append({"method": "draft_head", "model": str(head), "k": 2})
    thread.reconfigure(config.replace(speculative=drafting[0]))
    alive_when_loading = []

    def watched(load: Callable[..., Any]) -> Callable[..., Any]:
        def loading(*arguments: Any) -> Any:
            alive_when_loading.append([runner() is not None for runner in recorder.runners])
            return load(*arguments)

        return loading

    for name in ("load_model", "load_head"):
        monkeypatch.setattr(make, name, watched(getattr(make, name)))
    for speculative in drafting[1:]:
        thread.reconfigure(config.replace(speculative=speculative))
    assert alive_when_loading == [[True, False], [True, False, False]]


def test_an_engine_that_cannot_be_built_leaves_the_runner_to_one_like_before(
    thread: EngineThread, config: EngineConfig, recorder: Recorder
) -> None:
    expected = serve(thread)
    for fields, kept in ({"kv_reservation": "max_len", "num_kv_blocks": 100}, False), ({"max_num_seqs": 2}, True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Engine, "_assemble", refuse)
            before = len(recorder.runners)
            with pytest.raises(ConfigError, match="no such engine"):
                thread.reconfigure(config.replace(**fields))
        assert (len(recorder.runners) == before) == kept
        assert thread.config.max_num_seqs == 4 and serve(thread) == expected


def test_two_who_reconfigure_at_once_get_the_weights_of_their_own_configuration(
    thread: EngineThread, config: EngineConfig
) -> None:
    """Which weights are in memory is known when it is one's turn, and not when one asks."""
    begun, go_on = threading.Event(), threading.Event()
    thread.call(lambda engine: (begun.set(), go_on.wait(60)))
    assert begun.wait(60)
    with ThreadPoolExecutor(2) as pool:
        replies = []
        for dtype in ("bfloat16", "float32"):
            num_before = thread._commands.qsize()
            replies.append(pool.submit(thread.reconfigure, config.replace(dtype=dtype)))
            while thread._commands.qsize() == num_before:
                time.sleep(0.001)
        go_on.set()
        for reply in replies:
            reply.result(60)
    assert thread.config.dtype == "float32" and thread.model.dtype == torch.float32


def refuse(engine: Engine, parts: EngineParts, *_: object) -> None:
    """Only one that is new."""
    if parts.config.max_num_seqs == 2 or parts.config.num_kv_blocks == 100:
        raise ConfigError("no such engine")
    assemble(engine, parts, *_)


assemble: Callable[..., None] = Engine._assemble


def test_a_runner_reads_no_field_that_is_not_compared(
    model: LoadedModel, config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an engine would go on with a runner that is not the one it asked for."""
    monkeypatch.setattr(memory_budget, "peak_bytes", lambda work, device: 0)
    read: set[str] = set()

    class Watched:
        def __getattr__(self, name: str) -> Any:
            read.add(name)
            return getattr(wanted, name)

    for fields in ({}, {"preemption": "swap"}, {"num_kv_blocks": None}, {"sliding_window": 8}):
        wanted = config.replace(**fields)
        watched = cast(EngineConfig, Watched())
        runner = TorchRunner(model, watched, WallClock(), FakeGraph)
        shape = (runner.attention, runner.ops, runner.block_size, runner.kv_dtype)
        memory_budget.largest_step_bytes(model, watched, *shape)  # as on a GPU
    assert {"max_num_batched_tokens", "num_kv_blocks", "max_decode_rows"} < read
    read -= {"max_decode_rows", "lazy_graphs"}  # max_num_seqs, batching and speculative; when, not what
    assert read <= {*RUNNER_FIELDS, *POOL_FIELDS, *STEP_FIELDS} <= set(EngineConfig.model_fields)


def test_a_pool_whose_size_was_left_open_suits_steps_of_the_same_size_only(
    model: LoadedModel, config: EngineConfig
) -> None:
    left_open = config.replace(num_kv_blocks=None)
    for sized, any_step in (config, True), (left_open, False), (left_open.replace(kv_cache_memory_gb=0.001), True):
        runner = TorchRunner(model, sized, WallClock())
        runner.reuse(config.replace(num_kv_blocks=2), WallClock())
        assert suits(runner, model, sized)
        assert suits(runner, model, sized.replace(max_num_batched_tokens=64)) == any_step
        assert not suits(runner, model, sized.replace(kv_cache_dtype="int8"))
        assert not suits(runner, replace(model), sized), "other weights"
