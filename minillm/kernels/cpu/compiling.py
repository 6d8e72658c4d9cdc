"""Compiles the C++ beside this file into one library in the cache folder."""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from minillm.kernels.openmp import BUNDLED
from minillm.kernels.platforms import Platform, how_to_get_a_compiler, why_no_native_kernels
from minillm.kernels.storage import cache_home

FOLDER = Path(__file__).parent
SOURCES = ("linear.cpp", "ops.cpp", "attention.cpp", "prefill.cpp", "layers.cpp")
HEADERS = ("vectors.h", "tiles.h", "matrix_units.h", "cache.h")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-fopenmp")


def build() -> Path:
    """Compile the sources, if that was not done before; some seconds. Returns the library.

    Raises:
        OSError: no compiler, or the cache cannot be written.
        subprocess.SubprocessError: the compiler failed.
    """
    compiler = find_compiler()
    if sys.platform != "linux" or compiler is None:
        raise FileNotFoundError("it needs Linux and a C++ compiler, such as g++")
    # The same cache may serve several machines and PyTorches: a library is good for one kind of processor, and
    # for the OpenMP that it was linked with.
    version = run([compiler, "--version"])
    texts = [(FOLDER / name).read_text() for name in (*HEADERS, *SOURCES)]
    identity = "\n".join([*texts, *FLAGS, version, cpu_identity(), torch.__version__, *openmp()])
    library = cache_home() / "native" / f"kernels-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            objects = []
            for name in SOURCES:
                objects.append(str(Path(folder) / f"{name}.o"))
                command = [compiler, *FLAGS, "-c", str(FOLDER / name), "-o", objects[-1]]
                run(command)
            built = Path(folder) / "kernels.so"
            command = [compiler, "-shared", *objects, *openmp(), "-o", str(built)]
            run(command)
            with built.open("rb") as file:
                os.fsync(file.fileno())  # nor does a power cut leave one
            built.replace(library)  # at once: no other process ever sees half a library
    return library


def run(command: list[str]) -> str:
    """What the command printed. Raises CalledProcessError, which has what it printed as errors, as text."""
    return subprocess.run(command, check=True, capture_output=True, text=True, errors="replace").stdout


def find_compiler() -> str | None:
    """The path of `$CXX`, or of g++."""
    return shutil.which(os.environ.get("CXX", "g++"))


def why_none() -> str | None:
    """Why nothing can be compiled here, what that means for the course, and the cure. None: it should be possible."""
    slower = "decoding will be slower, and lessons 06 and 09 will show other proportions"
    here = Platform.here()
    if unavailable := why_no_native_kernels(here):
        return f"{unavailable}, so {slower}"
    if find_compiler() is None:
        return f"no C++ compiler found (g++): {slower}. {how_to_get_a_compiler(here)}, then start this again"
    return None


def openmp() -> list[str]:
    """The OpenMP library to link with: PyTorch's own, so that both share one team of threads."""
    return ["-fopenmp"] if BUNDLED is None else [str(BUNDLED)]


def cpu_identity() -> str:
    """What decides which instructions -march=native uses."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {flags}"
