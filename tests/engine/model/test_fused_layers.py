"""Whole layers and models on fused kernels (one call of C++, Triton), against the same step by step in PyTorch."""

import functools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from kernels.ragged import Ragged, Span
from torch import Tensor

from minillm import Engine, EngineConfig, SamplingParams
from minillm.kernels.attention.base import AttentionMetadata
from minillm.kernels.attention.cache import KVCache, QuantizedKV
from minillm.kernels.attention.native import NativeAttention
from minillm.kernels.attention.sdpa import SDPAAttention
from minillm.kernels.cpu import NativeKernels
from minillm.kernels.cpu.ops import NativeOps
from minillm.kernels.ops import ForwardContext, Ops
from minillm.kernels.triton.attention import TritonAttention
from minillm.model import packed as packed_module
from minillm.model import packing as packing_module
from minillm.model.config import ModelConfig
from minillm.model.cpu import optimize_for_cpu
from minillm.model.decoder import Decoder
from minillm.model.loader import load_model
from minillm.model.packed import FEW_ROWS
from minillm.model.quantized import Quantizer, RoundingRecipe, make_int4, make_int8
from minillm.model.rope import RotaryEmbedding

pytestmark = pytest.mark.usefixtures("two_threads")
CPU = torch.device("cpu")
GPU = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""Without one, Triton's interpreter."""
BLOCKS, BLOCK_SIZE = 8, 4


CONFIG = ModelConfig.from_hf(
    dict(
        architectures=["LlamaForCausalLM"],
        vocab_size=40,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        rms_norm_eps=1e-5,
        rope_theta=100.0,
        max_position_embeddings=128,
    )
)


def new_decoder(weights: str = "bfloat16", **changes: bool) -> Decoder:
    torch.manual_seed(0)
    decoder = Decoder(replace(CONFIG, **changes), torch.bfloat16, CPU)
    for parameter in decoder.parameters():
        parameter.data.normal_(0, 0.3)
    if weights == "bfloat16":
        optimize_for_cpu(decoder)
    else:
        make = make_int8 if weights == "int8" else lambda linear: make_int4(linear, 32)
        Quantizer(decoder, RoundingRecipe(make, make_int8), CPU).finish()
    return decoder


made_decoder = functools.cache(new_decoder)
"""One of each kind, which no test changes."""


def made_cache(dtype: torch.dtype, decoder: Decoder) -> list[KVCache]:
    torch.manual_seed(1)
    shape = (BLOCKS, BLOCK_SIZE, 2, decoder.config.num_kv_heads, decoder.config.head_dim)
    numbers = [torch.randn(shape) for _ in decoder.layers]
    if dtype == torch.bfloat16:
        return [each.bfloat16() for each in numbers]
    scales = [torch.rand(shape[:-1]).bfloat16() for _ in numbers]
    return [QuantizedKV((30 * each).to(torch.int8), scale) for each, scale in zip(numbers, scales)]


def made_metadata(rows: int, **changes: object) -> AttentionMetadata:
    lens = [3 + 2 * (row % 14) for row in range(rows)]
    tables = torch.arange(rows * 8).view(rows, 8).remainder(BLOCKS).int()
    last = [divmod(n - 1, BLOCK_SIZE) for n in lens]
    slots = [int(tables[row, block]) * BLOCK_SIZE + place for row, (block, place) in enumerate(last)]
    return AttentionMetadata(
        query_starts=list(range(rows + 1)),
        context_lens=lens,
        query_starts_tensor=torch.arange(rows + 1, dtype=torch.int32),
        context_lens_tensor=torch.tensor(lens, dtype=torch.int32),
        block_tables=tables,
        slot_mapping=torch.tensor(slots),
        **{"num_decodes": rows, "block_size": BLOCK_SIZE, **changes},
    )


class Counting(NativeOps):
    """Counts norms that were calls of their own: two for each layer that wasn't run in one call with the others."""

    def __init__(self, kernels: NativeKernels) -> None:
        super().__init__(kernels)
        self.separate, self.in_one_call = 0, True

    def run_layers(self, *arguments: object) -> tuple[Tensor, Tensor]:
        return super().run_layers(*arguments) if self.in_one_call else Ops.run_layers(self, *arguments)

    def add_rms_norm(self, *arguments: object) -> tuple[Tensor, Tensor]:
        self.separate += 1
        return super().add_rms_norm(*arguments)


def run(
    decoder: Decoder, ops: Counting, caches: list[KVCache], metadata: AttentionMetadata, one_by_one: bool
) -> list[Tensor]:
    rope = RotaryEmbedding(decoder.config.rope, decoder.config.head_dim, CPU)
    positions = metadata.context_lens_tensor.long() - 1
    ops.in_one_call = not one_by_one
    angles = rope.angles(positions, torch.float32)
    context = ForwardContext(*angles, metadata.slot_mapping, NativeAttention(metadata), ops)
    torch.manual_seed(2)
    x, delta = torch.randn(2, len(positions), decoder.config.hidden_size)
    return [*ops.run_layers(decoder.layers, x, delta, caches, context), x, delta]


def test_a_call_is_split_where_the_stream_is_shown(kernels: NativeKernels) -> None:
    decoder, metadata, token_ids = made_decoder(), made_metadata(3), torch.tensor([5, 6, 7])
    positions, found = metadata.context_lens_tensor.long() - 1, []
    for in_one_call, depths in ((True, (0, 2, 3)), (False, (0, 1, 2, 3)), (True, ())):
        ops = Counting(kernels)
        ops.in_one_call = in_one_call
        step = (token_ids, positions, made_cache(torch.bfloat16, decoder), NativeAttention(metadata), ops, depths)
        found += [decoder.hidden_states(*step)]
        assert ops.separate == (1 if in_one_call else 1 + 2 * len(decoder.layers))
    (split, shown), (one_by_one, each), (whole, last) = found
    assert torch.equal(split, whole) and last is whole
    torch.testing.assert_close(split, one_by_one, rtol=1e-4, atol=1e-4)
    each = each.unflatten(-1, (4, -1))[:, [0, 2, 3]].flatten(1)
    torch.testing.assert_close(shown, each, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 3, 9])
@pytest.mark.parametrize("weights", ["bfloat16", "int8", "int4"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"qkv_bias": True, "o_bias": True, "mlp_bias": True}, {"qk_norm": True}],
    ids=["llama", "bias", "qwen3"],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8], ids=str)
def test_one_call_is_the_layers_one_by_one(
    kernels: NativeKernels, rows: int, weights: str, changes: dict, dtype: torch.dtype
) -> None:
    decoder, metadata = made_decoder(weights, **changes), made_metadata(rows)
    ops, caches = Counting(kernels), [made_cache(dtype, decoder) for _ in range(2)]
    expected = run(decoder, ops, caches[0], metadata, one_by_one=True)
    assert ops.separate == 2 * len(decoder.layers)
    found = run(decoder, ops, caches[1], metadata, one_by_one=False)
    assert ops.separate == 2 * len(decoder.layers), "not one by one again"
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b), "what came in is as it was, what comes out is the same to the last bit"
    for a, b in zip(caches[0], caches[1]):
        pairs = [(a, b)] if isinstance(a, Tensor) else zip(a, b)
        assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("changes", [{"window": 4}, {"window": 4, "sinks": 2}], ids=str)
def test_a_window_is_seen_through(kernels: NativeKernels, changes: dict) -> None:
    decoder = made_decoder()
    runs = [
        run(decoder, Counting(kernels), made_cache(torch.bfloat16, decoder), made_metadata(3, **fields), one_by_one)
        for fields, one_by_one in ((changes, False), (changes, True), ({}, False))
    ]
    assert torch.equal(runs[0][0], runs[1][0]) and not torch.equal(runs[0][0], runs[2][0])


def test_steps_that_are_not_for_it_go_one_by_one(kernels: NativeKernels, monkeypatch: pytest.MonkeyPatch) -> None:
    def separate(decoder: Decoder, metadata: AttentionMetadata) -> int:
        ops = Counting(kernels)
        run(decoder, ops, made_cache(torch.bfloat16, decoder), metadata, one_by_one=False)
        return ops.separate

    decoder = made_decoder()
    assert separate(decoder, made_metadata(3)) == 0
    assert separate(decoder, made_metadata(3, num_decodes=2)) == 6, "the last one is a prefill"
    with monkeypatch.context() as patch:
        patch.setattr("minillm.kernels.cpu.ops.NativeAttention", SDPAAttention)
        assert separate(decoder, made_metadata(3)) == 6, "another kernel attends"


def test_with_many_rows_another_kernel_is_better(kernels: NativeKernels, monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN's, where the processor has matrix units: any other kernel can stand in for it."""
    packings = (packed_module.PackedInBands, packed_module.PackedForFBGEMM)
    monkeypatch.setattr(packing_module, "choose_packings", lambda linears: packings)
    decoder, caches = new_decoder(), made_cache(torch.bfloat16, made_decoder())
    for rows, separate in ((3, 0), (FEW_ROWS + 1, 6)):
        ops = Counting(kernels)
        run(decoder, ops, caches, made_metadata(rows), one_by_one=False)
        assert ops.separate == separate


def test_layers_of_another_model_are_not_mistaken_for_the_last_ones(kernels: NativeKernels) -> None:
    ops, metadata = Counting(kernels), made_metadata(2)
    first, second = made_decoder(), made_decoder("int8")
    for decoder in (first, second, first):
        found = run(decoder, ops, made_cache(torch.bfloat16, decoder), metadata, one_by_one=False)
        expected = run(decoder, ops, made_cache(torch.bfloat16, decoder), metadata, one_by_one=True)
        assert torch.equal(found[0], expected[0])


@pytest.mark.parametrize("qk_norm", [pytest.param(False, marks=pytest.mark.slow), True], ids=["llama", "qwen3"])
@torch.inference_mode()
def test_a_whole_model_in_triton(qk_norm: bool) -> None:
    """Prompts, then a mixed step, then decodes: logits of every token as with PyTorch's operations."""
    pytest.importorskip("triton", reason="triton is for Linux")
    from minillm.kernels.triton.ops import TritonOps

    config = replace(CONFIG, num_heads=9, num_kv_heads=3, hidden_size=72, qk_norm=qk_norm, num_layers=2)
    with GPU:
        torch.manual_seed(1)
        decoder = Decoder(config, torch.float32, GPU)
        for name, parameter in decoder.named_parameters():
            parameter.data.normal_(1.0 if "norm" in name else 0.0, 0.3 if "norm" in name else 0.15)
        caches = [[torch.zeros(16, 16, 2, 3, 16) for _ in decoder.layers] for _ in range(2)]
        tables = torch.arange(16, dtype=torch.int32).view(4, 4)
        steps: list[list[Span]] = [
            [(20, 20), (3, 3)],
            [(1, 21), (1, 4), (17, 17), (2, 2)],
            [(1, 22), (1, 5), (1, 18), (1, 3)],
            [(3, 25), (3, 8)],
        ]
        for number, spans in enumerate(steps):
            positions = torch.cat([torch.arange(context - n, context) for n, context in spans])
            sequences = torch.arange(len(spans)).repeat_interleave(torch.tensor([n for n, _ in spans]))
            metadata = replace(
                Ragged(spans, (9, 3), 16, 16).metadata,
                block_tables=tables[: len(spans)],
                slot_mapping=tables[sequences, positions // 16].long() * 16 + positions % 16,
            )
            token_ids = torch.randint(40, positions.shape, generator=torch.Generator(GPU).manual_seed(number))
            expected = decoder(token_ids, positions, caches[0], SDPAAttention(metadata), Ops())
            logits = decoder(token_ids, positions, caches[1], TritonAttention(metadata), TritonOps())
            assert (logits - expected).abs().max() < 1e-4
    assert all(torch.allclose(ours, theirs, atol=1e-4) for ours, theirs in zip(*caches))


def test_where_no_layer_can_be_packed_activations_stay_16_bits_and_pytorch_handles_them(
    tiny_llama_path: Path, kernels: NativeKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing_module, "choose_packings", lambda linears: None)
    config = EngineConfig(model=str(tiny_llama_path), device="cpu", dtype="bfloat16", num_kv_blocks=64)
    engine = Engine(config, load_model(config))
    assert engine.model.decoder.activation_dtype == torch.bfloat16
    assert type(engine.runner.ops) is Ops
    engine.add_request([5, 6, 7], SamplingParams(temperature=0, max_tokens=4, ignore_eos=True), stream=False)
    while engine.has_unfinished:
        outputs = engine.step()
    assert len(outputs[0].token_ids) == 4


def test_a_model_served_with_them_gives_the_logits_it_gave_without(
    tiny_llama_path: Path, kernels: NativeKernels
) -> None:
    """bfloat16 weights and cache; the difference is that of adding in another order."""
    model = load_model(EngineConfig(model=str(tiny_llama_path), device="cpu", dtype="bfloat16"))
    logits: list[torch.Tensor] = []
    for fields in (dict(fused_kernels=False, attention_backend="sdpa"), {}):
        engine = Engine(
            EngineConfig(model=model.name, device="cpu", dtype="bfloat16", num_kv_blocks=64, **fields), model
        )
        rows, forward = [], engine.runner.forward

        def keep(batch, rows=rows, forward=forward) -> torch.Tensor:
            rows.append(forward(batch).clone())
            return torch.zeros_like(rows[-1])  # everybody samples token 0, so that inputs stay equal

        engine.runner.forward = keep
        for number in range(11):
            params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
            engine.add_request(list(range(50, 53 + 4 * number)), params, stream=False)
        while engine.has_unfinished:
            engine.step()
        assert (engine.runner.attention is NativeAttention) == (not fields)
        logits.append(torch.cat(rows))
    error = (logits[0] - logits[1]).norm() / logits[0].norm()
    assert 0 < error < 1e-2
