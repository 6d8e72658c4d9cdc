"""Verdicts follow from runs: the same function gives another verdict for other runs."""

import re
from dataclasses import replace

import pytest
from made_run import made_config, made_run

from course.grading import Criterion, Result
from course.lab import services, slo, tables
from course.lab.claims import REGISTRY, VERDICTS, RegisteredClaim, in_short
from course.lab.display import Html, amounts_kept
from course.lab.lab import Lab
from course.lab.run import Run, percentile
from course.lessons.lesson_00.words import a1
from course.lessons.lesson_01 import words
from course.lessons.lesson_01.words import a6, b1, e5, f3
from course.summary import SLO

QUEUED = made_run(num_requests=10, config=made_config(max_num_seqs=1))
DECODING = made_run(num_requests=1, output=190)


def with_broken_border(run: Run) -> Run:
    view = run.views[0]
    wrong = (*view.borders[:3], view.borders[3] + 0.1, *view.borders[4:])
    return replace(run, rows=(replace(run.rows[0], view=replace(view, borders=wrong)), *run.rows[1:]))


def test_a1_holds_and_would_notice_a_wrong_stamp() -> None:
    assert a1([QUEUED, DECODING]).verdict.startswith("holds")
    assert a1([with_broken_border(QUEUED)]).verdict.startswith("wrong")


def test_a6_needs_equal_e2e_and_opposite_parts() -> None:
    assert a6({"A": QUEUED, "B": QUEUED}).verdict.startswith("not shown")
    assert a6({"A": QUEUED, "B": made_run(num_requests=1, output=20)}).verdict.startswith("not shown")


def test_a_verdict_ends_before_its_reason_begins() -> None:
    claim = b1(QUEUED)
    assert claim.told.startswith("Yes. Queue is ")
    assert "Measured: <b>yes</b>. Queue is " in in_short(claim)._repr_mimebundle_()["text/html"]
    assert a1([QUEUED]).told.startswith("Yes, by definition: each phase ")


@pytest.mark.parametrize("claim", REGISTRY.values(), ids=lambda claim: claim.id)
def test_a_verdicts_reason_begins_with_a_word_that_may_be_capitalized(claim: RegisteredClaim) -> None:
    """In short, it begins a sentence: "P99" and "Max_num_seqs" aren't spelled like that."""
    for text in claim.texts.values():
        if found := re.match(rf"(?:{'|'.join(VERDICTS)}): ([a-z]\S*)", text):
            assert re.fullmatch(r"[a-z']+[,.:]?", found[1]), text


def test_b1_quotes_the_measured_share() -> None:
    mean = QUEUED.mean_phases()
    share = mean["queue"] / sum(mean.values())
    assert f"({share:.0%})" in b1(QUEUED).measured


def test_e5_looks_at_the_tail() -> None:
    assert e5({"all": [1.0] * 99 + [9.0] * 2, "short": [1.0], "long": [9.0]}).verdict.startswith("holds")
    assert e5({"all": [1.0] * 99, "short": [1.0], "long": [1.0]}).verdict.startswith("not shown")


def test_f3_counts_use_cases_that_tell_the_services_apart() -> None:
    split = f3({"chat": {"A": 0.0, "B": 1.0}, "batch": {"A": 1.0, "B": 1.0}})
    assert split.kind == "only when" and "1 of 2" in split.verdict
    assert f3({"chat": {"A": 1.0, "B": 1.0}}).verdict.startswith("not shown")


def test_tables_on_a_real_engine(tiny_lab: Lab) -> None:
    before = services.two_ill_services(tiny_lab)
    assert before["A"].config.max_num_seqs == 1
    assert before["A"].mean_phases()["queue"] > before["B"].mean_phases()["queue"]
    after = services.same_traffic(tiny_lab, before, max_num_seqs=8)
    assert [len(run.rows) for run in after.values()] == [len(run.rows) for run in before.values()]
    assert after["B"].views[0].max_tokens == before["B"].views[0].max_tokens
    told = str(tables.tools_table(before["A"]))
    assert len(told.splitlines()) == 1 + 4 and "GuideLLM's TPOT, LLMPerf's ITL" in told
    assert "more seats" in str(tables.changes_table(before, {"more seats": after}))
    assert len(slo.attainments(before)) == len(slo.USE_CASES)


def test_whoever_was_refused_met_no_limit(tiny_lab: Lab) -> None:
    full = tiny_lab.run(services.few_slots(tiny_lab), max_num_seqs=1, max_queue_len=1)
    refused = sum(row.refused is not None for row in full.rows)
    assert 0 < refused < len(full.rows)
    assert slo.attainment(full, SLO()) == pytest.approx(1 - refused / len(full.rows))


def test_a_capped_client_hides_its_queue_and_littles_law_finds_the_cap(tiny_lab: Lab) -> None:
    runs = [tiny_lab.run(services.steady(tiny_lab), max_num_seqs=2) for _ in range(2)]
    at_once = min(runs, key=lambda run: run.duration)  # a slow one spaces requests out, and nothing queues
    capped = tiny_lab.run(services.steady(tiny_lab, at_once, in_flight=2), max_num_seqs=2)
    assert tables.in_flight(capped) == pytest.approx(2, abs=0.5)
    assert percentile(tables.felt_ttft(capped), 99) > 1.5 * percentile(capped.ttft, 99)
    assert "moved into the client" in str(words.where_it_went(capped))


def test_runs_take_turns(tiny_lab: Lab) -> None:
    first = tiny_lab.start(services.few_slots(tiny_lab), tiny_lab.config())
    second = tiny_lab.run("chat")
    assert first.wait(0)
    assert len(first.run().outputs) == len(first.workload.arrivals)
    assert len(first.run().finished) == len(first.workload.arrivals)
    assert second.done


def test_amounts_of_money_in_one_sentence_are_no_formula() -> None:
    svg = '<svg a="$"><text>$1 to $2</text></svg>'
    html = f'$1 before, $2 after.<p title="$3">$4, $5</p>{svg}<td>$6</td><td>$7</td>'
    ours = "<span>$</span>"
    assert amounts_kept(html) == (
        f'{ours}1 before, {ours}2 after.<p title="$3">{ours}4, {ours}5</p>{svg}<td>$6</td><td>$7</td>'
    )
    bundle, _ = Html("<p>$1, $2</p>", "$1, $2")._repr_mimebundle_()
    graded = Result("q", (Criterion("cost", 1, 1, "$1 before, $2 after"),))._repr_mimebundle_()
    assert [bundle["text/html"].count(ours), graded["text/html"].count(ours)] == [2, 2]
    assert bundle["text/plain"] == "$1, $2"
