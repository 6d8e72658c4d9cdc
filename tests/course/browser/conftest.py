"""A JupyterLab of our own over a copy of the notebooks, the site served, and a real browser on both."""

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from course.site.__main__ import QuietHandler
from minillm.host.storage import cache_home

REPOSITORY = Path(__file__).resolve().parents[3]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TOKEN = "lesson-test"
PATIENCE_MS = 300_000
CELLS = "[...window.jupyterapp.shell.currentWidget.content.model.cells]"
FOLDERS = ("course", "exercises", "solutions")

Open = Callable[[str], Any]
"""From a notebook's path to a page with it, all cells run or about to be."""


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that JupyterLab shows."""
    return tmp_path_factory.mktemp("notebooks")


@pytest.fixture(scope="session")
def jupyter(root: Path, smollm_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address. It has a home of its own: a learner's progress is none of a test's business."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    for folder in FOLDERS:
        for file in (REPOSITORY / folder).glob("*.ipynb"):
            (root / folder).mkdir(exist_ok=True)
            shutil.copy(file, root / folder)
    shutil.copytree(REPOSITORY / "course" / "images", root / "course" / "images")
    home = home_without_history(tmp_path_factory.mktemp("learner") / "home")
    with jupyterlab(root, {"MINILLM_HOME": str(home), "MINILLM_SHORT": "1"}) as address:
        yield address


def home_without_history(home: Path) -> Path:
    """minillm's home with its models and compiled kernels, but nothing that a learner did or measured before."""
    home.mkdir()
    for kept in cache_home().iterdir():
        if kept.is_dir() and kept.name != "ledger":
            (home / kept.name).symlink_to(kept)
    return home


@contextmanager
def jupyterlab(root: Path, variables: Mapping[str, str]) -> Iterator[str]:
    """The address of a JupyterLab over a folder, which also holds its settings, workspaces and log.

    Args:
        variables: of its environment, besides this process's.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--allow-root",
        f"--port={port}",
        "--port-retries=0",
        f"--ServerApp.root_dir={root}",
        f"--IdentityProvider.token={TOKEN}",
        "--LabApp.expose_app_in_browser=True",
        f"--LabApp.workspaces_dir={root / 'workspaces'}",
        f"--LabApp.user_settings_dir={root / 'settings'}",
    ]
    environment = {
        **os.environ,
        **variables,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")])),
        "JUPYTER_RUNTIME_DIR": str(root / "runtime"),
    }
    with (root / "server.log").open("w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        address = f"http://127.0.0.1:{port}"
        _await_server(f"{address}/api/status?token={TOKEN}", server, root / "server.log")
        yield address
    finally:
        server.terminate()
        server.wait(timeout=30)


def _await_server(url: str, server: subprocess.Popen, log: Path) -> None:
    for _ in range(1200):  # on a machine that does much else, a minute is not enough
        assert server.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except OSError:
            time.sleep(0.25)
    pytest.fail(f"JupyterLab did not answer:\n{log.read_text()}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        arguments = ["--no-sandbox", "--disable-background-networking"]
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where the static site is served."""
    if not (site / "tab").is_dir():
        pytest.skip("Python for the browser could not be fetched")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="module")
def open_notebook(jupyter: str, browser: Any) -> Iterator[Open]:
    """Opens a notebook in a page of its own; its kernel is there when this returns."""
    pages = []

    def open_one(path: str) -> Any:
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        pages.append(page)
        page.set_default_timeout(PATIENCE_MS)
        page.goto(f"{jupyter}/lab/tree/{path}?reset&token={TOKEN}")
        page.wait_for_selector(".jp-Notebook .jp-Cell")
        page.wait_for_function(
            "() => document.querySelector('.jp-NotebookPanel') &&"
            " window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel"
        )
        return page

    yield open_one
    for page in pages:
        page.close()


def run_all(page: Any) -> None:
    """Run every cell, and wait until the kernel has nothing left to do."""
    page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')")
    page.wait_for_function(f"() => ({CELLS}).filter(cell => cell.type === 'code').every(cell => cell.executionCount)")
    page.wait_for_function(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'"
    )


def code_cells(page: Any) -> list[dict[str, Any]]:
    """Each code cell's source and outputs, from the notebook's model: cells out of sight are not in the page."""
    return page.evaluate(
        f"""() => ({CELLS}).filter(cell => cell.type === 'code').map(cell =>
            ({{source: cell.sharedModel.source, outputs: cell.outputs.toJSON()}}))"""
    )


def close(page: Any) -> None:
    """Give the memory of its model back, and stop what moves in it: forty open notebooks keep a core busy."""
    page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    page.close()
