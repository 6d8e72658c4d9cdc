"""`minillm doctor`: what it finds, whatever is broken, and the command that mends each thing."""

import dataclasses
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch

from course.simulator.cost.hardware import GIGA
from minillm.bench import machine_peaks
from minillm.bench.machine_peaks import Bandwidth
from minillm.doctor import checks
from minillm.doctor.checks import CHECKS
from minillm.doctor.children import END, Children, examine, read_findings, why_it_ended
from minillm.doctor.report import CheckResult, Report
from minillm.host.platforms import Platform
from minillm.model.arithmetic import ModelSize, kv_bytes_per_token
from minillm.model.checkpoints import load_config, resolve
from minillm.model.config import ModelConfig
from minillm.policies.config import EngineConfig
from minillm.strict_model import default_of

CPU = torch.device("cpu")
QUICK = 10 * GIGA, "made up"

Break = Callable[..., None]


@pytest.fixture
def no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Break:
    """`broken(torch="raise ImportError")`: for the children, such a package stands before the real one."""

    def stand_in(**programs: str) -> None:
        for name, program in programs.items():
            (tmp_path / "broken" / name).mkdir(parents=True)
            (tmp_path / "broken" / name / "__init__.py").write_text(textwrap.dedent(program))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
        monkeypatch.syspath_prepend(tmp_path / "broken")

    return stand_in


@pytest.mark.slow
def test_json_is_one_object(run: Callable[..., tuple[int, str, str]], smollm_path: Path) -> None:
    status, out, _ = run("doctor", "--json")
    report = json.loads(out)
    assert report["ok"] == (status == 0)
    names = {"python", "system", "processor", "memory", "compiler", "torch", "gpu", "native kernels"}
    names |= {"memory bandwidth", "roofline", "attention", "generation", "cache folder", "free disk", "versions"}
    assert names | {"model smollm2-135m"} <= {check["name"] for check in report["checks"]}
    for check in report["checks"]:
        assert (check["fix"] is None) == (check["status"] == "ok"), check["name"]


# ---------------------------------------------------------------- whatever is broken


BREAKAGES = {
    "raise ImportError('libfoo.so.7: cannot open shared object file')": "ImportError: libfoo.so.7: cannot open",
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": "SIGKILL, most often the system had no memory",
    "import sys; sys.stderr.write('*** broken ***'); sys.stderr.flush(); import os; os.abort()": "(*** broken ***)",
    "raise SystemExit": "exit status 0",
    "print('{')": "has no attribute",
}


@pytest.mark.parametrize("program", BREAKAGES)
def test_torch_may_break_in_any_way(program: str, broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(torch=program)
    some = ("system", "torch", "native kernels", "generation", "packages")
    monkeypatch.setattr("minillm.doctor.children.CHECKS", {name: CHECKS[name] for name in some})
    report = examine()
    found = {finding.name: finding for finding in report.findings}
    for name in ("torch", "native kernels", "generation"):
        assert found[name].status == "unfinished" and found[name].found.startswith("could not finish: ")
    assert BREAKAGES[program] in found["torch"].found
    assert "report" in found["torch"].fix
    assert ("make clean && make setup" in found["torch"].fix) == ("SIGKILL" not in BREAKAGES[program])
    assert found["python"].status == "ok" and "versions" in found, "the others tell what they found"
    assert not report.ok
    assert report.as_dict()["unfinished"] == ["torch", "native kernels", "generation"]
    assert report.as_text(80).startswith(report.verdict[:40])


HANGS = """
import os, pathlib, subprocess, time
child = subprocess.Popen(["sleep", "1000"])
pathlib.Path(os.environ["PIDS"]).write_text(f"{os.getpid()} {child.pid}")
time.sleep(1000)
"""


def wait_until_gone(pids: Path) -> None:
    for pid in map(int, pids.read_text().split()):
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)


def test_one_that_hangs_is_ended_with_what_it_started(
    broken: Break, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    broken(torch=HANGS)
    children, check = Children(), CHECKS["torch"]
    found: list[CheckResult] = []
    for deadline_s in (2.0, 60.0):  # on a slow machine the first is over before the child has begun
        if not (tmp_path / "pids").exists():
            found = children.run("torch", dataclasses.replace(check, deadline_s=deadline_s))
    assert [finding.status for finding in found] == ["unfinished"] and "not done after" in found[0].found
    wait_until_gone(tmp_path / "pids")
    assert children.running == set()


def test_without_torch_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.importlib.util, "find_spec", lambda name: None)
    [found] = checks.torch_itself()
    assert (found.status, found.fix) == ("bad", "make setup")


@pytest.mark.parametrize("names", [("typer",), ("pydantic",), ("psutil", "numpy", "filelock")], ids=", ".join)
def test_any_other_package_may_be_broken(names: tuple[str, ...], broken: Break) -> None:
    broken(**dict.fromkeys((*names, "torch"), "raise ImportError('made up')"))
    ended = subprocess.run(
        [sys.executable, "-m", "minillm", "doctor", "--json"], capture_output=True, text=True, check=False
    )
    report = json.loads(ended.stdout)
    assert (ended.returncode, report["ok"]) == (1, False)
    assert {"system", "processor", "compiler", "versions"} <= {check["name"] for check in report["checks"]}
    if len(names) == 1:  # no other command can start
        other = subprocess.run([sys.executable, "-m", "minillm", "pull"], capture_output=True, text=True, check=False)
        assert "minillm.doctor" in other.stderr


def test_a_machine_without_room_for_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", no_room)
    report = examine()
    assert {finding.status for finding in report.findings} == {"unfinished"}
    assert report.verdict.startswith("minillm may not work here")


def test_ctrl_c_ends_the_children(broken: Break, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    broken(torch=HANGS)
    program = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    program += "from minillm.doctor.__main__ import main; main(False)"
    doctor = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE)
    while not (tmp_path / "pids").exists() or not (tmp_path / "pids").read_text():
        time.sleep(0.01)
    doctor.send_signal(2)
    assert b"KeyboardInterrupt" in doctor.communicate()[1], "and it doesn't wait for any deadline"
    wait_until_gone(tmp_path / "pids")


def test_how_it_ended_is_named() -> None:
    assert "SIGILL, an instruction" in why_it_ended(-4, b"") and "signal 77" in why_it_ended(-77, b"")


def test_what_a_child_found_before_it_died_is_kept() -> None:
    first, second = CheckResult.of("compute", "torch", "2.9"), CheckResult.of("compute", "gpu", "none")
    lines = [json.dumps(dataclasses.asdict(finding)).encode() + b"\n" for finding in (first, second)]
    assert read_findings(b"".join(lines)) == ([first, second], False)
    assert read_findings(lines[0] + lines[1][:-2]) == ([first], False), "half a line tells nothing"
    assert read_findings(b"".join(lines) + f"{END}\n".encode()) == ([first, second], True)
    assert read_findings(b"") == ([], False)


# ---------------------------------------------------------------- the report


def test_the_verdict_comes_first_and_names_what_is_wrong() -> None:
    fine = CheckResult.of("machine", "python", "3")
    assert Report([fine], []).verdict == "minillm works here."
    absent, bad = (
        CheckResult.of("machine", "g++", "none", "get one"),
        CheckResult.of("x", "disk", "full", "free", needed=True),
    )
    unfinished = CheckResult("x", "torch", "unfinished", "could not finish", "report it")
    report = Report([fine, absent], [])
    assert report.ok and "g++" in report.as_text(80).splitlines()[0]
    report = Report([fine, bad, unfinished], [])
    assert not report.ok and "disk" in report.verdict and "torch" in report.verdict
    assert not Report([fine, unfinished], ["torch"]).ok
    assert Report([fine, dataclasses.replace(unfinished, name="memory")], []).ok, "one can do without that one"


@pytest.mark.parametrize("columns", [0, 40, 80, 500])
def test_lines_break_between_words(columns: int) -> None:
    path = "/a/very-long/path-that-stays/whole-to-be-copied-by-whoever-needs-it"
    finding = CheckResult.of("machine", "processor", "many words " * 40, "do this " * 30 + path)
    lines = Report([finding], []).as_text(columns).splitlines()
    assert max(len(line) for line in lines if path not in line) <= max(40, min(columns, 120))
    assert path in lines[-1].split()
    words = " ".join(lines).split()
    assert words.count("many") == words.count("words") == 40


# ---------------------------------------------------------------- storage and memory


def test_a_full_disk_keeps_it_from_working(no_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minillm.host.storage.free_bytes", lambda _: 1000)
    found = {finding.name: finding for finding in checks.storage()}
    assert found["free disk"].status == "bad", "there is no room for the model"
    assert "MINILLM_HOME" in (found["free disk"].fix or "")
    assert found["model smollm2-135m"].fix == "minillm pull smollm2-135m"


@pytest.mark.parametrize("home", ["file", "file/below"])
def test_a_cache_that_cannot_be_made(home: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path / home))
    found = next(finding for finding in checks.storage() if finding.name == "cache folder")
    assert (found.status, found.group) == ("bad", "storage")
    assert "MINILLM_HOME" in (found.fix or "")


def test_a_damaged_model_keeps_it_from_working(no_cache: Path) -> None:
    (no_cache / "models" / "smollm2-135m").mkdir(parents=True)
    [found] = checks.generation()
    assert found.status == "bad" and "smollm2-135m" in found.fix


def test_models_of_the_cache_are_listed(no_cache: Path) -> None:
    folder = no_cache / "models" / "converted-1"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("x" * 3_000_000)
    found = {finding.name: finding for finding in checks.storage()}
    assert found["model converted-1"].found == f"{folder}, 3 MB"


def test_a_containers_memory_is_what_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minillm.host.memory.available_bytes", lambda: 1_000_000_000)
    [found] = checks.memory()
    assert found.status == "absent" and "1.0 GB available" in found.found


# ---------------------------------------------------------------- system and compiler


def pretend(monkeypatch: pytest.MonkeyPatch, machine: Platform, torch_is_there: bool = False) -> dict[str, CheckResult]:
    """What the checks of system and compiler find on such a machine."""
    monkeypatch.setattr(Platform, "here", classmethod(lambda cls: machine))
    monkeypatch.setattr(checks.importlib.util, "find_spec", lambda name: torch_is_there or None)
    monkeypatch.setattr(checks, "ENVIRONMENT", Path("/no/such/.venv"))
    return {finding.name: finding for finding in (*checks.system(), *checks.compiler())}


def test_alpine_cannot_have_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    alpine = Platform("linux", "x86_64", "Alpine Linux v3.22", ("alpine",), musl=True)
    found = pretend(monkeypatch, alpine)
    assert found["C library"].status == "bad" and "glibc" in found["C library"].fix
    assert pretend(monkeypatch, alpine, torch_is_there=True)["C library"].status == "absent", "built by somebody"


def test_a_mac_works_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    found = pretend(monkeypatch, Platform("darwin", "arm64", "macOS 15.3", version=(15, 3)))
    assert {finding.status for finding in found.values()} == {"ok"}
    assert "slower" in found["macOS"].found


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = pretend(monkeypatch, Platform("linux", "x86_64", "Rocky Linux 9", ("rocky", "rhel"), glibc=(2, 34)))
    assert found["compiler"].status == "absent" and found["compiler"].fix.endswith("install gcc-c++")
    [native] = checks.native()
    assert native.status == "ok", "its want is said once"


def test_a_fortifying_compiler_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\ncase $1 in --version) echo g++ 13;; *) echo '#define _FORTIFY_SOURCE 3';; esac\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", os.fspath(compiler))
    found = pretend(monkeypatch, Platform("linux", "x86_64", "Ubuntu 24.04", ("ubuntu", "debian"), glibc=(2, 39)))
    assert "g++ 13" in found["compiler"].found and "_FORTIFY_SOURCE=3" in found["compiler"].found


def test_a_python_that_was_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.pythons, "NEWEST_PYTHON", (3, 10))
    assert next(checks.system()).status == "absent"


# ---------------------------------------------------------------- versions


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str | None]:
    """What is installed, to be changed; torch 2 is pinned, and nothing else that matters."""
    installed: dict[str, str | None] = dict.fromkeys((*checks.NEEDED, *checks.LAB), "1")
    monkeypatch.setattr(checks, "installed_version", installed.get)
    monkeypatch.setattr(checks, "CONSTRAINTS", tmp_path / "constraints.txt")
    checks.CONSTRAINTS.write_text("# torch==9\ntorch==2\n")
    return installed


def test_pinned_versions_are_one_line(versions: dict[str, str | None]) -> None:
    versions["torch"] = "2"
    [found] = checks.packages()
    assert found.status == "ok"
    assert found.found.startswith("torch 2, transformers 1")
    assert found.found.endswith("(as pinned)")


def test_another_version_is_named_with_the_command(versions: dict[str, str | None]) -> None:
    found = {finding.name: finding for finding in checks.packages()}
    assert found["torch"].status == "absent"
    assert (found["torch"].fix or "").endswith(f"-m pip install -c {checks.CONSTRAINTS} torch==2")
    assert "torch" not in found["versions"].found


def test_what_is_not_installed(versions: dict[str, str | None]) -> None:
    versions |= {"torch": "2", "numpy": None, "typer": None, "jupyterlab": None}
    bad, absent, versions_found = checks.packages()
    assert (bad.status, absent.status, versions_found.status) == ("bad", "absent", "ok")
    assert "numpy" in bad.found and "typer" in bad.found and bad.fix == "make setup", "it says what to do, once"
    assert "jupyterlab" in absent.found
    checks.CONSTRAINTS.unlink()
    assert next(checks.packages()).fix.endswith("pip install numpy typer"), "a wheel comes without a Makefile"


def test_the_pins_are_found_in_a_checkout() -> None:
    assert checks.read_pins(checks.CONSTRAINTS).keys() >= {*checks.NEEDED, *checks.LAB}


# ---------------------------------------------------------------- bandwidth


def test_the_memory_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_peaks, "measure_read", lambda buffer, reads: 7.0 * GIGA)
    assert checks.find_bandwidth(CPU)[0] == 7 * GIGA
    monkeypatch.setattr(machine_peaks, "measure_bandwidth", lambda device: Bandwidth(read=9.0 * GIGA, copy=5.0 * GIGA))
    assert checks.find_bandwidth(torch.device("cuda"))[0] == 5 * GIGA


def test_the_floor_is_bytes_over_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_bandwidth", lambda _: QUICK)
    config = ModelConfig.from_hf(load_config(resolve(default_of(EngineConfig, "model"))))
    kept = kv_bytes_per_token(config, "bfloat16")
    step_bytes = 2 * ModelSize.of(config).read_params + checks.CONTEXT * kept
    assert f"{1e3 * step_bytes / QUICK[0]:.2f} ms per token" in list(checks.bandwidth())[1].found
