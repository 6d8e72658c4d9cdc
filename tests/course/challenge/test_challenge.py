"""A number to beat: the game, the ladder, a contestant's file and the walls around it, seeds, and the line to share."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from simulated_integrity import check_engine

from course.challenge import entry as entries
from course.challenge import service
from course.challenge.baselines import RUNGS, Baseline, FewestWaiting
from course.challenge.entry import Contestant, Entry, EntryError
from course.challenge.ladder import Tally, climbed, recorded
from course.challenge.oracle import Oracle
from course.challenge.planned_queue import PlannedQueue
from course.challenge.play import play
from course.challenge.replay import replay
from course.challenge.result import LOSSES, RoundScore, differences, losses, round_of
from course.challenge.rounds import PRACTICE, Round, RoundError
from course.grading.props import FleetReplica
from minillm.core.request import RequestStatus

ROOT = Path(__file__).parents[3]
STARTER = ROOT / "course" / "challenge" / "starter.py"
ANSWER = ROOT / "solutions" / "challenge" / "policy.py"
SHORT_S = 4.0
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace of two dozen requests."""
    monkeypatch.setattr(service, "DURATION_S", SHORT_S)


def policy(
    top: str = "", admit: str = "return True", route: str = "return 0", schedule: str = "return waiting, []"
) -> str:
    """A file with these bodies."""
    return f"""{top}
class Policy:
    def admit(self, now, request, replicas):
        {admit}
    def route(self, now, request, replicas):
        {route}
    def schedule(self, now, waiting, replica):
        {schedule}
    def ended(self, now, request, output_tokens, in_time):
        pass
"""


# ---------------------------------------------------------------- the game


QUICK = ("vLLM's rule", "oracle")
"""Rungs that are played in every run of the tests."""


@pytest.mark.parametrize(
    "rung", [pytest.param(each, id=each.name, marks=() if each.name in QUICK else pytest.mark.slow) for each in RUNGS]
)
def test_a_rung_scores_what_is_recorded(rung: Any) -> None:
    assert climbed(rung, PRACTICE[0]) == recorded()[rung.name, PRACTICE[0]]


def test_the_ladder_is_spread_and_its_top_is_far_from_perfect() -> None:
    ladder = {rung.name: sum((recorded()[rung.name, seed] for seed in PRACTICE), Tally(0, 0, 0)) for rung in RUNGS}
    online = [ladder[rung.name].share for rung in RUNGS if rung.is_online]
    assert online == sorted(online), "they are listed from the lowest to the highest"
    assert online[0] < 0.5 < online[-1] < 0.7 < ladder["oracle"].share < 0.9
    page = (ROOT / "docs" / "challenge.md").read_text(encoding="utf-8")
    for name, tally in ladder.items():
        assert f"| {name} | {tally.goodput:.3f} | {tally.share:.1%} |" in page


@pytest.mark.usefixtures("short")
def test_steps_gone_through_one_by_one_change_nothing() -> None:
    fast, stepped = play(1, Oracle(1)), play(1, Oracle(1), keeps_steps=True)
    assert 0 < fast.in_time < len(fast.outcomes)
    for one, other in zip(fast.outcomes, stepped.outcomes):
        assert (one.replica, one.in_time) == (other.replica, other.in_time)
        assert one.reply is None or one.reply.timeline.ttft == other.reply.timeline.ttft
    for replica in fast.replicas:
        check_engine(replica.engine)
        assert not replica.engine.has_unfinished


def test_a_policy_is_not_told_how_long_an_answer_gets() -> None:
    trace = service.trace_of(1).requests
    others = [replace(planned, output_tokens=planned.output_tokens + 1) for planned in trace]
    assert list(map(service.seen_by_gateway, others)) == list(map(service.seen_by_gateway, trace))


def waiting(number: int, status: RequestStatus = RequestStatus.WAITING) -> Any:
    return SimpleNamespace(request_id=str(number), status=status)


def test_a_plan_orders_refuses_and_leaves_no_replica_idle() -> None:
    plans: list[tuple[list[int], list[int]]] = [([2], [0]), ([], [])]
    state = FleetReplica(0, 3, 5, 0)
    queue = PlannedQueue(lambda: state, lambda now, ids, replica: plans.pop(0))
    requests = [waiting(number) for number in range(3)]
    for request in requests:
        queue.push(request)
    assert queue.overdue(1.0) == [requests[0]]
    queue.remove(requests[0])
    assert queue.peek(5) is queue.pop() is requests[2]
    assert queue.peek(5) is None, "what a plan doesn't name goes on waiting"
    queue.overdue(2.0)
    assert queue.peek(5) is None and queue.peek(0) is requests[1]
    state = FleetReplica(0, 1, service.MAX_NUM_SEQS, 0)
    assert queue.overdue(3.0) == [], "with no slot free it isn't asked: there is no plan left"
    preempted = waiting(7, RequestStatus.PREEMPTED)
    queue.push(preempted)
    assert queue.pop() is preempted and [*queue] == [requests[1]]


# ---------------------------------------------------------------- a contestant's file


@pytest.mark.usefixtures("short")
def test_the_starter_file_is_vllms_rule() -> None:
    with Entry.read(STARTER).opened() as contestant:
        theirs = play(1, contestant)
    ours = play(1, Baseline(FewestWaiting()))
    assert len(theirs.outcomes) == len(ours.outcomes) > 10
    for one, other in zip(theirs.outcomes, ours.outcomes):
        assert (one.replica, one.in_time) == (other.replica, other.in_time)
        assert one.reply.timeline.deliveries == other.reply.timeline.deliveries


def test_an_answer_of_sixty_lines_beats_every_online_rung() -> None:
    entry = Entry.read(ANSWER)
    assert entry.num_lines <= 60
    with entry.opened() as contestant:
        played = play(PRACTICE[0], contestant)
    assert played.in_time > max(recorded()[rung.name, PRACTICE[0]].in_time for rung in RUNGS if rung.is_online)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (policy("import time"), "import time"),
        (policy("from os import kill"), "from os import kill"),
        (policy("from course.challenge import service"), "from course.challenge"),
        (policy("from typing import get_type_hints"), "get_type_hints"),
        (policy("import sys as math"), "import sys"),
        (policy("from . import play"), "off limits"),
        (policy(admit="return bool(().__class__)"), "__class__"),
        (policy(admit="object.__setattr__(request, 'ttft_limit_s', 99.0)"), "__setattr__"),
        (policy(admit="return (x for x in waiting).gi_frame.f_back"), "gi_frame|f_back"),
        (policy(admit="match request:\n            case object(gi_frame=x): return True"), "gi_frame"),
        (policy(admit="return '{0.x}'.format(request)"), "format"),
        (policy("class A:\n    def __getattribute__(self, name): pass"), "__getattribute__"),
        (policy("x = __builtins__"), "__builtins__"),
        (policy() + "\n" * 200, "200 are allowed"),
        (policy("# " + "x" * 120), "120 are allowed"),
        (policy("def"), "no Python"),
        ("x = 1", "no class Policy"),
        (policy().replace("def route", "def rote"), "no method route"),
    ],
    ids=range(18),
)
def test_a_file_that_breaks_a_rule_is_refused_as_it_is_read(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "policy.py").write_text(text, encoding="utf-8")
    with pytest.raises(EntryError, match=says):
        Entry.read(tmp_path / "policy.py")


def test_a_file_that_is_not_there_can_be_written() -> None:
    with pytest.raises(EntryError, match=r"minillm beat start nowhere\.py"):
        Entry.read(Path("nowhere.py"))


PROBES = """
def imported(name):
    return __import__(name)
def modules():
    kinds = ().__class__.__base__.__subclasses__()
    return next(k for k in kinds if k.__name__ == "_wrap_close").__init__.__globals__["sys"].modules
PROBES = {
    "a module": lambda: imported("os"),
    "this project": lambda: imported("course"),
    "open": lambda: open("/dev/null"),
    "getattr": lambda: getattr(1, "real"),
    "a file, through the object's classes": lambda: modules()["io"].open("/dev/null"),
    "the parent's memory": lambda: modules()["io"].open(f"/proc/{modules()['os'].getppid()}/mem", "rb"),
    "a folder": lambda: modules()["os"].listdir("/"),
    "a signal": lambda: modules()["os"].kill(modules()["os"].getppid(), 0),
    "a process": lambda: modules()["os"].system("true"),
    "a socket": lambda: modules()["importlib"].import_module("socket").socket(),
    "ctypes": lambda: modules()["importlib"].import_module("ctypes").CDLL(None),
    "chance": lambda: imported("random").Random(),
}
def raise_limit(request):
    request.ttft_limit_s = 99.0
def reached(request):
    found = []
    for name, probe in {**PROBES, "another limit": lambda: raise_limit(request)}.items():
        try:
            probe()
        except Exception:
            continue
        found.append(name)
    return found
"""


@pytest.mark.usefixtures("short")
def test_a_file_that_was_never_read_through_still_reaches_nothing() -> None:
    """The second wall by itself: the source isn't looked at."""
    entry = Entry("cheat.py", policy(PROBES, admit="raise ValueError(f'reached {reached(request)}')"))
    with entry.opened() as contestant, pytest.raises(EntryError, match=r"reached \[\]"):
        play(1, contestant)


@pytest.mark.usefixtures("short")
def test_what_fails_in_its_process_is_told_with_its_line() -> None:
    entry = Entry("policy.py", policy(admit="return request.output_tokens > 9"))
    says = "no attribute 'output_tokens', in line 4, `return request.output_tokens > 9`"
    with entry.opened() as contestant, pytest.raises(EntryError, match=says):
        play(1, contestant)


@pytest.mark.usefixtures("short")
def test_an_endless_loop_ends_by_its_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "LIMIT_S", 0.1)
    text = policy(admit="while True: pass")
    with Entry("policy.py", text).opened() as contestant, pytest.raises(EntryError, match="not done after"):
        play(1, contestant)


@pytest.mark.parametrize(
    ("method", "found"),
    [
        ("admit", (1, None)),
        ("admit", ("yes", 0)),
        ("route", (True, 3)),
        ("route", (True, -1)),
        ("route", (True, True)),
        ("route", (True, 1.0)),
        ("plan", [[7], []]),
        ("plan", [[1, 1], []]),
        ("plan", [[1], [1]]),
        ("plan", [[True], []]),
        ("plan", [["1"], []]),
    ],
)
def test_an_answer_that_is_none_is_refused(method: str, found: Any) -> None:
    answer: Any = SimpleNamespace(many=lambda desk, method, lists: [found])
    contestant = Contestant(Entry("policy.py", ""), answer, SimpleNamespace())  # type: ignore[arg-type]
    request, replica = service.seen_by_gateway(service.trace_of(1).requests[0]), FleetReplica(0, 1, 0, 0)
    with pytest.raises(EntryError):
        if method == "plan":
            plan = contestant.queue(lambda: replica)
            for number in (0, 1):
                plan.push(waiting(number))
            plan.overdue(0.0)
        else:
            contestant.admit(0.0, request, [replica])
            contestant.route(0.0, request, [replica])


# ---------------------------------------------------------------- seeds, and the line to share


def test_a_months_seeds_are_the_same_for_all_and_other_than_the_next_months() -> None:
    month = Round.of_month("2026-11")
    assert month == Round.of_month("2026-11") == Round.named("2026-11", None)
    assert not {*month.seeds} & {*Round.of_month("2026-12").seeds, *PRACTICE}
    for wrong in ("2026-13", "november", "2026-1"):
        with pytest.raises(RoundError):
            Round.of_month(wrong)


def test_a_sealed_rounds_name_holds_its_salt_fast() -> None:
    salt = "correct horse battery"
    sealed = Round.of_salt(salt)
    assert salt not in sealed.name and Round.named(sealed.name, salt) == sealed
    for name, wrong in ((sealed.name, salt + "!"), (sealed.name, None)):
        with pytest.raises(RoundError):
            Round.named(name, wrong)
    with pytest.raises(RoundError, match="at least 16 characters"):
        Round.of_salt("short")


def test_a_line_is_checked_part_by_part() -> None:
    rungs = {"low": Tally(5, 20), "high": Tally(15, 20)}
    result = RoundScore(Entry("policy.py", policy()), Round.of_month("2026-11"), Tally(12, 20), rungs, {})
    assert result.best_beaten == "low" and "above low" in result.line and "12 of 20" in result.line
    assert differences(result.line, result) == [] and round_of(result.line) == "2026-11"
    assert len(differences(result.line.replace("12 of", "13 of"), result)) == 1
    other = RoundScore(Entry("policy.py", policy() + "\n"), result.round, result.tally, rungs, {})
    assert [each for each in differences(result.line, other) if "file" in each], "one more blank line is another file"
    with pytest.raises(EntryError, match="6 parts"):
        round_of("minillm beat 2026-11 | 99 requests/s")


@pytest.mark.usefixtures("short")
def test_a_replay_has_every_admitted_request_on_its_replica() -> None:
    played = play(1, Baseline(FewestWaiting()), keeps_steps=True)
    events = json.loads(json.dumps(replay(played)))["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "thread_name" and event["pid"] % 2]
    assert len(names) == len(played.outcomes)
    assert any("chat, in time" in name for name in names)
    assert {event["pid"] for event in events} == {1, 2, 3, 4, 5, 6}
    first = min(event["ts"] for event in events if event["name"] == "queue")
    assert first == pytest.approx(played.outcomes[0].request.arrival_s * 1e6, abs=1e-3)
    found = losses([played])
    assert sum(counts.total() for counts in found.values()) == len(played.outcomes)
    assert all(counts[LOSSES[0]] == counts[LOSSES[1]] == 0 for counts in found.values())


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short traces, of which no rung is recorded."""
    monkeypatch.setattr(service, "DURATION_S", 1.5)
    monkeypatch.setattr("course.challenge.ladder.recorded", dict)


@pytest.mark.usefixtures("few")
def test_in_a_terminal(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = str(tmp_path / "mine.py")
    assert run("beat", "start", file)[0] == 0
    status, _, err = run("beat", "start", file)
    assert status == 2 and "is there already" in err
    trace, lines = tmp_path / "replay.json", Entry.read(STARTER).num_lines
    status, out, err = run("beat", "run", file, "--seed", 5, "--replay", trace, "--json")
    report = json.loads(out)
    assert (status, report["round"], report["seeds"]) == (0, "seeds-5", [5]), err
    assert report["ladder"]["yours"] == report["ladder"]["vLLM's rule"]
    assert json.loads(trace.read_text())["traceEvents"]
    status, out, _ = run("beat", "verify", file, report["line"].replace(f"{lines} lines", "9 lines"))
    assert status == 1 and out.splitlines() == [f"it says '9 lines'; here it is '{lines} lines'"]
    monkeypatch.setattr("course.challenge.cli.score", None)  # a line that's none is told before anything is played
    for line in ("minillm beat 2026-11", report["line"].replace("minillm", "maxillm")):
        assert "a line to share" in run("beat", "verify", file, line)[2]
    assert run("beat", "seal", "--salt", "short")[0] == 2
    assert run("beat", "run", str(tmp_path / "none.py"))[0] == 2
