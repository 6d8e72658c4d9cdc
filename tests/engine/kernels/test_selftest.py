"""A compiled library is tried before it is loaded: one that crashes, hangs or computes wrongly is never used."""

import logging
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from minillm.host.platforms import describe_cpu
from minillm.kernels.cpu import NativeKernels, compiling, native_kernels, selftest
from minillm.kernels.cpu.compiling import Compiler, Library, build, known_fault, why_none
from minillm.kernels.cpu.selftest import NoVerdictError

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the library is built on Linux only"),
    pytest.mark.usefixtures("kernels"),
]
BREAK = """
    if (const char* how = std::getenv("BREAK")) {
        if (*how == 'a') std::abort();
        if (*how == 's') *(volatile char*)8 = 0;
        while (*how == 'l') {}
        while (*how == 'p') pause();
        if (*how == 'k') raise(SIGKILL);
        if (*how == 't') raise(SIGTERM);
        if (*how == 'e') exit(1);
        if (*how == 'm') for (size_t size = 1;; size *= 2) (void)!new char[size];
        if (*how == 'w') return;
    }
"""
SIGNATURE = 'extern "C" void silu_mul(const float* gate_up, float* out, long rows, long inner) {\n'


@pytest.fixture(scope="module")
def breakable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library and its self-test, of which one function goes wrong as `$BREAK` says."""
    sources, made = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("made")
    shutil.copytree(compiling.FOLDER, sources, dirs_exist_ok=True)
    ops = (sources / "ops.cpp").read_text()
    assert SIGNATURE in ops
    broken = "#include <csignal>\n#include <cstdlib>\n#include <unistd.h>\n" + ops.replace(SIGNATURE, SIGNATURE + BREAK)
    (sources / "ops.cpp").write_text(broken)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "FOLDER", sources)
        patch.setattr(compiling, "FLAGS", ("-std=c++17", "-O0", "-fPIC", "-fopenmp"))
        Compiler.here().compile(made)
    return made


@pytest.fixture
def builds(breakable: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """An empty cache, in which every build is `breakable`'s; and where it was built."""
    built: list[Path] = []

    def compile_(self: Compiler, work: Path) -> tuple[str, ...]:
        built.append(shutil.copytree(breakable, work, dirs_exist_ok=True))
        return ("-O0", "-some-flag")

    monkeypatch.setattr(Compiler, "compile", compile_)
    native_kernels.cache_clear()
    yield built
    monkeypatch.undo()
    native_kernels.cache_clear()


def start() -> NativeKernels | None:
    """As another process would."""
    native_kernels.cache_clear()
    return native_kernels()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("abort", "ended by SIGABRT"),
        ("segfault", "ended by SIGSEGV"),
        ("loop", "had not ended after 1 s of CPU time"),
        ("wrong", "should be"),
    ],
)
def test_a_library_that_fails_is_not_used_and_says_so_once(
    how: str, said: str, builds: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BREAK", how)
    monkeypatch.setattr(selftest, "LIMIT_CPU_S", 1 if how == "loop" else 60)
    assert start() is None
    report = caplog.text
    assert said in report and "silu_mul: 1 rows" in report, "how it ended, and where"
    compiler = Compiler.here()
    for told in (*compiler.command, compiler.version, "-some-flag", describe_cpu()[0], torch.__version__):
        assert told in report
    assert known_fault() in report and why_none() == known_fault(), "`minillm doctor` and `make lab` say it again"

    caplog.clear()
    monkeypatch.delenv("BREAK")
    assert start() is None and len(builds) == 1, "the verdict was kept"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_another_build_than_the_one_that_failed_is_tried(builds: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BREAK", "abort")
    assert start() is None
    monkeypatch.delenv("BREAK")
    monkeypatch.setenv("MINILLM_CXXFLAGS", "-DANOTHER_BUILD")
    assert start() is not None and len(builds) == 2
    assert start() is not None and len(builds) == 2 and known_fault() is None


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("kill", "ended by SIGKILL"),
        ("terminate", "ended by SIGTERM"),
        ("exit, as OpenMP for want of threads", "ended with status 1"),
        ("memory is short", "ended with status 4"),
        ("pause", "had not ended after 1 s"),
    ],
)
def test_a_selftest_that_something_else_stopped_is_made_again(
    how: str, said: str, builds: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BREAK", how)
    monkeypatch.setattr(selftest, "LIMIT_S", 1.0 if how == "pause" else 180.0)
    assert start() is None and said in caplog.text
    assert "next start" in caplog.text and "report" not in caplog.text
    assert known_fault() is None and why_none() is None

    monkeypatch.delenv("BREAK")
    monkeypatch.setattr(selftest, "LIMIT_S", 180.0)
    assert start() is not None and len(builds) == 2


def test_a_selftest_that_cannot_be_started_is_made_again(
    builds: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where the cache lies on a file system from which nothing may be executed."""
    plain = Compiler.compile

    def compile_(self: Compiler, work: Path) -> tuple[str, ...]:
        flags = plain(self, work)
        (work / compiling.PROGRAM).chmod(0o600)
        return flags

    with monkeypatch.context() as patch:
        patch.setattr(Compiler, "compile", compile_)
        assert start() is None and known_fault() is None
    assert "could not be started" in caplog.text and "MINILLM_HOME" in caplog.text
    assert start() is not None


def test_nothing_is_compiled_where_nothing_may_be_executed(builds: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    class Mount:
        f_flag, f_blocks, f_bfree, f_bavail, f_frsize = os.ST_NOEXEC, 10**6, 10**6, 10**6, 4096

    monkeypatch.setattr(os, "statvfs", lambda _: Mount)
    with pytest.raises(NoVerdictError, match="noexec"):
        build()
    assert not builds


def test_a_compiler_may_have_arguments(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Compiler.here().command[0]
    monkeypatch.setenv("CXX", f"env 'A B=1' {plain}")
    command = Compiler.here().command
    assert Path(command[0]).name == "env" and command[1:] == ("A B=1", plain)
    monkeypatch.setenv("CXX", "ccache-that-is-not-there g++")
    assert "$CXX is 'ccache-that-is-not-there g++'" in (why_none() or "")


def test_a_compiler_that_hangs_is_given_up(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hanging = tmp_path / "c++"
    hanging.write_text("#!/bin/sh\nexec sleep 1000\n")
    hanging.chmod(0o755)
    monkeypatch.setenv("CXX", str(hanging))
    monkeypatch.setattr(compiling, "LIMIT_S", 0.1)
    try:
        assert start() is None and "timed out" in caplog.text
    finally:
        native_kernels.cache_clear()


def test_a_build_without_a_verdict_or_for_another_processor_is_made_anew(
    builds: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build()
    assert first == Library(first.path, None, is_new=True) and build() == Library(first.path, None, is_new=False)
    (first.path.parent / compiling.VERDICT).unlink()
    assert build().is_new and len(builds) == 2
    monkeypatch.setattr(compiling, "cpu_identity", lambda: "another processor")
    assert build().is_new and len(builds) == 3


def test_flags_nobody_can_read_are_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MINILLM_CXXFLAGS", "-D'")
    try:
        assert start() is None and "MINILLM_CXXFLAGS" in caplog.text
    finally:
        native_kernels.cache_clear()


def test_a_compiler_that_does_not_know_this_processor_compiles_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = tmp_path / "c++"
    wrapper.write_text(
        f'#!/bin/sh\ncase "$*" in *-m*=native*) echo "unknown value native" >&2; exit 1;; esac\n'
        f'exec {Compiler.here().command[0]} "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    monkeypatch.setattr(compiling, "FOLDER", tmp_path)
    monkeypatch.setattr(compiling, "SOURCES", ("ops.cpp",))
    (tmp_path / "ops.cpp").write_text("int answer() { return 42; }")
    (tmp_path / compiling.SELFTEST).write_text("int answer();\nint main() { return answer() != 42; }")
    made = tmp_path / "made"
    made.mkdir()
    assert Compiler.here().compile(made) == compiling.FLAGS
    assert selftest.run_selftest(made / compiling.PROGRAM) is None
    assert os.listdir(made) and not list(made.glob("*.o"))
