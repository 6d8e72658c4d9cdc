"""`minillm doctor`: what it finds, what it says about the speed, and the command that mends each thing."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from minillm.bench.doctor import hardware, software
from minillm.bench.doctor.hardware import find_bandwidth
from minillm.core.params import default_of
from minillm.model.arithmetic import find_model
from minillm.policies.config import EngineConfig
from minillm.runner.machine_peaks import Bandwidth
from minillm.simulate.cost.hardware import GIGA

CPU = torch.device("cpu")
QUICK = 10 * GIGA, "made up"

Doctor = Callable[..., tuple[int, str]]


@pytest.fixture
def doctor(run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch) -> Doctor:
    """Run the command: (exit status, standard output). The bandwidth is made up, which saves its measurement."""
    monkeypatch.setattr(hardware, "find_bandwidth", lambda _: QUICK)
    return lambda *arguments: run("doctor", *arguments)[:2]


@pytest.fixture
def no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path))
    return tmp_path


def test_json_is_one_object(doctor: Doctor) -> None:
    status, out = doctor("--json")
    report = json.loads(out)
    assert report["ok"] == (status == 0)
    names = {"python", "torch", "memory", "memory bandwidth", "gpu", "attention backend", "attention eager", "roofline"}
    names |= {"cache folder", "free disk", "model smollm2-135m", "native kernels", "versions"}
    assert names <= {check["name"] for check in report["checks"]}
    for check in report["checks"]:
        assert (check["fix"] is None) == (check["status"] == "ok"), check["name"]


def test_a_full_disk_keeps_it_from_working(doctor: Doctor, no_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "free_bytes", lambda _: 1000)
    status, out = doctor()
    assert status == 1, "there is no room for the model"
    assert "minillm pull smollm2-135m" in out
    assert "MINILLM_HOME" in out
    assert "keep minillm from working" in out


def test_a_cache_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path / "file"))
    found = next(check for check in software.storage() if check.name == "cache folder")
    assert (found.status, found.group) == ("bad", "storage")
    assert "MINILLM_HOME" in (found.fix or "")


def test_models_of_the_cache_are_listed(no_cache: Path) -> None:
    folder = no_cache / "models" / "converted-1"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("x" * 3_000_000)
    found = {check.name: check for check in software.storage()}
    assert found["model converted-1"].found == f"{folder}, 3 MB"
    assert found["model smollm2-135m"].fix == "minillm pull smollm2-135m"


def test_a_containers_memory_is_what_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "available_bytes", lambda: 1_000_000_000)
    found = next(check for check in hardware.machine() if check.name == "memory")
    assert found.status == "absent" and "1.0 GB available" in found.found


def test_without_torch_it_still_says_what_to_do() -> None:
    program = "import sys, runpy\nsys.modules['torch'] = None\nsys.argv = ['minillm', 'doctor', '--json']\n"
    program += "runpy.run_module('minillm', run_name='__main__')"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    found = {check["name"]: check for check in json.loads(ended.stdout)["checks"]}
    assert (ended.returncode, found["torch"]["status"], found["torch"]["fix"]) == (1, "bad", "make setup")


# ---------------------------------------------------------------- versions


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str | None]:
    """What is installed, to be changed; torch 2 is pinned, and nothing else that matters."""
    installed: dict[str, str | None] = dict.fromkeys((*software.NEEDED, *software.LAB), "1")
    monkeypatch.setattr(software, "installed_version", installed.get)
    monkeypatch.setattr(software, "CONSTRAINTS", tmp_path / "constraints.txt")
    software.CONSTRAINTS.write_text("# torch==9\ntorch==2\n")
    return installed


def test_pinned_versions_are_one_line(versions: dict[str, str | None]) -> None:
    versions["torch"] = "2"
    [found] = software.packages()
    assert found.status == "ok"
    assert found.found.startswith("torch 2, transformers 1")
    assert found.found.endswith("(as pinned)")


def test_another_version_is_named_with_the_command(versions: dict[str, str | None]) -> None:
    found = {check.name: check for check in software.packages()}
    assert found["torch"].status == "absent"
    assert (found["torch"].fix or "").endswith(f"-m pip install -c {software.CONSTRAINTS} torch==2")
    assert "torch" not in found["versions"].found


def test_what_is_not_installed(versions: dict[str, str | None]) -> None:
    versions |= {"torch": "2", "numpy": None, "jupyterlab": None}
    found = {check.name: check.status for check in software.packages()}
    assert found == {"numpy": "bad", "jupyterlab": "absent", "versions": "ok"}


def test_the_pins_are_found_in_a_checkout() -> None:
    assert software.read_pins(software.CONSTRAINTS).keys() >= {*software.NEEDED, *software.LAB}


# ---------------------------------------------------------------- bandwidth


def test_the_memory_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "measure_read", lambda buffer, reads: 7.0 * GIGA)
    assert find_bandwidth(CPU)[0] == 7 * GIGA
    monkeypatch.setattr(hardware, "measure_bandwidth", lambda device: Bandwidth(read=9.0 * GIGA, copy=5.0 * GIGA))
    assert find_bandwidth(torch.device("cuda"))[0] == 5 * GIGA


def test_the_floor_is_bytes_over_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "find_bandwidth", lambda _: QUICK)
    cost = find_model(default_of(EngineConfig, "model"))
    step_bytes = cost.read_bytes("bfloat16") + hardware.CONTEXT * cost.kv_bytes_per_token("bfloat16")
    assert f"{1e3 * step_bytes / QUICK[0]:.2f} ms per token" in list(hardware.memory(CPU))[1].found
