"""Records README's picture of the dashboard, and its figures: python -m tests.course.browser.record_hero

It runs lesson 00's dashboard in JupyterLab in a real browser: rag without prefix caching until the noise is known, then
with it. A first run, on a cold machine, is not counted. Leave the machine alone meanwhile (a minute or two): a picture
that speaks against its own text is not kept.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import sync_playwright

from course.lab.hero import FOLDER, PICTURE, RECORD, TRAFFIC, Hero, sha256_of
from course.lab.noise import ENOUGH
from tests.course.browser.conftest import CHROMIUM, PATIENCE_MS, TOKEN, code_cells, home_without_history, jupyterlab

FILE = "hero.ipynb"
CELLS = (
    "from course.lab import Dashboard, open_lab\nfrom course.lab.hero import Hero\n"
    f"lab = open_lab()\ncold = lab.run({TRAFFIC!r}, enable_prefix_caching=False)",
    f"dashboard = Dashboard(lab, {TRAFFIC!r}, enable_prefix_caching=False)\ndashboard",
    "print(Hero.of(dashboard).model_dump_json())",
)
RUN = ".mm-bar .mm-run:enabled"
LIVE, STILL = (f".mm-dash[data-mode={mode}]" for mode in ("live", "still"))
SIZE, SHARPNESS = {"width": 1440, "height": 1300}, 1.5
"""Higher than a laptop's screen: nothing of the dashboard is cut."""
MARGIN = 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=FOLDER, help="where to write; for a rehearsal, another folder")
    parser.add_argument("--dark", action="store_true", help="in JupyterLab's dark theme; for a look")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        partial = root / PICTURE
        home = home_without_history(root / "home")
        with jupyterlab(root, {"MINILLM_HOME": str(home), "MINILLM_SHORT": "0"}) as address:
            hero = recorded(address, root, partial, options.dark)
        problems = hero.problems()
        for name, each in hero.figures.items():
            print(f"{name:12} {each.was:10.4g} -> {each.now:10.4g}  {each.told}")
        print("\n".join(problems), file=sys.stderr)
        if problems and options.out == FOLDER:
            print("Not kept: try again while the machine does nothing else.", file=sys.stderr)
            return 1
        hero.sha256 = sha256_of(partial)
        (options.out / PICTURE).write_bytes(partial.read_bytes())
        (options.out / RECORD).write_text(hero.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return 0


def recorded(address: str, root: Path, picture: Path, dark: bool) -> Hero:
    """Play the runs, write the picture, and return its figures."""
    notebook = new_notebook(cells=[new_code_cell(code) for code in CELLS])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, root / FILE)
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = chromium.new_page(viewport=SIZE, device_scale_factor=SHARPNESS)
        page.set_default_timeout(PATIENCE_MS)
        page.goto(f"{address}/lab/tree/{FILE}?reset&token={TOKEN}")
        page.wait_for_selector(".jp-Notebook .jp-Cell")
        page.wait_for_function("() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel")
        command(page, "application:toggle-left-area")
        if dark:
            command(page, "apputils:change-theme", {"theme": "JupyterLab Dark"})
        run_cell(page, 0)
        run_cell(page, 1)
        page.wait_for_selector(RUN)
        for _ in range(1 + ENOUGH):
            play(page)
        page.get_by_role("switch", name="prefix caching").click()
        play(page)
        run_cell(page, 2)
        page.wait_for_function("() => [...window.jupyterapp.shell.currentWidget.content.model.cells][2].outputs.length")
        page.evaluate("window.jupyterapp.shell.currentWidget.content.scrollToItem(1, 'start')")
        page.mouse.move(0, 0)
        box = page.locator(".mm-dash").first.bounding_box()
        sides = {"x": box["x"] - MARGIN, "y": box["y"] - MARGIN}
        page.screenshot(path=picture, clip={**sides, **{side: box[side] + 2 * MARGIN for side in ("width", "height")}})
        (output,) = code_cells(page)[2]["outputs"]
        chromium.close()
    return Hero.model_validate_json("".join(output["text"]))


def play(page: Any) -> None:
    """One run, to its end."""
    page.wait_for_selector(STILL)
    page.click(RUN)
    page.wait_for_selector(LIVE)
    page.wait_for_selector(STILL)
    page.wait_for_selector(RUN)


def run_cell(page: Any, index: int) -> None:
    page.evaluate(f"window.jupyterapp.shell.currentWidget.content.activeCellIndex = {index}")
    command(page, "notebook:run-cell")


def command(page: Any, name: str, arguments: dict[str, Any] | None = None) -> None:
    page.evaluate("([name, given]) => window.jupyterapp.commands.execute(name, given)", [name, arguments or {}])


if __name__ == "__main__":
    sys.exit(main())
