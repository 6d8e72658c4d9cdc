"""Each warning appears for the illness it names, and not for a healthy test."""

from typing import Any

import pytest

from course.loadgen.client import Failure
from course.loadgen.observation import COMPLETED, CUT_OFF, NEVER_SENT, Observation, TokenSource, on_even_schedule
from course.loadgen.server_metrics import Histogram
from course.loadgen.validity import ClientLoad, LoadTestEvidence, check_validity
from course.summary import summarize


def observation(index: int = 0, **fields: Any) -> Observation:
    """Sent at 0, first token at 0.5 s, four tokens 20 ms apart."""
    sent = fields.get("sent", 0.0)
    base: dict[str, Any] = dict(
        index=index,
        outcome=COMPLETED,
        message="",
        status=200,
        due=sent,
        sent=sent,
        ended=None if sent is None else sent + 0.6,
        deliveries=() if sent is None else tuple(sent + 0.5 + 0.02 * i for i in range(4)),
        num_tokens=4,
        token_source=TokenSource.USAGE,
        max_tokens=4,
        prompt_tokens=7,
        cached_tokens=0,
        finish_reason="length",
    )
    return Observation(**{**base, **fields})


CALM = ClientLoad(cpu_share=0.05, lag_p50_s=0.0001, lag_p99_s=0.001)
HEALTHY = [observation(i, sent=0.1 * i) for i in range(100)]


def kinds(observations: list[Observation], client: ClientLoad = CALM, cap: int | None = None, **more: object) -> dict:
    settings = {"has_schedule": True, "server": {}, **more}
    return {w.kind: w.message for w in check_validity(LoadTestEvidence(observations, client, cap, **settings))}


def test_a_healthy_test_gets_none() -> None:
    assert kinds(HEALTHY) == {}


def test_failures_come_first_and_quote_the_first_message() -> None:
    failed = observation(100, outcome=Failure.SERVER_ERROR, message="500: boom", deliveries=(), num_tokens=0)
    found = kinds([*HEALTHY, failed])
    assert next(iter(found)) == "failures"
    assert "1 of 101" in found["failures"] and "boom" in found["failures"]


def test_what_the_user_cut_off_is_no_failure() -> None:
    cut = [observation(100, outcome=CUT_OFF, ended=None), observation(101, sent=None, due=None, outcome=NEVER_SENT)]
    assert kinds([*HEALTHY, *cut]) == {}


def test_a_closed_loop_is_coordinated() -> None:
    assert "closed loop of 4" in kinds(HEALTHY, cap=4, has_schedule=False)["coordinated omission"]


def test_a_cap_that_holds_requests_back_is_told_with_how_many_and_how_long() -> None:
    held = [observation(i, sent=0.1 * i, due=0.1 * i - (1.5 if i >= 90 else 0)) for i in range(100)]
    message = kinds(held, cap=4)["coordinated omission"]
    assert "10 of 100" in message and "1.5 s" in message
    assert "coordinated omission" not in kinds(HEALTHY, cap=4)


def test_late_sends_are_the_clients_fault() -> None:
    late = [observation(i, sent=0.1 * i, due=0.1 * i - 0.06) for i in range(100)]
    assert "100 of 100" in kinds(late)["late sends"]
    barely = [observation(i, sent=0.1 * i, due=0.1 * i - 0.02) for i in range(100)]
    assert "late sends" not in kinds(barely), "20 ms of a TTFT of 500 ms do not matter"


def test_several_tokens_in_an_event_are_coalesced() -> None:
    packed = [observation(i, sent=0.1 * i, num_tokens=16, max_tokens=16) for i in range(100)]
    assert "4.00 tokens" in kinds(packed)["coalesced chunks"]


def test_gaps_near_zero_are_coalesced() -> None:
    bursts = [
        observation(i, sent=0.1 * i, deliveries=tuple(0.1 * i + t for t in (0.5, 0.5, 0.56, 0.56))) for i in range(100)
    ]
    assert "67%" in kinds(bursts)["coalesced chunks"]


def test_a_busy_client_is_told() -> None:
    assert "90% of a core" in kinds(HEALTHY, ClientLoad(0.9, 0.0, 0.001))["busy client"]
    assert "busy client" in kinds(HEALTHY, ClientLoad(0.1, 0.0, 0.01)), "10 ms late is half a gap"


def test_guessed_token_counts_are_told() -> None:
    guessed = [observation(i, sent=0.1 * i, token_source=TokenSource.EVENTS) for i in range(100)]
    assert "token counts" in kinds(guessed)


def test_answers_that_end_early_are_told() -> None:
    short = [observation(i, sent=0.1 * i, max_tokens=64) for i in range(100)]
    assert "ignore_eos" in kinds(short)["short answers"]


def test_other_traffic_on_the_server_is_told() -> None:
    ours, others = {"e2e": Histogram(count=101.0)}, {"e2e": Histogram(count=150.0)}
    assert "server's histograms" not in kinds(HEALTHY, server=ours)
    assert "150" in kinds(HEALTHY, server=others)["server's histograms"]


def test_few_samples_are_told() -> None:
    assert "few samples" in kinds(HEALTHY[:99])


def test_an_even_schedule_shows_the_stall_that_a_closed_loop_hides() -> None:
    """One worker, 0.1 s an answer, and a stall of 5 s in the middle: one bad sample of 100, or half of them."""
    moments = [0.1 * i + (5.0 if i > 50 else 0.0) for i in range(100)]
    rows = [
        observation(
            i,
            sent=sent,
            due=0.0,
            deliveries=(sent + (5.1 if i == 50 else 0.1),),
            ended=sent + (5.1 if i == 50 else 0.1),
        )
        for i, sent in enumerate(moments)
    ]
    sent = summarize([o.as_request_record("sent") for o in rows]).metrics["e2e"]
    due = summarize([o.as_request_record("due") for o in on_even_schedule(rows)]).metrics["e2e"]
    assert sent.p50 == pytest.approx(0.1)
    assert sent.p95 == pytest.approx(0.1)
    assert due.p95 > 2.0
    assert due.p50 >= sent.p50


def test_an_even_schedule_leaves_even_sends_and_unsent_requests_alone() -> None:
    rows = [*HEALTHY, observation(100, sent=None, due=None, outcome=NEVER_SENT)]
    assert [o.late_s for o in on_even_schedule(rows)] == pytest.approx([0.0] * 101, abs=1e-9)
