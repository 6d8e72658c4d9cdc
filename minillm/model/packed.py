"""Linear layers whose 16-bit weights are computed at full speed on a CPU.

A decode step multiplies every weight with only a handful of rows, so it should run at the speed of
reading the weights from memory. On CPUs PyTorch's 16-bit `F.linear` does not. So on a CPU weights are packed in the
order in which a kernel reads them:

- our own, kernels/cpu/linear.cpp, which widens bfloat16 to float32 in registers;
- the same on rows rounded to bfloat16, where the CPU multiplies pairs of those (AVX512_BF16, Arm's bf16) or
  whole tiles (AMX, kernels/cpu/matrix_units.h);
- oneDNN's, for bfloat16 matrices, with weights and rows in blocks of its own;
- FBGEMM's (Khudia et al. 2021), with weights as float16: it needs no C++ compiler.

Which of them multiplies best is tried: see minillm/model/packing.py.
"""

from typing import Protocol

import torch
from torch import Tensor, nn

from minillm.kernels.cpu import address, native_kernels
from minillm.kernels.cpu.bands import band_bfloat16
from minillm.kernels.cpu.layers import NativeMatrix
from minillm.model.linear import AnyLinear, Arena, Linear

FEW_ROWS = 32
"""Most rows for which reading the weights takes most of the time."""


class Packed(Protocol):
    """x W^T + b of float32 rows, with W packed for a kernel."""

    computes: torch.dtype
    """What it multiplies in."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None: ...

    def __call__(self, x: Tensor) -> Tensor: ...


class PackedInBands:
    """Weights as bfloat16 for our own kernel, in the order of bands.py."""

    computes = torch.float32
    dots = False
    """x is rounded to bfloat16, too."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out, self.size = weight.shape
        self.banded = band_bfloat16(weight)
        self.bias = None if bias is None else bias.float()
        kernels = native_kernels()
        assert kernels is not None, "chosen only where there are some"
        self.kernels = kernels

    def __call__(self, x: Tensor) -> Tensor:
        y = self.kernels.linear(x.contiguous(), self.banded, self.out, self.dots)
        return y if self.bias is None else y + self.bias


class PackedForDots(PackedInBands):
    """Weights as PackedInBands has them, for the CPU's products of bfloat16 pairs, or tiles: rows are rounded on the
    way in, sums are float32, and any number of rows is multiplied in the same way."""

    computes = torch.bfloat16
    dots = True


class PackedForFBGEMM:
    """Weights as float16. It holds bfloat16 weights as they are, but for the smallest: those below 8e-6
    move by at most 3e-8. Sums are float32, so the result is closer to exact than bfloat16 arithmetic."""

    computes = torch.float32

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight.float(), None if bias is None else bias.float())

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.quantized.linear_dynamic_fp16(x, self.packed)


class PackedForOneDNN:
    """Weights as bfloat16, in the blocks that the CPU's bfloat16 instructions want. Activations are rounded
    to bfloat16 on the way in, sums are float32."""

    computes = torch.bfloat16

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        # PyTorch's compiler uses these two operations; they are not documented, so `works` tries them.
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.bfloat16(), 64)
        self.bias = None if bias is None else bias.bfloat16()

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x.bfloat16(), self.packed, self.bias, "none", [], "").float()


class CPULinear(AnyLinear):
    """A linear layer of float32 rows with 16-bit weights, made from a plain one.

    Args:
        few, many: kernels for up to FEW_ROWS rows, and for more. Weights are kept once if they are the same.
    """

    def __init__(self, linear: Linear, few: type[Packed], many: type[Packed]) -> None:
        super().__init__()
        self.few = few(linear.weight, linear.bias)
        self.many = self.few if many is few else many(linear.weight, linear.bias)
        self.max_rows = None if many is few else FEW_ROWS

    def forward(self, x: Tensor) -> Tensor:
        return self.few(x) if x.shape[0] <= FEW_ROWS else self.many(x)

    def native(self) -> NativeMatrix | None:
        if not isinstance(self.few, PackedInBands):
            return None
        addresses = (address(self.few.banded), None, address(self.few.bias))
        return NativeMatrix(*addresses, self.few.size, self.few.out, 16, dots=self.few.dots)

    def keep_in(self, arena: Arena) -> None:
        if isinstance(self.few, PackedInBands):
            self.few.banded = arena.keep(self.few.banded)


def chosen_packings(module: nn.Module) -> dict[str, list[str]]:
    """Which kernels multiply the 16-bit weights inside on a CPU: what the trial of packing.py chose for few rows, and
    for many. Empty elsewhere."""
    linears = [each for each in module.modules() if isinstance(each, CPULinear)]
    return {
        "few_rows": sorted({type(linear.few).__name__ for linear in linears}),
        "many_rows": sorted({type(linear.many).__name__ for linear in linears}),
    }
