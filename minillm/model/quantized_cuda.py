"""Quantized linear layers on a GPU, through PyTorch's own kernels. Each says what it wants, or ConfigError does.

The operations are not documented: `checked` compares each with the plain product before it is used. Not yet run on a
GPU.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minillm.core.errors import ConfigError
from minillm.core.known import known
from minillm.kernels.quantization import (
    FP8,
    FP8_MAX,
    SMALLEST_SCALE,
    dequantize_int4,
    quantize_fp8,
    quantize_int4,
    quantize_int8,
)
from minillm.model.linear import Linear
from minillm.policies.config import EngineConfig

NARROW_ROWS = 16
"""Up to here the int8 kernel reads int8; beyond, a matrix is widened before the product."""
ROUGH = 0.1
"""Largest error of a product, as a share of its largest number: an fp8 product rounds its inputs to 4 bits, too. A
wrong layout is off by about 1."""

Maker = Callable[[Linear], nn.Module]


class CudaInt8Linear(nn.Module):
    """int8 holds -127 .. 127, and so does bfloat16, exactly: the scale of an output can come after the product."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        numbers, scales = quantize_int8(linear.weight)
        self.numbers = nn.Parameter(numbers, False)
        self.scales = nn.Parameter(scales.to(linear.weight.dtype), False)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] <= NARROW_ROWS:
            y = torch._weight_int8pack_mm(x.contiguous(), self.numbers, self.scales)
        else:
            y = F.linear(x, self.numbers.to(x.dtype)) * self.scales
        return y if self.bias is None else y + self.bias

    def rows(self, ids: Tensor) -> Tensor:
        return self.numbers[ids].to(self.scales.dtype) * self.scales[ids, None]

    def plain(self) -> Tensor:
        """The weights that it computes with."""
        return self.numbers.float() * self.scales.float()[:, None]


class CudaInt4Linear(nn.Module):
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
        self.expected = (numbers, scales)
        """For `checked`; forgotten afterwards."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch._weight_int4pack_mm(x.contiguous(), self.packed, self.group, self.scales)
        return y if self.bias is None else y + self.bias

    def plain(self) -> Tensor:
        return dequantize_int4(*self.expected)


class CudaFP8Linear(nn.Module):
    """Both sides in e4m3: each row of x gets a scale as it comes, each output has one. Twice the speed of 16 bits."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        numbers, scales = quantize_fp8(linear.weight)
        if any(size % 16 for size in numbers.shape):
            raise ConfigError(
                f'quantization="fp8" wants sizes in multiples of 16; a matrix is {list(numbers.shape)}: choose "int8"'
            )
        self.numbers, self.scales = nn.Parameter(numbers, False), nn.Parameter(scales[None, :], False)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        scale = (x.float().abs().amax(1, keepdim=True) / FP8_MAX).clamp_(min=SMALLEST_SCALE)
        rounded = (x.float() / scale).clamp_(-FP8_MAX, FP8_MAX).to(FP8)
        y = torch._scaled_mm(rounded, self.numbers.t(), scale, self.scales, out_dtype=torch.bfloat16)
        return (y if self.bias is None else y + self.bias).to(x.dtype)

    def rows(self, ids: Tensor) -> Tensor:
        return self.numbers[ids].float() * self.scales[0, ids, None]

    def plain(self) -> Tensor:
        return self.numbers.float() * self.scales[0, :, None]


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
    int8, fp8 = checked(CudaInt8Linear), checked(CudaFP8Linear)
    int4 = checked(lambda linear: CudaInt4Linear(linear, config.int4_group_size))
    return {"int8": (int8, int8), "int4": (int4, int8), "fp8": (fp8, fp8)}[known(config.quantization)]


def checked(make: Maker) -> Maker:
    """The same maker; the first layer that it makes is compared with the plain product of its rounded weights."""
    seen: list[bool] = []

    def maker(linear: Linear) -> nn.Module:
        made = make(linear)
        if not seen:
            check(made, linear)
            seen.append(True)
        if isinstance(made, CudaInt4Linear):
            del made.expected
        return made

    return maker


def check(made: Any, linear: Linear) -> None:
    """Raise ConfigError unless PyTorch's kernel is there and multiplies correctly."""
    weight = linear.weight
    x = torch.randn(4, weight.shape[1], dtype=weight.dtype, device=weight.device)
    expected = F.linear(x.float(), made.plain())
    if linear.bias is not None:
        expected += linear.bias
    try:
        error = (made(x).float() - expected).abs().max().item()
    except (RuntimeError, AttributeError) as reason:
        raise ConfigError(f"PyTorch's kernel for {type(made).__name__} fails on this GPU: {reason}") from reason
    if not error <= ROUGH * expected.abs().max().item():
        raise ConfigError(
            f"PyTorch's kernel for {type(made).__name__} computes wrongly on this GPU: off by {error:.3g}"
        )
