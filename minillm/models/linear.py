"""Linear layers: the plain one, and one that computes 16-bit weights at full speed on a CPU.

A decode step multiplies every weight with only a handful of rows, so it should run at the speed of
reading the weights from memory. On CPUs PyTorch's 16-bit `F.linear` does not: it is several times
slower as soon as there are 2 rows. FBGEMM (Khudia et al. 2021) keeps the weights in 16 bits, packed
in the order its kernel reads them, and widens them to float32 in registers.
"""

import logging

import torch
import torch.nn.functional as F
from torch import Tensor, nn

logger = logging.getLogger(__name__)

FLOAT16_MAX = 65504.0


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


class PackedLinear(nn.Module):
    """The same function of float32 rows, with the weights packed as float16 for FBGEMM.

    float16 holds bfloat16 weights as they are, but for the smallest: those below 8e-6 move by at most
    3e-8. Sums are float32, so the result is closer to exact than bfloat16 arithmetic.
    """

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        bias = None if linear.bias is None else linear.bias.float()
        self.packed = torch.ops.quantized.linear_prepack_fp16(linear.weight.float(), bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.quantized.linear_dynamic_fp16(x, self.packed)

    def unpack(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias as they were, in float32."""
        return self.packed.unpack()


def can_pack(module: nn.Module) -> bool:
    """Whether this machine multiplies the module's linear layers correctly in packed form: tried, not assumed."""
    linears = [child for child in module.modules() if isinstance(child, Linear)]
    for linear in linears:
        if linear.weight.device.type != "cpu" or linear.weight.dtype not in (torch.bfloat16, torch.float16):
            return False
        if linear.weight.abs().max().item() > FLOAT16_MAX:
            return False
    smallest = min(linears, key=lambda linear: linear.weight.numel())
    x = torch.randn(3, smallest.weight.shape[1], generator=torch.Generator().manual_seed(0))
    expected = F.linear(x, smallest.weight.float(), None if smallest.bias is None else smallest.bias.float())
    try:
        error = (PackedLinear(smallest)(x) - expected).abs().max().item()
    except (RuntimeError, AttributeError) as reason:
        logger.warning("no packed 16-bit linear layers on this machine (%s): using F.linear, which is slower", reason)
        return False
    return error <= 1e-3 * (expected.abs().max().item() + 1e-6)


def pack_linears(module: nn.Module) -> None:
    """Replace every Linear inside `module` by a PackedLinear, one by one, so that memory never holds both."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Linear):
                setattr(parent, name, PackedLinear(child))
