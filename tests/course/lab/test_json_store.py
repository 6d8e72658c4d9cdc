"""Small files that are kept for a learner: nothing in them is lost, whoever else writes."""

import json
from pathlib import Path

import pytest
from filelock import FileLock

from course.lab import json_store, progress
from course.lab.progress import LessonRecord, Progress


def test_each_broken_file_has_a_name_of_its_own_and_the_learner_is_told(home: Path) -> None:
    home.mkdir()
    said: list[str] = []
    file = json_store.JsonStore("progress.json", Progress, say=said.append)
    broken = (b"", b'{"lessons": {"06":', b"\xff\xfe", b'{"lessons": []}', b"[]")
    for content in broken:
        (home / "progress.json").write_bytes(content)
        assert file.read() == Progress()
    aside = [home / "progress.broken", *(home / f"progress.broken-{number}" for number in range(2, 6))]
    assert tuple(path.read_bytes() for path in aside) == broken
    assert len(said) == 5 and "progress.broken-2" in said[1]


def test_what_another_notebook_has_just_written_anew_is_not_put_aside(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir()
    path = home / "progress.json"
    path.write_bytes(b"cut off")
    file = json_store.JsonFile(path, Progress)
    lock = file._lock

    def after_the_other() -> FileLock:
        path.write_text(
            Progress(lessons={"06": LessonRecord(opened="2026-01-01", last="2026-01-01")}).model_dump_json()
        )
        return lock()

    monkeypatch.setattr(file, "_lock", after_the_other)
    assert set(file.read().lessons) == {"06"}
    assert not list(home.glob("*.broken*"))


def test_fields_of_a_newer_version_stay(home: Path) -> None:
    progress.note_opened()
    path = home / "progress.json"
    newer = json.loads(path.read_text())
    newer["badges"] = ["early"]
    newer["lessons"]["06"]["notes"] = "mine"
    path.write_text(json.dumps(newer))
    progress.note_check("q1", 1, 1)
    now = json.loads(path.read_text())
    assert now["badges"] == ["early"] and now["lessons"]["06"]["notes"] == "mine" and now["lessons"]["06"]["checks"]
