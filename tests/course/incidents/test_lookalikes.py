"""Pairs that look the same on the page, and the one answer in which they differ. In `make test`, those that are soon
drawn."""

from collections.abc import Callable

import pandas as pd
import pytest

from course.incidents import Incident

Draw = Callable[[str, int], Incident]


def answer(draw: Draw, cause: str, question: str) -> pd.DataFrame:
    return draw(cause, 1).fresh().ask(question).data


def test_few_seats_or_a_small_pool(draw: Draw) -> None:
    assert answer(draw, "few_slots", "kv_use").iloc[0]["max"] < 50
    assert answer(draw, "kv_pool", "kv_use").iloc[0]["max"] > 85


def test_clients_that_hold_back_or_a_service_that_is_full(draw: Draw) -> None:
    held, full = (answer(draw, cause, "client_server")["p95"] for cause in ("client_cap", "overload"))
    assert held["TTFT, server"] < held["TTFT, client, since it was due"] / 10
    assert full["TTFT, server"] > full["TTFT, client, since it was due"] / 2


@pytest.mark.slow
def test_whole_prompts_or_large_chunks(draw: Draw) -> None:
    whole, large = (answer(draw, cause, "chunks").loc["now"] for cause in ("unchunked", "large_chunks"))
    assert whole["most"] > whole["budget of a step"]
    assert large["most"] <= large["budget of a step"]


@pytest.mark.slow
def test_a_broken_prefix_or_an_evicted_one(draw: Draw) -> None:
    broken, evicted = (answer(draw, cause, "shared_prefix").loc["now"] for cause in ("prefix_breaker", "evicted"))
    assert broken["at the start"] < broken["anywhere"] / 100
    assert evicted["at the start"] == evicted["anywhere"] > 1000


@pytest.mark.slow
def test_bad_drafts_or_a_full_batch(draw: Draw) -> None:
    first = "position 1, %"
    bad, full = (answer(draw, cause, "acceptance")[first] for cause in ("low_acceptance", "speculation_load"))
    assert bad["now"] < bad["last week"] / 2
    assert full["now"] > full["last week"] * 0.8


def test_a_burst_drains_and_an_overload_does_not(draw: Draw) -> None:
    """It takes a while: at the time of the page both queues grow."""

    def later(cause: str) -> pd.Series:
        incident = draw(cause, 1).fresh()
        for question in incident.questions():
            if question.id != "queue_over_time":
                incident.ask(question.id)
        return incident.ask("queue_over_time").data["waiting, mean"]

    burst, overload = later("burst"), later("overload")
    assert overload["last third"] > overload["second third"] > overload["first third"]
    assert burst["last third"] < burst.max()


def test_a_slow_link_or_slow_launches(draw: Draw) -> None:
    link, launch = (answer(draw, cause, "collectives").loc["now"] for cause in ("slow_link", "launch_bound"))
    assert link["all-reduce, share"] > 0.3 > link["waiting for the host, share"]
    assert launch["waiting for the host, share"] > 0.3 > launch["all-reduce, share"]


def test_a_busy_ingress_or_a_full_service(draw: Draw) -> None:
    ingress, overload = (answer(draw, cause, "ingress")["p95"] for cause in ("ingress", "overload"))
    assert ingress.iloc[0] > 10 * ingress.iloc[1]
    assert overload.iloc[1] > 10 * overload.iloc[0]


@pytest.mark.slow
def test_the_gpus_convict_nobody(draw: Draw) -> None:
    for cause in ("overload", "few_slots", "unchunked", "kv_pool"):
        assert answer(draw, cause, "gpu").iloc[0]["busy, %"] > 70
