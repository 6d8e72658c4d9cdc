"""Notebooks to work in: `python binder/copies.py` copies the course's to my/, where runs overwrite nothing in git.

A copy that was not touched follows its original; one that was is kept. In a copy, outputs are marked as an example run,
no cell looks as if it had been run, and pictures follow JupyterLab's theme. All else in my/ is a link to where it lies,
so that the notebooks' own links lead somewhere.
"""

import base64
import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

FOLDERS = ("course", "exercises", "solutions")
MARKS = ".copies.json"
"""What each copy was made from, and what it was then: the SHA-256 of its original, and its own."""
EXAMPLE = "Example run"
START = "course/start.ipynb"
NOTE = {
    "output_type": "display_data",
    "metadata": {},
    "data": {
        "text/html": f'<div style="font-size:11px;opacity:.65">{EXAMPLE}, on 2 cores: yours replaces it.</div>',
        "text/plain": f"{EXAMPLE}, on 2 cores: yours replaces it.",
    },
}
PICTURE = re.compile(r'<img\b[^>]*?src="data:image/svg\+xml;base64,([^"]+)"[^>]*>')
CARD = '<rect width="100%" height="100%" rx="6" fill="#ffffff"/>'
"""What course.lab.build puts under a picture that is to stand alone."""
LANGUAGE = {
    "codemirror_mode": {"name": "ipython", "version": 3}, "file_extension": ".py", "mimetype": "text/x-python",
    "name": "python", "nbconvert_exporter": "python", "pygments_lexer": "ipython3",
    "version": platform.python_version(),
}  # fmt: skip
"""What the kernel says of itself: where a notebook says it already, JupyterLab has nothing to change when it opens."""


def refresh(root: Path, mine: Path) -> list[str]:
    """Bring `mine` up to date. Returns what the reader should know, a line each."""
    marks_file = mine / MARKS
    marks = json.loads(marks_file.read_text()) if marks_file.exists() else {}
    told = []
    for original in (file for folder in FOLDERS for file in sorted((root / folder).glob("*.ipynb"))):
        name = original.relative_to(root).as_posix()
        copy, now = mine / name, digest(original)
        was, made = marks.get(name, (None, None))
        if copy.exists() and digest(copy) != made:
            if now != was:
                told.append(f"{copy} is yours and stays; {name} is newer. Delete yours to get it.")
            continue
        if not copy.exists() or now != was:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(as_example(original.read_text(encoding="utf-8")), encoding="utf-8")
        marks[name] = now, digest(copy)
    for folder in (root, *(root / name for name in FOLDERS)):
        for entry in folder.iterdir():
            link_to(entry, mine / entry.relative_to(root), mine)
    marks_file.write_text(json.dumps(marks, indent=1))
    return told


def bring_up_to_date(mine: Path, shown: Mapping[str, Mapping[str, str]]) -> None:
    """Let the start page show today's progress before any of its cells has been run.

    Args:
        shown: by a cell's source, what it shows, as a notebook stores it. A page with other cells is left alone.
    """
    copy, marks_file = mine / START, mine / MARKS
    try:
        notebook, marks = json.loads(copy.read_text(encoding="utf-8")), json.loads(marks_file.read_text())
        cells = notebook["cells"]
    except (OSError, ValueError, LookupError):
        return  # it's the reader's, whatever it is now
    is_as_made = marks[START][1] == digest(copy)
    for cell in cells:
        if data := shown.get("".join(cell["source"])):
            cell["outputs"] = [{"output_type": "display_data", "metadata": {}, "data": dict(data)}]
    copy.write_text(json.dumps(notebook, indent=1, ensure_ascii=False), encoding="utf-8")
    if is_as_made:
        marks[START] = marks[START][0], digest(copy)
        marks_file.write_text(json.dumps(marks, indent=1))


def as_example(notebook: str) -> str:
    """A notebook to begin with: what its cells show comes from an example run, and says so."""
    content = json.loads(notebook)
    content["metadata"]["language_info"] = LANGUAGE
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            cell["execution_count"] = None
            told = any(EXAMPLE in "".join(each.get("data", {}).get("text/html", "")) for each in cell["outputs"])
            outputs = [
                {**each, "execution_count": None} if "execution_count" in each else each for each in cell["outputs"]
            ]
            for data in (each.get("data", {}) for each in outputs):
                if "text/html" in data:
                    data["text/html"] = PICTURE.sub(drawing, "".join(data["text/html"]))
            cell["outputs"] = [NOTE, *outputs] if outputs and not told else outputs
    return json.dumps(content, indent=1, ensure_ascii=False)


def drawing(found: re.Match) -> str:
    """A picture as SVG again, which follows the theme; git has it as an image, since code hosts show nothing else."""
    svg = base64.b64decode(found[1]).decode().replace(CARD, "", 1)
    return re.sub(r'width="[\d.]+" height="[\d.]+"', 'width="100%"', svg, count=1)


def link_to(entry: Path, place: Path, mine: Path) -> None:
    """A link at `place`, but for notebooks and the folders that hold them, and what is hidden."""
    is_copied = entry.suffix == ".ipynb" or (entry.name in FOLDERS and entry.parent == mine.parent)
    if is_copied or entry == mine or entry.name.startswith((".", "__")) or place.is_symlink() or place.exists():
        return
    place.symlink_to(os.path.relpath(entry, place.parent), target_is_directory=entry.is_dir())


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


if __name__ == "__main__":
    here = Path(__file__).resolve().parent.parent
    for told in refresh(here, here / "my"):
        print(f"! {told}")  # step.py shows what begins so
    from course.lessons.start.resume import shown_of_progress  # takes a second or two to import

    bring_up_to_date(here / "my", shown_of_progress())
