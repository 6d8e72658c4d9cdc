"""Lossy settings under every lossless one: a window is exactly Mistral's, and no toggle changes a token of any."""

from pathlib import Path
from typing import Any

import pytest
import torch
from integrity import check_engine
from slipping_drafts import Slipping

from minillm import Engine, EngineConfig, RequestOutput, SamplingParams
from minillm.core.errors import ConfigError
from minillm.kernels.quantization import dequantize
from minillm.model.loader import LoadedModel, load_model

WINDOW = 24
PROMPTS = [list(range(100 + 7 * i, 100 + 7 * i + length)) for i, length in enumerate((70, 5, 40, 70, 130, 25))]
PROMPTS[3] = PROMPTS[0][:60] + [5, 6, 7]  # a shared prefix
DRAFTING = {"acceptance_floor": 0, "min_output_tokens": 1, "max_batch": 64, "k": 3}
LOOKUP = {"method": "ngram", "ngram_min": 1, **DRAFTING}
TIGHT = {"num_kv_blocks": 56, "max_num_batched_tokens": 32}
"""Blocks for half of the requests: some are preempted."""
SWAPPING = {**TIGHT, "preemption": "swap", "swap_space_gb": 0.01}
TOGGLES: dict[str, dict[str, Any]] = {
    "plain": {},
    "eager": {"attention_backend": "eager"},
    "chunked": {"max_num_batched_tokens": 16, "max_num_seqs": 4},
    "uncached": {"enable_prefix_caching": False},
    "recompute": TIGHT,
    "swap": SWAPPING,
    "ahead": {"async_scheduling": True, "max_num_batched_tokens": 32},
    "ahead and swap": {"async_scheduling": True, **SWAPPING},
    "static": {"batching": "static"},
    "reserved": {"kv_reservation": "max_len", "max_model_len": 200},
    "drafts": {"speculative": LOOKUP},
    "drafts and swap": {"speculative": LOOKUP, **SWAPPING},
    "drafts that mostly pass": {"speculative": Slipping(**DRAFTING)},
    "whole prompts": {"enable_chunked_prefill": False, "max_num_batched_tokens": 32},
}


def make_engine(model: LoadedModel, **fields: Any) -> Engine:
    defaults = {"num_kv_blocks": 400, "block_size": 4, "max_model_len": 300, "attention_backend": "sdpa"}
    return Engine(EngineConfig(model=model.name, dtype="float32", device="cpu", **{**defaults, **fields}), model)


def serve(engine: Engine, prompts: list[list[int]] = PROMPTS, max_tokens: int = 30) -> list[list[int]]:
    """Greedy answers; the books are checked after every step."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    for i, prompt in enumerate(prompts):
        engine.add_request(prompt, params, request_id=str(i), stream=False)
    outputs: dict[str, RequestOutput] = {}
    while engine.has_unfinished:
        outputs |= {output.request_id: output for output in engine.step()}
        check_engine(engine)
    assert engine.scheduler.kv.pool.num_used == 0
    assert all(output.completions[0].error is None for output in outputs.values())
    return [outputs[str(i)].token_ids for i in range(len(prompts))]


@pytest.fixture(scope="module")
def mistral(tiny_llama_path: Path) -> list[list[int]]:
    """What Hugging Face's Mistral says with these weights and this window."""
    from transformers import AutoConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

    llama = LlamaForCausalLM.from_pretrained(tiny_llama_path, dtype=torch.float32)
    config = {k: v for k, v in AutoConfig.from_pretrained(tiny_llama_path).to_dict().items() if k != "model_type"}
    hf = MistralForCausalLM(MistralConfig(**{**config, "sliding_window": WINDOW}, attn_implementation="eager")).eval()
    hf.load_state_dict(llama.state_dict())
    hf.generation_config.eos_token_id = None  # an end is a token like any other
    answers = []
    for prompt in PROMPTS:
        ids = hf.generate(torch.tensor([prompt]), max_new_tokens=30, do_sample=False)
        answers.append(ids[0, len(prompt) :].tolist())
    return answers


@pytest.mark.parametrize("toggle", TOGGLES)
def test_a_window_is_mistrals(model: LoadedModel, mistral: list[list[int]], toggle: str) -> None:
    fields = dict(TOGGLES[toggle])
    is_tight = "num_kv_blocks" in fields
    if is_tight:
        fields["num_kv_blocks"] = 24
    engine = make_engine(model, sliding_window=WINDOW, **fields)
    assert serve(engine) == mistral
    assert (engine.scheduler.num_preemptions > 0) == is_tight
    if toggle == "plain":
        assert engine.scheduler.prefix_hits > 0
        assert serve(make_engine(model)) != mistral, "the window must matter"


@pytest.fixture(scope="module")
def expected(model: LoadedModel) -> dict[str, list[list[int]]]:
    """The plain engine's answers, for each lossy setting."""
    return {name: serve(make_engine(model, **fields)) for name, fields in LOSSY.items()}


LOSSY: dict[str, dict[str, Any]] = {
    "sinks": {"sliding_window": WINDOW, "attention_sinks": 5},
    "int8 cache": {"kv_cache_dtype": "int8"},
    "fp8 cache and sinks": {"kv_cache_dtype": "fp8", "sliding_window": WINDOW, "attention_sinks": 5},
}


@pytest.mark.parametrize("toggle", [toggle for toggle in TOGGLES if toggle != "plain"])
@pytest.mark.parametrize(
    "lossy", [pytest.param(lossy, marks=[pytest.mark.slow] * (lossy in ("int8 cache", "sinks"))) for lossy in LOSSY]
)
def test_no_toggle_changes_a_token(
    model: LoadedModel, expected: dict[str, list[list[int]]], lossy: str, toggle: str
) -> None:
    assert serve(make_engine(model, **LOSSY[lossy], **TOGGLES[toggle])) == expected[lossy]


@pytest.mark.parametrize("lossy", LOSSY)
def test_drafts_of_the_model_itself_always_pass(model: LoadedModel, lossy: str) -> None:
    """The drafting side sees through the same window, in the same cache: were its blocks others, guesses would fail."""
    speculative = {"method": "draft_model", "model": model.name, **DRAFTING}
    engine = make_engine(model, speculative=speculative, **LOSSY[lossy])
    serve(engine)
    shares = [share for step in engine.steps for share in step.shares]
    assert sum(share.num_drafts for share in shares) > 50
    assert sum(share.num_accepted for share in shares) >= 0.98 * sum(share.num_drafts for share in shares)


def test_a_request_longer_than_the_pool(model: LoadedModel) -> None:
    """12 blocks of 4 hold the window, the sinks and a chunk of 8; the request has 300 tokens."""
    fields = {"sliding_window": WINDOW, "attention_sinks": 5, "max_num_batched_tokens": 8, "max_num_seqs": 4}
    engine = make_engine(model, num_kv_blocks=12, **fields)
    assert engine.context_limit == 300
    (tokens,) = serve(engine, PROMPTS[4:5], 170)
    assert tokens == serve(make_engine(model, **fields), PROMPTS[4:5], 170)[0] and len(tokens) == 170
    assert max(step.kv_blocks_used for step in engine.steps) <= 2 + 7 + 2
    assert make_engine(model, num_kv_blocks=10, **fields).context_limit == 40, "a chunk more than the pool has room for"
    assert make_engine(model, num_kv_blocks=12, enable_chunked_prefill=False, **fields).context_limit == 48


@pytest.mark.parametrize(
    ("quantization", "path"),
    [
        ("int8", "tiny_moe_path"),
        ("int4", "tiny_llama_path"),
        pytest.param("int8", "tiny_llama_path", marks=pytest.mark.slow),
        pytest.param("int4", "tiny_moe_path", marks=pytest.mark.slow),
    ],
)
def test_quantized_weights_under_the_toggles(path: str, quantization: str, request: pytest.FixtureRequest) -> None:
    folder = str(request.getfixturevalue(path))
    config = EngineConfig(model=folder, dtype="float32", device="cpu", quantization=quantization)
    model = load_model(config)
    answers = {
        toggle: serve(make_engine(model, quantization=quantization, **fields)) for toggle, fields in TOGGLES.items()
    }
    assert all(answer == answers["plain"] for answer in answers.values())


def test_half_the_bytes_twice_the_blocks(model: LoadedModel) -> None:
    """512 positions x 32 seats would need more: the memory decides."""
    shape = dict(num_kv_blocks=None, kv_cache_memory_gb=1e-3, max_model_len=None, block_size=16)
    blocks, bytes_held = {}, {}
    for dtype in ("auto", "int8", "fp8"):
        runner = make_engine(model, kv_cache_dtype=dtype, **shape).runner
        blocks[dtype] = runner.num_kv_blocks
        parts = [part for layer in runner.kv_pool.layers for part in ((layer,) if dtype == "auto" else layer)]
        bytes_held[dtype] = sum(part.nbytes for part in parts)
        assert bytes_held[dtype] <= 1e6 * (1 + 1 / blocks[dtype]), "and one null block"
    # float32 here: a quarter of the numbers' bytes, and 2 of a scale for every 16 numbers.
    assert blocks["int8"] == blocks["fp8"] == int(1e6 // (2 * 2 * 2 * (16 + 2) * 16))
    assert blocks["int8"] / blocks["auto"] > 3.5


def test_a_cache_that_held_nan_harms_nobody_who_gets_it_next(model: LoadedModel) -> None:
    for dtype in ("int8", "fp8"):
        runner = make_engine(model, kv_cache_dtype=dtype).runner
        layer = runner.kv_pool.layers[0]
        layer.scales[3] = float("nan")
        layer.numbers.view(torch.int8)[3] = 127
        runner.kv_pool.make_finite([3, 4])
        assert dequantize(layer.numbers, layer.scales).isfinite().all()


def test_backends_without_sinks_say_so(model: LoadedModel) -> None:
    with pytest.raises(ConfigError, match="attention_backend='triton' cannot run here"):
        make_engine(model, attention_backend="triton", **LOSSY["sinks"])
