"""Lesson 02b: slots, orders, limits, tenants; every slider moves something; verdicts and graders can go either way."""

import itertools
import re
from dataclasses import replace

import pytest
from asserting import shows
from made_run import made_config, made_run, with_views

from course.lab.lab import Lab
from course.lab.run import Run
from course.lab.style import WIDTH
from course.lab.visits import Visit, visits_of
from course.lessons.lesson_02b import check as grading
from course.lessons.lesson_02b import pictures, simulated, words
from course.lessons.lesson_02b import run as lesson
from course.lessons.lesson_02b.pictures import empty_slot_share, slot_rows

pytestmark = pytest.mark.usefixtures("short_form")


def visit(index: int, arrival: float, scheduled: float | None, left: float | None, **more) -> Visit:
    first = None if scheduled is None else scheduled + 0.1
    fields = {"first": first, "prompt": 200, "output": 9, "ending": "answered" if left is not None else None, **more}
    return Visit(index, arrival, scheduled, left=left, **fields)


ONE_AFTER_THE_OTHER = [visit(i, 0.0, float(i), i + 1.0) for i in range(4)]
CROWDED = made_run(num_requests=8, config=made_config(max_num_seqs=1), apart=0.1)


def test_simulated_requests_become_the_same_visits() -> None:
    run = simulated.with_queue_limit(1.3, 1)
    visits = visits_of(run)
    assert {v.ending for v in visits} == {"answered", "refused"}
    assert all((v.scheduled is None) == (v.ending == "refused") for v in visits)


def test_an_empty_slot_counts_only_while_a_request_waits() -> None:
    assert empty_slot_share(ONE_AFTER_THE_OTHER, 1) == 0
    assert empty_slot_share(ONE_AFTER_THE_OTHER, 2) == pytest.approx(0.5)
    assert empty_slot_share([visit(0, 0.0, 0.0, 9.0)], 4) == 0


def test_each_request_has_a_slot_of_its_own() -> None:
    rows = slot_rows(visits_of(made_run(num_requests=8)), 4)
    assert sum(len(row) for row in rows) == 8
    assert all(a.left <= b.scheduled + 1e-9 for row in rows for a, b in itertools.pairwise(row))


def test_static_leaves_slots_empty_and_those_behind_pay(tiny_lab: Lab) -> None:
    static = tiny_lab.run(lesson.straggler(tiny_lab), batching="static")
    free = tiny_lab.run(lesson.straggler(tiny_lab))
    behind = [v.scheduled for v in visits_of(static)[4:]]
    assert min(behind) >= visits_of(static)[0].left - 0.005, "the closed batch waited for its last member"
    assert min(v.scheduled for v in visits_of(free)[4:]) < visits_of(free)[0].left
    assert len(static.steps) > len(free.steps), "the same tokens in more steps"
    assert lesson.most_paid(static, free) in lesson.PAYERS


def test_three_ways_on_the_very_same_arrivals(tiny_lab: Lab) -> None:
    ways = lesson.three_ways(tiny_lab, lesson.mixed_crowd(tiny_lab))
    lengths = [[(v.num_prompt_tokens, v.max_tokens) for v in run.views] for run in ways.values()]
    assert lengths[0] == lengths[1] == lengths[2]
    page = max(n for n, _ in lengths[0])
    most = {name: max(share.num_tokens for step in run.steps for share in step.shares) for name, run in ways.items()}
    assert most["continuous"] == page and most["continuous, chunked"] <= 64


def test_a_padded_batch_computes_its_longest_member_eight_times(tiny_lab: Lab) -> None:
    runs = lesson.one_batch(tiny_lab)
    alone, ragged, padded = (pictures.prompt_tokens(run) for run in runs.values())
    assert alone < ragged < padded


def test_a_tight_limit_helps_over_capacity_and_refuses_bursts_under_it() -> None:
    assert simulated.outcomes(simulated.with_queue_limit(1.3, 1))["refused"] > 0
    assert simulated.outcomes(simulated.with_queue_limit(0.3, 1, simulated.BURSTS))["refused"] > 0
    assert simulated.outcomes(simulated.with_queue_limit(0.3, None, simulated.BURSTS))["refused"] == 0


def test_pictures_of_orders_and_limits_have_a_bar_for_each() -> None:
    waits, ends = pictures.draw_waits(1.1), pictures.draw_outcomes(pictures.queue_limit_runs("130%"))
    shows(waits, *(f"{order}, long prompts: mean" for order in ("first come", "shortest first", "two lanes")))
    shows(waits, "limit on prompts, long prompts: refused")
    shows(ends, *(f"at most {limit} queued: " for limit in (1, 4, 16, 64)), "no limit: ")


def test_what_a_bar_says_ends_inside_the_picture() -> None:
    said = re.findall(r'<text x="([\d.]+)"[^>]*>(mean [^<]*)<', pictures.draw_waits(1.1).svg())
    assert len(said) == 7  # one class of prompts is refused
    assert all(float(x) + 6 * len(words) < WIDTH for x, words in said)  # at 11 units a letter takes 6 or less


def test_claims_at_70b_follow_from_the_simulated_runs() -> None:
    assert words.d3(simulated.orders_at()).kind == "only when", "shortest first, at the long ones' expense"
    calm, over = (simulated.chunks_and_limit(load) for load in (0.5, 3.0))
    assert words.a19({0.5: calm, 3.0: over}).kind == "only when", "a limit cuts TTFT above capacity only"
    crowded, bursts = simulated.open_and_limited(words.OVER), simulated.open_and_limited(words.UNDER, simulated.BURSTS)
    assert words.e4(crowded, bursts).measured.count("capacity") == 4


def test_a9_wants_the_articles_order() -> None:
    calm, busy = simulated.three_ways(0.7), simulated.three_ways(1.0)
    saturated = {"static": 1.0, "continuous": 2.0, "continuous, chunked": 1.9}
    assert words.a9(calm, busy, saturated).kind == "only when"
    same = dict.fromkeys(calm, calm["continuous"])
    assert words.a9(same, same, saturated).kind == "not shown"


def test_a13_separates_scheduling_from_memory() -> None:
    found = words.a13({2: {"s": 10.0, "c": 20.0, "p": 50.0}})
    assert found.kind == "only when" and "scheduling × 2.0, memory × 2.5, both × 5.0" in found.measured


def test_a_closed_batch_gains_less_where_answers_differ() -> None:
    gains = simulated.dynamic_gains(slots=(4,))
    assert gains["equal answers"][4][0] > gains["answers of all lengths"][4][0]


def test_fair_order_takes_small_tenants_out_of_the_greedy_ones_queue(tiny_lab: Lab) -> None:
    crowd = lesson.tenant_crowd(tiny_lab)
    at_once = replace(crowd, arrivals=tuple(replace(arrival, offset=0.0) for arrival in crowd.arrivals))
    runs = {order: tiny_lab.run(at_once, max_num_seqs=2, scheduling_order=order) for order in lesson.TENANT_ORDERS}
    places = [
        [v.scheduled for v in visits_of(run) if crowd.arrivals[v.index].tenant == "small 3"] for run in runs.values()
    ]
    later = [sum(v.scheduled < min(at) for v in visits_of(run)) for at, run in zip(places, runs.values())]
    assert later[1] < later[0], "served before its first one"
    found, fair = words.fair(runs, tiny_lab), runs["fair"]
    slower = runs | {"fair": replace(fair, start=fair.start - 9 * fair.duration)}  # a tenth of the throughput
    assert "small tenants" in str(found)
    assert isinstance(lesson.small_gain(runs, tiny_lab), str) == found.is_disturbed
    assert words.fair(slower, tiny_lab).is_disturbed and isinstance(lesson.small_gain(slower, tiny_lab), str)
    assert "greedy" in str(pictures.tenants_table(lesson.by_tenant(runs, tiny_lab)))


def test_at_70b_the_order_matters_only_with_a_backlog() -> None:
    p99 = {
        (o, g): lesson.ttft_p99(simulated.tenants_at_70b(o, g, "chats"))
        for o in lesson.TENANT_ORDERS
        for g in ("30%", "200%")
    }
    assert p99["fair", "200%"] < 0.3 * p99["fcfs", "200%"]
    assert p99["fair", "30%"] == pytest.approx(p99["fcfs", "30%"], rel=0.2)
    assert "times as long" in str(words.held()), "slots that long answers hold"


def test_graders_reward_right_and_explain_wrong() -> None:
    other = replace(CROWDED, config=made_config(max_num_seqs=2))
    orders = {
        "first come": (visit(0, 0.0, 1.0, 2.0, prompt=6000),),
        "shortest first": (visit(0, 0.0, 9.0, 10.0, prompt=6000),),
    }
    limits = {"no limit": {"within SLO": 1, "late": 9}, "at most 4 queued": {"within SLO": 7, "refused": 3}}
    check = grading.checks({"static": other, "continuous": CROWDED}, orders, limits)
    assert check("q1", "static").score == 1 and check("q1", "continuous").score == 0
    assert check("q2", "shortest first").score == 1 and "1 s" in str(check("q2", "first come"))
    assert check("q3", "at most 4 queued").score == 1 and "1 of 10 within the SLO" in str(check("q3", "no limit"))
    assert check("q4", 4).score == 1 and "other way round" in str(check("q4", 64))


def with_e2e(run: Run, *grew: float) -> Run:
    """The same, each request's end later by so many seconds."""
    return with_views(run, lambda row: {"borders": (*row.view.borders[:-1], row.view.borders[-1] + grew[row.index])})


@pytest.mark.parametrize(
    ("long", "beside", "behind", "told"),
    [
        (0.0, 0.0, 0.4, "paid little or nothing"),
        (-0.3, 0.0, 0.4, "*gained* 300 ms"),
        (0.0, 0.1, 0.4, "lost less, 100 ms where the four lost 400 ms"),
        (0.0, 0.5, 0.4, "lost more than the four"),
        (0.5, 0.0, 0.4, "#0 itself lost most"),
    ],
)
def test_who_paid_for_the_long_one_is_read_off_the_runs(long: float, beside: float, behind: float, told: str) -> None:
    free = made_run(num_requests=8)
    static = with_e2e(free, long, *[beside] * 3, *[behind] * 4)
    assert told in str(found := words.straggler({"static": static, "continuous": free}))
    assert isinstance(lesson.who_pays(static, free), str) == found.is_disturbed, "no bet is decided by what can't be"


@pytest.mark.parametrize(
    ("chunk_s", "others", "told"),
    [
        (0.02, 0.1, "every running answer waits for it"),
        (0.095, 0.1, "too short to be worth cutting"),
        (0.02, 0.45, "something else kept it busy"),
    ],
)
def test_chunks_are_judged_by_the_documents_own_steps(
    monkeypatch: pytest.MonkeyPatch, chunk_s: float, others: float, told: str
) -> None:
    """Not by whatever gap was the longest."""
    whole = made_run(num_requests=8, config=made_config(max_num_batched_tokens=1000))
    name = whole.rows[lesson.DOCUMENT].request_id
    static, chunked = (replace(whole, workload=each) for each in ("static", "chunked"))
    taken = {"static": 0.1, "made": 0.1, "chunked": chunk_s}
    empty = {"static": 0.6, "made": others, "chunked": 0.0}
    runs = {}
    for run in (static, whole, chunked):
        steps = [step for step in run.steps if any(share.request_id == name for share in step.shares)]
        steps = tuple(replace(step, end=step.start + taken[run.workload]) for step in steps)
        runs[run.workload] = replace(run, steps=steps)
    shares = iter(empty.values())
    monkeypatch.setattr(words, "empty_slot_share", lambda visits, slots: next(shares))
    finding = words.ways(runs)
    assert told in str(finding) and finding.is_disturbed == ("busy" in told)


@pytest.mark.parametrize(
    ("lanes", "told"),
    [((5.0, 0.5), "favours the *long*"), ((1.0, 4.0), "sit in between"), ((2.1, 1.9), "like first come")],
)
def test_two_lanes_are_compared_with_first_come(lanes: tuple[float, float], told: str) -> None:
    def waited(short: float, long: float) -> tuple[Visit, ...]:
        return visit(0, 0.0, short, short + 1), visit(1, 0.0, long, long + 1, prompt=6000)

    orders = {"first come": waited(2.0, 2.0), "shortest first": waited(0.5, 5.0), "two lanes": waited(*lanes)}
    assert told in (said := str(words.orders(orders))) and "2 requests in 3 s" in said


def test_what_a_long_neighbour_costs_is_told_only_where_it_was_felt() -> None:
    def batch(ttft: float) -> Run:
        return with_views(made_run(num_requests=8), lambda row: {"deliveries": (row.view.borders[0] + ttft,)})

    padded = made_run(num_requests=8, prompt=400)
    for ttft, told in ((0.3, "instead of eight (200 ms alone, 300 ms"), (0.2, "cost the seven nothing")):
        assert told in words.d2({"alone": batch(0.2), "beside": batch(ttft), "padded": padded}).verdict


# ---------------------------------------------------------------- three numbers


def test_what_a_static_batch_leaves_empty_is_what_a_drawn_one_does() -> None:
    answers = [visit(0, 0.0, 0.0, 8.0), *(visit(i, 0.0, 0.0, 1.0) for i in range(1, 4))]
    waiting = visit(4, 0.0, 8.0, 9.0)
    assert words.empty_in_static(4, 8) == pytest.approx(1 - 11 / 32)
    assert empty_slot_share([*answers, waiting], 4) == pytest.approx(words.empty_in_static(4, 8), abs=0.01)
    assert words.limit_for(2.0, 16, 8.0) == 4
