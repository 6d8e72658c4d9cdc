"""The C++ in minillm: what a decode step does on a CPU, compiled for this machine on first use, and kept.

linear.cpp: matrix products   ops.cpp: the small operations   attention.cpp: paged attention
layers.cpp: all layers of a decode step, made of these

Without a compiler, or on a platform where this was not tried, there is none of it, and minillm runs on
PyTorch's own kernels.
"""

import ctypes
import functools
import logging
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minillm.core.known import known
from minillm.kernels.cpu.bands import band_bfloat16, band_int4, band_int8
from minillm.kernels.cpu.compiling import build

logger = logging.getLogger(__name__)

LINES_SAID = 10
"""Of what a compiler said: the first error tells most, and the advice above it should stay on the screen."""

OPERATIONS = torch.library.Library("minillm", "FRAGMENT")
OPERATIONS.define("native_linear(Tensor x, Tensor weight, int out) -> Tensor")
OPERATIONS.define("native_linear_quantized(Tensor x, Tensor numbers, Tensor scales, int out) -> Tensor")


@torch.library.impl(OPERATIONS, "native_linear", "CPU")
def _(x: Tensor, weight: Tensor, out: int) -> Tensor:
    return known(native_kernels()).linear(x, weight, out)


@torch.library.impl(OPERATIONS, "native_linear_quantized", "CPU")
def _(x: Tensor, numbers: Tensor, scales: Tensor, out: int) -> Tensor:
    return known(native_kernels()).linear_quantized(x, numbers, scales, out)


def _linear_shape(x: Tensor, weight: Tensor, out: int) -> Tensor:
    return x.new_empty(x.shape[0], out)


def _linear_quantized_shape(x: Tensor, numbers: Tensor, scales: Tensor, out: int) -> Tensor:
    return x.new_empty(x.shape[0], out)


torch.library.register_fake("minillm::native_linear", _linear_shape, lib=OPERATIONS)
torch.library.register_fake("minillm::native_linear_quantized", _linear_quantized_shape, lib=OPERATIONS)


class NativeKernels:
    """The compiled functions. They take addresses, so tensors are contiguous and of the stated dtype, unchecked."""

    def __init__(self, library: Path) -> None:
        functions = ctypes.CDLL(str(library))
        pointer, number, real = ctypes.c_void_p, ctypes.c_long, ctypes.c_float
        self._linear = declare(functions.linear, [pointer] * 3 + [number] * 3)
        self._linear_int8 = declare(functions.linear_int8, [pointer] * 4 + [number] * 3)
        self._linear_int4 = declare(functions.linear_int4, [pointer] * 4 + [number] * 4)
        self.add_rms_norm = declare(functions.add_rms_norm, [pointer] * 5 + [number] * 2 + [real])
        self.silu_mul = declare(functions.silu_mul, [pointer] * 2 + [number] * 2)
        self.rotate_and_write: dict[torch.dtype, Callable[..., None]] = {}
        self.attend_decodes: dict[torch.dtype, Callable[..., None]] = {}
        """By the dtype of the cache."""
        for dtype, name in ((torch.bfloat16, "bf16"), (torch.int8, "int8")):
            write, attend = (getattr(functions, f"{what}_{name}") for what in ("rotate_and_write", "attend_decodes"))
            self.rotate_and_write[dtype] = declare(write, [pointer] * 8 + [number] * 4 + [real])
            self.attend_decodes[dtype] = declare(attend, [pointer] * 6 + [number] * 9 + [real])
        self.decode_layers = declare(functions.decode_layers, [pointer, pointer, number, pointer, pointer, pointer])

    def linear(self, x: Tensor, weight: Tensor, out: int) -> Tensor:
        """x W^T, [rows, out] float32; up to 8 rows in one pass over W.

        Args:
            x: [rows, in] float32.
            weight: of `bands.band_bfloat16`.
        """
        if torch.compiler.is_compiling():  # as one operation that the compiler does not look into
            return torch.ops.minillm.native_linear(x, weight, out)
        y = torch.empty(x.shape[0], out, dtype=torch.float32)
        self._linear(x.data_ptr(), weight.data_ptr(), y.data_ptr(), *x.shape, out)
        return y

    def linear_quantized(self, x: Tensor, numbers: Tensor, scales: Tensor, out: int) -> Tensor:
        """As `linear`, with weights in fewer bits.

        Args:
            numbers, scales: of `bands.band_int8`, with float32 [bands, 16]; or of `band_int4`, with bfloat16
                [bands, groups, 2, 16].
        """
        if torch.compiler.is_compiling():
            return torch.ops.minillm.native_linear_quantized(x, numbers, scales, out)
        y = torch.empty(x.shape[0], out, dtype=torch.float32)
        addresses = (tensor.data_ptr() for tensor in (x, numbers, scales, y))
        if numbers.dtype == torch.int8:
            self._linear_int8(*addresses, *x.shape, out)
        else:
            self._linear_int4(*addresses, *x.shape, out, x.shape[1] // scales.shape[1])
        return y


def declare(function: Any, argtypes: list[type]) -> Callable[..., None]:
    """A function of the library (ctypes has no public name for its type), told what it takes."""
    function.argtypes, function.restype = argtypes, None
    declared: Callable[..., None] = function
    return declared


@functools.cache
def native_kernels() -> NativeKernels | None:
    """The functions, tried on small matrices; None where they cannot be had. Compiles once per machine."""
    try:
        kernels = load()
    except FileNotFoundError as error:
        logger.info("no native kernels (%s): using PyTorch's, which are slower at small batches", error)
        return None
    except (OSError, AttributeError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or "").splitlines()[:LINES_SAID]
        logger.warning(
            "the native kernels cannot be had. Using PyTorch's, which are slower at small batches. They need a C++ "
            "compiler that works, and a cache folder that can be written (MINILLM_HOME). What went wrong:\n%s",
            "\n".join([str(error), *said]),
        )
        return None
    return kernels if is_right(kernels) else None


def load() -> NativeKernels:
    """The library, compiled if need be; one that is damaged is compiled anew, once.

    Raises:
        OSError, subprocess.SubprocessError: see `build`.
        AttributeError: a function is missing.
    """
    library = build()
    try:
        return NativeKernels(library)
    except (OSError, AttributeError):
        library.unlink(missing_ok=True)
        return NativeKernels(build())


def is_right(kernels: NativeKernels) -> bool:
    """Whether it multiplies correctly: tried, not assumed."""
    generator = torch.Generator().manual_seed(0)
    for rows, size, out in ((1, 64, 192), (3, 50, 7), (8, 33, 66), (13, 128, 80)):
        x, weight = torch.randn(rows, size, generator=generator), torch.randn(out, size, generator=generator).bfloat16()
        found = kernels.linear(x, band_bfloat16(weight), out)
        if not torch.allclose(found, x @ weight.float().T, rtol=1e-4, atol=1e-4):
            logger.warning("the native kernels compute wrongly on this machine: using PyTorch's")
            return False
    x, levels = torch.randn(3, 64, generator=generator), torch.randint(0, 16, (40, 64), generator=generator)
    ones = torch.ones(3, 2, 2, 16, dtype=torch.bfloat16)  # w = 1 + 1 q, in groups of 32
    int4 = kernels.linear_quantized(x, band_int4(levels.to(torch.uint8)), ones, 40)
    int8 = kernels.linear_quantized(x, band_int8((levels - 8).to(torch.int8)), torch.ones(3, 16), 40)
    for found, weight in ((int4, 1.0 + levels), (int8, levels - 8.0)):
        if not torch.allclose(found, x @ weight.T, rtol=1e-4, atol=1e-3):
            logger.warning("the native kernels compute wrongly on this machine: using PyTorch's")
            return False
    gate_up = torch.randn(2, 64, generator=generator)
    found, expected = torch.empty(2, 32), torch.nn.functional.silu(gate_up[:, :32]) * gate_up[:, 32:]
    kernels.silu_mul(gate_up.data_ptr(), found.data_ptr(), 2, 32)
    if not torch.allclose(found, expected, rtol=1e-4, atol=1e-4):
        logger.warning("the native kernels compute wrongly on this machine: using PyTorch's")
        return False
    return True
