"""Rounding by hand: a grid for each group of weights, and how far they are moved."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from course.lab.lab import Lab
from minillm.core.brief import brief
from minillm.kernels.quantization import SMALLEST_SCALE, share_on_int4_grid
from minillm.model import checkpoints

BITS = (8, 6, 4, 3, 2)
GROUPS = (32, 64, "whole row")
"""Inputs of a row that share one grid."""
GRID_BITS = 32
"""Bits of a grid: a scale and an offset, 16 each."""
MATRIX = "model.layers.0.self_attn.o_proj.weight"
"""The one whose largest weights stand out most from the others."""
PUBLISHED_GROUP = 32


@dataclass(frozen=True)
class Matrix:
    """Weights [out, in], float32."""

    name: str
    weights: Tensor

    __repr__ = brief

    def shaken(self) -> "Matrix":
        """Every weight moved at random by up to half a step of a 4-bit grid, groups of 32: as if it had never been
        rounded to one."""
        groups = self.weights.unflatten(1, (-1, PUBLISHED_GROUP))
        low, high = groups.aminmax(dim=2, keepdim=True)
        steps = torch.rand(groups.shape, generator=torch.Generator().manual_seed(0)) - 0.5
        return replace(self, weights=(groups + steps * (high - low) / 15).flatten(1))

    def widest(self) -> int:
        """The row with the largest outlier: largest weight over the root of the mean square."""
        spread = self.weights.square().mean(1).sqrt().clamp_(min=SMALLEST_SCALE)
        return int((self.weights.abs().amax(1) / spread).argmax())

    @property
    def share_on_grid(self) -> float:
        """Share of the weights that lie on a 4-bit grid of groups of 32 already."""
        return share_on_int4_grid(self.weights, PUBLISHED_GROUP)


def load_matrix(lab: Lab, name: str = MATRIX) -> Matrix:
    """From the checkpoint of a lab's model, as it came.

    Raises:
        LookupError: it has no such matrix.
        SimulatedDeviceError: there is no checkpoint.
    """
    lab.needs_model("A matrix of the checkpoint")
    for each, tensor in checkpoints.iter_weights(checkpoints.resolve(lab.config().model)):
        if each == name:
            return Matrix(name, tensor.float())
    raise LookupError(f"the model has no {name}")


def grids(weights: Tensor, bits: int, group: int | str) -> tuple[Tensor, Tensor]:
    """Lowest line and step of each group's grid: [..., groups, 1] each, for weights [..., in].

    The grid spans the group from its smallest to its largest weight, in 2^bits - 1 equal steps.
    """
    low, high = _grouped(weights, group).aminmax(dim=-1, keepdim=True)
    return low, ((high - low) / (2**bits - 1)).clamp(min=SMALLEST_SCALE)


def rounded(weights: Tensor, bits: int, group: int | str) -> Tensor:
    """Each weight [..., in] moved to the nearest line of its group's grid."""
    low, step = grids(weights, bits, group)
    return (((_grouped(weights, group) - low) / step).round() * step + low).flatten(-2)


def error(weights: Tensor, bits: int, group: int | str) -> float:
    """Size of what rounding adds, as a share of the size of the weights: root mean square over root mean square."""
    return moved_by(weights, rounded(weights, bits, group))


def bits_per_weight(bits: int, group: int | str, width: int) -> float:
    """With the grids themselves, for rows of `width` inputs."""
    return bits + GRID_BITS / (width if isinstance(group, str) else group)


def _grouped(weights: Tensor, group: int | str) -> Tensor:
    width = weights.shape[-1]
    return weights.unflatten(-1, (-1, width if isinstance(group, str) else group))


# ---------------------------------------------------------------- four bits that are floating point

FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""What E2M1 can say (a sign, two bits of exponent, one of mantissa), no sign: fine near zero, coarse far out."""
E4M3_LARGEST = 448.0


def nvfp4(weights: Tensor) -> Tensor:
    """As NVFP4 keeps weights [..., in]: groups of 16, each with an FP8 (E4M3) scale, and one FP32 scale for all."""
    groups = weights.unflatten(-1, (-1, 16))
    whole = (groups.abs().amax() / (FP4[-1] * E4M3_LARGEST)).clamp(min=SMALLEST_SCALE)
    scale = (groups.abs().amax(-1, keepdim=True) / FP4[-1] / whole).to(torch.float8_e4m3fn).float() * whole
    return _to_fp4(groups, scale).flatten(-2)


def mxfp4(weights: Tensor) -> Tensor:
    """As MXFP4 keeps them: groups of 32, each with a power of two for a scale. The largest may saturate."""
    groups = weights.unflatten(-1, (-1, 32))
    most = groups.abs().amax(-1, keepdim=True).clamp(min=SMALLEST_SCALE)
    return _to_fp4(groups, torch.exp2(most.log2().floor() - 2)).flatten(-2)


def _to_fp4(weights: Tensor, scale: Tensor) -> Tensor:
    levels = torch.tensor(FP4)
    borders = (levels[1:] + levels[:-1]) / 2
    ratio = weights.abs() / scale.clamp(min=SMALLEST_SCALE)
    return levels[torch.bucketize(ratio, borders)] * scale * weights.sign()


def moved_by(weights: Tensor, to: Tensor) -> float:
    """Size of what rounding added, as a share of the size of the weights."""
    return ((to - weights).norm() / weights.norm()).item()
