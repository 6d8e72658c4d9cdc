"""Lesson 10c: clients that leave, clients that misbehave, and a retry storm. A real server with a tiny model; 70B."""

from dataclasses import dataclass, replace

import pytest
from asserting import rewards, shows
from made_stream import START

from course.lab.http_client import Heard, Read
from course.lab.lab import Lab
from course.lab.server import LabServer
from course.lessons.lesson_10c import pictures, run, simulated, words
from course.lessons.lesson_10c.check import checks
from course.lessons.lesson_10c.run import GATEWAY, STRAIGHT, AbandonedAnswer, CrowdOfReaders
from minillm.core.step_log import StepRecord, StepShare


def test_who_leaves_is_noticed_unless_a_gateway_reads_on(server: LabServer) -> None:
    ended = run.leave(server, share=0.05, tokens=400)
    assert ended.outcome == "disconnected" and ended.written < 400
    kept = run.leave(server, share=0.5, reads_on=True)
    assert kept.outcome == "ok" and kept.written == run.num_tokens(server.lab) and kept.saved == 0
    assert server.kv_blocks_held() == 0
    found = {STRAIGHT: ended, GATEWAY: kept}
    shows(pictures.draw_leaving(found), "the client leaves", "logged as disconnected", "logged as ok")


def left(read: int, written: int) -> AbandonedAnswer:
    heard = Heard(START, (Read(START + 1, 200 * read, read),), START + 1, 200, "made", b"", 100)
    steps = tuple(
        StepRecord(i, START + 0.02 * i, START + 0.02 * i + 0.02, (StepShare("made-0", 1, False),), 0, 1, 5, 96, (), {})
        for i in range(written)
    )
    return AbandonedAnswer(heard, steps, written, START + 2, "disconnected")


def test_savings_by_hand() -> None:
    assert left(50, 55).saved == pytest.approx(0.9) and left(50, 100).saved == 0
    assert left(50, 100).kv_back == pytest.approx(1.0)
    noticed = {STRAIGHT: left(50, 51), GATEWAY: left(50, 100)}
    assert "keeps reading to the end" in words.tell_left(noticed).here
    assert "keeps reading" not in words.tell_left({**noticed, STRAIGHT: left(50, 99)}).here
    assert run.saved_share(0.6, 0.5, 0.0) == pytest.approx(0.3)
    assert run.saved_share(1.0, 0.0, 1.0) == 0


def reset(*_: object, **__: object) -> None:
    raise ConnectionResetError("by the peer")


def test_a_client_that_fails_is_no_saving(server: LabServer, monkeypatch: pytest.MonkeyPatch) -> None:
    asking = run.ask

    def ask_of(port: int, prompt: str, *args: int, **fields: object) -> Heard:
        return (reset if prompt.startswith("1") else asking)(port, prompt, *args, **fields)

    monkeypatch.setattr(run, "ask", ask_of)
    with pytest.raises(ConnectionResetError):
        run.crowd(server, 3, 1, 0.5, reads_on=False)


def test_a_crowd_is_counted(server: LabServer) -> None:
    found = run.crowd(server, 3, 1, 0.5, reads_on=True)
    assert found.written == found.asked == 3 * 24
    less = replace(found, written=found.written - 20, steps=found.steps // 2, seconds=0.7 * found.seconds)
    assert less.tokens_saved(found) == pytest.approx(20 / (found.written + found.prompt_tokens))
    assert found.steps >= 24 and less.steps_saved(found) == 1 - (found.steps // 2) / found.steps
    table = str(pictures.crowds_table({("room", GATEWAY): found, ("room", STRAIGHT): replace(less, name=STRAIGHT)}))
    assert f"{found.written - 20} of {found.asked}" in table and f"{less.steps_saved(found):.0%}" in table
    assert found.seconds > 0 and "30%" in table


def test_steps_that_overlap_count_once() -> None:
    times = [(0, 2), (1, 3), (5, 6)]
    steps = [StepRecord(i, *each, (), 0, 1, 5, 96, (), {}) for i, each in enumerate(times)]
    assert run.busy_s(steps) == 4


@pytest.mark.parametrize(
    ("slots_s", "queue_s", "says"),
    [
        (0.99, 1.6, "**Cancelling pays when something is waiting"),
        (0.8, 1.6, "**Cancelling pays twice**"),
        (0.98, 1.95, "too close to say"),
        (0.7, 1.95, "something else kept this machine busy"),
        (1.3, 1.6, "something else kept this machine busy"),
    ],
)
def test_what_cancelling_is_worth_is_told_in_time(slots_s: float, queue_s: float, says: str) -> None:
    found = {}
    for room, base_s, took_s in ((run.SEATED, 1.0, slots_s), (run.IN_LINE, 2.0, queue_s)):
        found[room, GATEWAY] = CrowdOfReaders(GATEWAY, 100, 100, 20, 40, base_s)
        found[room, STRAIGHT] = CrowdOfReaders(STRAIGHT, 100, 80, 20, 38, took_s)
    assert says in words.tell_crowds(found).here


def test_each_trouble_gets_its_typed_error(tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "LIMITS", {**run.LIMITS, "reader_timeout_s": 0.3})
    found = run.send_all_faults(tiny_lab)
    assert [each.name for each in found] == list(run.FAULTS)
    assert [each for each in found if not each.harmless] == []
    assert words.e6(found).kind == "only when"
    assert words.e6([*found, replace(found[0], neighbour_ok=False)]).kind == "holds"


def test_d15_depends_on_who_leaves() -> None:
    def crowds(written: int, slot_at: int, in_line: int) -> dict[tuple[str, str], CrowdOfReaders]:
        """Tokens that are written for those who stay, and steps in either room; of 100 tokens and 40 steps."""
        reads_on = CrowdOfReaders(GATEWAY, 100, 100, 20, 40, 1.0)
        steps = {run.SEATED: slot_at, run.IN_LINE: in_line}
        found = {(room, GATEWAY): reads_on for room in steps}
        return found | {
            (room, STRAIGHT): CrowdOfReaders(STRAIGHT, 100, written, 20, count, count / 40)
            for room, count in steps.items()
        }

    claim = words.d15(crowds(76, 40, 38))
    assert claim.kind == "only when"
    assert "tokens saved 20%" in claim.measured and "steps saved 5%" in claim.measured
    assert words.d15(crowds(100, 40, 40)).kind == "not shown"


def test_a_storm_on_the_real_server_counts_every_attempt(tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "START_S", 0.2)
    monkeypatch.setattr(run, "LENGTH_S", 0.4)
    monkeypatch.setattr(run, "SERVICE_S", 0.05)
    found = run.live_storms(tiny_lab, only=(simulated.GIVE_UP, simulated.IMMEDIATELY), ends_s=1.5, max_queue_len=1)
    give_up, at_once = found.values()
    assert give_up.due == at_once.due, "the same users"
    assert len(give_up.offered) <= len(give_up.due) and give_up.attempts_per_request <= 1 < at_once.attempts_per_request
    assert give_up.refused and len(at_once.refused) > len(give_up.refused)
    for each in found.values():
        assert sum(each.per_second("due", 0.5).values()) * 0.5 == len(each.due)
        assert len(each.good) + len(each.refused) <= len(each.offered)


def test_at_70b_clients_or_the_server_can_end_the_storm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The short form's: its queue drains sooner."""
    monkeypatch.setenv("MINILLM_SHORT", "1")
    simulated.played.cache_clear()
    chosen = simulated.storms_at_70b(
        (simulated.GIVE_UP, simulated.IMMEDIATELY, simulated.JITTER, simulated.BUDGET, simulated.BREAKER)
    )
    _, naive, _, budget, breaker = chosen.values()
    rates = [list(each.per_second("good", 20).values())[-1] for each in chosen.values()]
    assert rates[1:3] == [0, 0] and min(rates[0], *rates[3:]) > 2, "base load is 2.5 a second"
    assert naive.attempts_per_request > 4 and budget.attempts_per_request <= 1.1
    assert breaker.refused and min(breaker.goodput_after, budget.goodput_after) > naive.goodput_after
    _, drops, refuses = (each.goodput_after for each in simulated.servers_at_70b().values())
    assert drops > 0.9 and refuses > 0.9
    assert words.amplification(chosen).answer == naive.attempts_per_request
    assert "metastable" in str(words.tell_storm(chosen))
    simulated.played.cache_clear()


def test_a_server_that_answers_nobody_says_nothing_of_retries() -> None:
    @dataclass
    class Told:
        goodput_after: float
        attempts_per_request: float = 3.0

    def told(give_up: float, retries: float) -> str:
        return words.tell_storm({simulated.GIVE_UP: Told(give_up), simulated.IMMEDIATELY: Told(retries)}).here

    assert "doesn't say what retries add" in told(0.0, 0.0)
    assert "metastable" in told(0.9, 0.1) and "to drain them" in told(0.9, 0.8)


def test_attempts_with_independent_failures() -> None:
    assert simulated.expected_attempts(0.5, 3) == 1.75 and simulated.expected_attempts(1.0, 3) == 3


def test_the_check_rewards_what_is_right() -> None:
    rewards(checks(), 0.24, 1.75)
    rewards(checks(), 24, 1.75)  # percent
