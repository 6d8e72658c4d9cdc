"""Lesson 02: visits, theory, people in line, seats; every handle moves something; verdicts and graders can go "
"either way."""

import itertools
from dataclasses import replace

import pytest
from made_run import made_config, made_run

from course.lab.lab import Lab
from course.lab.lesson_02 import checks as grading
from course.lab.lesson_02 import claims, instrument, simulated, tables, theory, traffic
from course.lab.lesson_02.slot_map import slot_rows
from course.lab.lesson_02.visits import Visit, empty_seat_share, line_length, longest_line, visits_of, waits


@pytest.fixture(autouse=True)
def short_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILLM_SHORT", "1")


def visit(index: int, arrival: float, seated: float | None, left: float | None, **more) -> Visit:
    first = None if seated is None else seated + 0.1
    fields = {"first": first, "prompt": 200, "output": 9, "ending": "answered" if left is not None else None, **more}
    return Visit(index, arrival, seated, left=left, **fields)


ONE_AFTER_THE_OTHER = [visit(i, 0.0, float(i), i + 1.0) for i in range(4)]
CALM = made_run(num_requests=8, config=made_config(max_num_seqs=1), apart=2.0)
CROWDED = made_run(num_requests=8, config=made_config(max_num_seqs=1), apart=0.1)


# ---------------------------------------------------------------- visits and theory


def test_a_visit_waits_sits_and_leaves() -> None:
    visits = visits_of(made_run(num_requests=8))
    assert len(visits) == 8 and all(
        v.ending == "answered" and v.arrival <= v.seated < v.first <= v.left for v in visits
    )
    assert [v.in_line(0.01) for v in visits] == [v.seated > 0.01 for v in visits]
    assert longest_line(visits) == sum(v.seated > v.arrival for v in visits) > 0 == line_length(visits, 1e6)


def test_somebody_in_the_building_is_not_counted_as_gone() -> None:
    visits = visits_of(made_run(num_requests=8, until=0.5))
    assert any(v.left is None and v.seated is not None for v in visits)
    assert line_length(visits, 0.5) == sum(v.seated is None for v in visits) > 0


def test_simulated_requests_become_the_same_visits() -> None:
    run = simulated.with_queue_limit(1.3, 1)
    visits = visits_of(run)
    assert {v.ending for v in visits} == {"answered", "refused"}
    assert all((v.seated is None) == (v.ending == "refused") for v in visits)


def test_an_empty_seat_counts_only_while_somebody_waits() -> None:
    assert empty_seat_share(ONE_AFTER_THE_OTHER, 1) == 0
    assert empty_seat_share(ONE_AFTER_THE_OTHER, 2) == pytest.approx(0.5)
    assert empty_seat_share([visit(0, 0.0, 0.0, 9.0)], 4) == 0


def test_the_formula_and_the_recursion_agree_in_the_long_run() -> None:
    times = traffic.moments(0.8, 40_000, seed=3)
    long_run = sum(theory.waits_of_these(times, 1.0)) / len(times)
    assert long_run == pytest.approx(theory.md1_wait(0.8), rel=0.15)
    assert theory.mg1_wait(0.8, 1.0) == 2 * theory.md1_wait(0.8) and theory.md1_wait(1.0) == float("inf")
    with pytest.raises(ValueError, match="load"):
        theory.md1_wait(-0.1)


def test_the_short_sample_of_the_lesson_is_a_typical_one() -> None:
    waited = {x: sum(theory.waits_of_these(traffic.moments(x, 80), 1.0)) / 80 for x in traffic.LOADS}
    assert waited[0.5] == pytest.approx(theory.md1_wait(0.5), rel=0.2)
    assert waited[0.95] > 7 * waited[0.5], "the prediction's answer has room for noise"


def test_littles_law_by_two_routes() -> None:
    for run in (CALM, CROWDED, made_run(num_requests=8)):
        visits = visits_of(run)
        assert tables.heads(visits) == pytest.approx(tables.little(visits), rel=0.05, abs=0.05)


# ---------------------------------------------------------------- pictures


def test_everybody_has_a_seat_of_their_own() -> None:
    rows = slot_rows(visits_of(made_run(num_requests=8)), 4)
    assert sum(len(row) for row in rows) == 8
    assert all(a.left <= b.seated + 1e-9 for row in rows for a, b in itertools.pairwise(row))


# ---------------------------------------------------------------- on the real engine


def test_static_leaves_seats_empty_and_those_behind_pay(tiny_lab: Lab) -> None:
    static = tiny_lab.run(traffic.straggler(tiny_lab), batching="static")
    free = tiny_lab.run(traffic.straggler(tiny_lab))
    behind = [v.seated for v in visits_of(static)[4:]]
    assert min(behind) >= visits_of(static)[0].left - 0.005, "the closed batch waited for its last member"
    assert min(v.seated for v in visits_of(free)[4:]) < visits_of(free)[0].left
    assert len(static.steps) > len(free.steps), "the same tokens in more steps"
    outcome = traffic.who_pays(static, free)
    assert outcome.answer in traffic.PAYERS


def test_three_ways_on_the_very_same_arrivals(tiny_lab: Lab) -> None:
    ways = traffic.three_ways(tiny_lab, traffic.mixed_crowd(tiny_lab))
    lengths = [[(v.num_prompt_tokens, v.max_tokens) for v in run.views] for run in ways.values()]
    assert lengths[0] == lengths[1] == lengths[2]
    page = max(n for n, _ in lengths[0])
    most = {name: max(share.num_tokens for step in run.steps for share in step.shares) for name, run in ways.items()}
    assert most["continuous"] == page and most["continuous, chunked"] <= 64


def test_a_padded_batch_computes_its_longest_member_eight_times(tiny_lab: Lab) -> None:
    runs = traffic.one_batch(tiny_lab)
    alone, ragged, padded = (tables.prompt_tokens(run) for run in runs.values())
    assert alone < ragged < padded
    assert claims.d2(runs).kind == "holds only when"
    assert claims.d2(dict(zip(runs, [runs["seven short, alone"]] * 3))).kind == "not shown"


def test_more_seats_on_the_same_memory_take_blocks_from_each_other(tiny_lab: Lab) -> None:
    few, many = traffic.more_seats(tiny_lab, seats=(2, 6)).values()
    assert few.snapshot.num_preemptions < many.snapshot.num_preemptions
    assert many.snapshot.num_recomputed_tokens > 0


def test_the_waiting_room_runs_the_engine(tiny_lab: Lab) -> None:
    run = traffic.measure_capacity(tiny_lab)
    room = instrument.WaitingRoom(tiny_lab, traffic.capacity(run), run)
    first = room.view.value
    assert "of 1 seats" in first
    room.set(load="150%", seats=2)
    room.press()
    room.wait()
    assert room.error is None and room.view.value != first and "150%, 2 seats" in room.view.value
    assert len(room.run.finished) == 16 and room.run.config.max_num_seqs == 2


def test_loads_are_the_same_people_only_faster(tiny_lab: Lab) -> None:
    runs = [traffic.at_load(tiny_lab, 100.0, load) for load in (0.5, 1.0)]
    slow, fast = ([a.offset for a in run.arrivals] for run in runs)
    assert slow == pytest.approx([2 * moment for moment in fast])
    assert {a.max_tokens for a in runs[0].arrivals} == {1}
    assert traffic.growth({"50%": CALM, "95%": CROWDED}).answer == traffic.GROWTH[2]
    assert traffic.growth({"50%": CROWDED, "95%": CROWDED}).answer == traffic.GROWTH[0]


# ---------------------------------------------------------------- handles at 70B


def test_a_tight_limit_helps_over_capacity_and_refuses_clumps_under_it() -> None:
    assert simulated.outcomes(simulated.with_queue_limit(1.3, 1))["refused"] > 0
    assert simulated.outcomes(simulated.with_queue_limit(0.3, 1, simulated.CLUMPS))["refused"] > 0
    assert simulated.outcomes(simulated.with_queue_limit(0.3, None, simulated.CLUMPS))["refused"] == 0


# ---------------------------------------------------------------- verdicts


def test_a2_depends_on_what_fewer_bits_do() -> None:
    runs = {"50%": CALM, "95%": CROWDED}
    no, yes = {"bf16": 1.0, "int8": 1.1, "fp8": 0.9}, {"bf16": 1.0, "int8": 0.1, "fp8": 0.1}
    assert claims.a2(runs, {"x": no}).verdict.startswith("holds in")
    found = claims.a2(runs, {"x": no, "memory": yes})
    assert found.kind == "holds only when" and "1 of 2" in found.verdict and "int8 in 'x'" in found.verdict
    assert claims.a2({"50%": CROWDED, "95%": CROWDED}, {"x": no}).kind == "not shown"


def test_quantization_helps_a_queue_that_is_short_of_memory() -> None:
    found = simulated.quantized_waits()
    memory = next(by for case, by in found.items() if "memory" in case)
    assert memory["int8"] < memory["bf16"]
    assert len(found) == len(simulated.CASES)


def test_a9_wants_the_articles_order() -> None:
    calm, busy = simulated.three_ways(0.7), simulated.three_ways(1.0)
    saturated = {"static": 1.0, "continuous": 2.0, "continuous, chunked": 1.9}
    assert claims.a9(calm, busy, saturated).kind == "holds only when"
    same = dict.fromkeys(calm, calm["continuous"])
    assert claims.a9(same, same, saturated).kind == "not shown"


def test_a13_separates_scheduling_from_memory() -> None:
    found = claims.a13({2: {"s": 10.0, "c": 20.0, "p": 50.0}})
    assert found.kind == "holds only when" and "scheduling × 2.0, memory × 2.5, both × 5.0" in found.measured
    assert claims.a13({2: {"s": 10.0, "c": 50.0, "p": 100.0}}).kind == "holds"
    assert claims.a13({2: {"s": 10.0, "c": 10.0, "p": 10.5}}).kind == "not shown"


def test_a19_is_a_question_of_load() -> None:
    calm, over = (simulated.chunks_and_limit(load) for load in (0.5, 3.0))
    assert claims.a19({0.5: calm, 3.0: over}).kind == "holds only when"
    always = claims.a19({0.5: over, 3.0: over})
    assert always.kind == "holds only when"
    assert claims.a19({0.5: calm, 0.6: calm}).kind == "not shown"


def test_d1_depends_on_seats_and_spread() -> None:
    assert claims.d1({"even": {2: (1.5, 2.0), 8: (7.0, 7.0)}}).kind == "holds only when"
    assert claims.d1({"even": {2: (1.4, 2.0)}}).kind == "holds"
    assert claims.d1({"even": {2: (7.0, 7.0)}}).kind == "wrong"
    gains = simulated.dynamic_gains(seats=(4,))
    assert gains["equal answers"][4][0] > gains["answers of all lengths"][4][0]


def test_d3_needs_a_line() -> None:
    crowd = claims.orders()
    assert claims.d3(crowd).kind == "holds only when"
    assert claims.d3(dict.fromkeys(crowd, crowd["first come"])).kind == "not shown"


def test_e4_over_and_under_capacity() -> None:
    good, poor = {"in time": 90, "refused": 10}, {"in time": 20, "late": 80}
    fine = {"in time": 100}
    assert claims.e4({"open": poor, "limit": good}, {"open": fine, "limit": good}).kind == "holds only when"
    assert claims.e4({"open": poor, "limit": good}, {"open": fine, "limit": fine}).kind == "holds"
    assert claims.e4({"open": fine, "limit": fine}, {"open": fine, "limit": fine}).kind == "not shown"
    assert claims.queue_limits(claims.OVER)["limit"]["refused"] > 0


# ---------------------------------------------------------------- graders


def test_graders_reward_right_and_explain_wrong() -> None:
    other = replace(CROWDED, config=made_config(max_num_seqs=2))
    orders = {
        "first come": (visit(0, 0.0, 1.0, 2.0, prompt=6000),),
        "shortest first": (visit(0, 0.0, 9.0, 10.0, prompt=6000),),
    }
    bars = {"everybody may wait": {"in time": 1, "late": 9}, "at most 4 in line": {"in time": 7, "refused": 3}}
    check = grading.checks({"80%": CROWDED}, {"static": other, "continuous": CROWDED}, orders, bars)
    visits = visits_of(CROWDED)
    assert check("q1", tables.little(visits)).score == 1
    wrong = check("q1", sum(waits(visits)) / len(visits))
    assert wrong.score == 0
    assert check("q2", "static").score == 1 and check("q2", "continuous").score == 0
    assert check("q3", "shortest first").score == 1 and "1 s" in str(check("q3", "first come"))
    assert check("q4", "at most 4 in line").score == 1 and "1 of 10 in time" in str(check("q4", "everybody may wait"))
    assert check("q5", theory.md1_wait(0.9)).score == 1
    assert check("q5", 9).score == 0.5
