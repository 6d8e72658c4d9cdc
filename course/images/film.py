"""Films the live dashboard for the README: `python -m course.images.film dashboard.webp`.

The rag traffic is played twice to the real model on this machine: with prefix caching off, then on. Each frame that the
second run publishes is kept, with its moment; afterwards a headless Chromium draws them all. So the film runs at the
speed at which the engine ran, and drawing it takes nothing from the engine. Needs the extra `test`, and Chromium.
"""

import argparse
import io
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from course.lab import Dashboard, Lab

WIDTH, HEIGHT = 1180, 705
"""Of the page, in CSS pixels: two columns, and nothing below them."""
SHORTEST_S = 0.2
"""Of a frame: closer ones are left out."""
LAST_S = 6.0
"""The last frame stands, so that one can read it."""
PAGE = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 8px; background: white; color: #222; font-family: "DejaVu Sans", sans-serif }}
</style><p style="font-size:13px;margin:0 0 6px">{caption}</p>{frame}"""


@dataclass(frozen=True)
class Frame:
    moment: float
    """Seconds since the run began."""
    html: str


def record(dashboard: Dashboard) -> list[Frame]:
    """Press Run, wait, and return what was shown meanwhile: a frame for each time that something was published."""
    shown: list[Frame] = []
    began = time.perf_counter()

    def keep(change: dict[str, Any]) -> None:
        shown.append(Frame(time.perf_counter() - began, change["new"]))

    dashboard.view.observe(keep, names="value")
    dashboard.start()
    dashboard.wait()
    dashboard.view.unobserve(keep, names="value")
    return [frame for frame in shown if "<svg" in frame.html]  # not the notes before it begins


def thinned(frames: Sequence[Frame], shortest: float = SHORTEST_S) -> list[Frame]:
    """Without those that follow another too soon; the last one always stays."""
    kept: list[Frame] = []
    for frame in frames[:-1]:
        if not kept or frame.moment - kept[-1].moment >= shortest:
            kept.append(frame)
    return [*kept, *frames[-1:]]


def durations_ms(frames: Sequence[Frame]) -> list[int]:
    """How long each stands: until the next one came; the last one for LAST_S."""
    gaps = [later.moment - earlier.moment for earlier, later in pairwise(frames)]
    return [round(1000 * seconds) for seconds in (*gaps, LAST_S)]


def drawn(frames: Sequence[Frame], caption: str) -> Iterator[Image.Image]:
    """Each frame as Chromium shows it."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        for frame in frames:
            page.set_content(PAGE.format(caption=caption, frame=frame.html))
            yield Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        browser.close()


def save(frames: Sequence[Frame], images: Sequence[Image.Image], path: Path) -> None:
    """An animated picture in the format of the file's ending: WebP, PNG or GIF. It plays again and again."""
    first, *rest = images
    options = {"quality": 60, "method": 4} if path.suffix == ".webp" else {}
    first.save(path, save_all=True, append_images=rest, duration=durations_ms(frames), loop=0, **options)


def film(lab: Lab, path: Path, say: Callable[[str], None] = print) -> None:
    """Play, record, draw, save."""
    dashboard = Dashboard(lab, "rag", enable_prefix_caching=False)
    record(dashboard)
    dashboard.controls["enable_prefix_caching"].value = True
    frames = thinned(record(dashboard))
    caption = "The same traffic, now <b>with prefix caching</b>. Thin outlines: the run before, without it."
    save(frames, list(drawn(frames, caption)), path)
    say(f"{path}: {len(frames)} frames, {frames[-1].moment:.1f} s, {path.stat().st_size / 1e6:.2f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description="Film the live dashboard.")
    parser.add_argument("path", type=Path, help="Ends in .webp, .png or .gif.")
    film(Lab(), parser.parse_args().path)


if __name__ == "__main__":
    main()
