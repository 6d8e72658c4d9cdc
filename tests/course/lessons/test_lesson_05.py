"""Lesson 05: causes that tile a TTFT, policies whose effects follow from the schedule, verdicts from the runs."""

import math
import random
import threading
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise

import pytest
from made_run import made_config, made_run
from priced_runner import priced_engines

from course.lab import ttft_causes
from course.lab.lab import Lab
from course.lab.run import Run
from course.lab.simulated_70b import itl, ttft
from course.lab.ttft_causes import CAUSES, Stay, causes_inside
from course.lessons.lesson_05 import check as grading
from course.lessons.lesson_05 import pictures, simulated, words
from course.lessons.lesson_05 import run as lesson
from course.simulator.cluster.run import FleetRun
from minillm.core.params import SamplingParams
from minillm.core.step_log import StepRecord, StepShare
from minillm.core.timeline import VirtualClock
from minillm.observe.step_cost import split_steps

ME, OTHER, WRITER = "me", "other", "writer"


def step(start: float, end: float, *shares: tuple[str, int, bool], forward: float | None = None) -> StepRecord:
    stages = {"forward": end - start if forward is None else forward, "sample": 0.1}
    made = tuple(StepShare(*share) for share in shares)
    return StepRecord(0, start, end, made, 0, len(made), 0, 1, (), stages)


def test_the_cut_of_a_ttft_by_hand() -> None:
    """A step takes 1 s, and 0.1 s for each of its tokens; 0.2 s of it lie around the forward pass."""

    def of(start: float, *shares: tuple[str, int, bool]) -> StepRecord:
        length = 1.0 + 0.1 * sum(num_tokens for _, num_tokens, _ in shares)
        return step(start, start + length, *shares, forward=length - 0.2)

    steps = [
        of(-0.6, (WRITER, 1, False)),  # it came in the middle of this one
        of(0.5, (ME, 6, True), (OTHER, 2, True), (WRITER, 1, False)),
        of(2.4, (OTHER, 3, True), (WRITER, 1, False)),  # it got nothing
        of(4.0, (ME, 4, True)),
        of(6.0, (WRITER, 1, False)),
    ]
    found = causes_inside(Stay(ME, 0.0, 5.4, 5.6, cold_tokens=7), steps, split_steps(steps))
    assert found == pytest.approx(
        {
            **dict.fromkeys(CAUSES, 0.0),
            "queue": 0.5,
            "cold cache": 0.6 + 0.1,  # six of its first tokens, one of the others
            "own prefill": 0.3,
            "others' prompts": 0.2 + 0.75 * 1.2,
            "others' answers": 0.1 + 0.25 * 1.2,  # a step that it is not in is all theirs
            "fixed cost": 0.8 + 0.8,
            "bookkeeping": 3 * 0.2 + 0.2,  # and a pause
            "sampling": 0.1,
            "detokenizing": 0.1,
        },
        abs=1e-3,
    )
    assert sum(found.values()) == pytest.approx(5.6)


def random_steps(rng: random.Random) -> tuple[Stay, list[StepRecord]]:
    """A request's stay among steps, some of which are launched while the last still runs, and some late."""
    steps: list[StepRecord] = []
    own = rng.randrange(12), rng.randrange(12)  # its first step and its last, and whatever it got between them
    for i in range(16):
        before = steps[-1].end if steps else 0.0
        start = rng.uniform(steps[-1].start if steps else 0.0, before + 0.3)
        shares = [(WRITER, 1, False)] * rng.randrange(2) + [(OTHER, rng.randint(1, 40), True)] * rng.randrange(2)
        if i in own or (min(own) < i < max(own) and rng.random() < 0.6):
            shares.append((ME, rng.randint(1, 40), True))
        end = max(start, before) + rng.uniform(0.05, 1.0)
        steps.append(step(start, end, *shares, forward=rng.choice((None, 0.7 * (end - start)))))
    first, last = steps[min(own)], steps[max(own)]
    prefill_end = rng.uniform(max(steps[max(own) - 1].end, last.start) if max(own) else last.start, last.end)
    arrival = first.start - rng.uniform(0.0, 2.0)
    return Stay(ME, arrival, prefill_end, prefill_end + rng.uniform(0.0, 0.3), rng.randint(0, 30)), steps


def one_at_a_time(steps: list[StepRecord]) -> list[StepRecord]:
    """The same steps, each from where the one before it ended."""
    ends = [-math.inf, *(each.end for each in steps)]
    return [replace(each, start=max(each.start, before)) for each, before in zip(steps, ends)]


@pytest.mark.parametrize("seed", range(60))
def test_every_second_of_a_ttft_has_one_cause_however_steps_overlap(seed: int) -> None:
    stay, steps = random_steps(random.Random(seed))
    alone = one_at_a_time(steps)
    costs = split_steps(alone)
    found = causes_inside(stay, steps, costs)
    assert sum(found.values()) == pytest.approx(stay.first_token - stay.arrival, rel=1e-12)
    assert min(found.values()) >= -1e-12
    assert found == causes_inside(stay, alone, costs), "what overlaps is counted once, for the step that came first"
    begins = next(each.start for each in alone if any(share.request_id == ME for share in each.shares))
    assert found["queue"] == pytest.approx(max(begins - stay.arrival, 0.0))


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_step_that_was_launched_ahead_is_split_like_any_other(is_ahead: bool) -> None:
    """A step takes 1 s and 10 ms a token. One request decodes; a prompt of 50 tokens is computed in chunks of 20."""
    fields = {"max_num_batched_tokens": 21, "max_num_seqs": 4, "enable_prefix_caching": False}
    make = priced_engines(1.0, 0.01, runs_beside_python=is_ahead, **fields)
    engine = make(VirtualClock())
    engine.add_request([1] * 8, SamplingParams(max_tokens=12, ignore_eos=True), request_id=WRITER)
    for _ in range(4):
        engine.step()
    engine.add_request([2] * 50, SamplingParams(max_tokens=2, ignore_eos=True), request_id=ME)
    lines = {}
    while engine.has_unfinished:
        lines |= {output.request_id: output.completions[0].timeline for output in engine.step() if output.finished}
    line, steps = lines[ME], engine.core.log.records
    found = causes_inside(Stay(ME, line.arrival, line.prefill_end, line.first_token), steps, split_steps(steps))
    wanted = {"own prefill": 50 * 0.01, "others' answers": 3 * 0.01, "fixed cost": 3.0, "queue": 1.01 * is_ahead}
    assert found == pytest.approx({**dict.fromkeys(CAUSES, 0.0), **wanted}, abs=2e-3)


def test_shared_tokens_are_whole_blocks_of_a_beginning_that_somebody_else_has() -> None:
    prompts = [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 9], [7, 8], [1, 2, 3, 4]]
    assert ttft_causes.shared_tokens(prompts, 2) == [4, 4, 0, 2]  # the last one has to compute its last token


def as_company(run: Run, num_writers: int) -> Run:
    """The first rows are writers, the others newcomers."""
    rows = tuple(
        replace(row, view=replace(row.view, max_tokens=50 if row.index < num_writers else lesson.BRIEF))
        for row in run.rows
    )
    return replace(run, rows=rows)


MADE = as_company(made_run(num_requests=6, apart=0.15, config=made_config(max_num_seqs=8)), 2)


def test_writers_write_until_the_last_newcomer_is_there(tiny_lab: Lab) -> None:
    for speed in (0.1, 1.0, 10.0):
        for gap in (lesson.PACES["busy"], lesson.PACES["rush"]):
            crowd = lesson.company(tiny_lab, lesson.Pace(speed * 0.3, speed * 0.03, speed * 0.25), gap).arrivals
            last = max(arrival.offset for arrival in crowd)
            assert min(a.max_tokens for a in crowd if a.max_tokens > lesson.BRIEF) * speed * 0.03 > last


def test_causes_sum_to_ttft_on_made_runs() -> None:
    found = ttft_causes.causes_of_run(MADE)
    for row, each in found.items():
        assert sum(each.values()) == pytest.approx(lesson.ttft_of([MADE.row_of(row)])[0])
    assert found[5]["others' prompts"] > 0 == found[0]["others' answers"]


@pytest.fixture
def runs(tiny_lab: Lab) -> dict[str, Run]:
    """All there from the start but for the pages, which come at once: what happens follows from the schedule alone."""
    crowd = lesson.company(tiny_lab, lesson.Pace(0.0, 0.001, 0.0))
    return {name: tiny_lab.run(crowd, **fields) for name, fields in lesson.policies(tiny_lab).items()}


def test_policies_on_a_real_engine(runs: dict[str, Run]) -> None:
    chunks = {name: max(step.num_prefill_tokens for step in run.steps) for name, run in runs.items()}
    assert chunks["mixed"] <= 32 < chunks["prefill first"]
    for run in runs.values():
        for row, found in ttft_causes.causes_of_run(run).items():
            assert sum(found.values()) == pytest.approx(lesson.ttft_of([run.row_of(row)])[0])
    assert "pays" in pictures.draw_runs(runs).title or "pay" in pictures.draw_runs(runs).title


def test_decode_first_reads_no_prompt_while_anybody_writes(tiny_lab: Lab) -> None:
    crowd = lesson.company(tiny_lab, lesson.Pace(0.002, 0.001, 0.002))
    steps = tiny_lab.run(crowd, **lesson.policies(tiny_lab)["decode first"]).steps
    assert not any(0 < step.num_prefill_tokens < step.num_tokens for step in steps)


def test_calm_traffic_takes_the_same_steps_under_every_policy(tiny_lab: Lab) -> None:
    calm = {name: tiny_lab.run(lesson.calm(tiny_lab), **fields) for name, fields in lesson.policies(tiny_lab).items()}
    assert lesson.wins_when_calm(calm).answer == lesson.SAME_STEPS
    long = tiny_lab.run(lesson.one_by_one(tiny_lab), **lesson.policies(tiny_lab)["mixed"])
    assert lesson.wins_when_calm({**calm, "mixed": long}).answer in lesson.POLICIES


def test_over_http_every_border_is_a_stamp(tiny_lab: Lab) -> None:
    found = lesson.over_http(tiny_lab, lesson.with_rules(tiny_lab, 2), max_num_seqs=4)
    first, second = found.causes
    for name in ("way in", "parsing", "tokenizing", "way out"):
        assert first[name] > 0 and second[name] > 0
    for each in (first, second):  # a few tokens of a tiny model may add less than a step's duration scatters
        assert each["own prefill"] + each["cold cache"] + each["fixed cost"] > 0
    assert all(value >= 0 for value in first.values())
    assert second["cold cache"] == 0, "the first one filled it"
    picture = pictures.draw_waterfall(second, first)
    ET.fromstring(picture.svg())


def test_a_server_whose_engine_dies_ends_the_cell(tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = lesson.StampingService.prepare

    async def last(service: lesson.StampingService, *asked: object) -> object:
        if len(service.prepared) == 2:  # the warm-up and one request are over
            service.thread.call(lambda engine: setattr(engine, "step", None))
        return await prepare(service, *asked)

    monkeypatch.setattr(lesson.StampingService, "prepare", last)
    with pytest.raises(RuntimeError, match="the server"):
        lesson.over_http(tiny_lab, lesson.with_rules(tiny_lab, 2))


def test_whoever_asks_a_server_of_their_own_has_the_lab_alone(tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    free: list[bool] = []

    def play(*_: object) -> list[object]:
        asking = threading.Thread(target=lambda: free.append(tiny_lab._turn.acquire(blocking=False)))
        asking.start()
        asking.join()
        return []

    monkeypatch.setattr(lesson, "play_over_http", play)
    assert lesson.over_http(tiny_lab, lesson.with_rules(tiny_lab, 2)).causes == () and free == [False]


def test_the_bench_runs_a_policy_and_keeps_it_beside_the_others(tiny_lab: Lab) -> None:
    bench = pictures.PolicyBench(tiny_lab, lesson.Pace(0.001, 0.001, 0.001))
    panel = bench.explorer()
    panel.set(arrivals="rush", policy="mixed", budget=64).press()
    panel.wait()
    assert panel.error is None and "mixed, 64" in panel.view.value
    panel.set(policy="decode first").press()
    panel.wait()
    assert set(bench.runs["rush"]) == {"mixed, 64", "decode first"} and "mixed, 64" in panel.view.value
    crowded = bench.runs["rush"]["mixed, 64"]
    assert max(step.num_tokens for step in crowded.steps) <= 64


# ---------------------------------------------------------------- on a simulated GPU


@pytest.fixture
def gpu_lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setenv("MINILLM_LAB_DEVICE", "h100-sxm")
    return Lab(short=True, model="llama-3.1-8b", max_num_seqs=lesson.SLOTS)


def test_on_a_gpu_newcomers_are_long_enough_to_be_rushed_and_to_hold_writers_up(gpu_lab: Lab) -> None:
    pace = lesson.pace(gpu_lab)
    assert pace.prefill_s > 3 * pace.token_s and lesson.budget(gpu_lab) == 256
    crowd = lesson.company(gpu_lab, pace, lesson.PACES["rush"])
    runs = {name: gpu_lab.run(crowd, **fields) for name, fields in lesson.policies(gpu_lab).items()}
    assert words.pauses(runs).answer > 2 and "a backlog grows" in str(words.rush(runs))
    assert "pays for a TTFT" in str(words.policies(runs))
    shares = lesson.newcomers(runs["prefill first"])
    for row, found in ttft_causes.causes_of_run(runs["prefill first"]).items():
        view = runs["prefill first"].row_of(row)
        assert sum(found.values()) == pytest.approx(lesson.ttft_of([view])[0])
        assert view not in shares or found["own prefill"] > 5 * found["bookkeeping"]
    calm = {name: gpu_lab.run(lesson.calm(gpu_lab), **fields) for name, fields in lesson.policies(gpu_lab).items()}
    assert "noise" not in str(words.calm(calm)) and "the very same" in str(words.calm(calm))


# ---------------------------------------------------------------- findings


def waterfall(own: float, own_alone: float, cold: float) -> str:
    met = {"queue": 1.0, "others' prompts": 1.0, "others' answers": 0.5, "own prefill": own, "cold cache": cold}
    return str(words.waterfall(met, {**met, "own prefill": own_alone}))


def test_a_waterfall_says_that_work_stays_only_where_it_did() -> None:
    assert "doesn't depend on who else is there" in waterfall(1.0, 1.1, 0.0) and "came from the cache" in waterfall(
        1.0, 1.1, 0.0
    )
    assert "depends on what else" in waterfall(1.0, 0.1, 0.2) and "cost 200 ms" in waterfall(1.0, 0.1, 0.2)


def test_where_no_prompt_is_long_nobody_pays_and_nothing_is_rushed(monkeypatch: pytest.MonkeyPatch) -> None:
    three = dict.fromkeys(lesson.POLICIES, MADE)
    assert "whole prompts simply win" in str(words.policies(three))
    monkeypatch.setattr(words, "ttft_of", lambda views: [1.0, 1.0, 1.1])
    assert "No backlog grew" in str(words.rush(three))
    monkeypatch.setattr(words, "ttft_of", lambda views: [1.0, 1.5, 2.0])
    assert "cost the newcomers nothing" in str(words.rush(three))


def test_masks_are_told_beside_what_steps_became_longer_by() -> None:
    one, many = lesson.MaskCost(1, 0.005, 0.006, 0.0004, "{}"), lesson.MaskCost(8, 0.006, 0.0059, 0.0012, "{}")
    told = str(words.masks([one, many]))
    assert "400 µs per step for one request and 1.2 ms for 8" in told and "were 1 ms longer and no longer" in told


@pytest.mark.parametrize("slow", ["mixed", "decode first"])
def test_gaps_that_no_policy_can_make_are_put_down_to_the_machine(slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    three = dict.fromkeys(lesson.POLICIES, MADE)
    gaps = {"prefill first": 0.056, "mixed": 0.03, "decode first": 0.01} | {slow: 0.223}
    in_turn = iter([*gaps.values()] * 4)
    monkeypatch.setattr(words, "pause_p99", lambda run: next(in_turn))
    for told in (words.policies(three), words.rush(three)):
        assert told.is_disturbed and "something else held this machine up" in str(told)
    answer = words.pauses(three)
    assert isinstance(answer, str) == (slow == "mixed")


# ---------------------------------------------------------------- at 70B


def small(policy: str, qps: float = 4.0, num_requests: int = 40, **fields: object) -> FleetRun:
    return simulated.serve(policy, qps, num_requests=num_requests, **fields)


@pytest.mark.parametrize("policy", [*simulated.POLICIES, simulated.APART])
def test_at_70b_the_causes_sum_to_what_the_client_sees(policy: str) -> None:
    run = small(policy, rtt_s=0.05)
    for record in run.records:
        assert sum(simulated.causes_of(record).values()) == pytest.approx(record.ttft())
    assert simulated.mean_causes(run)["way in"] == pytest.approx(0.025)


def test_at_70b_each_policy_helps_one_side_and_hurts_the_other() -> None:
    policies = "prefill first", "mixed, 512", "decode first", simulated.APART
    # Of 40 requests, some seeds have too few long prompts to show at p99; of 120 each has enough.
    whole, chunks, last, apart = (small(policy, num_requests=120) for policy in policies)
    assert ttft(whole, 50) < ttft(chunks, 50) < ttft(last, 50)
    assert itl(last, 99) < itl(chunks, 99) < itl(whole, 99)
    assert itl(apart, 99) < itl(whole, 99)
    few, half = small(simulated.APART, 12.0, prefill_replicas=1), small(simulated.APART, 12.0)
    assert ttft(few, 50) > 3 * ttft(half, 50)


# ---------------------------------------------------------------- claims


def move(ttft: float, gap: float) -> words.Move:
    return words.Move("a to b", (1.0, ttft), (1.0, gap))


HERE = words.Move("a to b, here", (1.0, 2.0), (1.0, 2.0))
ODD = words.Move("a to b, here", (1.0, 2.0), (1.0, 0.2))


@pytest.mark.parametrize(
    ("moves", "noise", "kind"),
    [
        ([move(2, 0.5), move(0.5, 2)], 1.0, "holds"),
        ([move(2, 0.5), move(2, 1.01), move(0.5, 0.5)], 1.0, "only when"),
        ([move(2, 2)], 1.0, "wrong"),
        ([move(1.01, 1.0)], 1.0, "not shown"),
        ([HERE, move(2, 0.5)], 1.2, "only when"),
        ([HERE, move(2, 0.5)], 9.0, "holds"),  # this machine is too busy to be judged
        ([HERE], 9.0, "not shown"),
        ([ODD, move(2, 0.5)], 1.0, "holds"),  # nor to be believed
    ],
)
def test_b3_counts_opposite_moves(moves: list[words.Move], noise: float, kind: str) -> None:
    assert words.b3(moves, noise=noise).kind == kind


@pytest.mark.parametrize(
    ("cuts", "tokens", "kind"),
    [
        ((0.5, 0.45), 1.0, "holds"),
        ((0.9, -0.1), 1.0, "only when"),
        ((0.1,), 1.0, "wrong"),
        ((0.5,), 2.0, "not shown"),  # throughput is another one
    ],
)
def test_d21_needs_a_baseline_and_equal_throughput(cuts: tuple[float, ...], tokens: float, kind: str) -> None:
    assert words.d21([words.FleetPair("a to b", (1.0, 1 - cut), (1.0, tokens)) for cut in cuts]).kind == kind


def test_a_token_of_an_answer_costs_less_in_a_larger_batch() -> None:
    big = lesson.simulated_per_token()
    assert big.ratio(1) > 50 > 10 > big.ratio(256)


def test_per_token_costs_come_from_steps_of_one_kind(tiny_lab: Lab) -> None:
    found = lesson.measured_per_token([tiny_lab.run(lesson.shrinking(tiny_lab), max_num_seqs=8)])
    assert set(found.decode) == {1, 2, 3, 4} and found.prefill > 0
    with pytest.raises(ValueError, match="only"):
        lesson.measured_per_token([replace(MADE, steps=())])


# ---------------------------------------------------------------- check


def test_the_check_rewards_right_answers_and_names_the_mistake() -> None:
    whole = as_company(made_run(num_requests=4, apart=0.3, config=made_config(max_num_batched_tokens=256)), 2)
    slow = as_company(made_run(num_requests=4, apart=0.3, config=made_config(max_num_seqs=1)), 2)
    three = {"prefill first": whole, "mixed": MADE, "decode first": slow}
    newcomer = {"queue": 5.0, "own prefill": 2.0, "others' prompts": 1.0, "way in": 0.5}
    check = grading.checks(newcomer, three)
    assert check("q1", "queue").score == 1
    assert check("q2", 2.5).score == 1
    slight = grading.checks({"queue": 0.2, "own prefill": 2.0}, three)  # the whole TTFT is a near miss
    assert slight("q2", 2.15).score == 0.5 and slight("q2", 2.2).score == 0
    for wrong, hint in ((8.5, "whole TTFT"), (6.0, "subtract"), (2.0, "only its own prefill")):
        assert hint in str(check("q2", wrong)) and check("q2", wrong).score == 0
    ttft = {n: sorted(lesson.ttft_of(lesson.newcomers(r)))[len(lesson.newcomers(r)) // 2] for n, r in three.items()}
    order = sorted(ttft, key=ttft.get)
    assert check("q3", order).score == 1
    assert 0 < check("q3", [order[0], order[2], order[1]]).score < 1
    pauses = sorted(lesson.writer_gaps(whole))
    assert check("q4", pauses[-1] / pauses[len(pauses) // 2]).score == 1


# ---------------------------------------------------------------- async scheduling


@pytest.mark.parametrize(("host", "gpu"), [(3.0, 6.0), (6.0, 4.0), (5.0, 5.0)])
def test_async_steps_take_the_longer_part_and_others_the_sum(host: float, gpu: float) -> None:
    for overlaps, took in ((False, host + gpu), (True, max(host, gpu))):
        begun = pictures.steps_at(host, gpu, overlaps)
        assert all(later[1] - earlier[1] == took for earlier, later in pairwise(begun))
        assert all(prepared + host <= computed for prepared, computed in begun), "a step is prepared before it runs"
    assert f"async: a token every {max(host, gpu):.1f} ms" in pictures.draw_async(gpu, host).title
