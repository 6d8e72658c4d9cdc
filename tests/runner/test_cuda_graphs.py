"""Recorded decode steps: the runner's own code, with a fake graph in CUDA's place."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fake_graph import FakeGraph, HostLengthAttention, TensorLengthAttention
from staggered import serve_staggered

from minillm import Engine, EngineConfig, SamplingParams
from minillm.core.timeline import WallClock
from minillm.kernels.attention import select
from minillm.kernels.attention.base import AttentionBackend
from minillm.kernels.attention.native import NativeAttention
from minillm.kernels.triton.attention import TritonAttention
from minillm.model.loader import LoadedModel, load_model
from minillm.runner import torch_runner
from minillm.runner.cuda_graphs import bucket_sizes
from minillm.runner.torch_runner import TorchRunner

GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
PROMPTS = [list(range(10, 10 + length)) for length in (3, 17, 30, 9, 1)]


@pytest.fixture(scope="module")
def model(tiny_llama_path: Path) -> LoadedModel:
    return load_model(EngineConfig(model=str(tiny_llama_path), dtype="float32", device="cpu"))


@pytest.fixture
def use_backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(backend: type[AttentionBackend]) -> None:
        monkeypatch.setitem(select.BACKENDS, "eager", backend)

    return use


def make_engine(model: LoadedModel, graphs: list[FakeGraph] | None, **fields: Any) -> Engine:
    """An engine whose decode steps are recorded in `graphs`; None = not recorded."""
    shape = dict(num_kv_blocks=64, block_size=4, max_num_seqs=6, max_model_len=96, attention_backend="eager")
    config = EngineConfig(model=model.name, dtype="float32", device="cpu", **{**shape, **fields})
    clock = WallClock()

    def make_graph() -> FakeGraph:
        graphs.append(FakeGraph())
        return graphs[-1]

    runner = TorchRunner(model, config, clock, None if graphs is None else make_graph)
    return Engine(config, model, runner=runner, clock=clock)


def serve(engine: Engine, params: SamplingParams = GREEDY) -> list[list[int]]:
    return [output.token_ids for output in serve_staggered(engine, PROMPTS, params)]


def test_buckets_hold_every_batch_with_little_padding() -> None:
    for largest in (1, 3, 8, 32, 100, 256):
        sizes = bucket_sizes(largest)
        assert sizes == sorted(set(sizes)) and sizes[-1] == largest
        for n in range(1, largest + 1):
            assert min(size for size in sizes if size >= n) - n < 8


@pytest.mark.parametrize("ahead", [False, True], ids=["in turn", "ahead"])
def test_replayed_steps_write_what_eager_ones_do(model: LoadedModel, use_backend: Any, ahead: bool) -> None:
    """Contexts grow from 1 token to 70 in the replays, five batch sizes come and go, prompts come in between."""
    use_backend(TensorLengthAttention)
    expected = serve(make_engine(model, None, async_scheduling=False))
    graphs: list[FakeGraph] = []
    assert serve(make_engine(model, graphs, async_scheduling=ahead)) == expected
    assert len(graphs) == 4, "1, 2, 4, 6"
    assert sum(graph.num_replays for graph in graphs) > 40


def test_drafts_are_checked_in_replays(model: LoadedModel, use_backend: Any) -> None:
    """They are laid out as decodes, so the buckets go on to where every request checks a whole draft."""
    use_backend(TensorLengthAttention)
    expected = serve(make_engine(model, None))
    graphs: list[FakeGraph] = []
    speculative = {"method": "synthetic", "k": 3, "acceptance_floor": 0, "adaptive_k": False, "max_batch": 4}
    engine = make_engine(model, graphs, speculative=speculative)
    assert max(engine.runner.fast_decode.recordings) == 6 + 4 * 3
    assert serve(engine) == expected
    pure = [step for step in engine.steps if step.num_prefill_tokens == 0]
    assert sum(graph.num_replays for graph in graphs) >= len(pure)
    assert sum(share.num_drafts for step in pure for share in step.shares) > 100


def test_lengths_that_stay_as_recorded_would_be_noticed(model: LoadedModel, use_backend: Any) -> None:
    """The trap that others fell into, to show that the test above can see it."""
    use_backend(TensorLengthAttention)
    expected = serve(make_engine(model, None))
    use_backend(HostLengthAttention)
    assert serve(make_engine(model, [])) != expected


def test_a_backend_that_plans_on_the_host_is_not_recorded(model: LoadedModel) -> None:
    graphs: list[FakeGraph] = []
    for backend in ("sdpa", "eager"):
        engine = make_engine(model, graphs, attention_backend=backend)
        assert engine.runner.fast_decode is None
    assert not graphs


def test_graphs_can_be_switched_off(model: LoadedModel, use_backend: Any) -> None:
    use_backend(TensorLengthAttention)
    graphs: list[FakeGraph] = []
    assert make_engine(model, graphs, cuda_graphs=False).runner.fast_decode is None
    assert not graphs


def test_padding_rows_touch_nothing_but_the_null_block(model: LoadedModel, use_backend: Any) -> None:
    use_backend(TensorLengthAttention)
    engine = make_engine(model, [])
    layers = engine.runner.kv_pool.layers
    for layer in layers:
        layer.fill_(7.0)
    engine.add_request([1, 2, 3], GREEDY, stream=False)
    for number in range(2):
        engine.add_request([9, 8, number], GREEDY, stream=False)
    for _ in range(5):
        engine.step()  # three rows in the bucket of four
    held = {block for table in engine.scheduler.kv.tables.values() for block in table.block_ids}
    for layer in layers:
        written = {block for block in range(engine.runner.num_kv_blocks) if (layer[block] != 7.0).any()}
        assert written == held


def test_our_kernels_can_be_replayed_at_any_length(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole fast path of a GPU, kernels in Triton's interpreter: fused operations, recorded once, run ahead."""
    if TritonAttention.missing(model.device):
        pytest.skip("there is a GPU: tests/gpu does this for real" if torch.cuda.is_available() else "no Triton here")
    from minillm.kernels.triton.ops import TritonOps  # here, as Triton may not be installed

    short = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    expected = serve(make_engine(model, None, attention_backend="sdpa"), short)
    monkeypatch.setattr(torch_runner, "select_ops", lambda *_: TritonOps())
    graphs: list[FakeGraph] = []
    fields = dict(attention_backend="triton", block_size=16, num_kv_blocks=32, max_num_seqs=4)
    engine = make_engine(model, graphs, async_scheduling=True, **fields)
    assert serve(engine, short) == expected
    assert sum(graph.num_replays for graph in graphs) > 20


class NativeLengths(NativeAttention):
    """Our C++ reads lengths from tensors, as a kernel on a GPU does."""

    capturable = True
    dtypes = None


@pytest.mark.skipif(NativeAttention.missing(torch.device("cpu")) is not None, reason="no C++ compiler here")
def test_a_quantized_cache_and_a_window_in_a_graph(model: LoadedModel, use_backend: Any) -> None:
    use_backend(NativeLengths)
    fields = {"kv_cache_dtype": "int8", "sliding_window": 12, "attention_sinks": 3, "max_num_batched_tokens": 16}
    graphs: list[FakeGraph] = []
    expected = serve(make_engine(model, None, **fields))
    engine = make_engine(model, graphs, **fields)
    assert serve(engine) == expected and len(engine.runner.fast_decode.recordings) == len(graphs) > 0
    assert serve(make_engine(model, None)) != expected, "the window must matter"
