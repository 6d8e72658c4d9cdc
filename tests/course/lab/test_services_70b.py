"""Lessons 00 and 01 at 70B: what they say of the simulated services is what the services do."""

import pytest

from course.lab import services, services_70b
from course.lab.lab import Lab
from course.lab.run import percentile
from course.lab.services_70b import answers_of_equal_p99, e2e, service, together
from course.simulator.workload.lengths import Fixed


def test_eight_at_four_seats_wait_and_prefill_longer_but_hardly_decode_longer() -> None:
    one, eight = together(1), together(8)
    assert len(one.records) == 1 and len(eight.records) == 8, "in the short form, too"
    alone = one.records[0].timeline.phases()
    mean = {name: sum(r.timeline.phases()[name] for r in eight.records) / 8 for name in alone}
    waited = [record.timeline.phases()["queue"] > 0 for record in eight.records]
    assert waited == [False] * 4 + [True] * 4
    assert mean["prefill"] > 1.2 * alone["prefill"]
    assert mean["decode"] < 1.2 * alone["decode"]
    assert sum(mean.values()) == pytest.approx(sum(r.timeline.e2e for r in eight.records) / 8)


def test_prompts_and_answers_are_as_long_as_on_the_learners_machine() -> None:
    (arrival,) = services.together(1, Lab(short=False)).arrivals
    assert services_70b.EQUAL.output == Fixed(tokens=arrival.max_tokens)


def test_the_two_services_share_one_number_and_differ_in_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILLM_SHORT", "1")
    answers = answers_of_equal_p99()
    a, b = (service(name, answer) for name, answer in answers.items())
    assert e2e(b) == pytest.approx(e2e(a), rel=services_70b.TOLERANCE)

    def ttft(run) -> float:
        return percentile([record.timeline.ttft for record in run.records], 99)

    assert ttft(a) > 10 * ttft(b)
    wide = service("A", answers["A"], max_num_seqs=256)
    assert e2e(wide) < 0.7 * e2e(a), "more slots cure A"
    assert e2e(service("B", answers["B"], max_num_seqs=512)) == e2e(b), "and do nothing for B"
    half = {name: service(name, answer, weight_dtype="int8") for name, answer in answers.items()}
    assert e2e(half["A"]) < 0.7 * e2e(a) and ttft(half["A"]) < 0.5 * ttft(a), "a slot is free sooner"
    assert 0.5 * e2e(b) < e2e(half["B"]) < 0.8 * e2e(b), "each step is shorter"
