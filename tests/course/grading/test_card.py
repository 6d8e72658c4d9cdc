"""A lesson's card: fields are read as people write, a first mistake hides the key, points fill the ring."""

import pytest

from course.grading import Checks, Question, close_to
from course.grading.card import CheckCard
from course.grading.check_session import COURSE, interview_line, ring


@pytest.mark.parametrize(
    ("written", "read"),
    [("1,024", 1024.0), ("30%", 30.0), (" 8.3 ", 8.3), ("1,5", "1,5"), ("never", "never"), ("", "")],
)
def test_numbers_as_people_write_them(written: str, read: object) -> None:
    assert Question("?").read(written) == read
    assert Question("?", many=True).read("295, never") == ["295", "never"]


@pytest.mark.parametrize(
    ("unit", "value", "forms"),
    [
        ("s", 0.027, ("0.027", "27 ms", "27ms", "about 0.027 s", "27 milliseconds", "2.7e-2", "27,000 µs")),
        ("MB", 491.5, ("491.5 MB", "0.4915 GB", "491,500 kB", "491.5 megabytes", "at most 491.5")),
        ("%", 18, ("18", "18%", "18 percent", "9/50")),
        ("0 to 1", 0.68, ("0.68", ".68", "68%", "68 percent", "17/25")),
        ("times", 7.9, ("7.9", "7.9x", "7.9 times", "790%", "7.9 times as much")),
        ("cores", 1, ("1", "1 core")),
        ("tokens", 5100, ("5100", "5,100 tokens", "5.1k", "~5.1k tokens")),
        ("requests in flight", 24, ("24", "24 requests", "24 req", "24 requests in flight")),
        ("service times", 4.5, ("4.5", "4.5 service times", "4.5 times")),
        ("median gaps", 5.2, ("5.2", "5.2 gaps")),
        ("$", 2.15, ("$2.15", "2.15", "2.15 dollars")),
        ("$ an hour", 4, ("$4", "4", "4 dollars", "4 dollars an hour", "$4/h", "4 USD per hour")),
    ],
)
def test_an_answer_counts_in_any_unit_of_its_kind(unit: str, value: float, forms: tuple[str, ...]) -> None:
    for form in forms:
        assert Question("?", unit).read(form) == pytest.approx(value), form


def test_what_is_no_such_number_stays_text_and_says_what_is_wanted() -> None:
    for written in ("27 MB", "10 - 11", "10,4", "soon", "24 bananas", "2/0", "1/2/3"):
        assert Question("?", "s").read(written) == written
    for unit, written in (
        ("median gaps", "5.2%"),
        ("median gaps", "$5"),
        ("$ an hour", "4%"),
        ("$ an hour", "4 USD a day"),
    ):
        assert Question("?", unit).read(written) == written
    read = Checks({"q": lambda answer: (close_to(answer, 0.027, "x"),)}, {"q": Question("?", "s")})
    assert read("q", "27 ms").score == read("q", 0.027).score == 1, "in code as on the card"
    assert "one number" in str(Checks({"q": lambda answer: (close_to(answer, 2, "x"),)})("q", "27 MB"))
    for written in ("queue, prefill, first token", "queue; prefill; and first token", "queue -> prefill → first token"):
        assert Question("?", many=True).read(written) == ["queue", "prefill", "first token"]


def made_card() -> CheckCard:
    graders = {
        "q1": lambda answer: (close_to(answer, 8.3, "floor, ms"),),
        "q2": lambda answer: (close_to(answer, 2, "x"),),
    }
    return Checks(graders, {"q1": Question("How long?", "ms"), "q2": Question("Which?", options=("1", "2"))}).card()


def test_the_key_comes_with_the_second_mistake() -> None:
    card = made_card()
    assert card.answer("q1") is None and card.answer("q2") is None, "nothing was written"
    card.fields["q1"].value = "100"
    card.answer("q1")
    assert "8.3" not in card.told["q1"].value and "You said 100" in card.told["q1"].value
    card.answer("q1")
    assert "8.3" in card.told["q1"].value
    card.fields["q1"].value = "8.2"
    assert card.answer("q1").score == 1 and card.session.shares == {"q1": 1.0, "q2": 0.0}
    card.fields["q1"].value = "100"
    card.answer("q1")
    assert card.session.shares["q1"] == 1.0, "the best answer counts"


def test_the_ring_is_filled_by_the_share_of_the_points() -> None:
    empty, half, whole = (float(ring(share).split('stroke-dasharray="')[1].split()[0]) for share in (0, 0.5, 1))
    assert empty == 0 and whole == pytest.approx(2 * half, abs=0.02)


def test_each_lesson_with_a_check_has_a_line_to_say() -> None:
    asking = [path.name.partition("_")[0] for path in COURSE.glob("[0-9]*.py") if "check.card()" in path.read_text()]
    assert len(asking) == 24 and all(len(interview_line(lesson).split()) > 20 for lesson in asking)
    assert interview_line("99") == ""
