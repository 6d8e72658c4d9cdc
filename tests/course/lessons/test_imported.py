"""Progress from elsewhere: nothing is lost by taking it in, and what is no progress changes nothing."""

import json
from datetime import UTC, datetime
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from made_progress import BOTH, HERE, THERE, unordered

from course.grading.exercises import find
from course.grading.history import History
from course.lessons.start import cards, resume
from course.lessons.start.imported import NoProgressError, bring_in


def bytes_of(held: object) -> bytes:
    return json.dumps(held).encode()


@pytest.mark.parametrize("order", [(HERE, THERE), (THERE, HERE), (HERE, THERE, HERE)], ids=["to", "fro", "again"])
def test_the_better_result_stays_and_what_happened_is_there_once(home: Path, order: tuple[dict[str, Any], ...]) -> None:
    for held in order:
        assert "daily.json" in bring_in(bytes_of(held))
    assert unordered(resume.kept_contents()) == unordered(BOTH)
    standing = History().standing(find("percentiles"))
    assert standing.attempts == 3 and standing.best == standing.max_score


def test_a_copy_of_the_start_page_is_all_that_another_machine_needs(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring_in(bytes_of({**BOTH, "exercises.jsonl": BOTH["exercises.jsonl"].partition("\n")[0]}))
    (home / "roof.json").write_text("{}")
    copy = resume.kept_contents()
    assert isinstance(copy["exercises.jsonl"], dict), "a single line is parsed by the export"
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path / "another"))
    assert "Left out, since it was measured or typed on the other machine: roof.json" in bring_in(bytes_of(copy))
    del copy["roof.json"]
    assert resume.kept_contents() == copy


def test_of_a_review_card_the_later_review_stays(home: Path) -> None:
    reviews = [json.dumps({"last_review": datetime(2026, 11, day, tzinfo=UTC).isoformat()}) for day in (2, 9)]
    for earlier, later in permutations(reviews):
        bring_in(bytes_of({"cards.json": {"opted_in": True, "cards": {"floor": earlier, later: "unreadable"}}}))
        bring_in(bytes_of({"cards.json": {"cards": {"floor": later}}}))
    kept = cards.SCHEDULE_FILE.read()
    assert kept.opted_in and kept.cards["floor"] == reviews[1] and len(kept.cards) == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "isn't JSON"),
        (b"\xff\xfe{", "isn't JSON"),
        (b'{"daily.json": {"days": {"2026-11-27": {"score": NaN, "questions": 1}}}}', "isn't JSON"),
        (b"[1]", "no progress of this course"),
        (bytes_of({"format": "minillm-learner-1", "lessons": {}}), "no progress of this course"),
        (bytes_of({**HERE, "drills.json": {"done": [{}]}}), "drills.json in this file is damaged"),
        (bytes_of({**HERE, "progress.json": {"lessons": {"06": 3}}}), "progress.json in this file is damaged"),
        (bytes_of({**HERE, "exercises.jsonl": "cut off {"}), "exercises.jsonl in this file is damaged"),
        (bytes_of({**HERE, "rounds.json": "weights"}), "rounds.json in this file is damaged"),
    ],
)
def test_what_is_no_progress_is_told_in_a_sentence_and_changes_nothing(home: Path, text: bytes, words: str) -> None:
    with pytest.raises(NoProgressError, match=r"^Nothing was imported: ") as told:
        bring_in(text)
    assert words in str(told.value)
    assert not home.exists()


def test_the_start_page_takes_a_file(home: Path) -> None:
    keeping = resume.keep_or_reset()
    file = {"name": "p.json", "type": "", "size": 0, "last_modified": datetime.now(UTC)}
    keeping.bring.value = ({**file, "content": memoryview(b"[]")},)
    assert "no progress of this course" in keeping.view.value and not home.exists()
    keeping.bring.value = ({**file, "content": memoryview(bytes_of(HERE))},)
    assert "Imported: " in keeping.view.value and "how you did in the sums of the day" in keeping.view.value
    keeping.reset.click()
    assert keeping.bring not in keeping.buttons.children, "beside a question there is nothing but its answers"
    keeping.reset.click()
    assert "Nothing is stored" in keeping.view.value
    keeping.bring.value = ({**file, "content": memoryview(bytes_of(HERE))},)
    assert "Imported: " in keeping.view.value, "the same file again"
