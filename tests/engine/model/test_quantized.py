"""Quantized layers: kernels against the weights they stand for, what is left in memory, and what is refused."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

from minillm.core.errors import ConfigError
from minillm.frontend.engine import Engine
from minillm.kernels import quantization
from minillm.kernels.cpu import has_dots
from minillm.kernels.ops import Ops
from minillm.kernels.quantization import FP8, dequantize_int4, quantize_int4, quantize_rows, share_on_int4_grid
from minillm.kernels.triton.attention import TritonAttention
from minillm.model import packing, quantized, quantized_cuda
from minillm.model.decoder import Decoder
from minillm.model.linear import Linear, relative_error
from minillm.model.loader import LoadedModel, load_model
from minillm.model.quantized import QuantizedLinear, choose_rounding, make_int4, make_int8, make_recipe
from minillm.policies.config import EngineConfig

pytestmark = pytest.mark.usefixtures("two_threads")
CPU = torch.device("cpu")
DOTS = pytest.mark.skipif(not has_dots(), reason="this processor has no products of bfloat16")


def plain(size: int, out: int, bias: bool = False) -> Linear:
    torch.manual_seed(size + out)
    layer = Linear(size, out, bias, torch.bfloat16, CPU)
    layer.weight.normal_(0, 0.1)
    if bias:
        layer.bias.normal_()
    return layer


def test_int8_is_the_nearest_step_of_each_row() -> None:
    weight = torch.randn(5, 40) * torch.tensor([1e-3, 0.1, 1.0, 30.0, 0.0])[:, None]
    numbers, scales = quantize_rows(weight, torch.int8)
    assert numbers.dtype == torch.int8 and (numbers[:4].abs().amax(1) == 127).all()
    assert ((numbers.float() * scales[:, None] - weight).abs() <= scales[:, None] / 2 * 1.0001).all()
    assert (numbers[4] == 0).all() and scales.isfinite().all(), "a row of zeros is no division by zero"


@pytest.mark.parametrize("group", [32, 64])
def test_int4_is_the_nearest_step_of_each_group(group: int) -> None:
    weight = torch.randn(6, 128)
    weight[0, :32], weight[1] = 0.0, 2.5
    numbers, scales = quantize_int4(weight, group)
    assert numbers.max() <= 15 and scales.shape == (6, 128 // group, 2)
    step = scales[..., 0].float().repeat_interleave(group, 1)
    error = (dequantize_int4(numbers, scales) - weight).abs()
    # bfloat16 keeps 8 bits of a scale and an offset: beyond half a step, the ends may be off by that much.
    assert (error <= 0.5 * step + weight.abs().max() / 128).all()
    assert error[1].max() < 0.01, "a constant group stays"


def test_a_finer_group_is_nearer() -> None:
    weight = torch.randn(64, 256)
    errors = [(dequantize_int4(*quantize_int4(weight, group)) - weight).square().mean() for group in (32, 64)]
    assert errors[0] < 0.9 * errors[1]


@pytest.mark.parametrize(("quantize", "to"), [(quantize_rows, torch.int8), (quantize_int4, 32), (quantize_rows, FP8)])
def test_slices_change_nothing(quantize: Callable, to: object, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(50, 64).bfloat16()
    whole = quantize(weight, to)
    monkeypatch.setattr(quantization, "SLICE", 64 * 7)
    for part, expected in zip(quantize(weight, to), whole):
        assert part.dtype == expected.dtype and torch.equal(part.float(), expected.float())


def test_fp8_keeps_three_bits_of_mantissa() -> None:
    weight = torch.randn(8, 64)
    numbers, scales = quantize_rows(weight, FP8)
    assert ((numbers.float() * scales[:, None] - weight).abs() <= weight.abs() / 16 + scales[:, None] / 512).all()


def test_weights_that_were_of_four_bits_are_recognized() -> None:
    weight = torch.randn(16, 128)
    numbers, scales = quantize_int4(weight, 32)
    assert share_on_int4_grid(weight) < 0.4
    assert share_on_int4_grid(dequantize_int4(numbers, scales).bfloat16()) > 0.9


@pytest.mark.parametrize("rounded", [False, pytest.param(True, marks=DOTS)], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("size", "out"), [(64, 33), (32, 1), (96, 48), (576, 130)], ids=str)
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_a_layer_multiplies_by_the_weights_it_stands_for(
    kind: str, bias: bool, size: int, out: int, rounded: bool
) -> None:
    layer, x = plain(size, out, bias), torch.randn(300, size)
    made = make_int8(layer) if kind == "int8" else make_int4(layer, 32)
    made.dots = rounded
    weight = made.rows(torch.arange(out))
    assert (weight - layer.weight.float()).abs().max() < (0.003 if kind == "int8" else 0.04), "of the checkpoint's"
    x = x.bfloat16().float() if rounded else x
    for rows in (*range(11), 33, 70, 300):
        of_tiles = weight.bfloat16() if rounded and rows > 8 and kind == "int4" else weight
        few = x[300 - rows :]
        exact = F.linear(few.double(), of_tiles.double(), None if layer.bias is None else layer.bias.double())
        assert torch.allclose(made(few).double(), exact, atol=1e-4, rtol=0), rows


@DOTS
def test_rows_are_rounded_where_a_trial_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path))
    outcome = {"int8 x float32": [1.0, 1.0, 9.0], "int8 x bfloat16": [1.1, 1.1, 4.5]}
    outcome |= {"int4 x float32": [1.0, 1.0, 1.0], "int4 x bfloat16": [1.1, 1.0, 1.0]}
    monkeypatch.setattr(
        packing, "measure", lambda products, size: {name: [outcome[name]] * packing.ROUNDS for name in products}
    )
    layers = [make_int8(plain(64, 64)), make_int8(plain(1024, 1024)), make_int4(plain(1024, 1024), 32)]
    choose_rounding(layers)
    assert [layer.dots for layer in layers] == [True, True, False]


@pytest.mark.parametrize("size", [1, 15, 50, 577])
def test_int8_of_any_width(size: int) -> None:
    layer, x = plain(size, 7), torch.randn(3, size)
    made = make_int8(layer)
    assert (made(x) - x @ made.rows(torch.arange(7)).T).abs().max() < 1e-4


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_without_a_compiler_it_multiplies_all_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = plain(64, 40, True), torch.randn(5, 64)
    made = make_int8(layer) if kind == "int8" else make_int4(layer, 64)
    expected, rows = made(x), made.rows(torch.tensor([3, 39]))
    made.kernels = None
    monkeypatch.setattr(quantized, "BLOCK", 640)  # several blocks, the last one smaller
    assert torch.allclose(made(x), expected, atol=1e-5) and torch.equal(made.rows(torch.tensor([3, 39])), rows)


# ---------------------------------------------------------------- a whole model


def load(path: Path, **fields: object) -> LoadedModel:
    return load_model(EngineConfig(model=str(path), device="cpu", **fields))


@pytest.mark.parametrize(
    ("fields", "bits"),
    [
        ({"quantization": "int8"}, 8),
        ({"quantization": "int4"}, 5),
        ({"quantization": "int4", "int4_group_size": 64}, 4.5),
    ],
    ids=str,
)
def test_no_16_bit_matrix_is_left(lively_llama_path: Path, fields: dict, bits: float) -> None:
    model = load(lively_llama_path, dtype="bfloat16", **fields)
    config, decoder = model.model_config, model.decoder
    head = config.vocab_size * config.hidden_size
    matrices = sum(p.numel() for p in Decoder(config, torch.bfloat16, torch.device("meta")).parameters()) - head
    scales = 4 * config.vocab_size
    if bits == 8:
        scales += 4 * sum(m.scales.numel() for m in decoder.layers.modules() if isinstance(m, QuantizedLinear))
    norms = (2 * config.num_layers + 1) * config.hidden_size
    assert sum(p.nbytes for p in decoder.parameters()) == (matrices - norms) * bits / 8 + head + scales + 4 * norms
    assert decoder.embed_tokens is None, "the table is the head's rows"
    assert not [m for m in decoder.modules() if isinstance(m, Linear)]
    assert max(p.nbytes for p in decoder.parameters() if p.dtype.is_floating_point) < 3e5, "scales"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's books")
def test_peak_memory_of_loading(smollm_path: Path) -> None:
    """Memory holds the checkpoint's pages, what is kept, and little more; 16-bit matrices would be 269 MB."""
    code = f"""
from pathlib import Path
import minillm.model.loader as loader
from minillm.policies.config import EngineConfig
def megabytes(name):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024 / 1e6
EngineConfig()
import minillm.kernels.cpu
minillm.kernels.cpu.native_kernels()
before = megabytes("VmRSS")
model = loader.load_model(EngineConfig(model={str(smollm_path)!r}, device="cpu", quantization="int8"))
print(megabytes("VmHWM") - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    checkpoint = sum(file.stat().st_size for file in smollm_path.glob("*.safetensors")) / 1e6
    kept = 135.3
    assert float(done.stdout) < checkpoint + kept + 150


def test_an_embedding_table_of_its_own_stays_as_it_is(tiny_llama_path: Path) -> None:
    model = load(tiny_llama_path, quantization="int8", dtype="bfloat16")
    assert model.decoder.embed_tokens.dtype == torch.bfloat16
    assert isinstance(model.decoder.lm_head, QuantizedLinear)


def test_random_weights_are_quantized_too(tiny_llama_path: Path) -> None:
    model = load(tiny_llama_path, quantization="int4", load_format="dummy")
    assert model.decoder.layers[0].mlp.down_proj.numbers.dtype == torch.int32
    assert model.decoder.lm_head.numbers.dtype == torch.int8, "int4 leaves the head 8 bits"


def test_what_cannot_be_is_refused(tiny_llama_path: Path) -> None:
    with pytest.raises(ConfigError, match='"fp8" needs a GPU'):
        load(tiny_llama_path, quantization="fp8")
    model = load(tiny_llama_path, quantization="int8", dtype="float32")
    with pytest.raises(ConfigError, match="these weights were loaded with 'int8': load them again"):
        Engine(EngineConfig(model=str(tiny_llama_path), dtype="float32", device="cpu", num_kv_blocks=8), model)
    narrow = quantized.Quantizer(model.decoder, quantized.RoundingRecipe(make_int8, make_int8, 64), CPU)
    layer = plain(96, 8)
    narrow.places[layer] = (model.decoder, "layer")
    with pytest.raises(ConfigError, match=r"among 64 inputs, and layer has 96: choose \"int8\""):
        narrow(layer)


@pytest.mark.parametrize(("kind", "precision"), [("int8", 0.003), ("int4", 0.04), ("fp8", 0.02)])
def test_what_a_gpu_gets(kind: str, precision: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretended on a CPU, with kernels in Triton's interpreter; the maker itself refuses a product that is far off."""
    pytest.importorskip("triton", reason="triton is for Linux")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    layer, config = plain(64, 48, True).half(), EngineConfig(quantization=kind)

    def weights() -> torch.Tensor:
        return quantized_cuda.makers(config, CPU)[0](layer)(torch.eye(64).half()).T - layer.bias[:, None]

    assert (weights() - layer.weight).abs().max() < precision
    head = quantized_cuda.makers(config, CPU)[1](layer)
    assert (head.rows(torch.arange(48)) - layer.weight.float()).abs().max() < precision, "the table of tied models"
    monkeypatch.setattr(TritonAttention, "missing", lambda device: "not here")
    if kind == "int8":  # by PyTorch's operations
        assert (weights() - layer.weight).abs().max() < precision
    else:
        with pytest.raises(ConfigError, match="needs Triton"):
            weights()


def test_a_kernel_that_does_not_fit_a_gpu_says_what_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = pytest.importorskip("triton.runtime.errors", reason="triton is for Linux")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    trouble: list[Exception] = [errors.OutOfResources(131072, 101376, "shared memory"), torch.OutOfMemoryError("full")]
    fails = mock.Mock(side_effect=trouble)
    monkeypatch.setattr(quantized_cuda.FragmentLinear, "forward", fails)
    make = quantized_cuda.makers(EngineConfig(quantization="int4"), CPU)[0]
    with pytest.raises(ConfigError, match=r"int4 weights fails .*101376.*: choose another quantization than 'int4'"):
        make(plain(64, 48).half())
    with pytest.raises(torch.OutOfMemoryError):  # the loader says what to do about that
        make(plain(64, 48).half())


@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
@pytest.mark.parametrize(("rows", "out", "launches"), [(3, 96, 0), (33, 96, 0), (3, 80, 1), (129, 96, 1)], ids=str)
def test_swiglu_is_in_the_products_launch_where_it_can_be(kind: str, rows: int, out: int, launches: int) -> None:
    """fp8's rows are few up to 32; the others' up to 128. Of 80 outputs ups would begin within a strip of gates."""
    triton_ops = pytest.importorskip("minillm.kernels.triton.ops", reason="triton is for Linux", exc_type=ImportError)
    linear, x, group = plain(64, out, True).half(), torch.randn(rows, 64).half(), 32 if kind == "int4" else 0
    made = quantized_cuda.CudaFP8Linear(linear) if kind == "fp8" else quantized_cuda.FragmentLinear(linear, kind, group)
    ops = triton_ops.TritonOps()
    with mock.patch.object(ops, "silu_mul", side_effect=ops.silu_mul) as silu_mul:
        found = ops.swiglu(made, x)
    assert silu_mul.call_count == (1 if kind == "fp8" and rows > 32 else launches)
    assert torch.equal(found, Ops.swiglu(ops, made, x))


def test_what_is_wrong_on_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a product of any number of rows, and in SwiGLU, of which ups and gates have changed places here. Each shape is
    tried once, since launches differ."""
    pytest.importorskip("triton", reason="triton is for Linux")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    make = quantized_cuda.makers(EngineConfig(quantization="int8"), CPU)[0]
    checked = mock.Mock(side_effect=quantized_cuda.check)
    with monkeypatch.context() as context:
        context.setattr(quantized_cuda, "check", checked)
        for out in (64, 128, 64):
            make(plain(64, out).half())
    assert checked.call_count == 2
    swiglu = quantized_cuda.FragmentLinear.swiglu

    def changed(layer: quantized_cuda.FragmentLinear, x: torch.Tensor) -> torch.Tensor | None:
        return None if swiglu(layer, x) is None else Ops().silu_mul(layer(x).roll(32, dims=1))

    with monkeypatch.context() as context, pytest.raises(ConfigError, match=r"int8 weights is off by \d+%"):
        context.setattr(quantized_cuda.FragmentLinear, "swiglu", changed)
        make(plain(32, 64).half())
    forward = quantized_cuda.FragmentLinear.forward
    broken = lambda layer, x: forward(layer, x) * (torch.nan if len(x) == 128 else 1)  # noqa: E731
    with monkeypatch.context() as context, pytest.raises(ConfigError, match="int8 weights is off by nan%"):
        context.setattr(quantized_cuda.FragmentLinear, "forward", broken)
        make(plain(32, 64).half())


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_what_no_model_multiplies_may_be_infinite_while_a_layer_is_tried() -> None:
    """Any layer is tried with SwiGLU, and large queries times large keys are more than float16 has."""
    pytest.importorskip("triton", reason="triton is for Linux")
    layer = plain(64, 96, True).half()
    layer.bias.fill_(300)
    made = quantized_cuda.FragmentLinear(layer, "int8")
    assert made.swiglu(torch.zeros(4, 64).half()).isinf().all()
    quantized_cuda.check(made, layer, "int8")


def test_a_layer_is_compared_a_slice_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = plain(64, 48, True).float(), torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    exact = layer(x)
    monkeypatch.setattr("minillm.model.linear.SLICE", 64 * 7)
    with mock.patch.object(F, "linear", side_effect=F.linear) as products:
        found = relative_error(lambda x: exact + 0.5, layer.weight, layer.bias, torch.float32)
    assert found == pytest.approx(0.5 / exact.abs().max().item(), rel=1e-4)
    assert [len(call.args[1]) for call in products.call_args_list] == [7] * 6 + [6]


def test_fp8_rounds_the_rows_of_large_steps_too() -> None:
    """Both products read one copy of the weights. The other one's error is three bits of mantissa on each side."""
    pytest.importorskip("triton", reason="triton is for Linux")
    layer, x = plain(80, 48, True).half(), torch.randn(33, 80).half()
    made = quantized_cuda.CudaFP8Linear(layer)
    exact = F.linear(x.double(), made.rows(torch.arange(48)).double(), layer.bias.double())
    few, many = ((made(rows) - exact[: len(rows)]).abs().max() / exact.abs().max() for rows in (x[:32], x))
    assert few <= 2 * torch.finfo(torch.float16).eps < many < 0.05


def test_gpus_without_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    with pytest.raises(ConfigError, match=r"8.9 or more, and this one has 8.6"):
        make_recipe(EngineConfig(quantization="fp8"), torch.device("cuda"))
