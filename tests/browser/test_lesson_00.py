"""Lesson 00 as a learner meets it: JupyterLab in a real browser, run all cells, flip a toggle, press Run."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

playwright = pytest.importorskip("playwright.sync_api")

REPOSITORY = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TOKEN = "lesson-test"
PATIENCE_MS = 180_000
CELLS = "[...window.jupyterapp.shell.currentWidget.content.model.cells]"
DASHBOARD_CELL = "cell => cell.sharedModel.source.includes('Dashboard(lab')"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]


@pytest.fixture(scope="module")
def lab_url(tmp_path_factory: pytest.TempPathFactory, smollm_path: Path) -> Iterator[str]:
    """A JupyterLab of our own, on a free port, over a copy of the lesson."""
    root = tmp_path_factory.mktemp("course")
    shutil.copy(REPOSITORY / "course" / "00_start_here.ipynb", root)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}", "--port-retries=0",
        f"--ServerApp.root_dir={root}", f"--IdentityProvider.token={TOKEN}", "--LabApp.expose_app_in_browser=True",
        f"--LabApp.workspaces_dir={root / 'workspaces'}", f"--LabApp.user_settings_dir={root / 'settings'}",
    ]  # fmt: skip
    environment = {
        **os.environ,
        "MINILLM_SHORT": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")])),
        "JUPYTER_RUNTIME_DIR": str(root / "runtime"),
    }
    with (root / "server.log").open("w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        address = f"http://127.0.0.1:{port}"
        _await_server(f"{address}/api/status?token={TOKEN}", server, root / "server.log")
        yield f"{address}/lab/tree/00_start_here.ipynb?reset&token={TOKEN}"
    finally:
        server.terminate()
        server.wait(timeout=30)


def _await_server(url: str, server: subprocess.Popen, log: Path) -> None:
    for _ in range(240):
        assert server.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except OSError:
            time.sleep(0.25)
    pytest.fail(f"JupyterLab did not answer:\n{log.read_text()}")


@pytest.fixture(scope="module")
def page(lab_url: str) -> Iterator["playwright.Page"]:
    """The lesson open in a browser, all cells run."""
    with playwright.sync_playwright() as driver:
        arguments = ["--no-sandbox", "--disable-background-networking"]
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=arguments)
        opened = browser.new_page(viewport={"width": 1600, "height": 1000})
        opened.set_default_timeout(PATIENCE_MS)
        opened.goto(lab_url)
        opened.wait_for_selector(".jp-Notebook .jp-Cell")
        opened.wait_for_function(
            "() => document.querySelector('.jp-NotebookPanel') &&"
            " window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel"
        )
        opened.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')")
        yield opened
        browser.close()


def _dashboard(page: "playwright.Page") -> "playwright.Locator":
    """The live dashboard: the box around its Run button and its picture. Scrolls there: the page holds only
    the cells in sight."""
    page.wait_for_function(f"() => ({CELLS}).find(({DASHBOARD_CELL}))?.executionCount")
    index = page.evaluate(f"() => ({CELLS}).findIndex({DASHBOARD_CELL})")
    page.evaluate(f"() => window.jupyterapp.shell.currentWidget.content.scrollToItem({index}, 'start')")
    return page.locator(".widget-vbox").filter(has=page.locator("button", has_text="Reset")).first


def _run(page: "playwright.Page") -> str:
    """Press Run, wait for the end, return the drawn pictures."""
    dashboard = _dashboard(page)
    dashboard.locator("button", has_text="Run").click()
    dashboard.locator("button", has_text="Stop").and_(page.locator(":enabled")).wait_for()
    dashboard.locator("button", has_text="Run").and_(page.locator(":enabled")).wait_for()
    return "".join(dashboard.locator("svg").evaluate_all("all => all.map(one => one.outerHTML)"))


def test_flipping_a_toggle_and_running_changes_the_picture(page: "playwright.Page") -> None:
    dashboard = _dashboard(page)
    first = _run(page)
    assert "Where did each request" in first
    assert "previous run" not in first
    dashboard.get_by_label("prefix caching").uncheck()
    second = _run(page)
    assert second != first
    assert "previous run" in second


def test_no_cell_ended_in_an_error(page: "playwright.Page") -> None:
    """Asks the notebook's model: cells out of sight are not in the page."""
    page.wait_for_function(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'"
    )
    outputs = page.evaluate(
        f"""() => ({CELLS}).filter(cell => cell.type === 'code').flatMap(cell => cell.outputs.toJSON().map(output =>
            ({{kind: output.output_type, name: output.name ?? '', text: JSON.stringify(output).slice(0, 300)}})))"""
    )
    assert len(outputs) >= 10
    assert [output for output in outputs if output["kind"] == "error" or output["name"] == "stderr"] == []
    counts = page.evaluate(f"() => ({CELLS}).filter(cell => cell.type === 'code').map(cell => cell.executionCount)")
    assert counts == list(range(1, len(counts) + 1))
