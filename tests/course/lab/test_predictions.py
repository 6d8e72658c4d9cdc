"""A prediction is locked before the run, cannot be changed after, and is scored from what was measured."""

import json
from pathlib import Path

import pytest
from made_run import bordered, made_config, made_run, with_views

from course.lab.build import lesson_sources, read_source
from course.lab.lab import Lab
from course.lab.predict import LockedError, MeasuredAnswer, Prediction, gained_most, grew_most
from course.lab.run import Run
from course.lab.style import seconds

ROOT = Path(__file__).parents[3]
PHASES = ["queue", "prefill", "first token", "decode", "stream"]


def test_a_locked_prediction_cannot_be_changed() -> None:
    bet = Prediction("which?", PHASES).choose("decode")
    bet.lock_button.click()
    assert bet.locked
    assert bet.picker.disabled
    with pytest.raises(LockedError):
        bet.choose("queue")
    assert bet.choice == "decode"


def test_an_open_prediction_learns_nothing_of_the_outcome() -> None:
    bet = Prediction("which?", PHASES).choose("decode")
    assert "queue" not in str(bet.score(MeasuredAnswer("queue", "queue grew most")))


def test_a_bet_locked_after_the_run_is_scored_against_that_run() -> None:
    """Running it again would leave pictures of the old run beside figures of the new one."""
    bet = Prediction("which?", PHASES).choose("decode")
    bet.score(MeasuredAnswer("queue", "an older run"))
    bet.score(MeasuredAnswer("queue", "queue grew most"))
    assert "queue" not in bet.verdict.value
    bet.lock_button.click()
    assert bet.below.asked == 0 and "Not this time" in bet.verdict.value and "queue grew most" in bet.verdict.value


def test_a_bet_locked_before_anything_ran_runs_it() -> None:
    bet = Prediction("which?", PHASES).choose("decode")
    bet.score(None)
    bet.lock_button.click()
    assert bet.below.asked == 1 and not bet.verdict.value


def test_the_key_is_measured_and_quoted() -> None:
    few, many = made_run(num_requests=1), made_run(num_requests=12, config=made_config(max_num_seqs=2))
    outcome = grew_most(few, many)
    assert outcome.answer == "queue"
    assert seconds(many.mean_phases()["queue"]) in outcome.evidence
    right = Prediction("which?", PHASES).choose("queue").lock().score(outcome)
    wrong = Prediction("which?", PHASES).choose("stream").lock().score(outcome)
    assert str(right).startswith("Right")
    assert str(wrong).startswith("Not this time")
    assert "stream" in str(wrong)
    assert outcome.evidence in str(wrong)


def grown(**by: float) -> tuple[Run, Run]:
    """Two runs of one request between which these phases grew by so many seconds."""
    run, more = made_run(num_requests=1), [by.get(phase.replace(" ", "_"), 0.0) for phase in PHASES]

    def taking(seconds: list[float]) -> Run:
        return with_views(run, lambda row: {"borders": bordered(row, *seconds)})

    return taking([1.0] * len(PHASES)), taking([1.0 + each for each in more])


def test_phases_that_grew_alike_count_both_and_the_text_says_so() -> None:
    outcome = grew_most(*grown(queue=1.0, prefill=0.95, decode=0.85))
    assert (outcome.answer, outcome.also) == ("queue", ("prefill",))
    for choice, verdict in (("queue", "Right"), ("prefill", "Right"), ("decode", "Not this time")):
        said = str(Prediction("which?", PHASES).choose(choice).lock().score(outcome))
        assert said.startswith(verdict)
        assert "queue (1 s to 2 s) and prefill (1 s to 1.95 s) grew equally (within 10%), so each counts" in said


@pytest.mark.parametrize(("grew", "told"), [(0.0, True), (0.02, True), (0.03, False)])
def test_what_did_not_grow_decides_no_bet(grew: float, told: bool) -> None:
    """Each phase takes a second: half a percent of E2E is 25 ms."""
    assert isinstance(grew_most(*grown(prefill=grew)), str) == told


def test_a_number_is_not_locked_before_somebody_said_it() -> None:
    bet = Prediction("how many?", unit="chats", whole=True)
    assert bet.choice is None
    with pytest.raises(ValueError, match="choose"):
        bet.lock()
    bet.lock_button.click()
    assert not bet.locked and "If 0 is what you mean" in bet.message.value
    bet.picker.value = 3
    bet.lock_button.click()
    assert bet.locked and bet.choice == 3


def test_a_count_below_zero_cannot_be_said() -> None:
    bet = Prediction("how many?", unit="chats", whole=True).choose(-3)
    assert bet.lock().choice == 0 and "-3" not in bet.message.value


def test_zero_can_be_said_and_is_right_where_it_is_measured() -> None:
    typed = Prediction("how many?", whole=True)
    for _ in range(2):  # the second press is by somebody who means it
        typed.lock_button.click()
    said = Prediction("how long?", unit="s").choose(0).lock()
    for bet in (typed, said):
        assert bet.locked and str(bet.score(MeasuredAnswer(0.0, "none"))).startswith("Right")


def test_no_key_from_a_run_that_is_not_done() -> None:
    assert grew_most(made_run(), made_run(until=0.3)) is None
    assert grew_most(None, made_run()) is None
    assert "no run" in str(Prediction("which?", PHASES).choose("queue").lock().score(None))


@pytest.mark.parametrize(("said", "verdict"), [(2.0, "Right"), (3.0, "Close"), (0.2, "Not"), (0.0, "Not")])
def test_numbers_are_scored_by_their_factor(said: float, verdict: str) -> None:
    score = Prediction("how long?", unit="s").choose(said).lock().score(MeasuredAnswer(2.2, "it took 2.2 s"))
    assert str(score).startswith(verdict)


@pytest.mark.parametrize(
    ("said", "verdict"), [(4, "Right"), (5, "Close"), (4.63, "Close"), (6, "Close"), (17, "Not"), (0, "Not")]
)
def test_a_count_is_right_only_when_it_is_exact(said: float, verdict: str) -> None:
    bet = Lab(short=True).predict("seats", "how many?", unit="chats", whole=True)
    assert str(bet.choose(said).lock().score(MeasuredAnswer(4.0, "4 of 5 ran"))).startswith(verdict)


@pytest.mark.parametrize(("a", "b", "answer"), [(0.5, 0.9, "A"), (0.9, 0.5, "B"), (0.5, 0.55, "tie")])
def test_gains_that_are_close_are_a_tie(a: float, b: float, answer: str) -> None:
    outcome = gained_most({"A": 2.0, "B": 4.0}, {"A": 2 * a, "B": 4 * b}, "tie", "E2E")
    assert outcome.answer == answer and outcome.evidence.startswith("E2E: A 2 s to")


def test_locking_by_the_button_runs_what_decides_it_once() -> None:
    """And only if that's a set-up in which a page may run cells; `lock()` in code leaves it to the code."""
    bet = Prediction("?", ["a", "b"])
    bet.lock_button.click()
    assert bet.below.asked == 0, "nothing was chosen"
    bet.choose("a")
    bet.lock_button.click()
    bet.lock_button.click()
    assert bet.below.asked == 1
    assert Prediction("?", ["a"]).choose("a").lock().below.asked == 0
    config = json.loads((ROOT / "binder" / "jupyter_server_config.json").read_text())
    assert config["LabApp"]["expose_app_in_browser"] is True


@pytest.mark.parametrize("path", lesson_sources(), ids=lambda path: path.stem)
def test_what_scores_a_bet_is_near_below_it(path: Path) -> None:
    """run_below.js runs at most four code cells, up to the one that scores."""
    codes = [cell.source for cell in read_source(path).cells if cell.cell_type == "code"]
    for place, code in enumerate(codes):
        if "lab.predict(" in code:
            assert any(".score(" in below for below in codes[place + 1 : place + 5]), code
