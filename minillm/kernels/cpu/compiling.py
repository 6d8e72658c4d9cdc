"""Compiles the C++ beside this file into one library in the cache folder, and has it tried before anybody loads it."""

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from minillm.host.errors import StorageError
from minillm.host.openmp import BUNDLED
from minillm.host.platforms import (
    Platform,
    describe_cpu,
    find_compiler,
    how_to_get_a_compiler,
    instructions,
    no_compiler,
    why_no_native_kernels,
)
from minillm.host.storage import build_once, cache_home
from minillm.kernels.cpu.selftest import NOEXEC, NoVerdictError, run_selftest

FOLDER = Path(__file__).parent
SOURCES = ("linear.cpp", "ops.cpp", "attention.cpp", "prefill.cpp", "layers.cpp")
HEADERS = ("kernels.h", "vectors.h", "two_rows.h", "tiles.h", "matrix_units.h", "cache.h")
SELFTEST = "selftest.cpp"
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fopenmp")
TUNINGS = (("-march=native",), ("-mcpu=native",), ())
"""For this processor; the first that the compiler takes. Not each knows the first on Arm, PowerPC or RISC-V."""
LIBRARY, PROGRAM, VERDICT = "kernels.so", "selftest", "verdict.txt"
RIGHT = "right"
NEEDED_BYTES = 20_000_000
LIMIT_S = 600.0
"""Seconds that one command of a compiler may take: under a minute on 2 cores, many where others use them."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """What makes a library, and for which machine: each makes one of its own.

    The same cache may serve several machines and PyTorches: a library is good for one kind of processor, and for the
    OpenMP that it was linked with.
    """

    command: tuple[str, ...]
    """Its path, and what else `$CXX` says: `("/usr/bin/ccache", "g++")`."""
    version: str
    flags: tuple[str, ...]
    """More of them, at the end: `$MINILLM_CXXFLAGS`."""

    @classmethod
    def here(cls) -> "Compiler":
        """This machine's.

        Raises:
            OSError: there is none, or it can't be started.
            subprocess.SubprocessError: it failed.
        """
        if sys.platform != "linux":
            raise FileNotFoundError("they are for Linux")
        command = find_compiler()
        if command is None:
            raise FileNotFoundError(no_compiler())
        try:
            flags = tuple(shlex.split(os.environ.get("MINILLM_CXXFLAGS", "")))
        except ValueError as error:
            raise OSError(f"MINILLM_CXXFLAGS can't be read as options of a compiler: {error}") from error
        return cls(tuple(command), run([*command, "--version"]).partition("\n")[0], flags)

    def folder(self) -> Path:
        """Where its library is, or will be."""
        texts = [(FOLDER / name).read_text() for name in (*HEADERS, *SOURCES, SELFTEST)]
        made_by = (*FLAGS, *map(str, TUNINGS), *self.flags, self.version, *self.openmp())
        identity = "\n".join([*texts, *made_by, cpu_identity(), torch.__version__])
        return cache_home() / "native" / f"kernels-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"

    def openmp(self) -> list[str]:
        """The OpenMP library to link with: PyTorch's own, so that both share one team of threads. Clang's code calls
        functions that only Clang's has."""
        if BUNDLED is None or "clang" in self.version:
            return ["-fopenmp"]
        return [str(BUNDLED), f"-Wl,-rpath,{BUNDLED.parent}"]

    def compile(self, work: Path) -> tuple[str, ...]:
        """The library and its self-test, in the folder `work`. Returns the flags of the first tuning that went well."""
        for tuning in TUNINGS:
            flags = (*FLAGS, *tuning, *self.flags)
            try:
                self.compile_with(flags, work)
                return flags
            except subprocess.CalledProcessError as error:
                failure = error
        raise failure

    def compile_with(self, flags: tuple[str, ...], work: Path) -> None:
        """Compile the library and its self-test into the folder `work`, with these flags or not at all."""
        objects = {name: work / f"{name}.o" for name in SOURCES}
        for name, made in objects.items():
            run([*self.command, *flags, "-c", str(FOLDER / name), "-o", str(made)])
        library, shared = str(work / LIBRARY), ("-shared", f"-Wl,-soname,{LIBRARY}")
        run([*self.command, *self.flags, *shared, *map(str, objects.values()), *self.openmp(), "-o", library])
        # Plain code: neither a mistake of the optimizer nor an instruction that the CPU lacks should be in both.
        plain = ("-std=c++17", "-O1", *self.flags, str(FOLDER / SELFTEST))
        run([*self.command, *plain, library, "-Wl,-rpath,$ORIGIN", "-o", str(work / PROGRAM)])
        for made in objects.values():
            made.unlink()

    def report(self, fault: str, flags: tuple[str, ...]) -> str:
        """What has to be known to mend it."""
        return f"""\
The C++ kernels failed their self-test on this machine, so minillm uses PyTorch's: results are right, decoding slower.
Its self-test: {fault}
Please report that to minillm's authors, with these lines:
  compiler: {shlex.join(self.command)}, {self.version}
  flags: {" ".join(flags)}
  CPU: {describe_cpu()[0]}, {platform.machine()}, {platform.platform()}
  PyTorch: {torch.__version__}, OpenMP: {self.openmp()[0]}
  self-test: {self.folder() / PROGRAM}
It won't be tried again with this compiler on this machine, unless you delete that folder."""


@dataclass(frozen=True, slots=True)
class Library:
    """A compiled library that was tried."""

    path: Path
    fault: str | None
    """The library crashed, hung or computed wrongly: what to say about it. None: it is right."""
    is_new: bool
    """It was compiled just now."""


def build(anew: bool = False) -> Library:
    """Compile the sources and try what comes of it, if that was not done before; some seconds.

    Args:
        anew: although there is one.
    Raises:
        OSError: no compiler.
        subprocess.SubprocessError: the compiler failed.
        StorageError: the cache cannot be written.
        NoVerdictError: the library could not be tried this time, so nothing of it was kept.
    """
    compiler = Compiler.here()
    folder = compiler.folder()
    anew = anew or (folder.is_dir() and not (folder / VERDICT).is_file())
    is_new = anew or not folder.is_dir()

    def compile_and_try(work: Path) -> None:
        if os.statvfs(work).f_flag & os.ST_NOEXEC:  # before a minute of compiling
            raise NoVerdictError(NOEXEC)
        flags = compiler.compile(work)
        fault = run_selftest(work / PROGRAM)
        (work / VERDICT).write_text(RIGHT if fault is None else compiler.report(fault, flags), "utf-8")

    build_once(folder, compile_and_try, NEEDED_BYTES, replace=anew)
    return Library(folder / LIBRARY, fault_in(folder), is_new)


def fault_in(folder: Path) -> str | None:
    """What the self-test found wrong there, if it did."""
    verdict = (folder / VERDICT).read_text("utf-8")
    return None if verdict == RIGHT else verdict


def known_fault() -> str | None:
    """What was found wrong with this machine's library; None: nothing, or nothing was compiled yet."""
    try:
        return fault_in(Compiler.here().folder())
    except (OSError, StorageError, subprocess.SubprocessError):
        return None


def run(command: list[str]) -> str:
    """What the command printed.

    Raises:
        CalledProcessError: it failed; with what it printed as errors, as text.
        TimeoutExpired: it had not ended after LIMIT_S.
    """
    return subprocess.run(
        command, check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=LIMIT_S
    ).stdout


def why_none() -> str | None:
    """Why there's no library here, what that means for the course, and the cure. None: there should be one."""
    slower = "decoding will be slower, and lessons 06 and 09 will show other proportions"
    here = Platform.here()
    if unavailable := why_no_native_kernels(here):
        return f"{unavailable}, so {slower}"
    if find_compiler() is None:
        return f"{no_compiler()}: {slower}. {how_to_get_a_compiler(here)}, then start this again"
    return known_fault()


def cpu_identity() -> str:
    """What decides which instructions -march=native uses."""
    return f"{platform.machine()} flags {instructions()}"
