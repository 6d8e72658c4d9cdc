"""The runner's ways on a GPU, on a pretended one (pretended_cuda.py says what that can show)."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from pretended_cuda import GPU, OnGpu, PretendedCuda, load_guard, pretended_cuda

from minillm import Engine, EngineConfig, SamplingParams
from minillm.host.device import HostCopy, to_device
from minillm.model.config import ModelConfig
from minillm.model.decoder import Decoder
from minillm.model.loader import LoadedModel, fill_randomly
from minillm.runner import piecewise_graphs
from minillm.runner.cuda_graphs import CudaGraph

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


def generate(decoder: Decoder, device: str, **fields: Any) -> list[list[int]]:
    """What each prompt gets. They arrive two steps apart, so that decodes and prompts meet."""
    copy = Decoder(decoder.config, torch.float32, torch.device(device))
    copy.load_state_dict(decoder.state_dict())
    model = LoadedModel("random", copy, None, frozenset(), decoder.config, torch.float32, torch.device(device))
    limits = dict(num_kv_blocks=16, max_num_batched_tokens=16, max_num_seqs=2)
    engine = Engine(EngineConfig(dtype="float32", device=device, **limits, **fields), model)
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
    ],
    ids=str,
)
def test_tokens_are_the_cpus_and_a_step_waits_for_its_own_tokens_only(
    fields: dict[str, Any], decoder: Decoder, cuda: PretendedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(piecewise_graphs, "TOKENS", (16,))
    expected = generate(decoder, "cpu", attention_backend="eager", sliding_window=fields.get("sliding_window"))
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
