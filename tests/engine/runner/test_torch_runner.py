"""TorchRunner, driven by hand-made batches: no scheduler, no engine."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_llama import VOCAB_SIZE
from transformers import AutoModelForCausalLM

from minillm.core.batch import BlockCopy, ScheduledBatch, ScheduledRequest, StepOutput
from minillm.core.errors import ConfigError
from minillm.core.params import SamplingParams
from minillm.core.request import Request
from minillm.core.timeline import Timeline, WallClock
from minillm.model.loader import LoadedModel, load_model
from minillm.policies.config import EngineConfig
from minillm.runner import memory_budget
from minillm.runner.torch_runner import TorchRunner

FIELDS = dict(dtype="float32", device="cpu", block_size=4, num_kv_blocks=32)


@pytest.fixture(scope="module")
def model(tiny_llama_path: Path) -> LoadedModel:
    return load_model(EngineConfig(model=str(tiny_llama_path), **FIELDS))


def make_runner(model: LoadedModel, **fields: object) -> TorchRunner:
    return TorchRunner(model, EngineConfig(model=model.name, **{**FIELDS, **fields}), WallClock())


def make_request(name: str, prompt: list[int], **params: object) -> Request:
    return Request(name, prompt, SamplingParams(**{"temperature": 0, **params}), Timeline(0.0))


def batch_of(*scheduled: tuple[Request, int, list[int]], **copies: tuple[BlockCopy, ...]) -> ScheduledBatch:
    """Parts are (request, tokens to compute, its blocks); what they computed before is kept in the request."""
    parts = []
    for request, num_tokens, blocks in scheduled:
        start = request.num_computed_tokens
        request.num_computed_tokens += num_tokens
        samples = request.num_computed_tokens == request.num_tokens
        parts.append(ScheduledRequest(request, start, num_tokens, blocks, samples))
    return ScheduledBatch(0, tuple(parts), **copies)


def execute(runner: TorchRunner, batch: ScheduledBatch) -> StepOutput:
    return runner.launch(batch).wait()


def take(output: StepOutput, *requests: Request) -> None:
    for request in requests:
        request.output_token_ids += output.tokens.get(request.request_id, [])


def hf_greedy(path: str, prompt: list[int], num_tokens: int) -> list[int]:
    hf = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    hf.generation_config.eos_token_id = None  # an end is a token like any other
    ids = hf.generate(torch.tensor([prompt]), max_new_tokens=num_tokens, do_sample=False)
    return ids[0, len(prompt) :].tolist()


def tokens(length: int, seed: int = 0) -> list[int]:
    return torch.randint(5, VOCAB_SIZE, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def test_copies_alone(model: LoadedModel) -> None:
    runner = make_runner(model, preemption="swap", swap_space_gb=0.001)
    runner.kv_pool.layers[1][2] = 5.0
    runner.copy_blocks(ScheduledBatch(0, (), saves=(BlockCopy(2, 1),)))
    assert (runner.kv_pool.host_layers[1][1] == 5.0).all()


def test_stages_and_logprobs(model: LoadedModel) -> None:
    a, b = make_request("a", tokens(3), logprobs=2), make_request("b", tokens(4))
    before = WallClock().now()
    output = execute(make_runner(model), batch_of((a, 3, [0]), (b, 4, [1])))
    assert set(output.stages) == {"build", "forward", "sample"}
    assert sum(output.stages.values()) <= WallClock().now() - before
    assert before < output.forward_end < WallClock().now()
    assert set(output.logprobs) == {"a"} and output.logprobs["a"][0].token_id == output.tokens["a"][0]


def test_a_block_that_held_nan_harms_no_later_request(model: LoadedModel) -> None:
    runner = make_runner(model)
    broken = make_request("broken", tokens(4))
    take(execute(runner, batch_of((broken, 4, [0, 1]))), broken)
    for layer in runner.kv_pool.layers:
        layer[[0, 1]] = float("nan")
    assert execute(runner, batch_of((broken, 1, [0, 1]))).errors
    # The next owner of block 1 uses two of its four places, and decodes padded to a longer neighbour.
    a, b = make_request("a", tokens(5)), make_request("b", tokens(9, seed=1))
    take(execute(runner, batch_of((a, 5, [2, 1]), (b, 9, [4, 5, 6]))), a, b)
    take(execute(runner, batch_of((a, 1, [2, 1]), (b, 1, [4, 5, 6]))), a, b)
    assert a.output_token_ids == hf_greedy(model.name, a.prompt_token_ids, 2)
    assert b.output_token_ids == hf_greedy(model.name, b.prompt_token_ids, 2)


def test_pool_is_at_most_what_the_slots_could_use(model: LoadedModel) -> None:
    runner = make_runner(model, num_kv_blocks=None, max_num_seqs=3, max_model_len=10)
    assert runner.num_kv_blocks == 3 * 3


def test_pool_size_from_memory(model: LoadedModel) -> None:
    # 2 layers x (key, value) x 2 heads x 16 dims x 4 bytes = 512 bytes a token, 2048 a block of 4.
    runner = make_runner(model, num_kv_blocks=None, kv_cache_memory_gb=20480 / 1e9)
    assert runner.num_kv_blocks == 10


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        (dict(num_kv_blocks=None, kv_cache_memory_gb=1e-6), "raise kv_cache_memory_gb"),
        (dict(num_kv_blocks=10**9), "lower num_kv_blocks"),
        (dict(preemption="swap", swap_space_gb=1e-6), "swap_space_gb"),
        (dict(preemption="swap", swap_space_gb=1e5), "lower swap_space_gb"),
    ],
)
def test_memory_that_does_not_fit_is_refused(model: LoadedModel, fields: dict, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        make_runner(model, **fields)


def test_slots_that_the_pool_has_no_blocks_for_take_no_memory(model: LoadedModel) -> None:
    drafts = {"method": "ngram", "k": 3, "max_batch": 10**12}
    many = make_runner(model, num_kv_blocks=200, max_num_seqs=10**12, speculative=drafts)
    assert len(many.pending.sampled) == many.most_decode_rows(many.config) == 200 * (1 + 3)


def test_a_claim_that_leaves_no_pool_says_what_makes_it_large(model: LoadedModel) -> None:
    with pytest.raises(ConfigError, match="lower max_num_seqs or max_num_batched_tokens"):
        TorchRunner(model, EngineConfig(model=model.name), WallClock(), claim=memory_budget.MemoryClaim(10**15))


def test_default_pool_leaves_room_on_a_small_machine(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_budget, "free_bytes", lambda device: 3_000_000)
    large = replace(model.model_config, max_position_embeddings=100_000)
    config = EngineConfig(model="any", block_size=4)
    num_blocks = memory_budget.size_kv_pool(
        config, large, 4, torch.float32, torch.device("cpu"), memory_budget.NO_CLAIM
    )
    assert 0 < num_blocks * 2048 < 3_000_000
