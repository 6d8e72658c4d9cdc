"""Linear layers: the plain one, and one that computes 16-bit weights at full speed on a CPU.

A decode step multiplies every weight with only a handful of rows, so it should run at the speed of
reading the weights from memory. On CPUs PyTorch's 16-bit `F.linear` does not. So on a CPU weights are packed in the
order in which a kernel reads them:

- our own, native/linear.cpp, which widens bfloat16 to float32 in registers;
- oneDNN's for many rows (a prefill), where the CPU has units for products of bfloat16 matrices (AMX);
- FBGEMM's (Khudia et al. 2021), with weights as float16, where there is no C++ compiler.
"""

import logging
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minillm.core.known import known
from minillm.kernels.cpu import native_kernels
from minillm.kernels.cpu.bands import band_bfloat16

logger = logging.getLogger(__name__)

FLOAT16_MAX = 65504.0
FEW_ROWS = 32
"""Up to here reading and widening the weights takes most of the time, which matrix units do not help with."""

FINE = 1e-2
"""Largest error of a product, as a share of its largest number: bfloat16 has 8 bits, float16 more. A wrong layout is
off by about 1."""


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
    """x W^T + b of float32 rows, with W packed for a kernel."""

    computes: torch.dtype
    """What it multiplies in."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None: ...

    def __call__(self, x: Tensor) -> Tensor: ...


class PackedInBands:
    """Weights as bfloat16 for our own kernel, in the order of bands.py."""

    computes = torch.float32

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out = weight.shape[0]
        self.banded = band_bfloat16(weight)
        self.bias = None if bias is None else bias.float()
        self.kernels = known(native_kernels())

    def __call__(self, x: Tensor) -> Tensor:
        y = self.kernels.linear(x.contiguous(), self.banded, self.out)
        return y if self.bias is None else y + self.bias


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

    Args:
        few, many: kernels for up to FEW_ROWS rows, and for more. Weights are kept once if they are the same.
    """

    def __init__(self, linear: Linear, few: type[Packed], many: type[Packed]) -> None:
        super().__init__()
        self.few = few(linear.weight, linear.bias)
        self.many = self.few if many is few else many(linear.weight, linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.few(x) if x.shape[0] <= FEW_ROWS else self.many(x)


def choose_packings(linears: list[Linear]) -> tuple[type[Packed], type[Packed]] | None:
    """The kernels that multiply these layers best, with few rows and with many, and correctly: tried, not assumed."""
    if any(linear.weight.device.type != "cpu" or linear.weight.dtype.itemsize != 2 for linear in linears):
        return None
    candidates: list[type[Packed]] = []
    if all(linear.weight.dtype == torch.bfloat16 for linear in linears):
        candidates += [PackedInBands] if native_kernels() is not None else []
        candidates += [PackedForOneDNN] if has_matrix_units() else []
    if max(linear.weight.abs().max().item() for linear in linears) <= FLOAT16_MAX:
        candidates.append(PackedForFBGEMM)
    smallest = min(linears, key=lambda linear: linear.weight.numel())
    right = [packing for packing in candidates if tried(packing, smallest)]
    if not right:
        return None
    return right[0], PackedForOneDNN if PackedForOneDNN in right else right[0]


def tried(packing: type[Packed], linear: Linear) -> bool:
    """Whether the packed layer gives what the plain one does, on this machine."""
    x = torch.randn(3, linear.weight.shape[1], generator=torch.Generator().manual_seed(0))
    expected = F.linear(x, linear.weight.float(), None if linear.bias is None else linear.bias.float())
    try:
        error = (packing(linear.weight, linear.bias)(x) - expected).abs().max().item()
    except (RuntimeError, AttributeError) as reason:
        logger.warning("%s does not work on this machine (%s)", packing.__name__, reason)
        return False
    return error <= FINE * (expected.abs().max().item() + 1e-6)


def has_matrix_units() -> bool:
    """Whether this CPU multiplies tiles of bfloat16 (AMX).

    Vector instructions for bfloat16 (AVX512_BF16) are not enough: with 8 to 256 rows, oneDNN's kernel was measured to
    take 1.5 to 2 times as long with them as ours in float32.
    """
    return torch.cpu._is_amx_tile_supported()


def pack_linears(module: nn.Module) -> bool:
    """Replace every Linear inside `module` by a CPULinear, one by one. False, and nothing done, if none works."""
    packings = choose_packings([child for child in module.modules() if isinstance(child, Linear)])
    if packings is None:
        return False
    arena = Arena()
    # Parents and names only: a list of the layers themselves would keep all their weights to the end.
    places = [
        (parent, name)
        for parent in module.modules()
        for name, child in parent.named_children()
        if isinstance(child, Linear)
    ]
    for parent, name in places:
        packed = CPULinear(getattr(parent, name), *packings)
        if isinstance(packed.few, PackedInBands):
            packed.few.banded = arena.keep(packed.few.banded)
        setattr(parent, name, packed)
    return True


class Arena:
    """A few large pieces of memory for many tensors, side by side in the order in which a step reads them.

    A piece this large gets huge pages from the operating system (see minillm/__init__.py), which saves looking
    up the address of every 4 KB of it: measured, 7 to 15% of a decode step at batch 1.
    """

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
