"""All layers of a decode step in one call, against the same layers one after the other."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from minillm.kernels.attention.base import AttentionMetadata
from minillm.kernels.attention.cache import KVCache, QuantizedKV
from minillm.kernels.attention.native import NativeAttention
from minillm.kernels.attention.sdpa import SDPAAttention
from minillm.kernels.cpu import NativeKernels, native_kernels
from minillm.kernels.cpu.ops import NativeOps
from minillm.kernels.ops import Ops, Rotation
from minillm.model import linear as linear_module
from minillm.model.config import ModelConfig
from minillm.model.decoder import Decoder, Pass
from minillm.model.linear import FEW_ROWS
from minillm.model.quantized import Quantizer, Recipe, make_int4, make_int8
from minillm.model.rope import RotaryEmbedding

pytestmark = pytest.mark.usefixtures("two_threads")
CPU = torch.device("cpu")
BLOCKS, BLOCK_SIZE = 8, 4


@pytest.fixture(scope="module")
def kernels() -> NativeKernels:
    found = native_kernels()
    if found is None:
        pytest.skip("no C++ compiler here")
    return found


def made_decoder(weights: str = "bfloat16", **changes: object) -> Decoder:
    config = ModelConfig.from_hf(
        dict(
            architectures=["LlamaForCausalLM"], vocab_size=40, hidden_size=64, intermediate_size=96,
            num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-5,
            rope_theta=100.0, max_position_embeddings=128,
        )
    )  # fmt: skip
    torch.manual_seed(0)
    decoder = Decoder(replace(config, **changes), torch.bfloat16, CPU)
    for parameter in decoder.parameters():
        parameter.data.normal_(0, 0.3)
    if weights == "bfloat16":
        decoder.optimise_for_cpu()
    else:
        make = make_int8 if weights == "int8" else lambda linear: make_int4(linear, 32)
        Quantizer(decoder, Recipe(make, make_int8), CPU).finish()
    return decoder


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
    )  # fmt: skip


class Counting(NativeOps):
    """Says how often layers were run in one call."""

    def __init__(self, kernels: NativeKernels) -> None:
        super().__init__(kernels)
        self.separate = 0

    def add_rms_norm(self, *arguments: object) -> tuple[Tensor, Tensor]:
        self.separate += 1
        return super().add_rms_norm(*arguments)


def run(
    decoder: Decoder, ops: Ops, caches: list[KVCache], metadata: AttentionMetadata, one_by_one: bool
) -> list[Tensor]:
    rope = RotaryEmbedding(decoder.config.rope, decoder.config.head_dim, CPU)
    positions = metadata.context_lens_tensor.long() - 1
    rotation = Rotation(*rope.angles(positions, torch.float32), metadata.slot_mapping)
    step = Pass(rotation, NativeAttention(metadata), ops)
    torch.manual_seed(2)
    x, delta = torch.randn(2, len(positions), decoder.config.hidden_size)
    layers = Ops.run_layers if one_by_one else type(ops).run_layers
    return [*layers(ops, decoder.layers, x, delta, caches, step), x, delta]


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
        run(decoder, NativeOps(kernels), made_cache(torch.bfloat16, decoder), made_metadata(3, **fields), one_by_one)
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
        patch.setattr("minillm.kernels.cpu.layers.NativeAttention", SDPAAttention)
        assert separate(decoder, made_metadata(3)) == 6, "another kernel attends"
    monkeypatch.setattr(linear_module, "has_matrix_units", lambda: True)
    two_kernels = made_decoder()
    assert two_kernels.layers[0].mlp.down_proj.few is not two_kernels.layers[0].mlp.down_proj.many
    assert separate(two_kernels, made_metadata(3)) == 0
    assert separate(two_kernels, made_metadata(FEW_ROWS + 1)) == 6, "oneDNN's kernel is the better one"


def test_layers_of_another_model_are_not_mistaken_for_the_last_ones(kernels: NativeKernels) -> None:
    ops, metadata = NativeOps(kernels), made_metadata(2)
    first, second = made_decoder(), made_decoder("int8")
    for decoder in (first, second, first):
        found = run(decoder, ops, made_cache(torch.bfloat16, decoder), metadata, one_by_one=False)
        expected = run(decoder, ops, made_cache(torch.bfloat16, decoder), metadata, one_by_one=True)
        assert torch.equal(found[0], expected[0])
