"""The C++ kernels in other builds than the engine's own: hardened, with sanitizers, of other compilers, for other CPUs.

In each build the self-test compares every function with plain loops, in arrays of exactly their size; with a hardened
library the kernels' own tests run, too. What this machine has no tools for is skipped.
"""

import os
import platform
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from minillm.kernels.cpu import compiling
from minillm.kernels.cpu.compiling import FOLDER, SELFTEST, SOURCES, build, run

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the library is built on Linux only"),
    pytest.mark.usefixtures("kernels"),
]
HERE, ROOT = Path(__file__).parent, Path(__file__).parents[3]
X86 = platform.machine() == "x86_64"
HARDENED = [
    *("-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3", "-D_GLIBCXX_ASSERTIONS", "-fstack-protector-strong"),
    *(["-fcf-protection"] if X86 else []),
]
"""As distributions build their packages; Ubuntu's g++ does some of it unasked."""
EMULATED_AMX = ["-include", str(HERE / "amx_emulated.h")]
"""Intel's matrix units, for a CPU that has AVX512_BF16: AMD's, too."""
SANITIZERS = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
CPUS = ["native", "x86-64", "x86-64-v3", "x86-64-v4", "AMX"]
"""What -march can be on a PC: vectors of 16, 32 and 64 bytes, without and with products of bfloat16."""
COMPILERS = ["g++", "g++-11", "g++-12", "g++-13", "g++-14", "clang++", "clang++-16", "clang++-18", "clang++-19"]
ARM = ["armv8-a", "armv8.2-a+bf16", "armv8.6-a"]
TESTS = ["tests/engine/kernels/test_native.py", "tests/engine/kernels/test_ops.py", "tests/engine/model/test_linear.py"]


def cpu_flags() -> set[str]:
    return set(compiling.cpu_identity().split())


def flags_for(cpu: str) -> list[str]:
    """To compile for it. Skips the test where this processor could not run that."""
    needs = {"x86-64-v3": "avx2", "x86-64-v4": "avx512vl", "AMX": "avx512_bf16"}
    if cpu != "native" and not X86:
        pytest.skip("this is no PC")
    if cpu in needs and needs[cpu] not in cpu_flags():
        pytest.skip(f"this processor has no {needs[cpu]}")
    return ["-march=native", *EMULATED_AMX] if cpu == "AMX" else [f"-march={cpu}"]


def run_selftest(compiler: str, flags: list[str], folder: Path, emulator: tuple[str, ...] = ()) -> None:
    """The kernels and their self-test as one program: it compiles without a warning, and finds nothing wrong."""
    program = folder / "selftest"
    sources = [str(FOLDER / name) for name in (*SOURCES, SELFTEST)]
    warnings = ["-Wall", "-Wextra", "-Wno-uninitialized"]  # GCC's own intrinsics are said to read what nobody wrote
    warnings += ["-Wno-pass-failed"] if "clang" in compiler else ["-Wno-maybe-uninitialized", "-Wno-psabi"]
    command = [compiler, "-std=c++17", "-fopenmp", *warnings, *flags, *sources, "-o", str(program)]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode in (-signal.SIGSEGV, 128 + signal.SIGSEGV):
        pytest.skip(f"{compiler} itself crashes: clang 16 does, with products of bfloat16")
    if made.returncode and ("omp.h" in made.stderr or "cannot find" in made.stderr):
        pytest.skip(f"{compiler} has no OpenMP or no sanitizers here: {made.stderr[-300:]}")
    assert made.returncode == 0, made.stderr[-3000:]
    assert "warning" not in made.stderr.replace("warning: Using 'dlopen' in statically linked", ""), made.stderr
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    ran = subprocess.run([*emulator, str(program)], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-3000:]


def run_tests(environment: dict[str, str]) -> None:
    """The kernels' own tests, but for those that compile, in a process with this environment."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not triton and not compile"]
    ran = subprocess.run([*command, *TESTS], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-3000:]
    assert "passed" in ran.stdout


def needed(program: str) -> str:
    """It, or the test is skipped."""
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program} here")
    return program


@pytest.mark.slow
@pytest.mark.parametrize("cpu", ["native", "AMX"])
def test_a_hardened_library_is_right(cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = [*HARDENED, *(flags_for(cpu)[1:])]
    monkeypatch.setenv("MINILLM_CXXFLAGS", " ".join(flags))
    assert build().fault is None


@pytest.mark.slow
def test_the_kernels_tests_pass_on_a_hardened_library() -> None:
    environment = {**os.environ, "MINILLM_CXXFLAGS": " ".join(HARDENED)}
    run_tests(environment)


@pytest.mark.slow
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_sanitizers_find_nothing(compiler: str, cpu: str, tmp_path: Path) -> None:
    run_selftest(needed(compiler), [*SANITIZERS, *flags_for(cpu)], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("compiler", ["g++", "clang++-19"])
def test_optimized_for_any_pc_it_is_right(compiler: str, cpu: str, tmp_path: Path) -> None:
    run_selftest(needed(compiler), ["-O3", *HARDENED, *flags_for(cpu)], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("cpu", ARM)
def test_on_arm_it_is_right(cpu: str, tmp_path: Path) -> None:
    """NEON; with bf16 its products of pairs (BFDOT), and of two rows at a time (BFMMLA)."""
    emulator = (needed("qemu-aarch64"), "-cpu", "max")
    run_selftest(needed("aarch64-linux-gnu-g++"), ["-O3", "-static", f"-march={cpu}"], tmp_path, emulator)


@pytest.mark.slow
def test_the_kernels_tests_pass_under_sanitizers(tmp_path: Path) -> None:
    """PyTorch's tensors, too, then have a border that nobody may touch."""
    # With the sanitizer's library first, C++'s has to be there before it, too: it looks for what throws exceptions.
    names = ("libasan.so", "libstdc++.so.6")
    found = [run([needed("g++"), f"-print-file-name={name}"]).strip() for name in names]
    if not all(Path(each).is_file() for each in found):
        pytest.skip("g++ has no AddressSanitizer here")
    environment = {
        **os.environ,
        "CXX": "g++",
        "MINILLM_CXXFLAGS": " ".join(SANITIZERS),
        "LD_PRELOAD": " ".join(found),
        "ASAN_OPTIONS": f"detect_leaks=0:log_path={tmp_path}/report",
        "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={tmp_path}/report",
    }
    try:
        run_tests(environment)
    finally:
        print(*(report.read_text()[:3000] for report in tmp_path.glob("report*")))
