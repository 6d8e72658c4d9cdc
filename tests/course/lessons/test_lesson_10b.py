"""Lesson 10b: distance and handshakes, a reader at work, light in glass."""

from dataclasses import replace

import pytest
from asserting import rewards, shows
from made_stream import START, TRIPS, passed

from course.lab.http_client import ask, connect
from course.lab.relay import RelayPath, relay
from course.lab.server import LabServer
from course.lessons.lesson_10.run import PROMPT, num_tokens
from course.lessons.lesson_10b import explorer, pictures, run, words
from course.lessons.lesson_10b.check import checks
from course.lessons.lesson_10b.run import ReceivedAnswer
from minillm.server.answers import DONE


def test_nobody_reads_what_is_not_there() -> None:
    slow_engine = ReceivedAnswer((1.0, 2.0, 3.0), words=3)
    assert slow_engine.read(600) == pytest.approx([1.1, 2.1, 3.1])
    assert slow_engine.read(30) == pytest.approx([3.0, 5.0, 7.0])
    assert ReceivedAnswer((3.0,) * 3, 3).read(30)[-1] == pytest.approx(9.0)
    assert slow_engine.engine_pace == pytest.approx(90) and ReceivedAnswer((3.0,) * 3, 3).engine_pace > 1e5


def test_the_middle_one_of_several_is_taken() -> None:
    heard = [replace(passed().heard, ended=START + took) for took in (9.0, 1.0, 2.0, 1.5, 30.0)]
    assert run._middle(heard).ended == START + 2.0


def test_a_faster_reader_is_done_earlier(server: LabServer) -> None:
    forms = run.both_forms(server)
    assert len(forms["streamed"].arrivals) == len(forms["whole"].arrivals) <= num_tokens(server.lab)
    assert forms["streamed"].arrivals[0] < forms["streamed"].arrivals[-1]
    panel = pictures.reading(forms)
    before = panel.view.value
    panel.set(words_per_minute=1000)
    assert panel.view.value != before
    pace = forms["streamed"].engine_pace
    assert f"the engine's: {pace:,.0f}" in panel.view.value
    assert panel.controls["words_per_minute"].max >= max(1000, 2 * pace - 1), "the dashes can touch the line"
    assert forms["whole"].read(1000)[-1] < forms["whole"].read(100)[-1]


def test_a_relay_adds_its_round_trips_and_keeps_every_byte(server: LabServer) -> None:
    with relay(server.port, RelayPath(0.05, handshakes=2)) as port:
        line = connect(port)
        first = ask(port, PROMPT, 6, connection=line)
        second = ask(port, PROMPT, 6, connection=line)
        line.close()
    assert first.ttft >= 3 * 0.05 and second.ttft >= 0.05  # never earlier: later is this machine's business
    assert first.body.endswith(DONE) and second.body.endswith(DONE)


def test_round_trips_by_hand() -> None:
    assert [trip.round_trips for trip in TRIPS] == [1, 1, 3]
    assert run.network_share(TRIPS[2]) == pytest.approx(0.3 / 0.35)
    assert "3  300 ms  350 ms  86%" in str(pictures.trips_table(TRIPS))
    assert words.far(TRIPS).answer == pytest.approx((TRIPS[2].ttft - TRIPS[0].ttft) / TRIPS[2].rtt_s)


@pytest.mark.parametrize(("far_itl", "words_of_it"), [(0.011, "ms in all rows"), (0.0135, "don't show what distance")])
def test_gaps_are_called_the_same_only_if_they_are(far_itl: float, words_of_it: str) -> None:
    assert words_of_it in words.tell_trips([*TRIPS[:2], replace(TRIPS[2], itl=far_itl)]).here


def test_e7_depends_on_the_servers_own_part() -> None:
    claim = words.e7(TRIPS)
    assert claim.kind == "only when" and "are 25% to 50% of TTFT" in claim.verdict
    slow = [replace(trip, ttft=trip.ttft + 2) for trip in TRIPS]
    assert words.e7(slow).kind == "not shown"


def test_distance_is_light_in_glass() -> None:
    assert explorer.distance_km("Frankfurt", "Sydney") == pytest.approx(16_480, rel=0.01)
    assert explorer.rtt_s("Virginia", "Virginia") == 0
    assert explorer.rtt_s("Frankfurt", "Sydney", 2.0) == 2 * explorer.rtt_s("Frankfurt", "Sydney", 1.0)
    budget = {"rtt_ms": 80, "handshakes": 2, "gateway_ms": 15, "queue_ms": 40, "prefill_ms": 150, "held": 0}
    assert sum(explorer.hops(**budget).values()) == 3 * 80 + 15 + 40 + 150 + 2
    shows(explorer.draw_hops(500.0, **budget), "447 ms of a budget of 500 ms")


FORMS = {"streamed": ReceivedAnswer((0.1, 1.0), 2), "whole": ReceivedAnswer((1.02, 1.02), 2)}


def test_the_check_rewards_what_is_right() -> None:
    rewards(checks(FORMS), 850, "About the same")
    late = checks({**FORMS, "whole": ReceivedAnswer((1.15, 1.15), 2)})
    assert late("q2", "streamed").score == 1 and late("q2", "about the same").score == 0


def test_no_key_where_the_machine_was_too_noisy() -> None:
    noisy = checks({**FORMS, "whole": ReceivedAnswer((2.0, 2.0), 2)})
    for answer in ("streamed", "whole", "about the same"):
        assert noisy("q2", answer).score == 1
    assert noisy("q2", "neither").score == 0
