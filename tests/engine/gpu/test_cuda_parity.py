"""On a GPU: every attention backend and every shortcut against the CPU. `make gpu-check` runs these first."""

import itertools
import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from draft_heads import make_eagle3, make_head
from integrity import check_engine
from model.test_decoder import make_checkpoint
from slipping_drafts import Slipping

from minillm import LLM, Engine, EngineConfig, SamplingParams
from minillm.core.request import Request
from minillm.core.timeline import Timeline
from minillm.kernels.attention.select import survey
from minillm.kernels.ops import Ops
from minillm.kernels.quantization import dtype_name
from minillm.kernels.select_ops import select_ops
from minillm.model.config import ModelConfig
from minillm.model.decoder import Decoder
from minillm.model.loader import LoadedModel, fill_randomly, load_model
from minillm.model.moe import groups_on_device
from minillm.runner.kept_runners import KeptRunners
from minillm.runner.sampler import Sampler
from minillm.runner.torch_runner import TorchRunner

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

SHAPE = dict(
    vocab_size=4096,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=4,
    max_position_embeddings=1024,
    tie_word_embeddings=False,
    **dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=128, norm_topk_prob=True),
)
GREEDY = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True)
VOCABULARY = 151936
"""Qwen3's."""
HALF_ONLY = ("hopper", "fa3", "fa2")
"""Kernels without float32."""


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    lengths = (1, 7, 16, 17, 31, 64, 100, 200, 333)
    return [torch.randint(0, SHAPE["vocab_size"], (n,), generator=generator).tolist() for n in lengths]


HEADS = {"d64 g3": (6, 2, 64), "d128 g4": (8, 2, 128), "d128 g8": (8, 1, 128)}
"""Heads, key heads, head_dim: those of small models, of Llama-3 8B and of 70B."""


FAMILIES = [("Llama", "d64 g3"), ("Qwen3", "d128 g4"), ("Llama", "d128 g8"), ("Qwen3Moe", "d64 g3")]


@pytest.fixture(scope="module", params=FAMILIES, ids=str)
def decoder(request: pytest.FixtureRequest) -> Decoder:
    """Random weights in float32 on the CPU, wide enough apart that greedy tokens are no coin tosses."""
    family, heads = request.param
    sizes = dict(zip(("num_attention_heads", "num_key_value_heads", "head_dim"), HEADS[heads]))
    config = ModelConfig.from_hf({"architectures": [f"{family}ForCausalLM"], **SHAPE, **sizes})
    decoder = Decoder(config, torch.float32, torch.device("cpu"))
    fill_randomly(decoder)
    decoder.lm_head.weight.mul_(20)
    return decoder.eval()


def on_device(decoder: Decoder, dtype: torch.dtype, device: str) -> LoadedModel:
    copy = Decoder(decoder.config, dtype, torch.device(device))
    copy.load_state_dict(decoder.state_dict())
    if groups_on_device(torch.device(device), dtype):
        for mlp in copy.sparse_mlps:
            mlp.stack()
    return LoadedModel("random", copy.eval(), None, frozenset(), decoder.config, dtype, torch.device(device))


def generate(model: LoadedModel, runners: KeptRunners | None = None, **fields: Any) -> list[list[int]]:
    """Everyone's output; requests arrive two steps apart, so that batches of all sizes come about."""
    limits = {"num_kv_blocks": 256, "max_num_batched_tokens": 128}
    config = EngineConfig(dtype=dtype_name(model.dtype), device=model.device.type, **{**limits, **fields})
    if runners is not None:
        runners.turn_to(model, config)
    engine = Engine(config, model, runners=runners)
    waiting, outputs, step = list(enumerate(prompts())), {}, 0
    while waiting or engine.has_unfinished:
        if waiting and step % 2 == 0:
            number, prompt = waiting.pop(0)
            engine.add_request(prompt, GREEDY, request_id=str(number), stream=False)
        outputs |= {output.request_id: output.token_ids for output in engine.step()}
        step += 1
    check_engine(engine)
    return [outputs[str(number)] for number in range(len(outputs))]


@pytest.fixture(scope="module")
def expected(decoder: Decoder) -> list[list[int]]:
    return generate(on_device(decoder, torch.float32, "cpu"), attention_backend="eager")


def backends() -> list[str]:
    if not torch.cuda.is_available():
        return ["none"]
    return [name for name, objection in survey(torch.device("cuda")).items() if not objection]


TOGGLES = list(itertools.product([False, True], repeat=3))


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize(("graphs", "ahead", "fused"), TOGGLES, ids=str)
def test_float32_tokens_are_the_cpus(
    decoder: Decoder, expected: list[list[int]], backend: str, graphs: bool, ahead: bool, fused: bool
) -> None:
    if backend in HALF_ONLY:
        pytest.skip(f"{backend} has no float32")
    model = on_device(decoder, torch.float32, "cuda")
    toggles = dict(cuda_graphs=graphs, async_scheduling=ahead, fused_kernels=fused)
    assert generate(model, attention_backend=backend, **toggles) == expected


@pytest.mark.parametrize("ahead", [False, True], ids=str)
@pytest.mark.parametrize("fields", [{"lazy_graphs": True}, {"piecewise_graphs": False}], ids=str)
def test_graphs_captured_between_two_steps_change_no_token(
    decoder: Decoder, expected: list[list[int]], fields: dict[str, Any], ahead: bool
) -> None:
    model = on_device(decoder, torch.float32, "cuda")
    assert generate(model, attention_backend="triton", async_scheduling=ahead, **fields) == expected


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("graphs", [False, True], ids=str)
def test_two_gpus_give_the_tokens_of_one(tmp_path: Path, graphs: bool) -> None:
    sizes = dict(num_attention_heads=4, hidden_size=256, vocab_size=4096, intermediate_size=512)
    make_checkpoint(tmp_path, architecture="Llama", max_position_embeddings=1024, **sizes)
    fields = dict(model=str(tmp_path), dtype="float32", device="cuda", num_kv_blocks=256, cuda_graphs=graphs)
    answers = []
    for num_gpus in (1, 2):
        llm = LLM(**fields, tensor_parallel_size=num_gpus)
        answers.append([output.token_ids for output in llm.generate(prompts(), GREEDY, use_tqdm=False)])
        llm.engine.close()
    assert answers[0] == answers[1]


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("graphs", [False, True], ids=str)
def test_drafts_change_no_token(decoder: Decoder, expected: list[list[int]], backend: str, graphs: bool) -> None:
    """The model drafts for itself and slips on purpose, in recorded steps where those are on."""
    if backend in HALF_ONLY:
        pytest.skip(f"{backend} has no float32")
    model = on_device(decoder, torch.float32, "cuda")
    speculative = Slipping(k=3, acceptance_floor=0, max_batch=64)
    assert generate(model, attention_backend=backend, cuda_graphs=graphs, speculative=speculative) == expected


def test_engines_in_turn_give_the_cpus_tokens(decoder: Decoder, expected: list[list[int]], tmp_path: Path) -> None:
    """Each goes on with the runner and the graphs of the one before, where they suit it."""
    on_cpu = on_device(decoder, torch.float32, "cpu")
    make_head(tmp_path / "head", on_cpu)
    make_eagle3(tmp_path / "eagle3", on_cpu, depths=[0, 1, 3])
    always = {"k": 3, "acceptance_floor": 0, "adaptive_k": False, "min_output_tokens": 1, "max_batch": 64}
    heads = [{"method": "draft_head", "model": str(tmp_path / name), **always} for name in ("head", "eagle3", "head")]
    lookup = {"method": "ngram", "ngram_min": 1, **always}
    ways: list[dict[str, Any]] = [{}, *({"speculative": each} for each in (*heads, lookup)), {"num_kv_blocks": 40}]
    ways.append({"num_kv_blocks": 40, "preemption": "swap", "swap_space_gb": 0.1})
    model, runners = on_device(decoder, torch.float32, "cuda"), KeptRunners()
    for way in ways:
        assert generate(model, runners, attention_backend="triton", **way) == expected, way


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize(("graphs", "ahead", "fused"), [(False, False, False), (True, True, True)], ids=str)
def test_bfloat16_tokens_do_not_depend_on_the_way_they_are_launched(
    decoder: Decoder, backend: str, graphs: bool, ahead: bool, fused: bool
) -> None:
    """The first token of every prompt, where rounding has not yet led anywhere else; one may be a tie."""
    model = on_device(decoder, torch.bfloat16, "cuda")
    toggles = dict(cuda_graphs=graphs, async_scheduling=ahead, fused_kernels=fused)
    plain = dict(cuda_graphs=False, async_scheduling=False, fused_kernels=False)
    reference = generate(model, attention_backend="sdpa", **plain)
    found = generate(model, attention_backend=backend, **toggles)
    same = sum(a[0] == b[0] for a, b in zip(reference, found))
    assert same >= len(reference) - 1


@pytest.mark.parametrize("fused", [False, True], ids=["torch ops", "fused"])
@pytest.mark.parametrize("backend", backends())
def test_logits_are_close_in_every_dtype(decoder: Decoder, backend: str, fused: bool) -> None:
    """One mixed step, then its decodes: relative error of each row against float32 on the CPU."""
    cpu = logits_of(on_device(decoder, torch.float32, "cpu"), "eager", fused=False)
    tolerances = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
    for dtype, tolerance in tolerances.items():
        if dtype == torch.float32 and backend in HALF_ONLY:
            continue
        found = logits_of(on_device(decoder, dtype, "cuda"), backend, fused)
        errors = (found - cpu).norm(dim=1) / cpu.norm(dim=1)
        # Rounding may send a token to another expert (float16 does so on a CPU, too): of those rows, most are compared.
        error = errors.median() if decoder.config.num_experts else errors.max()
        assert error < tolerance, f"{dtype}: {error:.1e}"


@torch.inference_mode()
def logits_of(model: LoadedModel, backend: str, fused: bool) -> torch.Tensor:
    """Logits of two steps over all prompts, taken where the runner hands them to the sampler."""
    config = EngineConfig(
        dtype=dtype_name(model.dtype),
        device=model.device.type,
        num_kv_blocks=256,
        attention_backend=backend,
        fused_kernels=fused,
        cuda_graphs=False,
    )
    engine = Engine(config, model)
    runner: TorchRunner = engine.runner
    rows, forward = [], runner.forward

    def keep(batch: Any) -> torch.Tensor:
        logits = forward(batch)
        rows.append(logits.float().cpu())
        return torch.zeros_like(logits)  # all requests sample token 0, whatever the rounding: inputs stay equal

    runner.forward = keep
    for prompt in prompts():
        engine.add_request(prompt, GREEDY.replace(max_tokens=4), stream=False)
    while engine.has_unfinished:
        engine.step()
    return torch.cat(rows)


def test_small_kernels_give_what_pytorch_gives() -> None:
    from minillm.kernels.triton.ops import TritonOps

    torch.manual_seed(0)
    with torch.device("cuda"):
        logits, parts, shares = (
            torch.randn(5, VOCABULARY).bfloat16(),
            torch.randn(600, 2048).bfloat16(),
            torch.rand(75, 8),
        )
        order, sampled = torch.randperm(600), torch.tensor([7, -1, 9], dtype=torch.int32)
        token_ids = torch.tensor([~0, 5, ~1, ~2], dtype=torch.int32)
    logits[1, 150_000], logits[2, 3] = math.nan, math.inf
    fused, plain = TritonOps(), Ops()
    assert fused.likeliest(logits).tolist() == plain.likeliest(logits).tolist()
    assert fused.fill_in(token_ids, sampled).tolist() == plain.fill_in(token_ids, sampled).tolist() == [7, 5, 0, 9]
    exact = plain.add_shares(parts.float(), order, shares)
    assert (fused.add_shares(parts, order, shares.bfloat16()) - exact).abs().max() <= 0.02 * exact.abs().max()


SAMPLED: list[dict[str, Any]] = [
    {"temperature": 0, "repetition_penalty": 1.3, "frequency_penalty": 0.5, "logit_bias": {5: 3.0}, "logprobs": 3},
    {"temperature": 1},
    {"temperature": 0.7, "top_k": 40, "min_p": 0.01},
    {"temperature": 0.5, "top_p": 0.8, "logprobs": 0},
    {"temperature": 2, "top_p": 0.99},  # a nucleus of most tokens
    {"temperature": 2, "min_p": 0.001, "presence_penalty": 1},
]


def test_the_same_tokens_are_drawn_as_on_a_cpu() -> None:
    """From the same logits; a number may lie on a border that is rounded to the other side."""
    draws = torch.Generator().manual_seed(2)
    logits = 3 * torch.randn(8 * len(SAMPLED), VOCABULARY, generator=draws)
    rows = [
        Request(f"{i}", [1, 2, i], SamplingParams(**fields), Timeline(0.0), seed=i, output_token_ids=[3, 3])
        for i, fields in enumerate(SAMPLED * 8)
    ]
    there = logits.cuda()
    ops = select_ops(True, there.device, logits.dtype, logits.dtype)
    expected, found = Sampler()(logits, rows), Sampler(ops)(there, rows)
    assert not found.errors
    same = [ours == theirs for ours, theirs in zip(found.token_ids, expected.token_ids)]
    assert sum(same) >= len(rows) - 2
    for ours, theirs in zip(found.logprobs, expected.logprobs):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None and ours.token_id == theirs.token_id:
            assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4) and ours.top.keys() == theirs.top.keys()


def test_dummy_shapes_run_at_once(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    sizes = dict(num_attention_heads=6, num_key_value_heads=2, head_dim=64)
    config.write_text(json.dumps({"architectures": ["LlamaForCausalLM"], **SHAPE, **sizes}))
    fields = dict(load_format="dummy", device="cuda", dtype="bfloat16", num_kv_blocks=64)
    engine = Engine(EngineConfig(model=str(config), **fields))
    engine.add_request([1, 2, 3], GREEDY.replace(max_tokens=8), stream=False)
    while engine.has_unfinished:
        outputs = engine.step()
    assert len(outputs[0].token_ids) == 8


def layers_of_8b(folder: Path, family: str = "Llama", **fields: Any) -> dict[str, Any]:
    """Fields of an engine for a model that has an 8B's layers, but few."""
    sizes = dict(hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8, head_dim=128)
    experts = dict(num_experts=16, num_experts_per_tok=4, moe_intermediate_size=768, norm_topk_prob=True)
    shape = {"architectures": [f"{family}ForCausalLM"], **SHAPE, **sizes, **experts, "num_hidden_layers": 6}
    (folder / "config.json").write_text(json.dumps(shape))
    common = dict(load_format="dummy", dtype="bfloat16", device="cuda", attention_backend="triton", num_kv_blocks=512)
    return {"model": str(folder / "config.json"), **common, **fields}


def early_or_late(folder: Path, **fields: Any) -> list[tuple[list[int], list[float]]]:
    """Tokens and their logprobs; steps are replayed from graphs."""
    llm = LLM(**layers_of_8b(folder, **fields))
    sampling = SamplingParams(temperature=0, max_tokens=128, ignore_eos=True, logprobs=1)
    outputs = llm.generate(prompts(), sampling, use_tqdm=False)
    llm.engine.close()
    return [(each.token_ids, [token.logprob for token in each.logprobs]) for each in outputs]


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0),
    reason="kernels start early from Hopper on",
)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"quantization": "int4"},
        {"quantization": "int8", "kv_cache_dtype": "int8"},
        {"quantization": "fp8", "kv_cache_dtype": "fp8"},
        {"quantization": "int4", "cuda_graphs": False},
        {"family": "Qwen3Moe"},
    ],
    ids=str,
)
def test_kernels_that_start_early_change_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    """What is read before it's written, or written before it's read, would show in some of 128 steps of 6 layers."""
    late = early_or_late(tmp_path, **fields)
    monkeypatch.setenv("MINILLM_PDL", "1")
    assert early_or_late(tmp_path, **fields) == late


@pytest.mark.parametrize("fields", [{"quantization": "int4"}, {"family": "Qwen3Moe"}], ids=str)
def test_engines_side_by_side_on_the_same_weights_say_what_one_says(tmp_path: Path, fields: dict[str, Any]) -> None:
    """Each in a thread and a stream of its own: one records its graphs while the other decodes, and kernels in which
    programs share sums run at the same time."""
    config = EngineConfig(**layers_of_8b(tmp_path, **fields))
    model = load_model(config)
    torch.cuda.synchronize()

    def answers(stream: torch.cuda.Stream) -> list[list[int]]:
        said = []
        with torch.cuda.stream(stream):
            for _ in range(3):
                engine = Engine(config, model)
                for number, prompt in enumerate(prompts()):
                    engine.add_request(prompt, GREEDY, request_id=str(number), stream=False)
                tokens = dict[str, list[int]]()
                while engine.has_unfinished:
                    tokens |= {output.request_id: output.token_ids for output in engine.step()}
                said.append(list(map(tokens.__getitem__, sorted(tokens))))
                stream.synchronize()
        return said

    alone = answers(torch.cuda.Stream())
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(answers, [torch.cuda.Stream(), torch.cuda.Stream()])) == [alone, alone]
