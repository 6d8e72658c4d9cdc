"""What the tests of several lessons ask of a picture and of a check."""

import xml.etree.ElementTree as ET

from course.grading import Checks
from course.lab.svg import Picture


class Hostile:
    """Raises whatever it's asked."""

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError(f"no {name}")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __hash__ = None  # type: ignore[assignment]


GARBAGE = (
    *(..., None, "tea", [], {}, ["x", "y", "z"], [None] * 3, object(), float("nan"), float("inf"), -1, 0, 10**400),
    *(True, "True", b"4", {1}, (n for n in "ab"), len, complex(1, 1), "9" * 5000, "1e999", Hostile(), [Hostile()] * 3),
)


def shows(picture: Picture, *words: str) -> None:
    """Valid XML, with these words in it or in its text alternative."""
    ET.fromstring(picture.svg())
    for each in words:
        assert each in picture.svg() or each in picture.alternative, each


def rewards(check: Checks, *answers: object) -> None:
    """These answers, q1's first, earn everything, and garbage does not."""
    for number, answer in enumerate(answers, start=1):
        result = check(f"q{number}", answer)
        assert result.score == result.max_score, str(result)
    refuses_garbage(check, len(answers))


def refuses_garbage(check: Checks, num_questions: int) -> None:
    """No answer raises, and none of these earns everything."""
    for number in range(1, num_questions + 1):
        for answer in GARBAGE:
            result = check(f"q{number}", answer)
            assert result.score < result.max_score, (number, answer)
