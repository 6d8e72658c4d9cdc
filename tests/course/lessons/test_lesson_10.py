"""Lesson 10: both ends of the wire. Arithmetic by hand; real sockets, a tiny model; the network at 70B simulated."""

import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest
from asserting import shows
from made_stream import START, TRIPS, busy, passed

from course.lab.http_client import Heard, Read, ask, connect
from course.lab.lab import Lab
from course.lab.server import LabServer, in_background
from course.lessons.lesson_10 import (
    claims,
    distance,
    findings,
    front,
    leaving,
    letters,
    readers,
    sim_70b,
    traffic,
    trouble,
    wire,
)
from course.lessons.lesson_10.leaving import GATEWAY, STRAIGHT, Left
from course.lessons.lesson_10.readers import Answer
from course.lessons.lesson_10.relay import Way, relay
from course.lessons.lesson_10.traffic import Passed
from minillm.core.timeline import StepRecord, StepShare
from minillm.server.answers import DONE


@pytest.fixture
def server(tiny_lab: Lab) -> Iterator[LabServer]:
    with LabServer(tiny_lab) as running:
        yield running


# ---------------------------------------------------------------- both ends


def test_tokens_of_one_read_arrive_together() -> None:
    held = passed(bunch=20)
    assert held.heard.ttft == pytest.approx(0.1 + 19 * 0.01) and held.server_ttft == pytest.approx(0.1)
    assert sorted(held.heard.itl)[-2:] == pytest.approx([0.0, 0.2]) and len(held.heard.itl) == 39
    assert held.heard.event_bytes == 200


@pytest.mark.parametrize(
    ("now", "answer"),
    [(passed(), ("same", "same")), (passed(extra=0.3), ("same", "same")), (passed(bunch=20), ("down", "up"))],
)
def test_what_became_of_the_rhythm(now: Passed, answer: tuple[str, str]) -> None:
    assert traffic.rhythm(now).answer == traffic.RHYTHM[answer]


def test_a_proxy_changes_the_clients_numbers_and_not_the_servers(server: LabServer) -> None:
    straight = traffic.through(server, tokens=40)
    held = traffic.through(server, tokens=40, buffer_bytes=4096)
    assert len(straight.server) == len(held.server) == 40
    assert 0 < len(straight.heard.arrivals) <= 40  # a server that lags puts two tokens into one event
    assert max(read.tokens for read in held.heard.reads) > 10
    assert {"ttft", "itl", "stream"} <= held.told.keys()
    assert held.told["itl"] == pytest.approx(sum(held.server_itl) / 39)


def test_a_new_server_is_warm_and_takes_the_place_of_the_old_one(tiny_lab: Lab, server: LabServer) -> None:
    assert server.calls == {} and server.steps(), "it has answered once, and nobody is told"
    with LabServer(tiny_lab, instead_of=server) as second:
        assert second.port != server.port
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port), 1).close()
        panel = wire.spoil(server, passed())
        panel.press()
        panel.wait()
        assert "the server is closed" in panel.error


def test_a_server_that_does_not_start_says_so_and_leaves_no_engine(
    tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = []
    monkeypatch.setattr("course.lab.server.EngineThread.stop", lambda thread: stopped.append(thread))

    async def broken(*_: object) -> None:
        return

    monkeypatch.setattr("minillm.server.server.DrainingServer.serve", broken)
    with pytest.raises(RuntimeError, match="did not start"):
        LabServer(tiny_lab)
    assert len(stopped) == 1


# ---------------------------------------------------------------- letters


def test_only_whole_characters_are_shown(tiny_lab: Lab) -> None:
    spelled = letters.spell(tiny_lab.model.tokenizer)
    assert any("\ufffd" in each.alone for each in spelled)
    assert not any("\ufffd" in each.released for each in spelled)
    assert "".join(each.released for each in spelled) == letters.SAMPLE
    assert str(letters.letters_table(spelled)).count("\n") == len(spelled)
    assert b"".join(each.raw for each in spelled).decode() == letters.SAMPLE


# ---------------------------------------------------------------- readers


def test_nobody_reads_what_is_not_there() -> None:
    slow_engine = Answer((1.0, 2.0, 3.0), words=3)
    assert slow_engine.read(600) == pytest.approx([1.1, 2.1, 3.1])
    assert slow_engine.read(30) == pytest.approx([3.0, 5.0, 7.0])
    assert Answer((3.0,) * 3, 3).read(30)[-1] == pytest.approx(9.0)
    assert slow_engine.engine_pace == pytest.approx(90) and Answer((3.0,) * 3, 3).engine_pace > 1e5


def test_the_middle_one_of_several_is_taken() -> None:
    heard = [replace(passed().heard, ended=START + took) for took in (9.0, 1.0, 2.0, 1.5, 30.0)]
    assert readers._middle(heard).ended == START + 2.0


def test_a_faster_reader_is_done_earlier(server: LabServer) -> None:
    forms = readers.both_forms(server)
    assert len(forms["streamed"].arrivals) == len(forms["whole"].arrivals) <= traffic.num_tokens(server.lab)
    assert forms["streamed"].arrivals[0] < forms["streamed"].arrivals[-1]
    panel = readers.reading(forms)
    before = panel.view.value
    panel.set(words_per_minute=1000)
    assert panel.view.value != before
    pace = forms["streamed"].engine_pace
    assert f"the engine's: {pace:.0f}" in panel.view.value
    assert panel.controls["words_per_minute"].max >= max(1000, 2 * pace - 1), "the dashes can touch the line"
    assert forms["whole"].read(1000)[-1] < forms["whole"].read(100)[-1]


# ---------------------------------------------------------------- leaving


def test_who_leaves_is_noticed_unless_a_gateway_reads_on(server: LabServer) -> None:
    ended = leaving.leave(server, share=0.05, tokens=400)
    assert ended.outcome == "disconnected" and ended.written < 400
    kept = leaving.leave(server, share=0.5, reads_on=True)
    assert kept.outcome == "ok" and kept.written == traffic.num_tokens(server.lab) and kept.saved == 0
    assert server.kv_blocks_held() == 0
    found = {STRAIGHT: ended, GATEWAY: kept}
    shows(leaving.draw_leaving(found), "the client leaves", "logged as disconnected", "logged as ok")


def left(read: int, written: int) -> Left:
    heard = Heard(START, (Read(START + 1, 200 * read, read),), START + 1, 200, "made", b"", 100)
    steps = tuple(
        StepRecord(i, START + 0.02 * i, START + 0.02 * i + 0.02, (StepShare("made-0", 1, False),), 0, 1, 5, 96, (), {})
        for i in range(written)
    )
    return Left(heard, steps, written, START + 2, "disconnected")


def test_savings_by_hand() -> None:
    assert left(50, 55).saved == pytest.approx(0.9) and left(50, 100).saved == 0
    assert left(50, 100).kv_back == pytest.approx(1.0)
    right = leaving.saving({STRAIGHT: left(50, 51), GATEWAY: left(50, 100)})
    assert right.answer == leaving.SAVES[True, False] and "51 of 100" in right.evidence
    assert leaving.saving({STRAIGHT: left(50, 99), GATEWAY: left(50, 100)}).answer == leaving.SAVES[False, False]
    assert "was there" in leaving.saving({STRAIGHT: left(100, 100), GATEWAY: left(50, 100)})
    assert leaving.saved_share(0.6, 0.5, 0.0) == pytest.approx(0.3)
    assert leaving.saved_share(1.0, 0.0, 1.0) == 0


def reset(*_: object, **__: object) -> None:
    raise ConnectionResetError("by the peer")


def test_a_client_that_fails_is_no_saving(server: LabServer, monkeypatch: pytest.MonkeyPatch) -> None:
    asking = leaving.ask

    def ask_of(port: int, prompt: str, *args: int, **fields: object) -> Heard:
        return (reset if prompt.startswith("1") else asking)(port, prompt, *args, **fields)

    monkeypatch.setattr(leaving, "ask", ask_of)
    with pytest.raises(ConnectionResetError):
        leaving.crowd(server, 3, 1, 0.5, reads_on=False)


def test_a_crowd_is_counted(server: LabServer) -> None:
    found = leaving.crowd(server, 3, 1, 0.5, reads_on=True)
    assert found.written == found.asked == 3 * 24
    less = replace(found, written=found.written - 20, steps=found.steps // 2)
    assert less.tokens_saved(found) == pytest.approx(20 / (found.written + found.prompt_tokens))
    assert found.steps >= 24 and less.steps_saved(found) == 1 - (found.steps // 2) / found.steps
    table = str(leaving.crowds_table({("room", GATEWAY): found, ("room", STRAIGHT): replace(less, name=STRAIGHT)}))
    assert f"{found.written - 20} of {found.asked}" in table and f"{less.steps_saved(found):.0%}" in table


# ---------------------------------------------------------------- far away


def test_a_relay_adds_its_round_trips_and_keeps_every_byte(server: LabServer) -> None:
    with relay(server.port, Way(0.05, handshakes=2)) as port:
        line = connect(port)
        first = ask(port, traffic.PROMPT, 6, connection=line)
        second = ask(port, traffic.PROMPT, 6, connection=line)
        line.close()
    assert first.ttft >= 3 * 0.05 and second.ttft >= 0.05  # never earlier: later is this machine's business
    assert first.body.endswith(DONE) and second.body.endswith(DONE)


def test_round_trips_by_hand() -> None:
    assert [trip.round_trips for trip in TRIPS] == [1, 1, 3]
    assert distance.network_share(TRIPS[2]) == pytest.approx(0.3 / 0.35)
    assert "3  300 ms  350 ms  86%" in str(distance.trips_table(TRIPS))
    assert findings.far(TRIPS).answer == pytest.approx((TRIPS[2].ttft - TRIPS[0].ttft) / TRIPS[2].rtt_s)


# ---------------------------------------------------------------- chunks


def test_the_front_sends_what_it_is_fed(tiny_lab: Lab) -> None:
    found = front.feed(tiny_lab, streams=3, every=2, rate=0, tokens=12)
    assert found.chunks == 3 * 6 and found.cpu_s > 0 and found.cpu_per_chunk == found.cpu_s / 18
    alone = front.chunks_alone(tiny_lab, 4)
    assert alone.chunks == 16 * 64 and alone.every == 4 and alone.cpu_s > 0
    paced = front.feed(tiny_lab, streams=2, every=1, rate=200, tokens=4)
    assert paced.chunks == 8 and min(paced.lateness) >= 0 and paced.wall_s > 0.02


def test_a_front_that_got_no_core_is_not_judged() -> None:
    assert front.shows_overload(busy())
    assert not front.shows_overload(busy(cpu=0.3)) and not front.shows_overload(busy(cured=0.9))


def test_a_front_that_falls_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(scope: dict, receive: object, send: object) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await receive()
            await receive()  # until the client has gone

    monkeypatch.setattr(front, "SILENCE_S", 0.2)
    with in_background(silent, lifespan="off") as running, pytest.raises(TimeoutError, match="2 of 2 streams"):
        front._read_all(running.port, 2)


def test_larger_chunks_are_fewer(tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "MOST_STREAMS", 8)
    monkeypatch.setattr(front, "OVERLOAD", 0.05)
    small, *_, large = front.too_many(tiny_lab)
    assert small.every == 1 and large.every == 16 and large.chunks < small.chunks / 8


# ---------------------------------------------------------------- trouble, four ways


def test_each_trouble_gets_its_typed_error(tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trouble, "LIMITS", {**trouble.LIMITS, "reader_timeout_s": 0.3})
    found = trouble.send_all(tiny_lab)
    assert [each.name for each in found] == list(trouble.KINDS)
    assert [each for each in found if not each.harmless] == []
    assert claims.e6(found).kind == "holds only when"
    assert claims.e6([*found, replace(found[0], neighbour_ok=False)]).kind == "holds"


# ---------------------------------------------------------------- at 70B


def test_the_network_at_70b_moves_clients_and_not_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim_70b, "REQUESTS", 24)
    sim_70b.served.cache_clear()
    near, held, far = sim_70b.served(0), sim_70b.served(0, 0, 17), sim_70b.served(150, 2)
    assert near.itl_client == pytest.approx(near.itl_engine)
    assert held.itl_engine == pytest.approx(near.itl_engine) and held.itl_client[0] == 0
    assert held.itl_client[1] > 5 * near.itl_client[1]
    assert far.ttft_client == pytest.approx(near.ttft_client + 3 * 0.15, rel=0.1)
    sim_70b.served.cache_clear()


def test_both_ends_are_drawn_with_the_clients_wait() -> None:
    shown = wire.draw_both_ends([passed(), passed("held", bunch=40)])
    shows(shown, "straight", "held", "first text after 100 ms", "first text after 490 ms")
