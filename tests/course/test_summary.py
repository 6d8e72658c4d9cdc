"""Summaries against plain arithmetic; failures are counted and never flatter a number."""

import pytest
from observe.runs import every_ending, timeline

from course.summary import SLO, Distribution, summarize
from minillm.core.params import SamplingParams
from minillm.core.request import FinishReason, Request
from minillm.core.timeline import PHASES, Timeline
from minillm.frontend.outputs import Completion, RequestOutput
from minillm.observe.records import RequestRecord, as_records


def completed(i: int, *gaps: float, prompt: int = 10, lost: dict[str, float] | None = None) -> RequestRecord:
    return RequestRecord(str(i), prompt, 0, FinishReason.STOP, timeline(float(i), *gaps, lost=lost))


def test_percentiles_interpolate_over_raw_samples():
    found = Distribution.of([4.0, 1.0, 3.0, 2.0])
    assert (found.count, found.mean, found.p50, found.max) == (4, 2.5, 2.5, 4.0)
    assert found.p95 == pytest.approx(3.85)
    assert found.p99 == pytest.approx(3.97)


def test_no_samples_is_not_zero():
    assert Distribution.of([]) == Distribution(0, None, None, None, None, None)


def test_itl_pools_the_gaps_of_all_requests():
    """One request with many short gaps, one with a single long one: not the mean of two averages."""
    many = completed(0, 0.1, 0.1, 0.1, *[0.01] * 99, 0.0)
    one = completed(1, 0.1, 0.1, 0.1, 1.0, 0.0)
    itl = summarize([many, one]).metrics["itl"]
    assert itl.count == 100
    assert itl.mean == pytest.approx((99 * 0.01 + 1.0) / 100)
    assert itl.p50 == pytest.approx(0.01)
    assert itl.p99 == pytest.approx(0.01 + 0.01 * 0.99)


def test_only_completed_requests_enter_the_distributions():
    summary = summarize(every_ending())
    assert summary.counts == {"stop": 1, "length": 1, "abort": 1, "error": 1, "timeout": 1, "in flight": 2}
    assert summary.metrics["ttft"].count == summary.metrics["e2e"].count == 2
    assert summary.metrics["tpot"].count == 1, "one token has no TPOT"
    assert summary.metrics["e2e"].max == pytest.approx(4.875)


def test_phase_shares_are_shares_of_all_seconds():
    summary = summarize(every_ending())
    assert sum(summary.phase_shares.values()) == pytest.approx(1)
    assert list(summary.phase_shares) == list(PHASES)
    assert summary.phase_shares["prefill"] == pytest.approx(3.0 / (4.875 + 1.75))


def test_rates_and_lost_time():
    requests = [completed(i, 0.5, 0.5, 0.5, 0.5, 0.0, prompt=100, lost={"preempted": 0.25}) for i in range(4)]
    summary = summarize(requests)
    assert summary.duration == pytest.approx(5.0), "first arrival 0, last end 3 + 2"
    assert summary.requests_per_s == pytest.approx(0.8)
    assert summary.prompt_tokens_per_s == pytest.approx(80)
    assert summary.output_tokens_per_s == pytest.approx(4 * 2 / 5)
    assert summary.lost == {"preempted": 1.0}
    assert summarize(requests, duration=10.0).requests_per_s == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("slo", "met"),
    [
        (SLO(), True),
        (SLO(ttft=3.5), True),
        (SLO(ttft=3.49), False),
        (SLO(itl=0.75), True),
        (SLO(itl=0.74), False),
        (SLO(tpot=1.375 / 3), True),
        (SLO(tpot=0.45), False),
        (SLO(e2e=4.875), True),
        (SLO(e2e=4.8), False),
        (SLO(ttft=9, itl=9, tpot=9, e2e=1), False),
    ],
)
def test_an_slo_is_met_when_every_stated_limit_is(slo, met):
    assert slo.met_by(timeline(0.0, 1.0, 2.0, 0.5, 0.25, 0.75, 0.25, 0.125)) is met


def test_one_token_meets_limits_on_what_it_does_not_have():
    assert SLO(itl=0.001, tpot=0.001).met_by(timeline(0.0, 1, 1, 1, 0))


def test_goodput_counts_failures_against_the_server():
    summary = summarize(every_ending(), SLO(ttft=2.0))
    assert summary.goodput == pytest.approx(1 / summary.duration)
    assert summary.attainment == pytest.approx(1 / 5), "five have ended, one met it; those in flight do not count yet"
    assert summarize(every_ending()).goodput is None


def test_nothing_at_all():
    summary = summarize([], SLO(e2e=1))
    assert (summary.counts, summary.requests_per_s, summary.goodput, summary.attainment) == ({}, 0, 0, None)
    assert "requests: none" in str(summary)


def test_all_timed_out_in_the_queue():
    waited = [RequestRecord(str(i), 9, 0, FinishReason.TIMEOUT, timeline(float(i))) for i in range(3)]
    summary = summarize(waited, SLO(ttft=100))
    assert (summary.goodput, summary.attainment) == (0, 0)
    assert "3 timeout" in str(summary)


def test_records_of_outputs_and_requests_in_order_of_arrival():
    late, early = timeline(2.0, 1, 1, 1, 0), timeline(1.0, 1, 1, 1, 0)

    def completion(of: Timeline) -> Completion:
        return Completion(
            text="", request_token_ids=[1], finish_reason=FinishReason.STOP, request_logprobs=None, timeline=of
        )

    output = RequestOutput("a", None, [1, 2, 3], [completion(late), completion(early)], num_cached_tokens=2)
    request = Request("b", [1], SamplingParams(), Timeline(0.0))
    records = as_records([output, request])
    assert [(r.request_id, r.num_prompt_tokens, r.completed) for r in records] == [
        ("b", 1, False),
        ("a/1", 3, True),
        ("a/0", 3, True),
    ]
    assert [r.request_id for r in as_records([RequestOutput("c", None, [1], [completion(late)])])] == ["c"]
