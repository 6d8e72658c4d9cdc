"""Binder, Docker, devcontainer and the Makefile name files, commands and versions: these exist, and agree."""

import importlib.metadata
import json
import os
import pkgutil
import re
import runpy
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from course.lab.frozen import as_image
from course.lab.svg import Picture

ROOT = Path(__file__).parents[3]
OLDEST_PYTHON = "3.11.0"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
DEVCONTAINER = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
PINS = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text().lower().replace("_", "-").splitlines()
    if "==" in line
)
SERVER_CONFIG = json.loads((ROOT / "binder/jupyter_server_config.json").read_text())


def test_pins_are_for_the_oldest_python_we_promise() -> None:
    """Debian 12 has 3.11.2: a pin that wants 3.11.5 sends pip to look for other versions of everything, CUDA's too."""
    too_new = [
        f"{package.name} {package.version} wants Python {wanted}"
        for package in importlib.metadata.distributions()
        if package.name.lower().replace("_", "-") in PINS
        and package.version == PINS[package.name.lower().replace("_", "-")]
        and (wanted := package.metadata.get("Requires-Python"))
        and OLDEST_PYTHON not in SpecifierSet(wanted)
    ]
    assert too_new == []
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"] == ">=3.11"


def test_all_take_one_python() -> None:
    [runtime] = re.findall(r"^python-(3\.\d+)$", (ROOT / "binder/runtime.txt").read_text(), re.MULTILINE)
    assert re.findall(r"^ARG PYTHON=(\S+)$", DOCKERFILE, re.MULTILINE) == [runtime]
    assert runtime in (ROOT / ".github/workflows/ci.yml").read_text()


@pytest.mark.parametrize("file", ["Dockerfile", "binder/postBuild", "Makefile"])
def test_nothing_is_installed_unpinned(file: str) -> None:
    installs = re.findall(r"pip install [^\n&;]+", (ROOT / file).read_text().replace("\\\n", " "))
    assert installs
    for command in installs:
        assert "-c constraints.txt" in command or "-r binder/requirements.txt" in command, command


def test_binders_requirements_are_pinned() -> None:
    lines = (ROOT / "binder/requirements.txt").read_text().splitlines()
    assert "-c ../constraints.txt" in lines
    names = [line for line in lines if line and not line.startswith(("#", "-"))]
    assert {"torch", "jupyterlab", "setuptools"} <= set(names) <= set(PINS)


def test_the_image_copies_and_starts_what_is_there() -> None:
    for instruction in re.findall(r"^COPY (?:--\S+ )*(.+) \S+$", DOCKERFILE, re.MULTILINE):
        for source in instruction.split():
            assert (ROOT / source).exists(), source
    [page] = re.findall(r"default_url=/lab/tree/([^\"]+)", DOCKERFILE)
    assert (ROOT / page).is_file()
    assert "RUN binder/postBuild" in DOCKERFILE
    assert DOCKERFILE.index("USER learner") < DOCKERFILE.index("RUN binder/postBuild"), "what root builds is root's"


def test_the_image_leaves_out_nothing_that_it_needs() -> None:
    """git can tell what a pattern of .dockerignore would leave out: their syntaxes agree as far as we use them."""
    left_out = ["ls-files", "--cached", "--ignored", "--exclude-from=.dockerignore"]
    files = subprocess.run(["git", "-C", ROOT, *left_out], capture_output=True, text=True, check=False)
    if files.returncode:
        pytest.skip("no git, or no checkout")
    folders = {name.split("/")[0] for name in files.stdout.split()}
    assert folders <= {".ci", ".github"}
    assert ".ci/run" in files.stdout


def test_devcontainer() -> None:
    folder = ROOT / ".devcontainer"
    assert (folder / DEVCONTAINER["build"]["dockerfile"]).resolve() == ROOT / "Dockerfile"
    assert (folder / DEVCONTAINER["build"]["context"]).resolve() == ROOT
    assert os.access(ROOT / DEVCONTAINER["postCreateCommand"], os.X_OK)
    assert f"USER {DEVCONTAINER['remoteUser']}" in DOCKERFILE
    [port] = DEVCONTAINER["forwardPorts"]
    assert f"EXPOSE {port}" in DOCKERFILE
    interpreter = DEVCONTAINER["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]
    assert f"python -m venv {interpreter.removesuffix('/bin/python')}" in DOCKERFILE


JUPYTERS_PARTS = (
    "jupyter_server.serverapp.ServerApp",
    "jupyter_server.services.contents.manager.ContentsManager",
    "jupyter_client.manager.KernelManager",
    "jupyterlab.labapp.LabApp",
)
"""Imported by the test alone: they take a second, and every process of `make test` collects this file."""


@pytest.mark.parametrize("name", JUPYTERS_PARTS)
def test_jupyter_knows_our_settings(name: str) -> None:
    """It would only warn of one that it does not know."""
    assert set(SERVER_CONFIG) == {part.rpartition(".")[2] for part in JUPYTERS_PARTS}
    owner = pkgutil.resolve_name(name)
    settings = SERVER_CONFIG[owner.__name__]
    assert set(settings) <= set(owner.class_traits(config=True))
    owner(**settings)  # and takes the values


def test_notebooks_are_listed_and_their_sources_are_not() -> None:
    from jupyter_server.services.contents.manager import ContentsManager

    contents = ContentsManager(**SERVER_CONFIG["ContentsManager"])
    for notebook in [*ROOT.glob("course/*.ipynb"), *ROOT.glob("exercises/*.ipynb"), *ROOT.glob("solutions/*.ipynb")]:
        assert contents.should_list(notebook.name)
        assert not contents.should_list(notebook.with_suffix(".py").name)
    assert contents.should_list("guide_2am.md")


@pytest.mark.parametrize("script", ["binder/postBuild", "binder/start"])
def test_scripts_can_be_run(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    assert (ROOT / script).read_text().startswith("#!/bin/bash\n")
    subprocess.run(["bash", "-n", ROOT / script], check=True)


@pytest.mark.parametrize(("limit", "threads"), [("1.0", "1"), ("2", "2"), ("0.5", "1"), (None, "as it was")])
def test_binder_takes_as_many_threads_as_it_may(limit: str | None, threads: str) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "OMP_NUM_THREADS": "as it was",
        **({"CPU_LIMIT": limit} if limit else {}),
    }
    command = [ROOT / "binder/start", "sh", "-c", "echo $OMP_NUM_THREADS"]
    told = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert told.stdout.strip() == threads


def test_jupyterlabs_terminals_find_the_commands() -> None:
    """They inherit its environment; `minillm` is in .venv/bin only. In the image they are login shells."""
    command = ["make", "-n", "lab", "TORCH_INDEX=", f"PYTHON={sys.executable}"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    [path] = re.findall(r"^PATH=\"(.*):\$PATH\" \S+/jupyter lab ", told, re.MULTILINE)
    assert Path(path) == ROOT / ".venv/bin"
    [image_path] = re.findall(r"^ENV PATH=(.*):\$\{PATH\}$", DOCKERFILE, re.MULTILINE)
    assert f"echo 'PATH={image_path}:$PATH' > /etc/profile.d/" in DOCKERFILE


def test_without_a_python_pytorchs_index_is_not_asked() -> None:
    """What is missing is said, and nothing else: not that an index cannot be reached."""
    told = subprocess.run(
        ["make", "-n", "-B", "setup", "SYSTEM=Linux", "PYTHON="], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "PyTorch's CPU build" not in told.stderr and "could not be reached" not in told.stderr


def test_the_mark_of_a_setup_cut_short_outlives_the_clearing_away(tmp_path: Path) -> None:
    """Else a clearing away that is cut short leaves half an environment that looks whole."""
    (tmp_path / "lib" / "torch").mkdir(parents=True)
    for name in (".installing", "setup.log", "lib/torch/__init__.py"):
        (tmp_path / name).touch()
    command = ["make", "-n", "-B", "setup", f"VENV={tmp_path}", "TORCH_INDEX=", f"PYTHON={sys.executable}"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    [clearing] = [line for line in told.splitlines() if "-delete" in line]
    subprocess.run(["sh", "-c", clearing], check=True)
    assert [path.name for path in tmp_path.iterdir()] == [".installing"]


def test_a_step_passes_on_what_the_reader_must_know(tmp_path: Path) -> None:
    step = [sys.executable, ROOT / "binder/step.py", tmp_path / "log", "compiling"]
    program = "print('minillm: under a minute'); print('! no C++ compiler found (g++)')"
    told = subprocess.run([*step, sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "  ! no C++ compiler found (g++)\n" in told
    assert "under a minute" not in told


TIDY = """
import pathlib, sys, time
try:
    print("! ready", flush=True)
    while True:
        time.sleep(1)
except KeyboardInterrupt:
    print("x" * 1_000_000, flush=True)  # more than a pipe holds
    pathlib.Path(sys.argv[1]).touch()
"""


def test_ctrl_c_waits_until_the_command_has_tidied_up(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "binder/step.py", tmp_path / "log", "unpacking"]
    step = subprocess.Popen(
        [*command, sys.executable, "-c", TIDY, tmp_path / "tidy"],
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # what runs in the background may ignore it
    )
    assert step.stdout is not None
    assert any("! ready" in line for line in step.stdout)
    os.killpg(step.pid, signal.SIGINT)  # as a terminal does: to both
    told, _ = step.communicate()
    assert step.returncode == 130
    assert (tmp_path / "tidy").exists()
    assert "stopped: unpacking" in told


def test_a_step_of_the_setup_says_what_it_does_and_shows_the_end_of_a_failure(tmp_path: Path) -> None:
    log = tmp_path / "setup.log"
    step = [sys.executable, ROOT / "binder/step.py", log, "1 of 1: nothing"]
    good = subprocess.run([*step, "echo", "Collecting pandas"], capture_output=True, text=True, check=True)
    assert good.stdout.splitlines()[0] == "  1 of 1: nothing"
    assert good.stdout.splitlines()[1].startswith("  done: 1 of 1: nothing [")
    assert "pandas" not in good.stdout + good.stderr
    bad = subprocess.run([*step, "sh", "-c", "echo it went wrong; exit 3"], capture_output=True, text=True, check=False)
    assert bad.returncode == 3
    assert "failed: 1 of 1: nothing" in bad.stdout
    assert "it went wrong" in bad.stderr
    assert str(log) in bad.stderr
    assert "Collecting pandas" in log.read_text()


def test_what_is_removed_of_pytorch_is_only_what_its_developers_run(tmp_path: Path) -> None:
    info = tmp_path / "torch-2.0.dist-info"
    info.mkdir()
    names = ["torch/test/atest", "torch/bin/protoc", "torch/bin/torch_shm_manager", "torch/testing/a.py", "torch/a.py"]
    for name in [*names, "torch/test/mine"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("12345")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.0\n")
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in [*names, "torch/test/gone"]))
    slim = runpy.run_path(str(ROOT / "binder/slim.py"))
    [torch] = importlib.metadata.distributions(name="torch", path=[str(tmp_path)])
    assert slim["remove"](list(slim["unused_files"](torch))) == 10
    assert not list(slim["unused_files"](torch))
    left = {path.relative_to(tmp_path).as_posix() for path in (tmp_path / "torch").rglob("*") if path.is_file()}
    assert left == {*names[2:], "torch/test/mine"}, "what PyTorch doesn't name is somebody else's"


def test_make_lab_trusts_every_notebook_that_a_reader_opens() -> None:
    trusted = re.search(r"jupyter trust .*", (ROOT / "Makefile").read_text()).group()
    assert all(f"my/{folder}/*.ipynb" in trusted for folder in ("course", "exercises", "solutions"))


def test_a_browser_may_take_longer_than_one_interval_to_answer_a_ping() -> None:
    """Jupyter asks before each ping how long ago the last answer came: a whole interval, in the best of cases. With a
    shorter limit it cuts every notebook off from its kernel, again and again, and JupyterLab says "Unknown"."""
    from jupyter_server.base.websocket import WebSocketMixin

    connection = WebSocketMixin()
    connection.settings = SERVER_CONFIG["ServerApp"].get("tornado_settings", {})
    assert connection.ping_interval == 0 or connection.ping_timeout > connection.ping_interval


DRAWN = Picture("", "", 9).svg()


def made_notebook(shown: str) -> str:
    data = {"text/plain": shown, "text/html": [as_image(DRAWN), shown]}
    output = {"output_type": "execute_result", "execution_count": 3, "metadata": {}, "data": data}
    cell = {"cell_type": "code", "execution_count": 3, "metadata": {}, "source": "x", "outputs": [output]}
    return json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def test_a_readers_notebooks_are_copies_that_follow_until_they_are_touched(tmp_path: Path) -> None:
    for folder in ("course/lab", "exercises", "solutions"):
        (tmp_path / folder).mkdir(parents=True)
    one, other = (tmp_path / "course" / f"{name}.ipynb" for name in ("01", "02"))
    for original in (one, other):
        original.write_text(made_notebook("first"))
    mine, refresh = tmp_path / "my", runpy.run_path(ROOT / "binder/copies.py")["refresh"]
    assert refresh(tmp_path, mine) == []
    (mine / "course" / "01.ipynb").write_text("a reader's run")
    assert refresh(tmp_path, mine) == []
    for original in (one, other):
        original.write_text(made_notebook("second"))
    [told] = refresh(tmp_path, mine)
    assert "01.ipynb is yours and stays" in told
    assert (mine / "course" / "01.ipynb").read_text() == "a reader's run"
    [cell] = json.loads((mine / "course" / "02.ipynb").read_text())["cells"]
    assert cell["outputs"][1]["data"] == {"text/plain": "second", "text/html": f"{DRAWN}second"}, "it follows the theme"
    assert "Example run" in cell["outputs"][0]["data"]["text/html"], "a saved number is not taken for one's own"
    assert cell["execution_count"] is None and cell["outputs"][1]["execution_count"] is None
    assert (mine / "course" / "lab").resolve() == tmp_path / "course" / "lab"


def test_the_start_page_shows_progress_before_it_is_run_and_still_follows_its_original(tmp_path: Path) -> None:
    for folder in ("course", "exercises", "solutions"):
        (tmp_path / folder).mkdir()
    original, mine = tmp_path / "course" / "start.ipynb", tmp_path / "my"
    original.write_text(made_notebook("first"))
    copies = runpy.run_path(str(ROOT / "binder/copies.py"))
    shown = {"x": {"text/html": "today", "text/plain": "today"}}
    for progress in ("today", "tomorrow"):
        assert copies["refresh"](tmp_path, mine) == []
        copies["bring_up_to_date"](mine, {"x": {"text/html": progress}, "another cell": {}})
        [cell] = json.loads((mine / "course" / "start.ipynb").read_text())["cells"]
        assert [output["data"] for output in cell["outputs"]] == [{"text/html": progress}]
    original.write_text(made_notebook("second"))
    assert copies["refresh"](tmp_path, mine) == [], "it wasn't the reader who changed it"
    (mine / "course" / "start.ipynb").write_text("no notebook any more")
    copies["bring_up_to_date"](mine, shown)
    assert (mine / "course" / "start.ipynb").read_text() == "no notebook any more"


def test_the_file_list_hides_every_package_of_the_course() -> None:
    hidden = json.loads((ROOT / "binder/jupyter_server_config.json").read_text())["ContentsManager"]["hide_globs"]
    assert {init.parent.name for init in (ROOT / "course").glob("*/__init__.py")} <= set(hidden)
