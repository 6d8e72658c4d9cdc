"""Linear layers whose weights are kept in 8 or 4 bits (EngineConfig.quantization), and how a decoder gets them.

A decode step reads every weight once, so fewer bits are fewer seconds, where reading is what takes the time. The
weights are rounded one matrix at a time while a checkpoint is read, and each 16-bit one is dropped right then: they
never exist all together.

Every matrix of the layers is rounded, and the output head, to int8 also under "int4": it is the most sensitive one.
An embedding table that is also the head is the head's rows. Norms, biases and a table of its own stay as they are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from minillm.core.errors import ConfigError
from minillm.kernels.cpu import address, has_dots, native_kernels
from minillm.kernels.cpu.bands import LANES, band_int4, band_int8, in_bands, numbers_of
from minillm.kernels.cpu.layers import NativeMatrix
from minillm.kernels.quantization import dequantize, dequantize_int4, quantize_int4, quantize_rows
from minillm.model.cpu import compute_in_float32
from minillm.model.decoder import Decoder
from minillm.model.linear import AnyLinear, Arena, Linear, places_of
from minillm.model.packing import SAMPLE, fastest, tried
from minillm.policies.config import EngineConfig

BLOCK = 1 << 20
"""Weights that are widened in one go where there is no C++ compiler: 4 MB as float32."""
TOO_SMALL = 1 << 20
"""Weights of the largest matrix: a smaller one is multiplied in no time, either way."""


class QuantizedLinear(AnyLinear):
    """x W^T + b on a CPU, of float32 rows, with W in int8 or int4.

    Args:
        numbers, scales: see NativeKernels.linear_quantized.
        group: int4: inputs that share a scale.
    """

    def __init__(self, numbers: Tensor, scales: Tensor, out: int, bias: Tensor | None, group: int = 0) -> None:
        super().__init__()
        self.numbers = nn.Parameter(numbers, False)
        self.scales = nn.Parameter(scales, False)
        self.out, self.group = out, group
        self.size = scales.shape[1] * group if group else numbers.shape[1]
        self.bits = 4 if group else 8
        self.bias = None if bias is None else nn.Parameter(bias.float(), False)
        self.kernels = native_kernels()
        self.dots = False
        """Rows are rounded to bfloat16 on the way in; see `choose_rounding`."""

    def multiply(self, x: Tensor) -> Tensor:
        if self.kernels is not None:
            return self.product(self.dots, x)
        ids = torch.arange(self.out).split(max(1, BLOCK // x.shape[1]))
        return torch.cat([x @ self.rows(some).T for some in ids], dim=1)

    def product(self, dots: bool, x: Tensor) -> Tensor:
        """x W^T by our C++; see NativeKernels.linear_quantized."""
        assert self.kernels is not None, "chosen only where there are some"
        return self.kernels.linear_quantized(x.contiguous(), self.numbers, self.scales, self.out, dots)

    def first(self, bands: int) -> "QuantizedLinear":
        """This matrix with only its first `bands` bands of outputs."""
        return QuantizedLinear(self.numbers[:bands], self.scales[:bands], bands * LANES, None, self.group)

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of W, float32: what an embedding table is asked for."""
        numbers = numbers_of(self.numbers, ids)
        if not self.group:
            return dequantize(numbers, self.scales[ids // LANES, ids % LANES])
        return dequantize_int4(numbers, self.scales[ids // LANES, :, :, ids % LANES])

    def native(self) -> NativeMatrix:
        addresses = map(address, (self.numbers, self.scales, self.bias))
        return NativeMatrix(*addresses, self.size, self.out, self.bits, self.group, self.dots)

    def keep_in(self, arena: Arena) -> None:
        self.numbers.data = arena.keep(self.numbers.data)


def make_int8(linear: Linear) -> QuantizedLinear:
    """The layer with weights in 8 bits, a scale for each output."""
    numbers, scales = quantize_rows(linear.weight, torch.int8)
    return QuantizedLinear(band_int8(numbers), in_bands(scales), len(numbers), linear.bias)


def make_int4(linear: Linear, group: int) -> QuantizedLinear:
    """The layer with weights in 4 bits, scale and offset for each `group` inputs."""
    numbers, scales = quantize_int4(linear.weight, group)
    banded = in_bands(scales).permute(0, 2, 3, 1).contiguous()
    return QuantizedLinear(band_int4(numbers), banded, len(numbers), linear.bias, group)


def choose_rounding(linears: Sequence[QuantizedLinear]) -> None:
    """Whether rows are rounded to bfloat16, as those of 16-bit weights may be (packing.py): tried, where the CPU
    multiplies pairs of them. It is so for any number of rows: their company changes little about what comes out."""
    for bits in (8, 4):
        some = [linear for linear in linears if linear.bits == bits]
        largest = max(some, key=lambda linear: linear.out * linear.size, default=None)
        if largest is None or not has_dots() or largest.out * largest.size < TOO_SMALL:
            continue
        sample = largest.first(min(SAMPLE // largest.size, largest.out) // LANES)
        ways = {f"int{bits} x {dtype}": dtype == "bfloat16" for dtype in ("float32", "bfloat16")}
        products = {name: partial(partial, sample.product, dots) for name, dots in ways.items()}
        seconds = tried([(linear.out, linear.size) for linear in some], products, largest.size)
        for linear in some:
            linear.dots = ways[fastest(seconds)]


@dataclass(frozen=True, slots=True)
class RoundingRecipe:
    """How a decoder's matrices are rounded on one device."""

    layers: Callable[[Linear], AnyLinear]
    head: Callable[[Linear], AnyLinear]
    group: int | None = None
    """int4: inputs that share a scale."""


def make_recipe(config: EngineConfig, device: torch.device) -> RoundingRecipe | None:
    """What `config.quantization` asks for; None if nothing.

    Raises:
        ConfigError: this device cannot compute it.
    """
    if config.quantization is None:
        return None
    group = config.int4_group_size if config.quantization == "int4" else None
    if device.type == "cuda":
        from minillm.model import quantized_cuda

        return RoundingRecipe(*quantized_cuda.makers(config, device), group)
    if config.quantization == "fp8":
        raise ConfigError('quantization="fp8" needs a GPU that multiplies fp8: on a CPU, choose "int8" or "int4"')
    return RoundingRecipe(make_int8 if group is None else partial(make_int4, group=group), make_int8, group)


class Quantizer:
    """Rounds the matrices of a decoder, each when it is complete, and puts what comes out in its place.

    Args:
        recipe: makes the layers.
        device: where the rounded weights go; the decoder may have been filled elsewhere.
    """

    def __init__(self, decoder: Decoder, recipe: RoundingRecipe, device: torch.device) -> None:
        self.decoder, self.recipe, self.device = decoder, recipe, device
        self.arena = Arena()
        self.places = {getattr(parent, name): (parent, name) for parent, name in places_of(decoder)}

    def __call__(self, linear: Linear) -> None:
        """This one is complete.

        Raises:
            ConfigError: its width is not a multiple of int4's groups.
        """
        parent, name = self.places.pop(linear)
        is_head = linear is self.decoder.lm_head
        group, width = self.recipe.group, linear.weight.shape[1]
        if group is not None and not is_head and width % group:
            raise ConfigError(
                f'quantization="int4" shares a scale among {group} inputs, and {name} has {width}: choose "int8", or '
                "another int4_group_size"
            )
        if is_head and linear.weight is self.decoder.embed_tokens:
            self.decoder.embed_tokens = None
        made = (self.recipe.head if is_head else self.recipe.layers)(linear.to(self.device))
        made.keep_in(self.arena)
        setattr(parent, name, made)

    def finish(self) -> None:
        """Round what is left, and move the rest to the device."""
        for linear in list(self.places):
            self(linear)
        self.decoder.move_to(self.device)
        if self.device.type == "cpu":
            choose_rounding([module for module in self.decoder.modules() if isinstance(module, QuantizedLinear)])
            compute_in_float32(self.decoder)
