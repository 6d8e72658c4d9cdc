"""The lab on somebody else's server: what is seen, what is inferred, and that each is marked as what it is."""

import threading

import pytest
from fake_endpoint import FakeEndpoint, Reply
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE_S

from course.lab.remote import RemoteLab, RemoteSession
from course.lab.remote_dashboard import RemoteDashboard
from course.lab.remote_phases import (
    ALL_PREFILL,
    FROM_METRICS,
    UNKNOWN,
    borders_of,
    read_server_phases,
    split_from_metrics,
)
from course.lab.run import phases_of
from course.lab.slo import attainment
from course.lab.workloads import LabWorkload, PromptArrival
from course.loadgen.errors import EndpointError
from course.loadgen.observation import COMPLETED, Observation, TokenSource
from course.loadgen.server_metrics import Histogram
from course.summary import SLO
from minillm.core.errors import ConfigError
from minillm.core.timeline import Timeline
from minillm.server.answers import server_times

WAIT_S = PATIENCE_S
VLLM = {"vllm:request_queue_time_seconds": 0.02, "vllm:request_prefill_time_seconds": 0.01}
DASHED = 'stroke-dasharray="3 2"'


def together(count: int = 3, tokens: int = 4) -> LabWorkload:
    return LabWorkload(
        "three", "Three at once.", tuple(PromptArrival(0.0, f"question {i}", tokens) for i in range(count))
    )


def answer(**fields: object):
    return lambda number, body: Reply(num_tokens=body["max_tokens"], **fields)


def observed(**fields: object) -> Observation:
    """Sent at 1 s, first token at 1.5 s, last at 1.8 s, over at 1.85 s."""
    base = dict(
        index=0,
        outcome=COMPLETED,
        message="",
        status=200,
        due=1.0,
        sent=1.0,
        ended=1.85,
        deliveries=(1.5, 1.6, 1.8),
        num_tokens=3,
        token_source=TokenSource.USAGE,
        max_tokens=3,
        prompt_tokens=5,
        cached_tokens=0,
        finish_reason="stop",
    )
    return Observation(**{**base, **fields})


def histogram(mean: float) -> Histogram:
    return Histogram({}, 10.0, 10 * mean)


def test_without_metrics_the_first_phases_are_one_and_marked() -> None:
    with FakeEndpoint(answer(ttft_s=0.02, gap_s=0.005)) as fake:
        run = RemoteLab(fake.url).run(together())
        assert fake.bodies[-1]["ignore_eos"] is True
    assert run.done
    assert len(run.finished) == 3
    assert run.remote.inferred == {"queue", "prefill", "first_token"}
    assert run.remote.how == UNKNOWN
    for view, output in zip(run.views, run.outputs):
        phases = phases_of(view)
        assert phases["queue"] == phases["first_token"] == 0.0
        assert phases["prefill"] == pytest.approx(output.timeline.ttft)
        assert sum(phases.values()) == pytest.approx(output.timeline.e2e)
        assert view.num_output_tokens == len(view.deliveries) == 4
        assert view.num_prompt_tokens == 7
    assert attainment(run, SLO(e2e=60.0)) == 1.0


def test_metrics_split_every_ttft_by_the_means() -> None:
    with FakeEndpoint(answer(ttft_s=0.05), histograms=VLLM) as fake:
        run = RemoteLab(fake.url).run(together())
    assert run.remote.server == "vllm"
    assert run.remote.how == FROM_METRICS
    mean = run.mean_phases()
    assert mean["queue"] == pytest.approx(0.02)
    assert mean["prefill"] == pytest.approx(0.01)
    assert mean["first_token"] > 0


durations = st.floats(0.001, 5)


@given(durations, durations, st.lists(durations, min_size=1, max_size=5))
def test_shares_are_shares_whatever_the_histograms_say(queue: float, prefill: float, ttfts: list[float]) -> None:
    split = split_from_metrics({"queue": histogram(queue), "prefill": histogram(prefill)}, ttfts)
    assert sum(split.shares.values()) == pytest.approx(1)
    assert all(-1e-9 <= share <= 1 for share in split.shares.values())
    borders = borders_of(observed(), split, now=9.0)
    assert list(borders) == sorted(borders)
    assert (borders[0], borders[3], borders[5]) == (1.0, 1.5, 1.85)


def test_sglang_has_no_prefill_time_but_a_ttft() -> None:
    split = split_from_metrics({"queue": histogram(0.1), "ttft": histogram(0.3)}, [0.5])
    assert split.shares == pytest.approx({"queue": 0.2, "prefill": 0.4, "first_token": 0.4})
    assert split_from_metrics({"ttft": histogram(0.3)}, [0.5]) is ALL_PREFILL


def test_in_flight_a_request_waits_until_its_first_token() -> None:
    waiting = observed(outcome="cut off", deliveries=(), ended=None)
    assert borders_of(waiting, ALL_PREFILL, now=1.4) == (1.0, 1.4, 1.4, 1.4, 1.4, 1.4)
    decoding = observed(outcome="cut off", ended=None)
    assert borders_of(decoding, ALL_PREFILL, now=1.9) == (1.0, 1.0, 1.5, 1.5, 1.9, 1.9)


def test_the_dashboard_shows_the_same_pictures_and_marks_what_is_inferred() -> None:
    with FakeEndpoint(answer(ttft_s=0.02), histograms=VLLM) as fake:
        dash = RemoteDashboard(RemoteLab(fake.url, short=True), "burst")
        dash.start()
        assert dash.wait(WAIT_S)
        first = dash.run
        dash.start()
        assert dash.wait(WAIT_S)
    html, shown = dash.static_html(), dash.widget.shown
    assert "queue (inferred)" in html and DASHED in html and "previous" in html
    assert "decode (inferred)" not in html
    assert "KV peak" not in html
    assert dash.previous is first
    assert "queue" in shown["run"]["inferred"] and "decode" not in shown["run"]["inferred"]
    assert shown["run"]["blocks"] == 0 and shown["before"]["traffic"] == "burst"
    assert fake.url in dash.widget.spec["where"] and dash.widget.spec["controls"] == []


def test_stop_hangs_up_and_says_so() -> None:
    with FakeEndpoint(answer(gate=threading.Event())) as fake:
        dash = RemoteDashboard(RemoteLab(fake.url), together())
        dash.start()
        while fake.in_flight < 3 or dash.run is None:
            threading.Event().wait(0.01)
        assert not dash.run.done
        dash.stop()
        assert dash.wait(WAIT_S)
        assert fake.disconnected.wait(WAIT_S)
    assert [view.finish_reason for view in dash.run.views] == ["abort"] * 3
    assert dash.widget.shown["run"]["state"] == "stopped"


def test_refusals_are_shown_with_their_reason() -> None:
    with FakeEndpoint(lambda number, body: Reply(status=429) if number == 1 else Reply()) as fake:
        dash = RemoteDashboard(RemoteLab(fake.url), together())
        dash.start()
        assert dash.wait(WAIT_S)
    refused = [row for row in dash.run.rows if row.refused]
    assert len(refused) == 1
    assert refused[0].refused == "429: as told"
    assert [row["refused"] for row in dash.widget.shown["run"]["rows"]].count("429: as told") == 1


def test_an_answer_that_never_ends_is_given_up() -> None:
    with FakeEndpoint(answer(gate=threading.Event())) as fake:
        run = RemoteLab(fake.url, timeout_s=1.0).run(together())
        assert fake.in_flight == 0 or fake.disconnected.wait(WAIT_S), "whoever it heard of has left"
    assert [row.refused for row in run.rows] == ["no whole answer within 1.0 s"] * 3


def test_nobody_there_is_said_and_the_button_comes_back() -> None:
    lab = RemoteLab("http://127.0.0.1:9")
    with pytest.raises(EndpointError, match=r"127\.0\.0\.1:9"):
        lab.run(together())
    dash = RemoteDashboard(lab, together())
    dash.start()
    assert dash.wait(WAIT_S)
    assert dash.widget.status["state"] == "failed" and "127.0.0.1:9" in dash.widget.status["words"]
    assert not dash.is_busy


def test_techniques_are_not_set_from_here() -> None:
    with pytest.raises(ConfigError, match="configured where it runs"):
        RemoteLab("http://127.0.0.1:9").config(max_num_seqs=1)


def test_a_second_run_waits_for_the_first() -> None:
    gate = threading.Event()
    with FakeEndpoint(answer(gate=gate)) as fake:
        lab = RemoteLab(fake.url)
        first = lab.start(together(), lab.config())
        seconds: list[RemoteSession] = []
        other = threading.Thread(target=lambda: seconds.append(lab.start(together(), lab.config())))
        other.start()
        other.join(0.3)
        assert not seconds, "both would be in the same readings of /metrics"
        gate.set()
        other.join(WAIT_S)
        assert first.wait(0) and seconds[0].wait(WAIT_S)


def test_the_server_says_its_phases_by_stamps_and_vllm_by_lengths() -> None:
    timeline = Timeline(arrival=1.0, scheduled=1.5, prefill_end=2.0, finished=4.0)
    timeline.deliver(2.25, 1)
    timeline.deliver(3.0, 1)
    said = server_times(timeline)
    assert read_server_phases(said) == {k: v for k, v in timeline.phases().items() if k != "stream"}
    theirs = read_server_phases({"queue_time_ms": 12, "time_to_first_token_ms": 85.2, "generation_time_ms": 1240.5})
    assert theirs == pytest.approx({"queue": 0.012, "prefill": 0.0852, "decode": 1.2405})
    assert read_server_phases({"arrival": "soon"}) == {}
    assert read_server_phases({**said, "first_token": 0.0}) == {}, "out of order"
