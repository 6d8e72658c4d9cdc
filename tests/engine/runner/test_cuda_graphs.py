"""Recorded steps: the runner's own code, with a fake graph in CUDA's place."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from draft_heads import make_eagle3, make_head
from fake_graph import FakeGraph, HostLengthAttention, TensorLengthAttention
from slipping_drafts import Slipping
from staggered import serve_staggered

from minillm import Engine, EngineConfig, SamplingParams
from minillm.core.request import Draft
from minillm.core.timeline import WallClock
from minillm.kernels.attention import select
from minillm.kernels.attention.base import AttentionBackend
from minillm.kernels.attention.native import NativeAttention
from minillm.kernels.ops import Ops
from minillm.kernels.triton.attention import TritonAttention
from minillm.model import loader
from minillm.model.loader import LoadedModel, load_model
from minillm.model.moe import MoE
from minillm.runner import cuda_graphs, piecewise_graphs, torch_runner
from minillm.runner.cuda_graphs import graph_sizes
from minillm.runner.piecewise_graphs import TOKENS
from minillm.runner.torch_runner import TorchRunner
from minillm.speculation.draft_head import DraftHeadProposer

GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
PROMPTS = [list(range(10, 10 + length)) for length in (3, 17, 30, 9, 1)]
ALWAYS = {"acceptance_floor": 0, "adaptive_k": False, "min_output_tokens": 1}


@pytest.fixture
def use_backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(backend: type[AttentionBackend]) -> None:
        monkeypatch.setitem(select.BACKENDS, "eager", backend)

    return use


def make_engine(model: LoadedModel, *, captured: bool, **fields: Any) -> Engine:
    """An engine of small steps, so that prompts come in chunks."""
    shape = dict(num_kv_blocks=64, block_size=4, max_num_seqs=6, max_model_len=96, max_num_batched_tokens=16)
    shape["attention_backend"] = "eager"
    config = EngineConfig(model=model.name, dtype="float32", device="cpu", **{**shape, **fields})
    clock = WallClock()
    runner = TorchRunner(model, config, clock, FakeGraph if captured else None)
    return Engine.on_runner(config, runner, clock, model=model)


def serve(engine: Engine, params: SamplingParams = GREEDY) -> list[list[int]]:
    return [output.token_ids for output in serve_staggered(engine, PROMPTS, params)]


def replayed_decodes(engine: Engine) -> int:
    """Steps that were one replay."""
    return sum(graph.num_replays for graph in engine.runner.fast_decode.graphs.values())


def replayed_in_pieces(engine: Engine) -> int:
    """Steps that were, of which each takes all pieces of its size."""
    total = 0
    for graphs in engine.runner.fast_pieces.graphs.values():
        [times] = {graph.num_replays for graph in graphs}
        total += times
    return total


def test_pieces_are_padded_by_a_quarter_at_most_where_tokens_cost() -> None:
    for n in range(1, TOKENS[-1] + 1):
        assert min(size for size in TOKENS if size >= n) - n <= max(n // 4, 63)
    assert list(TOKENS) == sorted(TOKENS) and len(TOKENS) < 20, "each takes as many graphs as there are layers"


def test_buckets_hold_every_batch_with_little_padding() -> None:
    for largest in (1, 3, 8, 32, 100, 256, 1000, 1024):
        sizes = graph_sizes(largest)
        assert sizes == sorted(set(sizes)) and sizes[-1] == largest and len(sizes) < 20 + largest // 8
        for n in range(1, largest + 1):
            assert min(size for size in sizes if size >= n) - n <= 7


@pytest.mark.parametrize("fields", [{}, {"async_scheduling": True}, {"num_kv_blocks": 40}], ids=str)
def test_replayed_steps_write_what_eager_ones_do(model: LoadedModel, use_backend: Any, fields: dict[str, Any]) -> None:
    """Contexts grow from 1 token to 70 in the replays, five batch sizes come and go, prompts come in between. In a
    tight pool preempted requests come back to them."""
    use_backend(TensorLengthAttention)
    expected = serve(make_engine(model, captured=False, async_scheduling=False))
    engine = make_engine(model, captured=True, **fields)
    assert serve(engine) == expected
    assert sorted(engine.runner.fast_decode.graphs) == [1, 2, 4, 6]
    assert replayed_decodes(engine) > 40 and replayed_in_pieces(engine) > 3
    assert replayed_decodes(engine) + replayed_in_pieces(engine) == len(engine.steps), "every step is replayed"
    assert any(step.preempted for step in engine.steps) == ("num_kv_blocks" in fields)


WAYS: dict[str, dict[str, Any]] = {
    "in a tight pool": {"num_kv_blocks": 40},
    "ahead": {"async_scheduling": True},
    "with a window": {"sliding_window": 12},
    "with drafts": {"speculative": {"method": "ngram", "k": 4, "ngram_min": 1, **ALWAYS}},
}


@pytest.mark.parametrize("way", WAYS)
def test_between_calls_of_any_attention_everything_is_replayed(model: LoadedModel, way: str) -> None:
    """The textbook's attention plans with lengths on the host, so each step, decodes too, is replayed in pieces."""
    expected = serve(make_engine(model, captured=False, **WAYS[way]))
    engine = make_engine(model, captured=True, **WAYS[way])
    assert serve(engine) == expected
    assert engine.runner.fast_decode is None and replayed_in_pieces(engine) == len(engine.steps)
    assert any(len({share.is_prefill for share in step.shares}) == 2 for step in engine.steps), "a mixed step"
    if way == "in a tight pool":
        assert any(step.preempted for step in engine.steps)
    if way == "with drafts":
        assert sum(share.num_drafts for step in engine.steps for share in step.shares) > 5


def test_a_step_larger_than_all_that_is_captured_is_launched(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(piecewise_graphs, "TOKENS", (8, 16))
    fields = {"enable_chunked_prefill": False, "max_num_batched_tokens": 96}
    engine = make_engine(model, captured=True, **fields)
    assert serve(engine) == serve(make_engine(model, captured=False, **fields))
    large = [step for step in engine.steps if step.num_tokens > 16]
    assert large and replayed_in_pieces(engine) == len(engine.steps) - len(large)


def test_a_decode_with_more_rows_than_the_largest_graph_is_launched(
    model: LoadedModel, use_backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of slots would have a graph for every eighth."""
    use_backend(TensorLengthAttention)
    monkeypatch.setattr(cuda_graphs, "MOST_ROWS", 3)
    engine = make_engine(model, captured=True, piecewise_graphs=False)
    assert sorted(engine.runner.fast_decode.graphs) == [1, 2, 3] and len(engine.runner.fast_decode.logits) == 3
    assert serve(engine) == serve(make_engine(model, captured=False))
    sizes = [len(step.shares) for step in engine.steps if step.num_prefill_tokens == 0]
    assert max(sizes) > 3 and replayed_decodes(engine) == sum(size <= 3 for size in sizes) > 0


@pytest.mark.parametrize(("stream", "most"), [(False, 20), (True, 23)])  # Python 3.14 counts 0.2 more of them
def test_a_decode_costs_few_calls_of_python(model: LoadedModel, use_backend: Any, stream: bool, most: int) -> None:
    """A clock would tell less: what a GPU waits for between two replays is Python, and Python is calls."""
    use_backend(TensorLengthAttention)

    def calls_in_a_step(num_requests: int) -> int:
        fields = dict(max_num_seqs=num_requests, num_kv_blocks=400, block_size=16, max_num_batched_tokens=256)
        engine = make_engine(model, captured=True, async_scheduling=True, **fields)
        for _ in range(num_requests):
            engine.add_request([1, 2, 3], GREEDY, stream=stream)
        for _ in range(4):
            engine.step()
        calls = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += event == "call"

        engine.runner.fast_decode.graphs[num_requests].work = lambda: None  # only what the host does
        sys.setprofile(count)
        engine.step()
        sys.setprofile(None)
        assert len(engine.steps[-1].shares) == num_requests and not engine.steps[-1].num_prefill_tokens
        return calls

    assert calls_in_a_step(32) - calls_in_a_step(16) <= 16 * most


def test_draft_heads_see_what_replayed_steps_compute(
    model: LoadedModel, use_backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They guess from what those leave, which they've copied before the next step writes over it. Two kinds of them,
    which read different things, use one runner after the other."""
    use_backend(TensorLengthAttention)
    make_head(tmp_path / "ours", model)
    make_eagle3(tmp_path / "eagle3", model, depths=[0, 1, 2])
    propose, guesses = DraftHeadProposer.propose, []

    def noted(*arguments: Any) -> list[Draft]:
        drafts = propose(*arguments)
        guesses[-1] += [draft.token_ids.copy() for draft in drafts]
        return drafts

    monkeypatch.setattr(DraftHeadProposer, "propose", noted)
    runners = {captured: make_engine(model, captured=captured).runner for captured in (False, True)}
    for head in ("ours", "eagle3", "ours"):
        for captured, runner in runners.items():
            guesses.append([])
            speculative = {"method": "draft_head", "model": str(tmp_path / head), "k": 3, **ALWAYS}
            config = runner.config.replace(speculative=speculative)
            runner.reuse(config, clock := WallClock())
            engine = Engine.on_runner(config, runner, clock, model=model)
            serve(engine, SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))
            if captured:
                assert guesses[-1] == guesses[-2] and len(guesses[-1]) > 50
                assert replayed_decodes(engine) > 10 and replayed_in_pieces(engine) > 3
    assert guesses[0] != guesses[2] and guesses[0] == guesses[4]


def test_drafts_are_checked_in_replays(model: LoadedModel, use_backend: Any) -> None:
    """They are laid out as decodes, so the buckets go on to where every request checks a whole draft."""
    use_backend(TensorLengthAttention)
    expected = serve(make_engine(model, captured=False))
    speculative = Slipping(k=3, acceptance_floor=0, adaptive_k=False, max_batch=4)
    engine = make_engine(model, captured=True, speculative=speculative)
    assert max(engine.runner.fast_decode.graphs) == 6 + 4 * 3
    assert serve(engine) == expected
    pure = [step for step in engine.steps if step.num_prefill_tokens == 0]
    assert replayed_decodes(engine) >= len(pure)
    assert sum(share.num_drafts for step in pure for share in step.shares) > 100


def test_lengths_that_stay_as_recorded_would_be_noticed(model: LoadedModel, use_backend: Any) -> None:
    """The trap that others fell into, to show that the tests above can see it."""
    use_backend(TensorLengthAttention)
    expected = serve(make_engine(model, captured=False))
    use_backend(HostLengthAttention)
    assert serve(make_engine(model, captured=True)) != expected


def test_experts_are_recorded_if_the_device_counts_their_rows(
    tiny_moe_path: Path, use_backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_backend(TensorLengthAttention)
    config = EngineConfig(model=str(tiny_moe_path), dtype="float32", device="cpu")
    counted = make_engine(load_model(config), captured=True)
    assert counted.runner.fast_decode is None and counted.runner.fast_pieces is None
    monkeypatch.setattr(loader, "groups_on_device", lambda device, dtype: True)
    monkeypatch.setattr(MoE, "one_by_one", None)
    engine = make_engine(load_model(config), captured=True)
    answers = serve(engine)
    assert replayed_decodes(engine) > 10
    monkeypatch.undo()
    use_backend(TensorLengthAttention)
    assert answers == serve(counted)


def test_graphs_can_be_switched_off(model: LoadedModel, use_backend: Any) -> None:
    use_backend(TensorLengthAttention)
    runner = make_engine(model, captured=True, cuda_graphs=False).runner
    assert runner.fast_decode is None and runner.fast_pieces is None
    engine = make_engine(model, captured=True, piecewise_graphs=False)
    assert serve(engine) == serve(make_engine(model, captured=True))
    assert engine.runner.fast_pieces is None and replayed_decodes(engine) > 40


@pytest.mark.parametrize("ahead", [False, True], ids=["in turn", "ahead"])
def test_captured_when_first_met_they_say_the_same(model: LoadedModel, use_backend: Any, ahead: bool) -> None:
    """Capturing between two steps touches no request's keys and values, and a step is padded as if all were there."""
    use_backend(TensorLengthAttention)
    fields = {"async_scheduling": ahead, "max_num_batched_tokens": 48}
    at_start = make_engine(model, captured=True, **fields)
    lazy = make_engine(model, captured=True, lazy_graphs=True, **fields)
    assert [*lazy.runner.fast_decode.graphs] == [6] and [*lazy.runner.fast_pieces.graphs] == [64]
    assert serve(lazy) == serve(at_start)
    for name in ("fast_decode", "fast_pieces"):
        whole, met = getattr(at_start.runner, name), getattr(lazy.runner, name)
        assert met.sizes == whole.sizes and len(met.graphs) > 1
    assert replayed_decodes(lazy) + replayed_in_pieces(lazy) == len(lazy.steps), "every step is replayed"
    assert [step.num_tokens for step in lazy.steps] == [step.num_tokens for step in at_start.steps]


def test_padding_touches_nothing_but_the_null_block(model: LoadedModel, use_backend: Any) -> None:
    """And that it leaves finite, whatever an earlier step left in the buffers."""
    use_backend(TensorLengthAttention)
    engine = make_engine(model, captured=True)
    layers = engine.runner.kv_pool.layers
    assert engine.runner.fast_decode.token_inputs.stride(0) * 4 % 16 == 0, (
        "Triton compiles again for rows not so aligned"
    )
    with torch.inference_mode():
        engine.runner.fast_pieces.attended.fill_(torch.nan)
    for layer in layers:
        layer.fill_(7.0)
    engine.add_request([1, 2, 3], GREEDY, stream=False)
    for number in range(2):
        engine.add_request([9, 8, number], GREEDY, stream=False)
    for _ in range(5):
        engine.step()  # nine tokens in pieces of 16, then three rows in a graph of four
        assert all(layer.isfinite().all() for layer in layers)
    held = {block for table in engine.scheduler.kv.tables.values() for block in table.block_ids}
    for layer in layers:
        written = {block for block in range(engine.runner.num_kv_blocks) if (layer[block] != 7.0).any()}
        assert written == held


def test_our_kernels_can_be_replayed_at_any_length(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole fast path of a GPU, kernels in Triton's interpreter: fused operations, recorded once, run ahead."""
    if TritonAttention.missing(model.device):
        pytest.skip(
            "there is a GPU: tests/engine/gpu does this for real" if torch.cuda.is_available() else "no Triton here"
        )
    from minillm.kernels.triton.ops import TritonOps  # here, as Triton may not be installed

    short = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    expected = serve(make_engine(model, captured=False, attention_backend="sdpa"), short)
    monkeypatch.setattr(torch_runner, "select_ops", lambda *_: TritonOps())
    monkeypatch.setattr(TritonOps, "likeliest", Ops.likeliest)  # in no graph, and most of the time, interpreted
    fields = dict(attention_backend="triton", block_size=16, num_kv_blocks=32, max_num_seqs=4)
    engine = make_engine(model, captured=True, async_scheduling=True, **fields)
    assert serve(engine, short) == expected
    assert replayed_decodes(engine) > 10 and replayed_in_pieces(engine) > 3


class NativeLengths(NativeAttention):
    """Our C++ reads lengths from tensors, as a kernel on a GPU does."""

    capturable = True
    dtypes = None


@pytest.mark.skipif(NativeAttention.missing(torch.device("cpu")) is not None, reason="no C++ compiler here")
def test_a_quantized_cache_and_a_window_in_a_graph(model: LoadedModel, use_backend: Any) -> None:
    use_backend(NativeLengths)
    fields = {"kv_cache_dtype": "int8", "sliding_window": 12, "attention_sinks": 3}
    expected = serve(make_engine(model, captured=False, **fields))
    engine = make_engine(model, captured=True, **fields)
    assert serve(engine) == expected and replayed_decodes(engine) > 20 and replayed_in_pieces(engine) > 3
    assert serve(make_engine(model, captured=False)) != expected, "the window must matter"
