"""The bend: how many tokens a step computes in the time that it takes to read the weights.

A step reads each weight once, whatever it computes, and does two operations with it for each token. So up to

    bend = bytes of a weight / 2  x  (FLOP/s that products reach) / (bytes/s that reading reaches)

tokens, more of them take no longer; past it, each costs its operations. An H100, by its data sheet and the shares that
are usual: 2 / 2 x 989e12 x 0.5 / (3.35e12 x 0.7) = 211. Where prompts should cost something, they are several bends
long; that is what a lesson scales them by.
"""

from dataclasses import dataclass
from functools import lru_cache

from course.lab.lab import Lab
from course.lab.model_shape import ModelShape
from course.lab.roof import Roof, on_paper, this_machine
from course.lab.style import number
from course.simulator.cost.sizes import DTYPE_BYTES
from minillm.core.brief import brief
from minillm.model.loader import choose_device

MFU, MBU = 0.5, 0.7
"""The shares of a data sheet's FLOP/s and bytes/s that prefill, and reading weights, usually reach."""


@dataclass(frozen=True)
class Bend:
    """Where reading and multiplying take equally long on one machine."""

    roof: Roof
    weight_dtype: str = "bfloat16"
    mfu: float = MFU
    mbu: float = MBU
    """Shares of the roof; 1 where it was measured, for then it has been reached."""

    __repr__ = brief

    @property
    def tokens(self) -> float:
        """Tokens of one step. GPUs that share a model share both, so their number cancels out."""
        return DTYPE_BYTES[self.weight_dtype] / 2 * (self.roof.flops * self.mfu) / (self.roof.bandwidth * self.mbu)

    def reading(self, shape: ModelShape) -> float:
        """Seconds to read all weights once at this machine's speed: less than that no step takes."""
        return self.roof.reading(shape.stored_as(self.weight_dtype).weight_bytes)

    @property
    def told(self) -> str:
        """The division, as one would write it down."""
        flops, bandwidth = f"{number(self.roof.flops / 1e12)} TFLOP/s", f"{number(self.roof.bandwidth / 1e9)} GB/s"
        if self.mfu < 1:
            return f"{flops} × {self.mfu:g} over {bandwidth} × {self.mbu:g}"
        return f"{flops} over {bandwidth}"


def bend_here(lab: Lab, weight_dtype: str | None = None) -> Bend:
    """The bend of the machine that the lab's engine uses, measured in a second or two; or of the device it simulates,
    by its data sheet.

    Args:
        weight_dtype: None = the lab's own.
    """
    dtype = weight_dtype or ModelShape.of_lab(lab).weight_dtype
    roof = this_machine(lab)
    return Bend(roof, dtype) if lab.simulated is not None else Bend(roof, dtype, 1.0, 1.0)


@lru_cache(maxsize=1)
def _tokens_here(lab: Lab) -> float:
    return bend_here(lab).tokens


def bend_on_paper(name: str = "h100-sxm", gpus: int = 1) -> Bend:
    """The bend of GPUs of the simulator's catalogue, weights in 16 bits."""
    return Bend(on_paper(name, gpus))


def on_gpu(lab: Lab) -> bool:
    """Whether the lab's engine computes on a GPU, or simulates one."""
    return lab.simulated is not None or choose_device(lab.config().device).type == "cuda"


def worthwhile_tokens(lab: Lab, bends: float, least: int) -> int:
    """How long a prompt has to be for its prefill to count: so many bends. A lab's is measured once.

    Args:
        least: tokens that are enough on a CPU, which bends at a few tokens already. It isn't measured there.
    """
    return max(least, round(bends * _tokens_here(lab))) if on_gpu(lab) else least
