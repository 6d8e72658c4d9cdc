"""Graded checks: keys from runs, partial credit, feedback on the mistake, never an exception for a learner."""

import numpy as np
import pytest
from asserting import GARBAGE
from made_run import made_config, made_run

from course.grading import Checks, Criterion, WrongAnswerError, close_to, near
from course.lab.run import phases_of
from course.lessons.lesson_00.check import checks as lesson_00
from course.lessons.lesson_01.check import checks as lesson_01
from course.lessons.lesson_02.check import checks as lesson_02

ONE, EIGHT = made_run(num_requests=1, output=30), made_run(num_requests=8)
SERVICES = {
    "A": made_run(num_requests=10, config=made_config(max_num_seqs=1)),
    "B": made_run(num_requests=1, output=60),
}


def ttft(index: int) -> float:
    return sum(list(phases_of(EIGHT.row_of(index)).values())[:3])


@pytest.fixture
def check00():
    return lesson_00(ONE, EIGHT)


@pytest.fixture
def check01():
    return lesson_01(SERVICES, SERVICES["A"])


def test_right_answers_earn_everything(check00, check01) -> None:
    for result in (
        check00("q1", "Decode"),
        check00("q2", ttft(7)),
        check00("q3", ["queue", "prefill", "first token"]),
        check01("q1", "queue"),
        check01("q2", "decode"),
    ):
        assert result.score == result.max_score


def test_keys_move_with_the_run() -> None:
    assert lesson_00(made_run(num_requests=1, output=2), EIGHT)("q1", "prefill").score == 1


def test_a_key_of_zero_is_met_by_zero_only() -> None:
    assert close_to(0, 0.0, "people in line").earned == 1
    assert close_to(0.5, 0.0, "people in line").earned == close_to(-1e9, 0.0, "people in line").earned == 0


@pytest.mark.parametrize(
    "answer", [True, np.True_, b"1", bytearray(b"1"), 1 + 0j, np.complex128(1), "true", [1], np.array([1.0])]
)
def test_what_python_can_turn_into_a_number_is_none_for_all_that(answer: object) -> None:
    check = Checks({"q": lambda said: (close_to(said, 1.0, "seconds"),)})
    assert check("q", answer).score == 0 and "it takes one number" in str(check("q", answer))


def test_a_count_is_not_rounded(check01) -> None:
    assert [check01("q4", answer).score for answer in (2, "2", 2.0, np.int8(2), 2.9)] == [1, 1, 1, 1, 0]


@pytest.mark.parametrize("question", ["q1", "q4", "no such question", None, ["q1"]])
def test_no_answer_to_any_question_raises(check01, question: object) -> None:
    for answer in (*GARBAGE, "a" * 100_000):
        result = check01(question, answer)
        assert result.score == 0 and len(str(result)) < 1000


def test_a_near_miss_is_not_taken_for_a_slip_further_off() -> None:
    slips = {1.1: "that is the whole"}
    judged = {value: near(value, 1.0, "seconds", slips, slip_within=0.01) for value in (1.07, 1.105)}
    assert judged[1.07].earned == 0.5 and "the whole" not in judged[1.07].feedback
    assert judged[1.105].earned == 0 and "the whole" in judged[1.105].feedback


def test_a_run_in_which_nobody_waited_can_be_asked_about() -> None:
    nobody = {"80%": made_run(num_requests=1)}
    q1 = lesson_02(nobody)
    assert q1("q1", 0).score == 1 and q1("q1", 3).score == 0


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ZeroDivisionError, "cannot be told from this run"),
        (KeyError, "could not read"),
        (IndexError, "could not read"),
        (AttributeError, "could not read"),
        (OverflowError, "could not read"),
    ],
)
def test_a_check_that_stumbles_says_so_and_never_raises(error: type[Exception], words: str) -> None:
    def stumbles(answer: object) -> tuple[Criterion, ...]:
        raise error("in the grader")

    result = Checks({"q1": stumbles})("q1", 1)
    assert result.score == 0 and words in str(result)


def test_partial_credit(check00) -> None:
    result = check00("q3", ["prefill", "queue"])
    assert 0 < result.score < result.max_score


def test_tpot_with_the_first_token_in_it_is_recognized(check01) -> None:
    view = SERVICES["B"].row_of(0)
    e2e = view.borders[-1] - view.borders[0]
    wrong = 1000 * e2e / view.num_output_tokens
    right = 1000 * (e2e - (view.deliveries[0] - view.borders[0])) / (view.num_output_tokens - 1)
    assert "first token" in str(check01("q3", wrong)) or abs(wrong / right - 1) < 0.03
    assert check01("q3", right).score == 1


@pytest.mark.parametrize("answer", [..., None, 3, "tea", [], object(), {"queue"}, float("nan"), "", -1])
@pytest.mark.parametrize("question", ["q1", "q2", "q3", "q4", "q9"])
def test_no_answer_raises(check00, check01, question: str, answer: object) -> None:
    for check in (check00, check01):
        result = check(question, answer)
        assert result.score <= result.max_score
        assert str(result)


def test_dots_in_one_of_two_places_are_no_answer_yet() -> None:
    check = Checks({"q1": lambda answer: (close_to(answer[0], 1.0, "first"),)})
    assert "not answered yet" in str(check("q1", (..., 2))) and check("q1", (1, 2)).score == 1


def test_strict_raises(check00) -> None:
    with pytest.raises(WrongAnswerError, match="q1"):
        check00("q1", "stream", strict=True)
    check00("q1", "decode", strict=True)
