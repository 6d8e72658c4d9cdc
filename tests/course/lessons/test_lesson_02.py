"""Lesson 02: stamps, theory, Little's law, the curve; every slider moves something; verdicts can go either way."""

from dataclasses import replace

import pytest
from made_run import bordered, made_config, made_run, with_views

from course.lab import queueing
from course.lab.lab import Lab
from course.lab.run import Run
from course.lab.visits import longest_queue, mean, queue_length, visits_of, waits
from course.lessons.lesson_02 import check as grading
from course.lessons.lesson_02 import pictures, simulated, words
from course.lessons.lesson_02 import run as lesson

pytestmark = pytest.mark.usefixtures("short_form")


CALM = made_run(num_requests=8, config=made_config(max_num_seqs=1), apart=2.0)
CROWDED = made_run(num_requests=8, config=made_config(max_num_seqs=1), apart=0.1)


# ---------------------------------------------------------------- stamps and theory


def test_a_request_waits_runs_and_ends() -> None:
    visits = visits_of(made_run(num_requests=8))
    assert len(visits) == 8 and all(
        v.ending == "answered" and v.arrival <= v.scheduled < v.first <= v.left for v in visits
    )
    assert [v.is_waiting(0.01) for v in visits] == [v.scheduled > 0.01 for v in visits]
    assert longest_queue(visits) == sum(v.scheduled > v.arrival for v in visits) > 0 == queue_length(visits, 1e6)


def test_a_running_request_is_not_counted_as_gone() -> None:
    visits = visits_of(made_run(num_requests=8, until=0.5))
    assert any(v.left is None and v.scheduled is not None for v in visits)
    assert queue_length(visits, 0.5) == sum(v.scheduled is None for v in visits) > 0


def test_the_formulas_and_the_replay_agree_in_the_long_run() -> None:
    for service_cv in (0.0, 1.0):
        long_run = mean(queueing.mean_waits(0.8, 1.0, service_cv, 20_000, 4))
        assert long_run == pytest.approx(queueing.mg1_wait(0.8, service_cv), rel=0.1)
    assert queueing.mg1_wait(0.8, 1.0) == 2 * queueing.md1_wait(0.8) and queueing.md1_wait(1.0) == float("inf")
    assert max(queueing.mean_waits(0.9, 0.0, 0.0, 100, 1)) < 1e-9, "a clock makes no queue"
    with pytest.raises(ValueError, match="load"):
        queueing.md1_wait(-0.1)


def test_the_bet_is_decided_by_a_run_long_enough() -> None:
    runs = {"50%": CALM, "80%": CROWDED, "95%": CROWDED}
    outcome = lesson.growth(runs)
    assert outcome.answer == pytest.approx(queueing.md1_wait(0.95) / queueing.md1_wait(0.5), rel=0.2)
    assert outcome == lesson.growth(runs), "the same runs, the same answer"
    low, high = lesson.short_scatter(runs)
    assert low < 19 and high / low > 2, "eight arrivals tell little"
    assert "x**" in str(words.growth(runs))


def test_littles_law_by_two_routes() -> None:
    for run in (CALM, CROWDED, made_run(num_requests=8)):
        visits = visits_of(run)
        assert pictures.counted(visits) == pytest.approx(pictures.little(visits), rel=0.05, abs=0.05)


# ---------------------------------------------------------------- pictures


def test_the_curve_follows_its_sliders() -> None:
    explorer = pictures.wait_curve()
    assert "by formula: 2" in explorer.view.value
    explorer.set(arrivals="in bursts")
    assert "by formula: 8" in explorer.view.value
    explorer.set(load=115, services="like chats")
    assert explorer.error is None and "no mean" in explorer.view.value


def test_above_capacity_the_wait_climbs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILLM_SHORT", "0")
    assert "climbs for as long as you send, and" in str(words.overload(simulated.waits_over_time((0.8, 1.3))))


# ---------------------------------------------------------------- on the real engine


def test_the_live_queue_runs_the_engine(tiny_lab: Lab) -> None:
    run = lesson.measure_capacity(tiny_lab)
    live = pictures.LiveQueue(tiny_lab, lesson.capacity(run), run)
    first = live.view.value
    assert "of 1 slots" in first
    live.set(load="150%", slots=2)
    live.press()
    live.wait()
    assert live.error is None and live.view.value != first and "150%, 2 slots" in live.view.value
    assert len(live.run.finished) == 16 and live.run.config.max_num_seqs == 2


def test_a_disturbed_run_does_not_set_the_capacity(tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    quick, slow = lesson.measure_capacity(tiny_lab), lesson.measure_capacity(tiny_lab)
    quick, slow = sorted((quick, slow), key=lesson.capacity, reverse=True)
    for runs in ([slow, quick], [quick, slow]):
        plays = iter(runs)
        monkeypatch.setattr(tiny_lab, "run", lambda *_, plays=plays, **__: next(plays))
        assert lesson.measure_capacity(tiny_lab) is quick


def test_loads_are_the_same_requests_only_faster(tiny_lab: Lab) -> None:
    runs = [lesson.at_load(tiny_lab, 100.0, load) for load in (0.5, 1.0)]
    slow, fast = ([a.offset for a in run.arrivals] for run in runs)
    assert slow == pytest.approx([2 * moment for moment in fast])
    assert {a.max_tokens for a in runs[0].arrivals} == {1}


# ---------------------------------------------------------------- verdicts and graders


def test_a2_depends_on_what_fewer_bits_do() -> None:
    runs = {"50%": CALM, "95%": CROWDED}
    no, yes = {"bf16": 1.0, "int8": 1.1, "fp8": 0.9}, {"bf16": 1.0, "int8": 0.1, "fp8": 0.1}
    assert words.a2(runs, {"x": no}).verdict.startswith("holds in")
    found = words.a2(runs, {"x": no, "memory": yes})
    assert found.kind == "only when" and "1 of 2 servers (memory)" in found.verdict
    assert "int8 in 'x'" in found.verdict
    assert words.a2({"50%": CROWDED, "95%": CROWDED}, {"x": no}).kind == "not shown"


def test_quantization_helps_a_queue_that_is_short_of_memory() -> None:
    found = simulated.quantized_waits()
    memory = next(by for case, by in found.items() if "memory" in case)
    assert memory["int8"] < memory["bf16"]
    assert len(found) == len(simulated.CASES)


def test_graders_reward_right_and_explain_wrong() -> None:
    check = grading.checks({"80%": CROWDED})
    visits = visits_of(CROWDED)
    assert check("q1", pictures.little(visits)).score == 1
    assert check("q1", mean(waits(visits))).score == 0
    assert check("q2", queueing.md1_wait(0.9)).score == 1 and "exponential" in str(check("q2", 9))
    assert check("q3", 8).score == 1 and "M/D/1" in str(check("q3", 2))
    assert check("q4", 200).score == 1 and check("q4", 250).score == 0


@pytest.mark.parametrize(
    ("both_s", "told"),
    [(0.021, "100% load on one slot is about"), (0.032, "less than a second server"), (0.041, "adds nothing")],
)
def test_what_a_second_slot_adds_is_told_by_the_step_that_both_share(both_s: float, told: str) -> None:
    """Eight questions, a step for each of 20 ms; or a step for two."""

    def flat_out(slots: int, step_s: float) -> Run:
        run = made_run(num_requests=8, prompt=20, output=1, config=made_config(max_num_seqs=slots))
        run = with_views(run, lambda row: {"borders": bordered(row, 0, 0, 0, step_s * (row.index // slots + 1), 0)})
        return replace(run, steps=tuple(replace(step, end=step.start + step_s) for step in run.steps))

    assert told in str(words.second_slot(flat_out(1, 0.02), flat_out(2, both_s)))


def test_uneven_answers_add_their_spread_to_the_wait() -> None:
    spread = words.spread_of(simulated.CHAT.output)
    exact = queueing.mg1_wait(0.8, spread) / queueing.md1_wait(0.8)
    assert f"× {exact:.1f}" in str(words.three_numbers()) and "0.5, 2, 9.5" in str(words.three_numbers())
