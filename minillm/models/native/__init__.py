"""The one piece of C++: linear.cpp, compiled for this machine on first use, and kept.

Without a compiler, or on a platform where this was not tried, there is none, and minillm runs on
PyTorch's own kernels.
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from minillm.models.storage import cache_home

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).parent / "linear.cpp"
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-fopenmp")


OPERATIONS = torch.library.Library("minillm", "FRAGMENT")
OPERATIONS.define("native_linear(Tensor x, Tensor weight) -> Tensor")


@torch.library.impl(OPERATIONS, "native_linear", "CPU")
def _(x: Tensor, weight: Tensor) -> Tensor:
    return native_linear()(x, weight)


@torch.library.register_fake("minillm::native_linear", lib=OPERATIONS)
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


class NativeLinear:
    """y = x W^T for float32 rows x and bfloat16 weights W, in one pass over W."""

    def __init__(self, library: Path) -> None:
        self._function = ctypes.CDLL(str(library)).linear
        self._function.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 3
        self._function.restype = None

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        """[rows, out] float32.

        Args:
            x: [rows, in] float32, contiguous.
            weight: [out, in] bfloat16, contiguous.
        """
        if torch.compiler.is_compiling():  # as one operation that the compiler does not look into
            return torch.ops.minillm.native_linear(x, weight)
        rows, out = x.shape[0], weight.shape[0]
        y = torch.empty(rows, out)
        self._function(x.data_ptr(), weight.data_ptr(), y.data_ptr(), rows, x.shape[1], out)
        return y


@functools.cache
def native_linear() -> NativeLinear | None:
    """The compiled function, tried on small matrices; None where it cannot be had. Compiles once per machine."""
    try:
        function = NativeLinear(build())
    except (OSError, subprocess.SubprocessError) as error:
        logger.info("no native linear layers (%s): using PyTorch's, which are slower at small batches", error)
        return None
    return function if is_right(function) else None


def is_right(function: NativeLinear) -> bool:
    """Whether it multiplies correctly: tried, not assumed."""
    generator = torch.Generator().manual_seed(0)
    for rows, size, out in ((1, 64, 96), (3, 50, 7), (8, 33, 66)):
        x, weight = torch.randn(rows, size, generator=generator), torch.randn(out, size, generator=generator).bfloat16()
        if not torch.allclose(function(x, weight), x @ weight.float().T, rtol=1e-4, atol=1e-4):
            logger.warning("the native linear layer computes wrongly on this machine: using PyTorch's")
            return False
    return True


def build() -> Path:
    """Compile linear.cpp into the cache folder, if that was not done before. Returns the library.

    Raises:
        OSError: no compiler, or the cache cannot be written.
        subprocess.SubprocessError: the compiler failed.
    """
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    if sys.platform != "linux" or compiler is None:
        raise FileNotFoundError("it needs Linux and a C++ compiler, such as g++")
    # The same cache may be used on several machines: a library is good for one kind of processor.
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    identity = "\n".join([SOURCE.read_text(), *FLAGS, version, cpu_identity()])
    library = cache_home() / "native" / f"linear-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            object_file, built = Path(folder) / "linear.o", Path(folder) / "linear.so"
            compile_command = [compiler, *FLAGS, "-c", str(SOURCE), "-o", str(object_file)]
            subprocess.run(compile_command, check=True, capture_output=True)
            link_command = [compiler, "-shared", str(object_file), *openmp(), "-o", str(built)]
            subprocess.run(link_command, check=True, capture_output=True)
            built.replace(library)  # at once: no other process ever sees half a library
    return library


def openmp() -> list[str]:
    """The OpenMP library to link with: PyTorch's own, so that both share one team of threads."""
    bundled = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*"))
    return [str(bundled[0])] if bundled else ["-fopenmp"]


def cpu_identity() -> str:
    """What decides which instructions -march=native uses."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {flags}"
