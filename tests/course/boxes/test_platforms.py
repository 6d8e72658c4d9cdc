"""The Pythons and compilers that we promise: every place that names them agrees, and a hardening compiler will do."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from minillm.host.platforms import OLDEST_GLIBC, OLDEST_MACOS
from minillm.host.pythons import NEWEST_PYTHON, OLDEST_PYTHON

ROOT = Path(__file__).parents[3]
MAKEFILE = (ROOT / "Makefile").read_text()
PYTHONS = [f"3.{minor}" for minor in range(OLDEST_PYTHON[1], NEWEST_PYTHON[1] + 1)]


def test_one_range_of_pythons() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert re.findall(r":: Python :: (3\.\d+)", "\n".join(project["classifiers"])) == PYTHONS
    assert project["requires-python"] == f">={PYTHONS[0]}"
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == PYTHONS
    assert set(jobs["machines"]["strategy"]["matrix"]["python"]) <= set(PYTHONS)
    assert re.search(r"^PINNED_PYTHONS := (.*)$", MAKEFILE, re.MULTILINE).group(1).split() == PYTHONS
    searched = re.search(r"for python in (.*); do", MAKEFILE).group(1).split()
    assert searched == ["python3", *(f"python{version}" for version in reversed(PYTHONS))]


def test_pins_are_looked_up_for_the_oldest_systems() -> None:
    assert "x86_64-manylinux_{}_{} ".format(*OLDEST_GLIBC) in MAKEFILE
    assert "MACOSX_DEPLOYMENT_TARGET={}.{} ".format(*OLDEST_MACOS) in MAKEFILE


@pytest.mark.parametrize(
    ("versions", "chosen"),
    [
        ({"python3": (3, 12), "python3.14": (3, 14)}, "python3"),
        ({"python3": (3, 9), "python3.12": (3, 12), "python3.11": (3, 11)}, "python3.12"),
        ({"python3": (3, 15), "python3.13": (3, 13)}, "python3.13"),
        ({"python3": (3, 15)}, None),
        ({"python3": (3, 10)}, None),
    ],
)
def test_make_takes_a_python_that_was_tried(
    versions: dict[str, tuple[int, int]], chosen: str | None, tmp_path: Path
) -> None:
    for name in ("python3", *(f"python{version}" for version in PYTHONS)):
        pretended = f"import sys; sys.version_info = {versions.get(name)}; exec(sys.argv[1])"
        program = (
            f'#!/bin/sh\nexec {sys.executable} -c "{pretended}" "$2"\n' if name in versions else "#!/bin/sh\nexit 1\n"
        )
        (tmp_path / name).write_text(program)
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    environment.pop("PYTHON", None)
    command = ["make", "-n", "-B", "setup", f"VENV={tmp_path}/venv", "TORCH_INDEX="]
    told = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert re.findall(r'an environment" *(\S*) -m venv', told) == [chosen or ""]


def test_make_says_where_pytorch_cannot_be_had() -> None:
    program = "import sys, sysconfig, runpy; sys.platform = 'linux'; "
    program += "sysconfig.get_config_var = lambda name: 'cpython-313-x86_64-linux-musl'; "
    program += "runpy.run_module('minillm.host.before_setup', run_name='__main__')"
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 1 and "musl" in ended.stderr and "glibc" in ended.stderr
    here = subprocess.run([sys.executable, "-m", "minillm.host.before_setup"], cwd=ROOT, check=False)
    assert here.returncode == 0
    assert MAKEFILE.index("-m minillm.host.before_setup") < MAKEFILE.index("Setting up the course"), (
        "before any download"
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is compiled")
def test_the_first_answer_with_a_compiler_like_ubuntus(smollm_path: Path) -> None:
    command = [ROOT / ".ci/as-ubuntu", sys.executable, "-m", "minillm", "generate", "The capital of France is"]
    ended = subprocess.run([*command, "--max-tokens", "4"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "Paris" in ended.stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is compiled")
def test_lesson_00_with_a_compiler_like_ubuntus(smollm_path: Path) -> None:
    lesson = ["-m", "course.lab.run_notebooks", "course/00_start_here.ipynb"]
    command = [ROOT / ".ci/as-ubuntu", sys.executable, *lesson]
    environment = {**os.environ, "MINILLM_SHORT": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-4000:]
