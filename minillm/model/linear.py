"""Linear layers, and how those of a model are replaced by others: packed for a CPU (packed.py), or in fewer bits
(quantized.py, quantized_cuda.py).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minillm.kernels.cpu.layers import NativeMatrix
from minillm.kernels.quantization import SLICE


class AnyLinear(nn.Module):
    """y = x W^T + b, in whatever form W is kept."""

    bias: nn.Parameter | None
    max_rows: int | None = None
    """Most rows for which the kernel that reads `native` is the best one; None = any number."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.multiply(x)
        return y if self.bias is None else y + self.bias

    def multiply(self, x: Tensor) -> Tensor:
        """x W^T."""
        raise NotImplementedError

    def swiglu(self, x: Tensor) -> Tensor | None:
        """See GatedProjection."""
        return None

    def native(self) -> NativeMatrix | None:
        """W as our C++ reads it; None if it is not in that order."""
        return None

    def keep_in(self, arena: "Arena") -> None:
        """Move what a decode step reads into the arena."""


class Linear(AnyLinear):
    """The plain layer. W is [out, in], left uninitialized for the loader to fill."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=dtype, device=device), False)
        self.bias = nn.Parameter(torch.empty(out_features, dtype=dtype, device=device), False) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


def relative_error(
    product: Callable[[Tensor], Tensor], weight: Tensor, bias: Tensor | None, dtype: torch.dtype, rows: int = 4
) -> float:
    """Largest error of product(x), as a share of the largest number in x W^T + b, for some rows x of this dtype."""
    x = torch.randn(rows, weight.shape[1], generator=torch.Generator().manual_seed(0)).to(weight.device, dtype)
    # In slices: an output head in float32 is gigabytes, on a device that the other weights may nearly fill.
    slices = weight.split(max(1, SLICE // weight.shape[1]))
    expected = torch.cat([F.linear(x.float(), rows_of_w.float()) for rows_of_w in slices], dim=1)
    if bias is not None:
        expected += bias.float()
    error = (product(x).float() - expected).abs().max()
    return (error / (expected.abs().max() + 1e-6)).item()


def places_of(module: nn.Module) -> list[tuple[nn.Module, str]]:
    """The places of Linears, as parents and names: a list of the layers would keep all their weights alive."""
    return [
        (parent, name)
        for parent in module.modules()
        for name, child in parent.named_children()
        if isinstance(child, Linear)
    ]


def replace_linears(module: nn.Module, make: Callable[[Linear], AnyLinear], but: nn.Module | None = None) -> None:
    """Replace every Linear inside `module` by what `make` makes of it, one by one."""
    arena = Arena()
    for parent, name in places_of(module):
        if (linear := getattr(parent, name)) is not but:
            made = make(linear)
            made.keep_in(arena)
            setattr(parent, name, made)


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
        """A copy of the tensor in the arena."""
        size = tensor.nbytes + -tensor.nbytes % self.ALIGNMENT
        if size > len(self.rest):
            self.rest = torch.empty(max(size, self.CHUNK), dtype=torch.uint8)
        part, self.rest = self.rest[: tensor.nbytes], self.rest[size:]
        return part.view(tensor.dtype).view(tensor.shape).copy_(tensor)
