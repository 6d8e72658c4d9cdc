"""Quantized linear layers on a GPU. Each says what it wants, or ConfigError does.

int8 and int4 are multiplied by our own kernel, where Triton runs; fp8 by an operation of PyTorch's that is not
documented. `checked` compares each with the plain product before it is used.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minillm.core.errors import ConfigError
from minillm.kernels.quantization import FP8, dequantize, quantize_int4, quantize_rows
from minillm.kernels.triton.attention import TritonAttention
from minillm.model.linear import AnyLinear, Linear, relative_error
from minillm.policies.config import EngineConfig

ROUGH = {"int8": 0.03, "fp8": 0.12, "int4": 0.25}
"""Largest relative error of a product with rounded weights: about three times what the rounding makes. A wrong layout
is off by about 1."""

Maker = Callable[[Linear], AnyLinear]
Product = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""x W^T + b, given x, W as numbers and their scales, and b: see int8_linear and int4_linear."""


def pack_int4(numbers: Tensor, group: int) -> Tensor:
    """[out, in] uint8 in 0 .. 15 to bytes [out, in / 2]: input j of a group, and 16 times input j + group / 2."""
    low, high = numbers.unflatten(1, (-1, 2, group // 2)).unbind(2)
    return (low | high << 4).flatten(1)


def widened_product(x: Tensor, numbers: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    """Without Triton, and slower than 16 bits: it widens the whole matrix on each call."""
    y = F.linear(x, numbers.to(x.dtype)) * scales.to(x.dtype)
    return y if bias is None else y + bias


class CudaInt8Linear(AnyLinear):
    """int8 holds -127 .. 127, and so does bfloat16, exactly: the scale of an output can come after the product."""

    def __init__(self, linear: Linear, product: Product) -> None:
        super().__init__()
        numbers, scales = quantize_rows(linear.weight, torch.int8)
        self.numbers, self.scales = nn.Parameter(numbers, False), nn.Parameter(scales, False)
        self.bias, self.product = linear.bias, product

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.numbers, self.scales, self.bias)

    def rows(self, ids: Tensor) -> Tensor:
        return dequantize(self.numbers[ids], self.scales[ids])


class CudaInt4Linear(AnyLinear):
    """Two weights in a byte; each group of inputs of an output has a scale and an offset."""

    def __init__(self, linear: Linear, product: Product, group: int) -> None:
        super().__init__()
        numbers, scales = quantize_int4(linear.weight, group)
        self.packed = nn.Parameter(pack_int4(numbers, group), False)
        self.scales = nn.Parameter(scales, False)
        self.bias, self.product = linear.bias, product

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.packed, self.scales, self.bias)


class CudaFP8Linear(AnyLinear):
    """Both sides in e4m3: each row of x gets a scale as it comes, each output has one. Twice the speed of 16 bits."""

    def __init__(self, linear: Linear, round_rows: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        numbers, scales = quantize_rows(linear.weight, FP8)
        if any(size % 16 for size in numbers.shape):
            raise ConfigError(
                f'quantization="fp8" wants sizes in multiples of 16; a matrix is {list(numbers.shape)}: choose "int8"'
            )
        self.numbers, self.scales = nn.Parameter(numbers, False), nn.Parameter(scales[None, :], False)
        self.bias, self.round_rows = linear.bias, round_rows

    def multiply(self, x: Tensor) -> Tensor:
        rounded, scales = self.round_rows(x)
        y = torch._scaled_mm(rounded, self.numbers.t(), scales[:, None], self.scales, out_dtype=torch.bfloat16)
        return y.to(x.dtype)

    def rows(self, ids: Tensor) -> Tensor:
        return dequantize(self.numbers[ids], self.scales[0, ids])


def makers(config: EngineConfig, device: torch.device) -> tuple[Maker, Maker]:
    """What makes the layers' matrices, and the head.

    Raises:
        ConfigError: this GPU has no kernel for it.
    """
    capability, kind = torch.cuda.get_device_capability(device), config.quantization
    assert kind is not None
    if kind == "fp8" and capability < (8, 9):
        raise ConfigError(
            f'quantization="fp8" needs a GPU of compute capability 8.9 or more, and this one has '
            f'{capability[0]}.{capability[1]}: choose "int8" or "int4"'
        )
    if TritonAttention.missing(device):
        if kind != "int8":
            raise ConfigError(f'quantization="{kind}" needs Triton and compute capability 8.0 or more: choose "int8"')
        int8 = checked(partial(CudaInt8Linear, product=widened_product), ROUGH["int8"])
        return int8, int8
    from minillm.kernels.triton.linear import int4_linear, int8_linear, quantize_fp8

    fp8 = checked(partial(CudaFP8Linear, round_rows=quantize_fp8), ROUGH["fp8"])
    int8 = checked(partial(CudaInt8Linear, product=int8_linear), ROUGH["int8"])
    int4 = checked(partial(CudaInt4Linear, product=int4_linear, group=config.int4_group_size), ROUGH["int4"])
    return {"int8": (int8, int8), "int4": (int4, int8), "fp8": (fp8, fp8)}[kind]


def checked(make: Maker, rough: float) -> Maker:
    """The same maker; the first layer that it makes must multiply as the plain one does, but for the rounding.

    Args:
        rough: the largest relative error of the product.

    That one raises ConfigError unless its kernel is there and right.
    """
    is_right = False

    def maker(linear: Linear) -> AnyLinear:
        nonlocal is_right
        made = make(linear)
        if not is_right:
            check(made, linear, rough)
            is_right = True
        return made

    return maker


def check(made: AnyLinear, linear: Linear, rough: float) -> None:
    """Raise ConfigError unless the layer's kernel is there and multiplies correctly."""
    try:
        error = relative_error(made, linear.weight, linear.bias, linear.weight.dtype)
    except (RuntimeError, AttributeError) as reason:
        raise ConfigError(f"the kernel for {type(made).__name__} fails on this GPU: {reason}") from reason
    if not error <= rough:
        raise ConfigError(f"the kernel for {type(made).__name__} computes wrongly on this GPU: off by {error:.0%}")
