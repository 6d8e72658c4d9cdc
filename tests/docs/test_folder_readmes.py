"""Each folder's README says, in ten lines, what may be touched for what. What it names is there."""

import re
from pathlib import Path

import pytest
from pages import ROOT

BOOKS = ("minillm", "course", "tests")
SPOKEN_FOR = (
    "course/data/example_runs/",
    "course/data/site",
    "course/lab/view/recorded",
    "course/lessons/",
    "minillm/speculation/heads/",
    "tests/course/grading/right",
    "tests/course/grading/wrong",
    "tests/course/notebooks/without",
)
"""Folders whose paths begin so need no README of their own: the one above says what they are."""


def folders() -> list[str]:
    """Each folder with a file in it or below, but for those that are spoken for."""
    files = (file.relative_to(ROOT) for book in BOOKS for file in (ROOT / book).rglob("*") if file.is_file())
    written = [file for file in files if not any(part.startswith((".", "__pycache__")) for part in file.parts)]
    found = {folder.as_posix() for file in written for folder in file.parents} - {"."}
    return sorted(folder for folder in found if not folder.startswith(SPOKEN_FOR))


@pytest.mark.parametrize("path", folders())
def test_a_readme_of_ten_lines_is_true(path: str) -> None:
    folder = ROOT / path
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 10
    for name in re.findall(r"`([\w./-]+(?:\.\w+|/))`", text):
        if "/" in name or not name.startswith("."):  # .py alone is a suffix
            assert (folder / name).exists() or (ROOT / name).exists() or is_in_a_room(folder, name), name


@pytest.mark.parametrize("path", [path for path in SPOKEN_FOR if not path.endswith("/")])
def test_a_folder_that_is_spoken_for_is_named_above(path: str) -> None:
    assert f"`{Path(path).name}/`" in (ROOT / path).with_name("README.md").read_text(encoding="utf-8")


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
