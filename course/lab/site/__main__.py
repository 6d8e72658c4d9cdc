"""python -m course.lab.site FOLDER: write the static site."""

import argparse
import gzip
import itertools
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from course.lab.build import COURSE, RECORDED, lesson_sources
from course.lab.site.calculator import exported
from course.lab.site.pages import Page, markdown_page, notebook_page

HERE, ROOT = Path(__file__).parent, COURSE.parent
GUIDES = ("course/guide_2am.md", "course/guide_debugging.md")
DOCS = tuple(
    f"docs/{name}.md"
    for name in ("simulator", "engine", "server", "monitoring", "measured", "incidents", "load-testing")
)


def page_names() -> dict[str, str]:
    """By source, from the repository's root: the name of the page that it becomes."""
    lessons = {f"course/{path.stem}.ipynb": path.stem for path in lesson_sources()}
    pages = {source: Path(source).stem for source in (*GUIDES, *DOCS)}
    return {**lessons, **pages, "course/start.ipynb": "map", "README.md": "index"}


def pages() -> Iterator[Page]:
    names = page_names()
    for source in names:
        if source.endswith(".ipynb"):
            yield notebook_page(ROOT / source, names)
        elif source != "README.md":
            yield markdown_page(ROOT / source, ROOT, names)


def opening(lesson: Page) -> Page:
    """The first bet of a lesson with what decides it, for the front page."""
    start = next(i for i, part in enumerate(lesson.parts) if part.kind == "bet")
    after = list(itertools.takewhile(lambda part: part.kind == "outcome", lesson.parts[start + 1 :]))
    return replace(lesson, parts=(lesson.parts[start], *after))


def write(folder: Path) -> list[Path]:
    """The whole site. Returns its pages."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(HERE / "static", folder / "static")
    templates = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    made = list(pages())
    lessons = [page for page in made if page.source.endswith(".ipynb") and page.name != "map"]
    common = {
        "lessons": lessons,
        "guides": [page for page in made if page.source in GUIDES],
        "docs": [p for p in made if p.source in DOCS],
    }
    written = []
    for place, page in enumerate(made):
        after = lessons[place + 1] if page in lessons[:-1] else None
        path = folder / f"{page.name}.html"
        path.write_text(templates.get_template("page.html").render(common, page=page, after=after), encoding="utf-8")
        written.append(path)
    (folder / "static" / "prices.js").write_text(
        f"window.minillmPrices = {json.dumps(exported())};\n", encoding="utf-8"
    )
    for name, values in (("index", {"opening": opening(lessons[0])}), ("calculator", {})):
        path = folder / f"{name}.html"
        path.write_text(templates.get_template(f"{name}.html").render(common, page=None, **values), encoding="utf-8")
        written.append(path)
    for recorded in RECORDED.glob("*/*.json.gz"):
        name = f"{recorded.parent.name}/{recorded.name.removesuffix('.json.gz')}"
        script = folder / "frames" / f"{name}.js"
        script.parent.mkdir(parents=True, exist_ok=True)
        content = gzip.decompress(recorded.read_bytes()).decode()
        script.write_text(f"minillm.recorded({json.dumps(name)}, {content})\n", encoding="utf-8")
    return written


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m course.lab.site", description="Write the course as a static site.")
    parser.add_argument("folder", type=Path)
    written = write(parser.parse_args(arguments).folder)
    print(f"{len(written)} pages, from {written[0].parent / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
