"""Lesson 10: both ends of the wire. Arithmetic by hand; real sockets, a tiny model; the network at 70B simulated."""

import socket

import pytest
from asserting import rewards, shows
from made_stream import COSTS, busy, passed

from course.lab.lab import Lab
from course.lab.server import LabServer, in_background
from course.lessons.lesson_10 import pictures, run, simulated, words
from course.lessons.lesson_10.check import checks
from course.lessons.lesson_10.run import ProxiedStream


def test_tokens_of_one_read_arrive_together() -> None:
    held = passed(bunch=20)
    assert held.heard.ttft == pytest.approx(0.1 + 19 * 0.01) and held.server_ttft == pytest.approx(0.1)
    assert sorted(held.heard.itl)[-2:] == pytest.approx([0.0, 0.2]) and len(held.heard.itl) == 39
    assert held.heard.event_bytes == 200


@pytest.mark.parametrize(
    ("now", "answer"),
    [(passed(), ("same", "same")), (passed(extra=0.3), ("same", "same")), (passed(bunch=20), ("down", "up"))],
)
def test_what_became_of_the_rhythm(now: ProxiedStream, answer: tuple[str, str]) -> None:
    assert words.rhythm(now).answer == words.RHYTHM[answer]


def test_a_proxy_changes_the_clients_numbers_and_not_the_servers(server: LabServer) -> None:
    straight = run.through(server, tokens=40)
    held = run.through(server, tokens=40, buffer_bytes=4096)
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
    panel = pictures.spoil(server, passed())
    panel.press()  # opens the closed one again
    panel.wait()
    assert not panel.error and server.is_open
    server.close()


def test_a_server_that_does_not_start_says_so_and_leaves_no_engine(
    tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = []
    monkeypatch.setattr("minillm.frontend.engine_thread.EngineThread.stop", lambda thread: stopped.append(thread))

    async def broken(*_: object) -> None:
        return

    monkeypatch.setattr("minillm.server.server.DrainingServer.serve", broken)
    with pytest.raises(RuntimeError, match="did not start"):
        LabServer(tiny_lab)
    assert len(stopped) == 1


def test_both_ends_are_drawn_with_the_clients_wait() -> None:
    shown = pictures.draw_both_ends([passed(), passed("held", bunch=40)])
    shows(shown, "straight", "held", "first text after 100 ms", "first text after 490 ms")


def test_upper_bars_are_called_the_same_only_if_they_are() -> None:
    slow = passed(tokens=80)
    for ways, says in (([passed(), passed(bunch=40)], "nearly the same for all"), ([passed(), slow], "differ, too")):
        assert says in words.tell_both_ends(ways).here


def test_only_whole_characters_are_shown(tiny_lab: Lab) -> None:
    spelled = run.spell(tiny_lab.model.tokenizer)
    assert any("\ufffd" in each.alone for each in spelled)
    assert not any("\ufffd" in each.released for each in spelled)
    assert "".join(each.released for each in spelled) == run.SAMPLE
    assert str(pictures.letters_table(spelled)).count("\n") == len(spelled)
    assert b"".join(each.raw for each in spelled).decode() == run.SAMPLE


def test_the_front_sends_what_it_is_fed(tiny_lab: Lab) -> None:
    found = run.feed(tiny_lab, streams=3, every=2, rate=0, tokens=12)
    assert found.chunks == 3 * 6 and found.cpu_s > 0 and found.cpu_per_chunk == found.cpu_s / 18
    alone = run.chunks_alone(tiny_lab, 4)
    assert alone.chunks == 16 * 64 and alone.every == 4 and alone.cpu_s > 0
    paced = run.feed(tiny_lab, streams=2, every=1, rate=200, tokens=4)
    assert paced.chunks == 8 and min(paced.lateness) >= 0 and paced.wall_s > 0.02


def test_a_front_that_got_no_core_is_not_judged() -> None:
    assert run.shows_overload(busy())
    assert not run.shows_overload(busy(cpu=0.3)) and not run.shows_overload(busy(cured=0.9))


def test_a_front_that_falls_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(scope: dict, receive: object, send: object) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await receive()
            await receive()  # until the client has gone

    monkeypatch.setattr(run, "SILENCE_S", 0.2)
    with in_background(silent, lifespan="off") as running, pytest.raises(TimeoutError, match="2 of 2 streams"):
        run._read_all(running.port, 2)


def test_larger_chunks_are_fewer(tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MOST_STREAMS", 8)
    monkeypatch.setattr(run, "FRONT_OVERLOAD", 0.05)
    small, *_, large = run.too_many(tiny_lab)
    assert small.every == 1 and large.every == 16 and large.chunks < small.chunks / 8


def test_the_network_at_70b_moves_clients_and_not_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "REQUESTS", 24)
    simulated.served.cache_clear()
    networks = (0, 0, 1), (0, 0, 17), (150, 2, 1)
    near, held, far = (simulated.both_ends(simulated.served(*network)).values() for network in networks)
    (engine, client), (held_engine, held_client), (_, far_client) = near, held, far
    assert client == pytest.approx(engine)
    assert held_engine == pytest.approx(engine) and held_client[1] == 0
    assert held_client[2] > 5 * client[2]
    assert far_client[0] == pytest.approx(client[0] + 3 * 0.15, rel=0.1)
    simulated.served.cache_clear()


def test_a5_is_of_a_size_only_with_the_right_buffer() -> None:
    idle = busy(cpu=0.3)
    assert words.a5(passed(), [passed(bunch=6)], idle).kind == "holds"
    assert words.a5(passed(), [passed(bunch=40)], idle).kind == "only when"
    assert words.a5(passed(), [passed(bunch=6, told=0.5)], idle).kind == "not shown"
    assert words.a5(passed(), [passed(bunch=6, told=0.01)], idle).kind == "not shown", "it moved down"
    assert "200 bytes" in words.a5(passed(), [passed(bunch=6)], idle).measured


def test_a5_speaks_of_the_front_only_if_it_was_overloaded() -> None:
    overloaded, idle = (words.a5(passed(), [passed(bunch=6)], found) for found in (busy(), busy(cpu=0.3)))
    assert overloaded.kind == "only when" and "late by more than 1 s" in overloaded.measured
    assert "late by" not in idle.measured


def test_the_check_rewards_what_is_right() -> None:
    rewards(checks(passed(), COSTS), 4096 / 200, 2.0, "none")
