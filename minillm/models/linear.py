"""Linear layers: the plain one, and one that computes 16-bit weights at full speed on a CPU.

A decode step multiplies every weight with only a handful of rows, so it should run at the speed of
reading the weights from memory. On CPUs PyTorch's 16-bit `F.linear` does not. So on a CPU a layer has two
ways, and the number of rows decides:

- few rows (a decode step): our own loop over the weights, native/linear.cpp;
- many rows (a prefill): a kernel of PyTorch's that wants the weights packed in the order it reads them.
  oneDNN's where the CPU multiplies bfloat16; elsewhere FBGEMM's (Khudia et al. 2021), which widens
  16-bit weights to float32 in registers.
"""

import logging
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minillm.models.native import NativeKernels, native_kernels

logger = logging.getLogger(__name__)

FLOAT16_MAX = 65504.0
FEW_ROWS = 8
"""Up to here the loop over the weights is at least as fast as a blocked matrix product."""


class Linear(nn.Module):
    """y = x W^T + b. W is [out, in], left uninitialised for the loader to fill."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=dtype, device=device), False)
        self.bias = nn.Parameter(torch.empty(out_features, dtype=dtype, device=device), False) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Packed(Protocol):
    """x W^T + b of float32 rows, with W packed for a kernel that is good at many rows."""

    computes: torch.dtype
    """What it multiplies in."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None: ...

    def __call__(self, x: Tensor) -> Tensor: ...


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
        # PyTorch's compiler uses these two operations; they are not documented, so `tried` tries them.
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.bfloat16(), 64)
        self.bias = None if bias is None else bias.bfloat16()

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x.bfloat16(), self.packed, self.bias, "none", [], "").float()


class CPULinear(nn.Module):
    """A linear layer of float32 rows with 16-bit weights, made from a plain one.

    The weights are kept twice: as they are for few rows, and packed for many.
    """

    def __init__(self, linear: Linear, packing: type[Packed], few: NativeKernels | None) -> None:
        super().__init__()
        self.weight = linear.weight if few is not None and linear.weight.dtype == torch.bfloat16 else None
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.float(), False)
        self.few = few
        self.many = packing(linear.weight, linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is None or x.shape[0] > FEW_ROWS:
            return self.many(x)
        y = self.few.linear(x.contiguous(), self.weight)
        return y if self.bias is None else y + self.bias


def choose_packing(linears: list[Linear]) -> type[Packed] | None:
    """The kernel that multiplies these layers best with many rows, and correctly: tried, not assumed."""
    if any(linear.weight.device.type != "cpu" or linear.weight.dtype.itemsize != 2 for linear in linears):
        return None
    bfloat16 = all(linear.weight.dtype == torch.bfloat16 for linear in linears) and computes_bfloat16()
    candidates: list[type[Packed]] = [PackedForOneDNN] if bfloat16 else []
    if max(linear.weight.abs().max().item() for linear in linears) <= FLOAT16_MAX:
        candidates.append(PackedForFBGEMM)
    smallest = min(linears, key=lambda linear: linear.weight.numel())
    return next((packing for packing in candidates if tried(packing, smallest)), None)


def tried(packing: type[Packed], linear: Linear) -> bool:
    """Whether the packed layer gives what the plain one does, on this machine."""
    x = torch.randn(3, linear.weight.shape[1], generator=torch.Generator().manual_seed(0))
    expected = F.linear(x, linear.weight.float(), None if linear.bias is None else linear.bias.float())
    try:
        error = (packing(linear.weight, linear.bias)(x) - expected).abs().max().item()
    except (RuntimeError, AttributeError) as reason:
        logger.warning("%s does not work on this machine (%s)", packing.__name__, reason)
        return False
    return error <= 1e-2 * (expected.abs().max().item() + 1e-6)


def computes_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 itself. Elsewhere it is emulated, and float32 is faster."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def pack_linears(module: nn.Module) -> bool:
    """Replace every Linear inside `module` by a CPULinear, one by one. False, and nothing done, if none works."""
    packing = choose_packing([child for child in module.modules() if isinstance(child, Linear)])
    if packing is None:
        return False
    few = native_kernels()
    packed = []
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Linear):
                packed.append(CPULinear(child, packing, few))
                setattr(parent, name, packed[-1])
    shared = [id(parameter) for parameter in module.parameters(recurse=False)]  # a tied head's
    lay_side_by_side([layer for layer in packed if layer.weight is not None and id(layer.weight) not in shared])
    return True


def lay_side_by_side(layers: list[CPULinear]) -> None:
    """Move the plain weights into one piece of memory, in the order in which a step reads them.

    A piece this large gets huge pages from the operating system (see minillm/__init__.py), which saves looking
    up the address of every 4 KB of it: measured, 7 to 15% of a decode step at batch 1.
    """
    arena = torch.empty(sum(layer.weight.numel() for layer in layers), dtype=torch.bfloat16)
    parts = arena.split([layer.weight.numel() for layer in layers])
    for layer, part in zip(layers, parts):
        layer.weight = nn.Parameter(part.view(layer.weight.shape).copy_(layer.weight), False)
