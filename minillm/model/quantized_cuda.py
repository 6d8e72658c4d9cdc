"""Quantized linear layers on a GPU. Each says what it wants, or ConfigError does.

int8 is multiplied by our own kernel, where Triton runs; int4 and fp8 by PyTorch's operations, which are not documented.
`checked` compares each with the plain product before it is used. Not yet run on a GPU.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minillm.core.errors import ConfigError
from minillm.kernels.quantization import FP8, dequantize, quantize, quantize_int4, quantize_rows
from minillm.kernels.triton.attention import TritonAttention
from minillm.model.linear import AnyLinear, Linear, relative_error
from minillm.policies.config import EngineConfig

ROUGH = {"int8": 0.03, "fp8": 0.12, "int4": 0.25}
"""Largest relative error of a product with rounded weights: about three times what the rounding makes. A wrong layout
is off by about 1."""

Maker = Callable[[Linear], AnyLinear]
Int8Product = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""x W^T + b, given x, W as int8 numbers [out, in] and float32 scales [out], and b."""
RowRounding = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Rows [T, in] to fp8 numbers and their scales [T]."""


def widened_product(x: Tensor, numbers: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    """Without Triton, and slower than 16 bits: it widens the whole matrix on each call."""
    y = F.linear(x, numbers.to(x.dtype)) * scales.to(x.dtype)
    return y if bias is None else y + bias


class CudaInt8Linear(AnyLinear):
    """int8 holds -127 .. 127, and so does bfloat16, exactly: the scale of an output can come after the product."""

    def __init__(self, linear: Linear, product: Int8Product) -> None:
        super().__init__()
        numbers, scales = quantize_rows(linear.weight, torch.int8)
        self.numbers, self.scales = nn.Parameter(numbers, False), nn.Parameter(scales, False)
        self.bias, self.product = linear.bias, product

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.numbers, self.scales, self.bias)

    def rows(self, ids: Tensor) -> Tensor:
        return dequantize(self.numbers[ids], self.scales[ids])


class CudaInt4Linear(AnyLinear):
    """PyTorch's tinygemm: (q - 8) x scale + zero, by groups of inputs; bfloat16 only."""

    def __init__(self, linear: Linear, group: int) -> None:
        super().__init__()
        out, width = linear.weight.shape
        numbers, scales = quantize_int4(linear.weight, group)
        step, low = scales.float().unbind(2)
        zeros = low + 8 * step  # the value of q = 8
        tiles = next((tiles for tiles in (8, 4, 2) if width % (16 * tiles) == 0), None)
        if tiles is None or out % 8:
            raise ConfigError(
                f'quantization="int4" on a GPU wants widths in multiples of 32 and heights of 8; a matrix is {out} x '
                f'{width}: choose "int8"'
            )
        pairs = numbers[:, ::2] << 4 | numbers[:, 1::2]
        self.packed = nn.Parameter(torch._convert_weight_to_int4pack(pairs.contiguous(), tiles), False)
        self.scales = nn.Parameter(torch.stack((step, zeros), dim=2).transpose(0, 1).bfloat16().contiguous(), False)
        self.group, self.bias = group, linear.bias

    def multiply(self, x: Tensor) -> Tensor:
        return torch._weight_int4pack_mm(x.contiguous(), self.packed, self.group, self.scales)


class CudaFP8Linear(AnyLinear):
    """Both sides in e4m3: each row of x gets a scale as it comes, each output has one. Twice the speed of 16 bits."""

    def __init__(self, linear: Linear, round_rows: RowRounding) -> None:
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


def makers(config: EngineConfig, device: torch.device, dtype: torch.dtype) -> tuple[Maker, Maker]:
    """What makes the layers' matrices, and the head.

    Raises:
        ConfigError: this GPU or this dtype has no kernel for it.
    """
    capability = torch.cuda.get_device_capability(device)
    if config.quantization == "fp8" and capability < (8, 9):
        raise ConfigError(
            f'quantization="fp8" needs a GPU of compute capability 8.9 or more, and this one has '
            f'{capability[0]}.{capability[1]}: choose "int8" or "int4"'
        )
    if config.quantization == "int4" and (capability < (8, 0) or dtype != torch.bfloat16):
        raise ConfigError('quantization="int4" on a GPU needs compute capability 8.0 and dtype="bfloat16": or "int8"')
    product, round_rows = choose_kernels(device)
    if config.quantization == "fp8":
        fp8 = checked(partial(CudaFP8Linear, round_rows=round_rows), ROUGH["fp8"])
        return fp8, fp8
    int8 = checked(partial(CudaInt8Linear, product=product), ROUGH["int8"])
    if config.quantization == "int8":
        return int8, int8
    return checked(partial(CudaInt4Linear, group=config.int4_group_size), ROUGH["int4"]), int8


def choose_kernels(device: torch.device) -> tuple[Int8Product, RowRounding]:
    """Ours, each one launch or two; PyTorch's operations where Triton is missing, or doesn't run on this GPU."""
    if TritonAttention.missing(device):
        return widened_product, partial(quantize, dtype=FP8)
    from minillm.kernels.triton.linear import int8_linear, quantize_fp8

    return int8_linear, quantize_fp8


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
