"""Each folder's README says, in ten lines, what may be touched for what. What it names is there."""

import re
from pathlib import Path

import pytest
from pages import ROOT

BOOKS = ("minillm", "course", "tests")
FOLDERS = [
    folder
    for book in BOOKS
    for folder in (ROOT / book, *(ROOT / book).iterdir(), *(ROOT / book / "kernels").glob("*/"))
    if (folder.is_dir() and any(folder.glob("*.py"))) or folder.name in ("engine", "lessons")
]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_a_readme_of_ten_lines_is_true(folder: Path) -> None:
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 10
    for name in re.findall(r"`([\w./-]+(?:\.\w+|/))`", text):
        if not name.startswith("."):  # a suffix such as .py
            assert (folder / name).exists() or (ROOT / name).exists() or is_in_a_room(folder, name), name


def test_files_that_comments_of_the_engine_name_are_there() -> None:
    """A file that was moved leaves sentences behind which send a reader nowhere."""
    path = re.compile(r"(?<![\w/.:-])[a-z_0-9]+(?:/[a-z_0-9]+)+\.(?:py|cpp|h)\b")
    for file in (ROOT / "minillm").rglob("*.py"):
        places = (ROOT, ROOT / "minillm", *file.parents)
        for name in path.findall(file.read_text(encoding="utf-8")):
            assert "flash_attn" in name or any((place / name).exists() for place in places), f"{file}: {name}"


def is_in_a_room(folder: Path, name: str) -> bool:
    """The README of the lessons speaks of files that their rooms have."""
    return folder.name == "lessons" and any(folder.glob(f"*/{name}"))
