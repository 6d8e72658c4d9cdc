"""The runner's ways on a GPU, on a pretended one (pretended_cuda.py says what that can show)."""

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from draft_heads import make_eagle3, make_head
from integrity import check_engine
from pretended_cuda import GPU, OnGpu, PretendedCuda, load_guard, pretended_cuda
from slipping_drafts import Slipping
from torch import Tensor

from minillm import Engine, EngineConfig, SamplingParams
from minillm.core.request import Request
from minillm.core.timeline import Timeline, WallClock
from minillm.frontend.outputs import RequestOutput
from minillm.frontend.structured_outputs import StructuredOutputsParams
from minillm.host.device import HostCopy, to_device
from minillm.kernels.ops import Ops
from minillm.kernels.select_ops import select_ops
from minillm.kernels.triton.counters import counters_for, counting_with, make_counters
from minillm.model import quantized_cuda
from minillm.model.config import ModelConfig
from minillm.model.decoder import Decoder
from minillm.model.linear import Linear
from minillm.model.loader import LoadedModel, fill_randomly, load_model
from minillm.model.parallel import Ranks
from minillm.model.quantized_cuda import makers
from minillm.policies.config import SpeculativeConfig
from minillm.runner import memory_budget, piecewise_graphs
from minillm.runner.cuda_graphs import CudaGraph
from minillm.runner.kept_runners import KeptRunners
from minillm.runner.sampler import Sampler
from minillm.runner.torch_runner import TorchRunner

SHAPE = dict(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=64,
    tie_word_embeddings=False,
)
PROMPTS = ([5], [7, 8, 9], list(range(20)))


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> None:
    load_guard(tmp_path_factory.mktemp("guard"))


@pytest.fixture
def cuda(guard: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedCuda]:
    with pretended_cuda(monkeypatch) as device:
        yield device


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    config = ModelConfig.from_hf({"architectures": ["Qwen3ForCausalLM"], **SHAPE})
    decoder = Decoder(config, torch.float32, torch.device("cpu"))
    fill_randomly(decoder)
    decoder.lm_head.weight.mul_(20)
    return decoder.eval()


def on(device: str, decoder: Decoder) -> LoadedModel:
    copy = Decoder(decoder.config, torch.float32, torch.device(device))
    copy.load_state_dict(decoder.state_dict())
    return LoadedModel("random", copy, None, frozenset(), decoder.config, torch.float32, torch.device(device))


def generate(decoder: Decoder, device: str, **fields: Any) -> list[list[int]]:
    """What each prompt gets. They arrive two steps apart, so that decodes and prompts meet."""
    limits = dict(num_kv_blocks=16, max_num_batched_tokens=16, max_num_seqs=2)
    engine = Engine(EngineConfig(dtype="float32", device=device, **limits, **fields), on(device, decoder))
    waiting, answers, step = list(enumerate(PROMPTS)), dict[str, list[int]](), 0
    while waiting or engine.has_unfinished:
        if waiting and step % 2 == 0:
            number, prompt = waiting.pop(0)
            params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
            engine.add_request(prompt, params, request_id=str(number), stream=False)
        answers |= {output.request_id: output.token_ids for output in engine.step()}
        step += 1
    return [answers[str(number)] for number in range(len(PROMPTS))]


@pytest.mark.parametrize(
    "fields",
    [
        {"attention_backend": "sdpa", "fused_kernels": False},
        {"attention_backend": "sdpa", "fused_kernels": False, "cuda_graphs": False, "sliding_window": 8},
        {"attention_backend": "triton", "fused_kernels": False, "piecewise_graphs": False, "lazy_graphs": True},
        pytest.param({"attention_backend": "triton"}, marks=pytest.mark.slow),
        pytest.param(
            {"attention_backend": "triton", "kv_cache_dtype": "fp8", "sliding_window": 8}, marks=pytest.mark.slow
        ),
    ],
    ids=str,
)
def test_tokens_are_the_cpus_and_a_step_waits_for_its_own_tokens_only(
    fields: dict[str, Any], decoder: Decoder, cuda: PretendedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(piecewise_graphs, "TOKENS", (16,))
    lossy = {name: fields[name] for name in ("sliding_window", "kv_cache_dtype") if name in fields}
    expected = generate(decoder, "cpu", attention_backend="eager", **lossy)
    step, waits = Engine.step, list[str]()

    def keep_waits(engine: Engine) -> Any:
        cuda.waits.clear()
        outputs = step(engine)
        waits.extend(cuda.waits)
        return outputs

    monkeypatch.setattr(Engine, "step", keep_waits)
    assert generate(decoder, "cuda", **fields) == expected
    captured_late = {"the start of a recording"} if fields.get("lazy_graphs") else set()
    assert "an event" in waits and set(waits) <= {"an event", *captured_late}


SMALL: dict[str, Any] = {
    **dict(max_num_batched_tokens=16, num_kv_blocks=40, block_size=4, max_num_seqs=3, max_model_len=64),
    **dict(dtype="float32", attention_backend="sdpa", fused_kernels=False),
}
TIGHT = {"num_kv_blocks": 10, "max_num_seqs": 4}
ENGINES: dict[str, dict[str, Any]] = {
    "preempted": TIGHT,
    "swapped out": {"preemption": "swap", "swap_space_gb": 0.001, **TIGHT},
    "int8 KV": {"kv_cache_dtype": "int8"},
    "fp8 KV": {"kv_cache_dtype": "fp8"},
    "a window with sinks": {"sliding_window": 6, "attention_sinks": 2},
    "nothing drafts": {},
    "a head drafts": {"speculative": {"method": "draft_head", "model": "head"}},
    "EAGLE-3 drafts": {"speculative": {"method": "draft_head", "model": "eagle3"}},
    "a model drafts": {"speculative": {"method": "draft_model", "model": "itself"}},
    "a model drafts and slips": {"speculative": {"method": "slipping"}},
    "what is looked up drafts": {"speculative": {"method": "ngram", "ngram_min": 1}},
    "the head drafts again": {"speculative": {"method": "draft_head", "model": "head"}},
}
FEW = ("swapped out", "EAGLE-3 drafts", "a model drafts and slips")
SHARED = [*range(40, 53)]
ASKED: list[tuple[list[int], dict[str, Any]]] = [
    ([*SHARED, 60], {"temperature": 0}),
    ([7, 8, 9], {"temperature": 0.9, "top_k": 40, "top_p": 0.9, "seed": 3, "logprobs": 2}),
    ([*SHARED, 61, 62], {"temperature": 0, "presence_penalty": 1.5, "logit_bias": {5: 2.0}}),
    ([*range(100, 120)], {"temperature": 0, "structured_outputs": StructuredOutputsParams(regex="[a-c ]{30}")}),
    ([*SHARED, 63], {"temperature": 1.0, "top_k": 50, "seed": 4}),
]
"""Prompts of which three share blocks, and what is sampled in the same steps."""


def serve(engine: Engine) -> list[RequestOutput]:
    """What's said to all that are asked, each two steps after the one before."""
    waiting, outputs, step = list(enumerate(ASKED)), dict[str, RequestOutput](), 0
    while waiting or engine.has_unfinished:
        if waiting and step % 2 == 0:
            number, (prompt, fields) = waiting.pop(0)
            params = SamplingParams(**fields, max_tokens=10, ignore_eos=True)
            engine.add_request(prompt, params, request_id=str(number), stream=False)
        outputs |= {output.request_id: output for output in engine.step()}
        check_engine(engine)
        step += 1
    assert engine.scheduler.prefix_hits > 0
    return [outputs[str(number)] for number in range(len(ASKED))]


@pytest.fixture
def drafters(lively_llama_path: Path, tmp_path: Path) -> dict[str, str]:
    """Folders of what drafts for this model: heads of random weights, and the model itself."""
    model = load_model(EngineConfig(model=str(lively_llama_path), dtype="float32", device="cpu"))
    make_head(tmp_path / "head", model)
    make_eagle3(tmp_path / "eagle3", model, depths=[0, 2, 4])
    return {"head": str(tmp_path / "head"), "eagle3": str(tmp_path / "eagle3"), "itself": model.name}


def drafting(given: dict[str, str], drafters: dict[str, str]) -> SpeculativeConfig:
    """As `given` says, up to three tokens in every step."""
    make = Slipping if given["method"] == "slipping" else SpeculativeConfig
    named = {"model": drafters[given["model"]]} if "model" in given else {}
    always: dict[str, Any] = {"k": 3, "acceptance_floor": 0, "adaptive_k": False, "min_output_tokens": 1}
    return make(**{**given, **named, **always})


@pytest.mark.parametrize("names", [FEW, pytest.param([*ENGINES], marks=pytest.mark.slow)], ids=["few", "all"])
def test_engines_in_turn_say_what_a_cpu_says(
    names: Sequence[str],
    lively_llama_path: Path,
    drafters: dict[str, str],
    cuda: PretendedCuda,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each goes on with the runners of the one before, where they suit it."""
    monkeypatch.setattr(piecewise_graphs, "TOKENS", (16,))
    # A nucleus wider than the first prefix takes seconds, interpreted; `test_whatever_is_sampled...` has one.
    monkeypatch.setattr(memory_budget, "SORTED", SamplingParams(temperature=0))
    runners, models, kept = KeptRunners(), dict[str, LoadedModel](), list[bool]()
    for name in names:
        fields = {"model": str(lively_llama_path), **SMALL, **ENGINES[name]}
        if given := fields.pop("speculative", None):
            fields["speculative"] = drafting(given, drafters)
        on_cpu = Engine(EngineConfig(device="cpu", **fields), models.get("cpu"))
        expected = serve(on_cpu)
        config = EngineConfig(device="cuda", **fields)
        kept.append(runners.turn_to(models.get("cuda"), config))
        engine = Engine(config, models.get("cuda"), runners=runners)
        models = {"cpu": on_cpu.loaded_model, "cuda": engine.loaded_model}
        cuda.waits.clear()
        for ours, theirs in zip(serve(engine), expected, strict=True):
            assert ours.token_ids == theirs.token_ids, name
            named = [[each.top.keys() for each in output.logprobs or ()] for output in (ours, theirs)]
            assert named[0] == named[1]
        is_tight, is_drafted = name in ("preempted", "swapped out"), given is not None
        assert (engine.scheduler.num_preemptions > 0) == is_tight
        assert any(share.num_drafts for step in engine.steps for share in step.shares) == is_drafted
        # Blocks leave and come back; a token that is drafted is said to the host, which looks it up for the next.
        copies = {"a copy to the host", "a copy from the host"} if name == "swapped out" else {"a copy to the host"}
        assert {*cuda.waits} - {"an event"} <= (copies if is_tight or is_drafted else set())
    assert any(kept)


class WithTwin(Ranks):
    """Two ranks, of which the other one always has what this one has."""

    def all_reduce(self, x: Tensor) -> Tensor:
        return x.mul_(2)

    def all_gather(self, x: Tensor) -> Tensor:
        return torch.cat([x, x], dim=-1)

    def smallest(self, number: int, device: torch.device) -> int:
        return number


def test_a_rank_of_two_computes_on_its_device_what_it_does_on_a_cpu(
    lively_llama_path: Path, cuda: PretendedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In graphs, with its collectives; how NCCL's are captured only two GPUs can show."""
    monkeypatch.setattr(piecewise_graphs, "TOKENS", (16,))
    said = []
    for device in ("cpu", "cuda"):
        own = EngineConfig(device=device, model=str(lively_llama_path), async_scheduling=False, **SMALL)
        model, clock = load_model(own, WithTwin(1, 2)), WallClock()
        engine = Engine.on_runner(own, TorchRunner(model, own, clock), clock, model=model)
        cuda.waits.clear()
        said.append([output.token_ids for output in serve(engine)])
    assert said[0] == said[1] and {*cuda.waits} == {"an event"}


def capture(work: Callable[[], object]) -> CudaGraph:
    return CudaGraph(torch.cuda.graph_pool_handle(), torch.cuda.Stream()).capture(work)


def test_what_may_not_be_in_a_graph_is_refused(cuda: PretendedCuda) -> None:
    x = torch.ones(4, device=GPU)
    refused: list[Callable[[], object]] = [
        lambda: x.sum().item(),
        lambda: x[x > 0],
        lambda: x.cpu(),
        lambda: x[[0, 1]],
        lambda: x.add_(to_device(torch.ones(4).numpy(), GPU)),
    ]
    for work in refused:
        with pytest.raises(RuntimeError, match="capturing"):
            capture(work)


def test_a_replay_computes_anew_and_leaves_only_what_was_there_before(cuda: PretendedCuda) -> None:
    x, total, kept = torch.ones(4, device=GPU), torch.zeros((), device=GPU), []

    def work() -> None:
        kept[:] = [x * 2]  # in the graph's own memory
        total.copy_(kept[0].sum())

    graph = capture(work)
    x.fill_(3)
    graph.replay()
    assert total.item() == 24
    graph.graph.spoil()  # as another graph's replay may
    assert total.item() == 24 and kept[0].isnan().all().item()


def test_copies_that_dont_wait_are_judged_when_they_end(cuda: PretendedCuda) -> None:
    there = HostCopy(torch.arange(3, device=GPU))
    assert there.tensor.tolist() != [0, 1, 2] and there.wait().tolist() == [0, 1, 2]
    pinned = torch.zeros(3).pin_memory()
    assert isinstance(pinned.to(GPU, non_blocking=True), OnGpu)
    pinned[0] = 1
    with pytest.raises(AssertionError, match="pinned memory was written to"):
        torch.cuda.synchronize()


def test_operands_have_to_be_on_one_device(cuda: PretendedCuda) -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(2, device=GPU) + torch.ones(2)
    assert (torch.ones(2, device=GPU) + torch.tensor(1.0)).cpu().tolist() == [2, 2]


def test_whatever_is_sampled_waits_for_nothing_and_is_what_a_cpu_samples(cuda: PretendedCuda) -> None:
    each: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0, "repetition_penalty": 1.3, "presence_penalty": 0.5, "logprobs": 3},
        {"temperature": 1, "logit_bias": {5: 3.0}, "logprobs": 0},
        {"temperature": 0.8, "top_p": 0.9, "top_k": 20},
        {"temperature": 9, "top_p": 0.999},  # from more tokens than are sorted first
        {"temperature": 0},  # NaN
    ]
    rows = [
        Request(f"{i}", [1, 2], SamplingParams(**fields), Timeline(0.0), seed=i, output_token_ids=[3])
        for i, fields in enumerate(each)
    ]
    logits = torch.randn(len(rows), 1001, generator=torch.Generator().manual_seed(0))
    there = logits.to(GPU)
    for tensor in (logits, there):
        tensor[-1, 900] = torch.nan
    for is_masked in (False, True):
        odd = torch.arange(1, 1001, 2)  # which a grammar rules out
        allowed = logits.index_fill(1, odd, -torch.inf) if is_masked else None
        allowed_there = there.index_fill(1, odd.to(GPU), -torch.inf) if is_masked else None
        expected = Sampler().launch(logits, rows, allowed).wait()
        cuda.waits.clear()
        launched = Sampler(select_ops(True, GPU, logits.dtype, logits.dtype)).launch(there, rows, allowed_there)
        assert not cuda.waits
        found = launched.wait()
        assert found.token_ids == expected.token_ids and found.errors == expected.errors
        assert found.errors.keys() == {rows[-1].request_id}
        for ours, theirs in zip(found.logprobs, expected.logprobs, strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None and theirs is not None:
                assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-5)
                assert ours.top.keys() == theirs.top.keys()


def test_engines_on_the_same_weights_count_apart(
    tmp_path: Path, cuda: PretendedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may compute in a stream of its own: programs that share a sum would take the other engine's for theirs. In
    graphs, which keep what they were recorded with, and in steps that are launched kernel by kernel."""
    few_rows = pytest.importorskip("minillm.kernels.triton.few_rows")
    used, alive = dict[str, set[int]](), []

    def noted(x: Tensor, weights: Any, bias: Any, arrived: Tensor) -> Tensor:
        used.setdefault(engine, set()).add(arrived.data_ptr())
        return x.new_zeros(len(x), weights.out)

    monkeypatch.setattr(few_rows, "linear", noted)
    monkeypatch.setattr(quantized_cuda, "check", lambda *given: None)
    monkeypatch.setattr(piecewise_graphs, "TOKENS", (16,))
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"], **SHAPE}))
    fields = dict(dtype="float16", load_format="dummy", attention_backend="sdpa", fused_kernels=False)
    limits = dict(num_kv_blocks=16, max_num_batched_tokens=16, max_num_seqs=2)
    path, common = str(tmp_path / "config.json"), {**fields, **limits}
    engine = "load"
    model = load_model(EngineConfig(model=path, device="cuda", quantization="int8", **common))
    for engine in ("eager", "graphs", "graphs too"):
        config = EngineConfig(model=path, device="cuda", quantization="int8", cuda_graphs=engine != "eager", **common)
        alive.append(running := Engine(config, model))
        running.add_request([5, 6, 7], SamplingParams(temperature=0, max_tokens=3, ignore_eos=True), stream=False)
        while running.has_unfinished:
            running.step()
    assert [len(used[engine]) for engine in ("eager", "graphs", "graphs too")] == [1, 1, 1]
    assert len(set.union(*used.values())) == 3


def test_a_thread_counts_with_what_it_was_given() -> None:
    one, other = (make_counters(torch.device("cpu")) for _ in range(2))
    with counting_with(one):
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(counters_for, one.device).result() is not one
        with counting_with(other):
            assert counters_for(one.device) is other
        assert counters_for(one.device) is one
    assert counters_for(one.device) is counters_for(one.device) is not one


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
def test_layers_in_fewer_bits_are_in_graphs(kind: str, cuda: PretendedCuda) -> None:
    """Each on other numbers than it was recorded with, beside the plain product with the weights before rounding."""
    torch.manual_seed(0)
    linear = Linear(64, 128, False, torch.float16, GPU)
    linear.weight.data.uniform_(-0.1, 0.1)
    plain = linear.weight.float().cpu()
    layer = makers(EngineConfig(quantization=kind), GPU)[0](linear)
    for num_rows in (1, 40, 130):  # few, more of them, a prompt's
        x, y = torch.zeros(num_rows, 64, dtype=torch.float16, device=GPU), torch.zeros(num_rows, 128, device=GPU)
        graph = capture(lambda x=x, y=y: y.copy_(layer(x)))
        x.normal_()
        graph.replay()
        exact = x.float().cpu() @ plain.T
        assert (y.cpu() - exact).norm() < 0.15 * exact.norm()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
def test_swiglu_in_the_launch_of_quantized_gates_and_ups_changes_no_token(
    kind: str, tmp_path: Path, cuda: PretendedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of few rows take it, those with a prompt of 40 in fp8 don't. Beside them, all in two launches."""
    monkeypatch.setattr(quantized_cuda, "check", lambda *given: None)
    shape = {"architectures": ["Qwen3ForCausalLM"], **SHAPE, "num_hidden_layers": 1, "vocab_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    fields = {**SMALL, "dtype": "float16", "load_format": "dummy", "fused_kernels": True, "cuda_graphs": False}
    fields |= {"max_num_batched_tokens": 48, "quantization": kind}
    config = EngineConfig(model=str(tmp_path / "config.json"), device="cuda", **fields)
    swiglu, said, fused = quantized_cuda.FragmentLinear.swiglu, list[list[list[int]]](), list[bool]()

    def noted(layer: quantized_cuda.FragmentLinear, x: Tensor) -> Tensor | None:
        result = swiglu(layer, x)
        fused.append(result is not None)
        return result

    for way in (noted, lambda layer, x: None):
        monkeypatch.setattr(quantized_cuda.FragmentLinear, "swiglu", way)
        engine, outputs = Engine(config), dict[str, list[int]]()
        for number, prompt in enumerate(([5], [7, 8, 9], [*range(40)])):
            params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
            engine.add_request(prompt, params, request_id=str(number), stream=False)
        while engine.has_unfinished:
            outputs |= {output.request_id: output.token_ids for output in engine.step()}
        said.append([outputs[str(number)] for number in range(3)])
    assert said[0] == said[1] and True in fused and (False in fused) == (kind == "fp8")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
def test_rows_of_a_tied_head_in_fewer_bits_are_looked_up_in_graphs(
    kind: str, tmp_path: Path, cuda: PretendedCuda
) -> None:
    """As without graphs, and nothing waits."""
    shape = {"architectures": ["Qwen3ForCausalLM"], **SHAPE, "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    fields = {**SMALL, "dtype": "float16", "load_format": "dummy", "piecewise_graphs": False, "max_num_seqs": 2}
    said = []
    for graphs in (False, True):
        config = EngineConfig(
            model=str(tmp_path / "config.json"), device="cuda", quantization=kind, cuda_graphs=graphs, **fields
        )
        engine, greedy = Engine(config), SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
        assert engine.loaded_model.decoder.embed_tokens is None
        cuda.waits.clear()
        for number, prompt in enumerate(PROMPTS[:2]):
            engine.add_request(prompt, greedy, request_id=str(number), stream=False)
        outputs = dict[str, list[int]]()
        while engine.has_unfinished:
            outputs |= {output.request_id: output.token_ids for output in engine.step()}
        said.append(outputs)
        assert {*cuda.waits} == {"an event"}
    assert said[0] == said[1]


@pytest.mark.slow
def test_experts_are_in_graphs(cuda: PretendedCuda) -> None:
    """Few tokens, by our kernels, and more, by a grouped product: on other tokens than they were recorded with."""
    sizes = dict(hidden_size=512, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=128, norm_topk_prob=True)
    config = ModelConfig.from_hf({"architectures": ["Qwen3MoeForCausalLM"], **SHAPE, **sizes, "num_hidden_layers": 1})
    plain = Decoder(config, torch.float16, torch.device("cpu"))
    fill_randomly(plain)
    there = Decoder(config, torch.float16, GPU)
    there.load_state_dict(plain.state_dict())
    [expected], [found] = plain.float().sparse_mlps, there.sparse_mlps
    found.stack()
    ops = select_ops(True, GPU, torch.float16, torch.float16)
    for num_tokens in (1, 5, 70):
        x, y = (torch.zeros(num_tokens, 512, dtype=torch.float16, device=GPU) for _ in range(2))
        graph = capture(lambda x=x, y=y: y.copy_(found(x, ops)))
        x.normal_()
        graph.replay()
        exact = expected(x.float().cpu(), Ops())
        errors = (y.float().cpu() - exact).norm(dim=1) / exact.norm(dim=1)
        assert errors.median() < 2e-3  # rounding may send a token to another expert
