"""Lesson 10: both ends of the wire. Arithmetic by hand; real sockets, a tiny model; the network at 70B simulated."""

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace

import pytest

from course.lab.claims import lesson_10 as claims
from course.lab.grading import lesson_10 as grading
from course.lab.lab import Lab
from course.lab.lesson_10 import (
    batching,
    distance,
    front,
    leaving,
    letters,
    readers,
    seventy,
    traffic,
    trouble,
    wire,
)
from course.lab.lesson_10.client import Heard, Read, ask, connect
from course.lab.lesson_10.front import Fed
from course.lab.lesson_10.leaving import GATEWAY, STRAIGHT, Crowd, Left
from course.lab.lesson_10.readers import Answer
from course.lab.lesson_10.relay import Way, relay
from course.lab.lesson_10.server import LabServer, proxy
from course.lab.lesson_10.traffic import Passed, Trip
from course.lab.svg import Picture
from minillm.serve.answers import DONE
from minillm.timeline import StepRecord, StepShare

START = 100.0


def passed(name: str = "straight", bunch: int = 1, tokens: int = 40, extra: float = 0.0, told: float = 0.1) -> Passed:
    """A token each 10 ms from 100 ms on; `bunch` of them arrive together, when the last of them was written."""
    server = tuple(START + 0.1 + 0.01 * i for i in range(tokens))
    reads = tuple(
        Read(server[min(i + bunch, tokens) - 1] + extra, 200 * bunch, min(bunch, tokens - i))
        for i in range(0, tokens, bunch)
    )
    heard = Heard(START, reads, reads[-1].moment, 200, "made", b"", tokens)
    return Passed(name, heard, server, {"ttft": told, "itl": 0.01, "stream": 0.001})


def shows(picture: Picture, *words: str) -> None:
    ET.fromstring(picture.svg())
    for each in words:
        assert each in picture.svg() or each in picture.alternative


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
    [
        (passed(), ("same", "same")),
        (passed(extra=0.3), ("same", "same")),
        (passed(bunch=20), ("down", "up")),
    ],
)
def test_what_became_of_the_rhythm(now: Passed, answer: tuple[str, str]) -> None:
    assert traffic.rhythm(now).answer == traffic.RHYTHM[answer]


def test_the_wire_is_drawn_with_its_lumps() -> None:
    shows(
        wire.draw_wire([passed(), passed("held", 20)]),
        "×20",
        "in one moment",
        "held",
        "leaves",
        "arrives",
        "TTFT 290 ms",
    )
    assert "100 ms" in str(wire.metrics_table([passed()]))


def test_a_proxy_changes_the_clients_numbers_and_not_the_servers(server: LabServer) -> None:
    straight = traffic.through(server, tokens=40)
    held = traffic.through(server, tokens=40, buffer_bytes=4096)
    assert len(straight.server) == len(held.server) == 40
    assert 0 < len(straight.heard.arrivals) <= 40  # a server that lags puts two tokens into one event
    assert max(read.tokens for read in held.heard.reads) > 10
    assert {"ttft", "itl", "stream"} <= held.told.keys()
    assert held.told["itl"] == pytest.approx(sum(held.server_itl) / 39)


def test_handles_spoil_the_real_wire(server: LabServer) -> None:
    panel = wire.spoil(server, passed())
    panel.set(coalesce=8).press()
    panel.wait()
    assert panel.error is None and "×8" in panel.view.value


# ---------------------------------------------------------------- letters


def test_only_whole_characters_are_shown(tiny_lab: Lab) -> None:
    spelled = letters.spell(tiny_lab.model.tokenizer)
    assert any("\ufffd" in each.alone for each in spelled)
    for come in range(1, len(spelled) + 1):
        naive, ours = letters.shown(spelled, come)
        assert "\ufffd" not in ours and letters.SAMPLE.startswith(ours)
        shows(letters.draw_letters(spelled, come), f"{come} of {len(spelled)} tokens")
    assert ours == letters.SAMPLE and "\ufffd" in naive
    assert b"".join(each.raw for each in spelled).decode() == letters.SAMPLE


def test_the_handle_steps_through_tokens(tiny_lab: Lab) -> None:
    panel = letters.step_through(tiny_lab.model.tokenizer)
    assert "wait for the rest of their character" in panel.view.value
    panel.set(come=1)
    assert "nothing waits" in panel.view.value


class Counting:
    """A tokenizer that adds up what it is asked to decode."""

    def __init__(self) -> None:
        self.decoded = 0

    def decode(self, ids: list[int], *, skip_special_tokens: bool = True) -> str:
        self.decoded += len(ids)
        return "a" * len(ids)


def test_decoding_the_whole_text_again_is_quadratic() -> None:
    def work(way, n: int) -> int:
        tokenizer = Counting()
        way(tokenizer, list(range(n)))
        return tokenizer.decoded

    assert work(letters.whole_text, 200) == 200 * 201 / 2
    assert work(letters.incremental, 400) <= 2 * work(letters.incremental, 200) + 10


def test_costs_are_measured_and_drawn(tiny_lab: Lab) -> None:
    found = letters.cost(tiny_lab.model.tokenizer, "a few words", short=True)
    assert found.lengths == letters.SHORT_LENGTHS and min(found.incremental) > 0
    shows(letters.draw_cost(found), "whole text again", "short window")


# ---------------------------------------------------------------- readers


def test_nobody_reads_what_is_not_there() -> None:
    slow_engine = Answer((1.0, 2.0, 3.0), words=3)
    assert slow_engine.read(600) == pytest.approx([1.1, 2.1, 3.1]) and slow_engine.starved(600) == pytest.approx(1.8)
    assert slow_engine.read(30) == pytest.approx([3.0, 5.0, 7.0]) and slow_engine.starved(30) == pytest.approx(0)
    assert Answer((3.0,) * 3, 3).read(30)[-1] == pytest.approx(9.0)


def test_a_faster_reader_is_done_earlier(server: LabServer) -> None:
    forms = readers.both_forms(server)
    assert len(forms["streamed"].arrivals) == len(forms["whole"].arrivals) <= traffic.num_tokens(server.lab)
    assert forms["streamed"].arrivals[0] < forms["streamed"].arrivals[-1]
    panel = readers.reading(forms)
    before = panel.view.value
    panel.set(words_per_minute=1000)
    assert panel.view.value != before
    assert forms["whole"].read(1000)[-1] < forms["whole"].read(100)[-1]


def test_a_reader_who_stops_is_cut_and_nobody_else(tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "PATIENCE_S", 0.3)
    found = readers.stall(tiny_lab)
    assert found.outcome == "slow_reader" and found.blocks_after == 0
    assert 0 < found.kernel_bytes < found.answer_bytes
    wrote, taken = found.written / (48 * readers.STREAMS), found.kernel_bytes / found.answer_bytes
    assert taken < wrote <= 1, "the engine does not wait for a reader"
    assert found.neighbour.body.endswith(DONE)
    assert "slow_reader" in str(readers.stalled_table(found))


# ---------------------------------------------------------------- leaving


def test_who_leaves_is_noticed_unless_a_gateway_reads_on(server: LabServer) -> None:
    ended = leaving.leave(server, share=0.05, tokens=400)
    assert ended.outcome == "disconnected" and ended.written < 400
    kept = leaving.leave(server, share=0.5, reads_on=True)
    assert kept.outcome == "ok" and kept.written == traffic.num_tokens(server.lab) and kept.saved == 0
    assert server.kv_blocks_held() == 0
    found = {STRAIGHT: ended, GATEWAY: kept}
    shows(leaving.draw_leaving(found), "the reader leaves", "logged as disconnected", "logged as ok")


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
    assert leaving.saved_share(0.6, 0.5, 0.0) == pytest.approx(0.3)
    assert leaving.saved_share(1.0, 0.0, 1.0) == 0


def test_handles_of_the_saving() -> None:
    panel = leaving.how_many_leave()
    panel.set(read=50, prompt=0)
    assert "30% needs 60% to leave" in panel.view.value
    panel.set(read=90)
    assert "cannot be reached" in panel.view.value


def test_a_crowd_is_counted(server: LabServer) -> None:
    found = leaving.crowd(server, 3, 1, 0.5, reads_on=True)
    assert found.written == found.asked == 3 * 24 and found.busy_s > 0 and found.stayed_s > 0
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


TRIPS = [
    Trip(0.0, "kept open", 0.05, 0.01),
    Trip(0.1, "kept open", 0.15, 0.01),
    Trip(0.1, "new, TCP + TLS 1.3", 0.35, 0.01),
]


def test_round_trips_by_hand() -> None:
    assert [trip.round_trips for trip in TRIPS] == [1, 1, 3]
    assert distance.network_share(TRIPS[2]) == pytest.approx(0.3 / 0.35)
    assert traffic.far_away(TRIPS).answer == "TTFT grows by three round trips, ITL stays"
    slow = replace(TRIPS[2], itl=0.11)
    assert traffic.far_away([TRIPS[0], slow]).answer == "TTFT grows by three round trips, ITL by one"
    assert traffic.far_away(TRIPS[:2]).answer == "TTFT grows by one round trip, ITL stays"
    assert traffic.far_away([TRIPS[0], replace(TRIPS[1], itl=0.2)]).answer == traffic.UNCHANGED[0]
    shows(distance.draw_trips(TRIPS), "set-up 1", "ask", "kept open")


def test_distance_on_paper_follows_its_handles() -> None:
    panel = distance.on_paper(TRIPS)
    panel.set(rtt_ms=100, connection="new, TCP + TLS 1.2")
    assert "TTFT 450 ms" in panel.view.value
    panel.set(connection="kept open")
    assert "TTFT 150 ms" in panel.view.value and "TTFT 450 ms" not in panel.view.value


def test_trips_are_measured(server: LabServer) -> None:
    found = traffic.trips(server, rtts=(0.0, 0.02))
    assert [(t.rtt_s, t.round_trips) for t in found] == [(0.0, 1), (0.0, 3), (0.02, 1), (0.02, 3)]
    assert found[3].ttft >= found[3].network


# ---------------------------------------------------------------- chunks


def fed(every: int, cpu: float = 1e-4, late: float = 0.001, chunks: int = 1000) -> Fed:
    return Fed(10, every, chunks, cpu * chunks, 2.0, (late,) * chunks)


COSTS = [fed(every) for every in front.EVERY]


def test_the_front_sends_what_it_is_fed(tiny_lab: Lab) -> None:
    found = front.feed(tiny_lab, streams=3, every=2, rate=0, tokens=12)
    assert found.chunks == 3 * 6 and found.cpu_s > 0 and found.cpu_per_chunk == found.cpu_s / 18
    alone = front.chunks_alone(tiny_lab, 4)
    assert alone.chunks == 16 * 64 and alone.every == 4 and alone.cpu_s > 0
    paced = front.feed(tiny_lab, streams=2, every=1, rate=200, tokens=4)
    assert paced.chunks == 8 and min(paced.lateness) >= 0 and paced.wall_s > 0.02


def test_the_bill_for_chunks() -> None:
    assert fed(1).busy == pytest.approx(0.05)
    table = str(front.chunk_cost_table(COSTS, fed(1, cpu=3e-4)))
    assert "100 µs" in table and "10000" in table and "1, the whole server  300 µs" in table
    panel = front.cores_needed(COSTS)
    before = panel.view.value
    panel.set(every=16)
    assert "16 tokens in a chunk" in panel.view.value and panel.view.value != before
    assert "1 s" in str(front.too_many_table([fed(1, late=1.0)]))


def test_larger_chunks_are_fewer(tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "MOST_STREAMS", 8)
    monkeypatch.setattr(front, "OVERLOAD", 0.05)
    small, *_, large = front.too_many(tiny_lab, COSTS)
    assert small.every == 1 and large.every == 16 and large.chunks < small.chunks / 8


# ---------------------------------------------------------------- trouble, four ways


def test_each_trouble_gets_its_typed_error(tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trouble, "LIMITS", {"max_body_bytes": 20_000, "head_timeout_s": 0.3, "body_timeout_s": 0.3})
    found = trouble.send_all(tiny_lab)
    assert [each.name for each in found] == list(trouble.KINDS)
    assert [each for each in found if not each.harmless] == []
    assert claims.e6(found).kind == "holds only when"
    assert claims.e6([*found, replace(found[0], neighbour_ok=False)]).kind == "holds"
    assert "context_length_exceeded" in str(trouble.trouble_table(found))


def test_four_ways_are_served(tiny_lab: Lab) -> None:
    found = batching.four_ways(tiny_lab)
    assert len(batching.by_way(found)) == 8
    assert all(len(each.e2e) == 4 and all(a <= b for a, b in zip(each.first_words, each.e2e)) for each in found)
    assert str(batching.four_ways_table(found)).count("all at once") == 4
    assert claims.d16(found).id == "D16"


# ---------------------------------------------------------------- claims


def test_a5_is_of_a_size_only_with_the_right_buffer() -> None:
    late = [fed(1, late=0.05)]
    assert claims.a5(passed(), [passed(bunch=6)], late).kind == "holds"
    assert claims.a5(passed(), [passed(bunch=40)], late).kind == "holds only when"
    assert claims.a5(passed(), [passed(bunch=6, told=0.5)], late).kind == "not shown"
    assert "200 bytes" in claims.a5(passed(), [passed(bunch=6)], late).measured


def test_d15_depends_on_who_leaves() -> None:
    reads_on = Crowd(GATEWAY, 100, 100, 20, 40, 2.0, 1.5)
    saved = {("room", GATEWAY): reads_on, ("room", STRAIGHT): Crowd(STRAIGHT, 100, 76, 20, 38, 1.9, 1.4)}
    claim = claims.d15(saved)
    assert (
        claim.kind == "holds only when" and "tokens saved 20%" in claim.measured and "steps saved 5%" in claim.measured
    )
    nothing = {**saved, ("room", STRAIGHT): replace(reads_on, name=STRAIGHT)}
    assert claims.d15(nothing).kind == "not shown"


def ways(streamed: float = 1.0, batched: float = 0.3) -> list[batching.Served]:
    found = []
    for load in batching.LOADS:
        for is_batched in (False, True):
            for is_streamed in (False, True):
                e2e = (batched if is_batched and load == "all at once" else 1.0) * (streamed if is_streamed else 1.0)
                found.append(batching.Served(is_streamed, is_batched, load, (e2e / 2,), (e2e,)))
    return found


def test_d16_names_the_one_that_did_it() -> None:
    assert claims.d16(ways()).kind == "holds only when" and "batching ×0.30" in claims.d16(ways()).measured
    assert claims.d16(ways(batched=0.9)).kind == "not shown"
    assert claims.d16(ways(streamed=0.5)).kind == "not shown"


def test_e1_and_e7_follow_their_numbers() -> None:
    forms = {"streamed": Answer((0.1, 0.5, 1.0), 30), "whole": Answer((1.0,) * 3, 30)}
    assert claims.e1(forms).kind == "holds"
    assert claims.e1({**forms, "whole": Answer((2.0,) * 3, 30)}).kind == "not shown"
    assert claims.e1({**forms, "streamed": Answer((1.0, 1.0, 1.0), 30)}).kind == "wrong"
    assert claims.e7(TRIPS).kind == "holds"
    assert claims.e7([*TRIPS, replace(TRIPS[1], ttft=0.9)]).kind == "holds only when"
    assert claims.e7([replace(TRIPS[1], ttft=0.9)]).kind == "wrong"


def test_the_ledger_can_measure_each(tiny_lab: Lab) -> None:
    assert claims.MEASURE.keys() == {"A5", "D15", "D16", "E1", "E6", "E7"}
    for name in ("E1", "D15"):
        assert claims.MEASURE[name](tiny_lab).id == name


# ---------------------------------------------------------------- the check

FORMS = {"streamed": Answer((0.1, 1.0), 2), "whole": Answer((1.02, 1.02), 2)}


def test_the_check_rewards_what_is_right() -> None:
    check = grading.checks(passed(), FORMS, COSTS)
    right = (("q1", 4096 / 200), ("q2", 850), ("q3", 0.24), ("q4", 2.0), ("q5", "none"), ("q6", "Alike"))
    for question, answer in right:
        assert check(question, answer).score == 1, question
    late = {**FORMS, "whole": Answer((2.0, 2.0), 2)}
    assert grading.checks(passed(), late, COSTS)("q6", "streamed").score == 1


@pytest.mark.parametrize(
    ("question", "answer", "hint"),
    [
        ("q1", 200, "bytes of one event"),
        ("q1", 4096, "these are bytes"),
        ("q2", 700, "the question itself"),
        ("q2", 600, "own part"),
        ("q2", 400, "open already"),
        ("q3", 24, "a share"),
        ("q3", 0.08, "did read"),
        ("q3", 0.3, "prompt was computed"),
        ("q4", 0.5, "upside down"),
        ("q4", 2000, "factor of 1000"),
        ("q5", "stream", "transport"),
        ("q6", "whole", "last tokens"),
    ],
)
def test_the_check_names_the_slip(question: str, answer: object, hint: str) -> None:
    graded = grading.checks(passed(), FORMS, COSTS)(question, answer)
    assert graded.score == 0 and hint in str(graded)


@pytest.mark.parametrize("answer", [..., None, "tea", [], object(), float("nan"), -1, 0])
def test_no_answer_raises(answer: object) -> None:
    check = grading.checks(passed(), FORMS, COSTS)
    for question in ("q1", "q2", "q3", "q4", "q5", "q6"):
        assert check(question, answer).score < check(question, answer).max_score


# ---------------------------------------------------------------- at 70B


def test_the_network_at_70b_moves_clients_and_not_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seventy, "REQUESTS", 24)
    seventy.served.cache_clear()
    near, held, far = seventy.served(0), seventy.served(0, 0, 17), seventy.served(150, 2)
    assert near.itl_client == pytest.approx(near.itl_engine)
    assert held.itl_engine == pytest.approx(near.itl_engine) and held.itl_client[0] == 0
    assert held.itl_client[1] > 5 * near.itl_client[1]
    assert far.ttft_client == pytest.approx(near.ttft_client + 3 * 0.15, rel=0.1)
    panel = seventy.explore()
    panel.set(rtt_ms=0, hold_chunks=1)
    before = panel.view.value
    panel.set(hold_chunks=22, hold_ms=50)
    assert panel.view.value != before
    shows(seventy.draw_ends(held), "leaves", "arrives")
    assert "far, new TLS connection" in str(seventy.cases_table())
    seventy.served.cache_clear()


def test_a_proxy_that_spoils_nothing_is_none(server: LabServer) -> None:
    with proxy(server.port) as port:
        assert port == server.port
