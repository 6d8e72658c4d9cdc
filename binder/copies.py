"""Notebooks to work in: `python binder/copies.py` copies the course's to my/, where runs overwrite nothing in git.

A copy that was not touched follows its original; one that was is kept. All else in my/ is a link to where it lies, so
that the notebooks' own links lead somewhere.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path

FOLDERS = ("course", "exercises", "solutions")
MARKS = ".originals.json"
"""What each copy was made from: the SHA-256 of its original."""


def refresh(root: Path, mine: Path) -> list[str]:
    """Bring `mine` up to date. Returns what the reader should know, a line each."""
    marks_file = mine / MARKS
    marks = json.loads(marks_file.read_text()) if marks_file.exists() else {}
    told = []
    for original in (file for folder in FOLDERS for file in sorted((root / folder).glob("*.ipynb"))):
        name = original.relative_to(root).as_posix()
        copy, now = mine / name, digest(original)
        if copy.exists() and digest(copy) != marks.get(name):
            if now != marks.get(name):
                told.append(f"{copy} is yours and stays; {name} is newer. Delete yours to get it.")
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(original, copy)
        marks[name] = now
    for folder in (root, *(root / name for name in FOLDERS)):
        for entry in folder.iterdir():
            link_to(entry, mine / entry.relative_to(root), mine)
    marks_file.write_text(json.dumps(marks, indent=1))
    return told


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
