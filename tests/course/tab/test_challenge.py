"""The number to beat in a browser tab: the terminal's score, and its refusals."""

import pytest

from course.challenge.entry import EntryError
from course.challenge.result import score
from course.challenge.rounds import Round
from course.tab import challenge


@pytest.mark.slow
def test_a_file_scores_as_in_a_terminal() -> None:
    text = challenge.exported()["starter"]
    entry = challenge.Entry(challenge.FILE, text)
    assert challenge.play(text, 2) == score(entry, Round.of_seeds([2])).to_dict()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import os\n", "uses `import os`"),
        ("x = 1\n", "no class Policy"),
        ("class Policy:\n    pass\n", "no method admit"),
        (challenge.exported()["starter"].replace("class Policy:", "1 / 0\nclass Policy:"), "ZeroDivisionError"),
        (challenge.exported()["starter"].replace("return int(fewest.number)", "return 7"), "a replica's number"),
    ],
)
def test_a_file_that_breaks_a_rule_is_told_which(text: str, words: str) -> None:
    with pytest.raises(EntryError, match=words):
        challenge.play(text, 1)
