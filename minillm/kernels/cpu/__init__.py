"""The C++ in minillm: what a decode step does on a CPU, compiled for this machine on first use, and kept.

linear.cpp: matrix products   ops.cpp: the small operations   attention.cpp, prefill.cpp: paged attention
layers.cpp: all layers of a decode step, made of these   tiles.h, two_rows.h, matrix_units.h: products
kernels.h: what the library offers   selftest.cpp: tries all of it, in a process of its own, before it is loaded

Without a compiler, on a platform where this was not tried, or where the self-test found a fault, there is none of it,
and minillm runs on PyTorch's own kernels.
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

from minillm.host.errors import StorageError
from minillm.kernels.cpu.compiling import build
from minillm.kernels.cpu.selftest import NoVerdictError

logger = logging.getLogger(__name__)

LINES_SAID = 10
"""Lines of a compiler's errors that are shown: the first tells most, and the advice above should stay on the screen."""


def address(tensor: Tensor | None) -> int | None:
    """Where a tensor's numbers lie; None stays None."""
    return None if tensor is None else tensor.data_ptr()


class NativeKernels:
    """The compiled functions. They take addresses, so tensors are contiguous and of the stated dtype, unchecked."""

    def __init__(self, library: Path) -> None:
        functions = ctypes.CDLL(str(library))
        pointer, number, real = ctypes.c_void_p, ctypes.c_long, ctypes.c_float
        self._linear = declare(functions.linear, [pointer] * 3 + [number] * 4)
        self.linear_silu_mul = declare(functions.linear_silu_mul, [pointer] * 3 + [number] * 3, ctypes.c_bool)
        self.has_dots = bool(functions.has_dots())
        """The CPU multiplies pairs of bfloat16, or tiles."""
        self._linear_int8 = declare(functions.linear_int8, [pointer] * 4 + [number] * 4)
        self._linear_int4 = declare(functions.linear_int4, [pointer] * 4 + [number] * 5)
        self.add_rms_norm = declare(functions.add_rms_norm, [pointer] * 5 + [number] * 2 + [real])
        self.silu_mul = declare(functions.silu_mul, [pointer] * 2 + [number] * 2)
        self.rotate_and_write: dict[torch.dtype, Callable[..., None]] = {}
        self.attend_decodes: dict[torch.dtype, Callable[..., None]] = {}
        """The function for each dtype of the cache."""
        for dtype, name in ((torch.bfloat16, "bf16"), (torch.int8, "int8")):
            write, attend = (getattr(functions, f"{what}_{name}") for what in ("rotate_and_write", "attend_decodes"))
            self.rotate_and_write[dtype] = declare(write, [pointer] * 8 + [number] * 4 + [real])
            self.attend_decodes[dtype] = declare(attend, [pointer] * 6 + [number] * 9 + [real])
        self.attend_prefill = declare(functions.attend_prefill, [pointer] * 4 + [number] * 7 + [real])
        self.decode_layers = declare(functions.decode_layers, [pointer, pointer, number, pointer, pointer, pointer])

    def linear(self, x: Tensor, weight: Tensor, out: int, dots: bool = False) -> Tensor:
        """x W^T, [rows, out] float32.

        Args:
            x: [rows, in] float32.
            weight: a matrix as `bands.band_bfloat16` lays it out.
            dots: with x rounded to bfloat16; only where the CPU `has_dots`.
        """
        y = torch.empty(x.shape[0], out, dtype=torch.float32)
        self._linear(x.data_ptr(), weight.data_ptr(), y.data_ptr(), *x.shape, out, dots)
        return y

    def linear_quantized(self, x: Tensor, numbers: Tensor, scales: Tensor, out: int, dots: bool = False) -> Tensor:
        """x W^T as `linear` gives it, with weights in fewer bits.

        Args:
            numbers, scales: from `bands.band_int8`, with float32 [bands, 16]; or from `band_int4`, with bfloat16
                [bands, groups, 2, 16].
        """
        y = torch.empty(x.shape[0], out, dtype=torch.float32)
        addresses = (tensor.data_ptr() for tensor in (x, numbers, scales, y))
        if numbers.dtype == torch.int8:
            self._linear_int8(*addresses, *x.shape, out, dots)
        else:
            self._linear_int4(*addresses, *x.shape, out, x.shape[1] // scales.shape[1], dots)
        return y


def declare(function: Any, argtypes: list[type], restype: type | None = None) -> Callable[..., Any]:
    """A function of the library (ctypes has no public name for its type), told what it takes and gives."""
    function.argtypes, function.restype = argtypes, restype
    declared: Callable[..., Any] = function
    return declared


@functools.cache
def native_kernels() -> NativeKernels | None:
    """The functions; None where they are unavailable, or were found to be wrong. Compiles once per machine."""
    try:
        return load()
    except FileNotFoundError as error:
        logger.info("no native kernels (%s): using PyTorch's, which are slower at small batches", error)
    except NoVerdictError as error:
        logger.warning(
            "The C++ kernels could not be tried, so minillm uses PyTorch's this time: results are right, decoding "
            "slower. They will be tried again at the next start. Their self-test: %s",
            error,
        )
    except (OSError, AttributeError, subprocess.SubprocessError, StorageError) as error:
        said = error.stderr.splitlines()[:LINES_SAID] if isinstance(error, subprocess.CalledProcessError) else []
        logger.warning(
            "the native kernels are unavailable. Using PyTorch's, which are slower at small batches. They need a C++ "
            "compiler that works, and a cache folder that can be written (MINILLM_HOME). What went wrong:\n%s",
            "\n".join([str(error), *said]),
        )
    return None


def load() -> NativeKernels | None:
    """The library, compiled and tried if need be; one that is damaged is compiled anew, once. None: it is wrong.

    Raises:
        OSError, subprocess.SubprocessError, StorageError, NoVerdictError: see `build`.
        AttributeError: a function is missing.
    """
    library = build()
    if library.fault is None:
        try:
            return NativeKernels(library.path)
        except (OSError, AttributeError):
            library = build(anew=True)
    if library.fault is None:
        return NativeKernels(library.path)
    # Who runs `minillm doctor`, or `make lab`, sees it again.
    logger.log(logging.WARNING if library.is_new else logging.INFO, "%s", library.fault)
    return None


def has_dots() -> bool:
    """Whether there is C++ that multiplies pairs of bfloat16."""
    kernels = native_kernels()
    return kernels is not None and kernels.has_dots
