"""Linear layers whose weights are kept in 8 or 4 bits (EngineConfig.quantization), and how a decoder gets them.

A decode step reads every weight once, so fewer bits are fewer seconds, where reading is what takes the time. The
weights are rounded one matrix at a time while a checkpoint is read, and each 16-bit one is dropped at once: they never
exist all together.

Every matrix of the layers is rounded, and the output head, to int8 also under "int4": it is the most sensitive one.
An embedding table that is also the head is the head's rows. Norms, biases and a table of its own stay as they are.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from minillm.config import EngineConfig
from minillm.errors import ConfigError
from minillm.models.decoder import Decoder
from minillm.models.linear import Linear
from minillm.models.native import native_kernels
from minillm.quantization import dequantize_int4, pack_int4, quantize_int4, quantize_int8, unpack_int4

FEW_ROWS = 32
"""Up to here the weights are widened in registers; beyond, a block of them at a time is, for a blocked product."""
BLOCK = 1 << 20
"""Weights of a block: 4 MB as float32."""


class QuantizedLinear(nn.Module):
    """x W^T + b on a CPU, of float32 rows, with W in int8 or int4; see NativeKernels.linear_quantized."""

    def __init__(self, numbers: Tensor, scales: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.numbers = nn.Parameter(numbers, False)
        self.scales = nn.Parameter(scales, False)
        self.bias = None if bias is None else nn.Parameter(bias.float(), False)
        self.kernels = native_kernels()

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] <= FEW_ROWS and self.kernels is not None:
            y = self.kernels.linear_quantized(x.contiguous(), self.numbers, self.scales)
        else:
            step = max(1, BLOCK // x.shape[1])
            blocks = zip(self.numbers.split(step), self.scales.split(step))
            y = torch.cat([x @ self.widen(numbers, scales).T for numbers, scales in blocks], dim=1)
        return y if self.bias is None else y + self.bias

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of W, float32: what an embedding table is asked for."""
        return self.widen(self.numbers[ids], self.scales[ids])

    def widen(self, numbers: Tensor, scales: Tensor) -> Tensor:
        """Some rows of W as float32."""
        if self.kernels is not None and not torch.compiler.is_compiling():
            return self.kernels.unpack(numbers, scales)
        if numbers.dtype == torch.int8:
            return numbers.float() * scales[:, None]
        return dequantize_int4(unpack_int4(numbers), scales)


def make_int8(linear: Linear) -> nn.Module:
    return QuantizedLinear(*quantize_int8(linear.weight), linear.bias)


def make_int4(linear: Linear, group: int) -> nn.Module:
    numbers, scales = quantize_int4(linear.weight, group)
    return QuantizedLinear(pack_int4(numbers), scales, linear.bias)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a decoder's matrices are rounded on one device."""

    layers: Callable[[Linear], nn.Module]
    head: Callable[[Linear], nn.Module]
    group: int | None = None
    """int4: inputs that share a scale."""


def make_recipe(config: EngineConfig, device: torch.device, dtype: torch.dtype) -> Recipe | None:
    """What `config.quantization` asks for; None if nothing.

    Raises:
        ConfigError: this device cannot compute it.
    """
    if config.quantization is None:
        return None
    if device.type == "cuda":
        from minillm.models import quantized_cuda

        group = config.int4_group_size if config.quantization == "int4" else None
        return Recipe(*quantized_cuda.makers(config, device, dtype), group=group)
    if config.quantization == "fp8":
        raise ConfigError('quantization="fp8" needs a GPU that multiplies fp8: on a CPU, choose "int8" or "int4"')
    if config.quantization == "int8":
        return Recipe(make_int8, make_int8)
    group = config.int4_group_size
    return Recipe(lambda linear: make_int4(linear, group), make_int8, group)


class Arena:
    """A few large pieces of memory for many tensors: large ones get huge pages, see linear.lay_side_by_side."""

    CHUNK = 1 << 26
    """Bytes. What is not written to is not taken from the operating system."""
    ALIGNMENT = 64

    def __init__(self) -> None:
        self.rest = torch.empty(0, dtype=torch.uint8)

    def keep(self, tensor: Tensor) -> Tensor:
        """A copy in here."""
        size = tensor.nbytes + -tensor.nbytes % self.ALIGNMENT
        if size > len(self.rest):
            self.rest = torch.empty(max(size, self.CHUNK), dtype=torch.uint8)
        part, self.rest = self.rest[: tensor.nbytes], self.rest[size:]
        return part.view(tensor.dtype).view(tensor.shape).copy_(tensor)


class Quantizer:
    """Rounds the matrices of a decoder, each when it is complete, and puts what comes out in its place.

    Args:
        recipe: makes the layers.
        device: where the rounded weights go; the decoder may have been filled elsewhere.
    """

    def __init__(self, decoder: Decoder, recipe: Recipe, device: torch.device) -> None:
        self.decoder, self.recipe, self.device = decoder, recipe, device
        self.arena = Arena()
        self.places = {
            child: (parent, name)
            for parent in decoder.modules()
            for name, child in parent.named_children()
            if isinstance(child, Linear)
        }

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
        if isinstance(made, QuantizedLinear):
            made.numbers.data = self.arena.keep(made.numbers.data)
        setattr(parent, name, made)

    def finish(self) -> None:
        """Round what is left, and move the rest to the device."""
        for linear in list(self.places):
            self(linear)
        self.decoder.move_to(self.device)
        if self.device.type == "cpu":
            self.decoder.compute_in_float32()
