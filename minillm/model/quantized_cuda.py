"""Quantized linear layers on a GPU. Each says what it wants, or ConfigError does.

int8 and int4 are multiplied by our own kernel, where Triton runs; so is fp8 for a few rows, and for more of them by an
operation of PyTorch's that is not documented. `checked` compares each with the plain product before it is used.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minillm.core.errors import ConfigError
from minillm.host.device import first_line
from minillm.kernels.quantization import FP8, dequantize, quantize_int4, quantize_rows
from minillm.kernels.triton.attention import TritonAttention
from minillm.kernels.triton.counters import counters_for
from minillm.model.linear import AnyLinear, Linear, relative_error
from minillm.policies.config import EngineConfig

ROUGH = {"int8": 0.03, "fp8": 0.12, "int4": 0.25}
"""Largest relative error of a product with rounded weights: about three times what the rounding makes. A wrong layout
is off by about 1."""

ROWS_CHECKED = (4, 32, 128, 192)
"""Each is launched in its own way: the few rows of a decode step, more of them, several tiles of these, a prompt's."""

Maker = Callable[[Linear], AnyLinear]


class WidenedLinear(AnyLinear):
    """int8 without Triton, and slower than 16 bits: it widens the whole matrix on each call."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        numbers, scales = quantize_rows(linear.weight, torch.int8)
        self.numbers, self.scales = nn.Parameter(numbers, False), nn.Parameter(scales, False)
        self.bias = linear.bias

    def multiply(self, x: Tensor) -> Tensor:
        return F.linear(x, self.numbers.to(x.dtype)) * self.scales.to(x.dtype)

    def rows(self, ids: Tensor) -> Tensor:
        return dequantize(self.numbers[ids], self.scales[ids])


class FragmentLinear(AnyLinear):
    """int8 or fp8, a scale for each output, or int4, a scale and a low for each group of inputs, in the order in which
    the tensor cores want them.

    Args:
        group: int4: inputs that share a scale.
    """

    def __init__(self, linear: Linear, kind: str, group: int = 0) -> None:
        super().__init__()
        from minillm.kernels.triton import few_rows, fragments
        from minillm.kernels.triton.widening import INT4_BASE

        if kind == "int4":
            numbers, scales = quantize_int4(linear.weight, group, INT4_BASE)
        else:
            numbers, scales = quantize_rows(linear.weight, torch.int8 if kind == "int8" else FP8)
        laid = fragments.to_fragments(numbers, scales, kind)
        self.pairs, self.scales = nn.Parameter(laid.pairs, False), nn.Parameter(laid.scales, False)
        self.weights = replace(laid, pairs=self.pairs, scales=self.scales)
        self.bias = linear.bias
        self.few_rows, self.rows_of = few_rows, fragments.rows_of

    def forward(self, x: Tensor) -> Tensor:
        return self.few_rows.linear(x, self.weights, self.bias, counters_for(x.device))

    def swiglu(self, x: Tensor) -> Tensor | None:
        """See GatedProjection."""
        if not self.few_rows.suits_swiglu(x, self.weights):
            return None
        return self.few_rows.linear_swiglu(x, self.weights, self.bias, counters_for(x.device))

    def rows(self, ids: Tensor) -> Tensor:
        return self.rows_of(self.weights, ids)


class CudaFP8Linear(FragmentLinear):
    """Weights in e4m3, multiplied in either of two ways.

    Few rows: x stays in 16 bits, and weights are widened on their way, as int8's are. On an H100 that took 9.8
    microseconds for 4096 x 4096 and one row, with weights in the order of fragments.py, where the other way took 17.9.
    More rows: x is rounded to e4m3, too, a scale for each row as it comes, for twice the tensor cores' speed at 16
    bits. So a token depends, within fp8's rounding, on how many others its step has.
    """

    def __init__(self, linear: Linear) -> None:
        from minillm.kernels.triton import fp8_rows

        if len(linear.weight) % 16:
            raise ConfigError(
                'quantization="fp8" wants outputs in multiples of 16; a matrix is '
                f'{list(linear.weight.shape)}: choose "int8"'
            )
        super().__init__(linear, "fp8")
        self.round_rows = fp8_rows.quantize_fp8

    def forward(self, x: Tensor) -> Tensor:
        if self.few_rows.are_few(x, self.weights):
            return super().forward(x)
        y = self.multiply(x)
        return y if self.bias is None else y + self.bias

    def multiply(self, x: Tensor) -> Tensor:
        rounded, scales = self.round_rows(x)
        numbers = self.pairs.flatten(1).view(FP8)
        y = torch._scaled_mm(rounded, numbers.t(), scales[:, None], self.scales[None, :], out_dtype=torch.bfloat16)
        return y.to(x.dtype)


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
        int8 = checked(WidenedLinear, "int8")
        return int8, int8
    fp8, int8 = checked(CudaFP8Linear, "fp8"), checked(partial(FragmentLinear, kind="int8"), "int8")
    int4 = checked(partial(FragmentLinear, kind="int4", group=config.int4_group_size), "int4")
    return {"int8": (int8, int8), "int4": (int4, int8), "fp8": (fp8, fp8)}[kind]


def checked(make: Maker, kind: str) -> Maker:
    """A maker that tries the first layer of each shape that it makes, since launches depend on that; see `check`."""
    tried: set[torch.Size] = set()

    def maker(linear: Linear) -> AnyLinear:
        made = make(linear)
        if linear.weight.shape not in tried:
            check(made, linear, kind)
            tried.add(linear.weight.shape)
        return made

    return maker


def check(made: AnyLinear, linear: Linear, kind: str) -> None:
    """Raise ConfigError unless the layer multiplies as the plain one does, but for the rounding; with SwiGLU, too."""
    given = (made, linear.weight, linear.bias, linear.weight.dtype)
    advice = f"choose another quantization than {kind!r}, or none"
    try:
        errors = [relative_error(*given, rows) for rows in ROWS_CHECKED]
        errors += [swiglu_error(made, linear.weight, rows) for rows in ROWS_CHECKED]
        error = torch.tensor(errors).max().item()  # NaN, if one of them is
    except torch.OutOfMemoryError:
        raise
    except Exception as reason:  # of PyTorch, of Triton (too little shared memory, for one), of its compilers
        said = first_line(reason)
        raise ConfigError(f"the kernel for {kind} weights fails on this GPU ({said}): {advice}") from reason
    if not error <= ROUGH[kind]:
        raise ConfigError(f"the kernel for {kind} weights is off by {error:.0%} on this GPU: {advice}")


def swiglu_error(made: AnyLinear, weight: Tensor, rows: int) -> float:
    """Largest difference between SwiGLU in the product's launch and after it, as a share of the largest number; 0 where
    it has no launch with SwiGLU. All layers are tried: which of them are gates and ups isn't known here."""
    x = torch.randn(rows, weight.shape[1], generator=torch.Generator().manual_seed(0)).to(weight)
    if (found := made.swiglu(x)) is None:
        return 0.0
    gate, up = made(x).float().chunk(2, dim=-1)
    # In float16 queries times keys, which no model multiplies like this, may be infinite.
    most = torch.finfo(found.dtype).max
    expected = (F.silu(gate) * up).clamp(-most, most)
    error = (found.float().clamp(-most, most) - expected).abs().max()
    return (error / (expected.abs().max() + 1e-6)).item()
