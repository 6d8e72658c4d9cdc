"""The course's Python in a browser tab, tried outside of one: what it needs, what it answers, what travels there."""

import functools
import io
import itertools
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from course.drills import attempts
from course.drills.attempts import DrillAttempt
from course.drills.console import DrillSession
from course.drills.library import find_drill
from course.incidents import Incident
from course.incidents.console import ConsoleSession
from course.incidents.generate import generate
from course.lab.controls import shown_by
from course.lab.simulated_device import placeholder_tokenizer, placeholder_tokens
from course.lab.view import library
from course.lab.workloads import MAKERS, workload
from course.lessons.start.imported import bring_in
from course.napkin.library import napkin_of_day
from course.rounds.console import RoundSession
from course.rounds.library import find_round
from course.tab import dashboard, files
from course.tab.answer import FUNCTIONS, KINDS, Answers
from course.tab.known_words import SEEDS, WordTokenizer
from course.tab.live_server import LiveServer

GENERATED = functools.cache(generate)
NOT_IN_A_TAB = (
    *("torch", "numpy", "scipy", "pandas", "transformers", "tokenizers", "IPython", "ipywidgets", "typer"),
    *("httpx", "anywidget", "traitlets", "matplotlib"),
)


def test_known_words_become_the_tokenizers_own_tokens(smollm_path: Path) -> None:
    real, known = placeholder_tokenizer(), WordTokenizer.recorded()
    for name in MAKERS:
        for seed in (*SEEDS, 97, 98):
            for arrival in workload(name, seed).arrivals:
                assert known.encode(arrival.prompt) == real.encode(arrival.prompt, add_special_tokens=False)
    assert placeholder_tokens(known) == placeholder_tokens(real)
    answer = placeholder_tokens(known)[:200]
    assert len(known) == len(real)
    assert known.encode("Þórshöfn")  # a word that isn't known has tokens all the same
    assert set(known.decode(answer).split()) <= set(real.decode(answer).split())


@pytest.mark.parametrize("traffic", MAKERS)
def test_runs_of_a_tab_are_the_recorded_ones(traffic: str) -> None:
    start = shown_by(dashboard.TabBench.usual().start)
    for each in library.recorded(traffic)[:6]:
        run = dashboard.run(traffic, 0, {**start, **each["fields"]})
        assert json.loads(json.dumps(run)) == each["run"]


def test_a_recipe_is_both_its_runs() -> None:
    for recipe in library.recipes():
        first, second = dashboard.recipe(recipe["id"], 0)
        changed = {name for name in first["config"] if first["config"][name] != second["config"][name]}
        assert changed == set(recipe["change"])


def ended(server: LiveServer, until: float, every: float = 0.5) -> list[dict[str, Any]]:
    """Requests that end while it goes on until then."""
    found = []
    now = 0.0
    while now < until:
        now += every
        found += server.go_on(now)["ended"]
    return found


def test_a_live_server_tells_each_request_and_each_step_once() -> None:
    server = LiveServer(3, {})
    told = [server.go_on(0.3 * k) for k in range(1, 100)]
    arrived = [each["i"] for news in told for each in news["arrived"]]
    gone = [each["i"] for news in told for each in news["ended"]]
    assert arrived == list(range(len(arrived))) and len(set(gone)) == len(gone) > 20
    assert set(arrived) == {*gone, *(each["i"] for each in told[-1]["in_flight"])}
    steps = [step for news in told for step in news["steps"]]
    assert all(a["end"] <= b["start"] + 1e-9 for a, b in itertools.pairwise(steps))
    computed = dict.fromkeys(gone, 0)
    for step in steps:
        for i, count, _ in step["shares"]:
            computed[i] = computed.get(i, 0) + count
    for news in told:
        for request in news["ended"]:
            assert request["borders"] == sorted(request["borders"]) and len(request["borders"]) == 6
            assert len(request["tokens"]) <= computed[request["i"]]


def test_a_live_server_is_the_same_however_often_it_is_asked() -> None:
    often, seldom = ended(LiveServer(1, {}), 30.0, 0.1), ended(LiveServer(1, {}), 30.0, 3.0)
    assert [each["borders"] for each in often] == [each["borders"] for each in seldom]


def test_a_change_is_for_those_that_come_after_it() -> None:
    still, changed = LiveServer(0, {}), LiveServer(0, {})
    still.go_on(12.0)
    known = changed.go_on(12.0)
    changed.change({"max_num_seqs": 12})
    rest = {each["i"]: each for each in ended(changed, 40.0)}
    same = {each["i"]: each for each in ended(still, 40.0)}
    in_flight = {each["i"] for each in known["in_flight"]}
    assert in_flight and all(
        rest[i]["borders"][1] == same[i]["borders"][1] for i in in_flight if same[i]["borders"][1] < 12
    )
    later = [i for i in rest if i not in in_flight]
    assert sum(rest[i]["borders"][1] - rest[i]["borders"][0] for i in later) < 0.5 * sum(
        same[i]["borders"][1] - same[i]["borders"][0] for i in later if i in same
    )


def asking() -> Callable[..., Any]:
    """As a page asks: by name, of what was opened."""
    answers = Answers()

    def ask(asked: str, of: int | None = None, **given: Any) -> Any:
        return json.loads(answers.answer(json.dumps({"name": asked, "given": given, "of": of})))

    return ask


def test_answers_keep_what_was_opened_and_refuse_in_words() -> None:
    ask = asking()
    server = ask("server.open", seed=0, fields={})["value"]
    assert ask("server.go_on", server, until=2.0)["value"]["now"] == 2.0
    assert "not to be changed" in ask("server.change", server, fields={"model": "x"})["refused"]
    assert "no recipe" in ask("dashboard.recipe", name="none", seed=0)["refused"]
    refused = {**shown_by(dashboard.TabBench.usual().start), "max_num_seqs": 0}
    assert "max_num_seqs" in ask("dashboard.run", traffic="chat", seed=0, fields=refused)["refused"]
    ask("server.close", server)
    for name in ("server.go_on", "server._serve_until", "os.system"):
        with pytest.raises(KeyError):
            ask(name, server, until=3.0)


@pytest.fixture
def drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An incident follows from its arguments alone, so one of each is enough."""
    monkeypatch.setattr("course.incidents.incident.generate", GENERATED)


@pytest.mark.usefixtures("drawn_once")
def test_an_incident_is_the_one_of_its_seed_or_its_day() -> None:
    ask = asking()
    number = ask("incident.open", seed=4, difficulty=1, day="")["value"]
    session = ConsoleSession(Incident.generate(seed=4))
    for action in ({"do": "look"}, {"do": "ask", "question": "ttft_itl"}, {"do": "deploy", "changes": ["revert"]}):
        assert ask("incident.act", number, action=action)["value"] == json.loads(json.dumps(session.act(action)))
    assert "no question" in ask("incident.act", number, action={"do": "ask", "question": "x"})["refused"]
    assert "difficulty" in ask("incident.open", seed=4, difficulty=9, day="")["refused"]
    assert "day" in ask("incident.open", seed=None, difficulty=1, day="tomorrow")["refused"]


def test_a_drill_is_sat_as_in_a_notebook() -> None:
    ask = asking()
    number = ask("drill.open", drill="dump-13b", seed=3)["value"]
    session = DrillSession(find_drill("dump-13b").drawn(3), judge_url="")
    for action in ({"do": "start"}, {"do": "hand_in", "text": "The queue."}):
        told, here = ask("drill.act", number, action=action)["value"], session.act(action)
        assert told["stage"] == json.loads(json.dumps(here["stage"])) and told["prompt"] == here["prompt"]
    assert "commit to something" in str(ask("drill.act", number, action={"do": "go_on", "filled": {}}))
    assert "refused" in ask("drill.open", drill="none", seed=0)


def test_the_clock_goes_by_the_moments_that_a_page_tells() -> None:
    ask = asking()
    for kind, given in (("drill", {"drill": "dump-13b"}), ("round", {"round": "weights"})):
        number = ask(f"{kind}.open", **given)["value"]
        ask(f"{kind}.act", number, action={"do": "start"}, at=100.0)
        assert ask(f"{kind}.act", number, action={"do": "look"}, at=130.0)["value"]["clock"]["used"] == 30.0


def test_a_round_and_a_sum_are_those_of_the_terminal() -> None:
    ask = asking()
    number = ask("round.open", round="weights", seed=2)["value"]
    session = RoundSession(find_round("weights").drawn(2))
    for action in ({"do": "start"}, {"do": "ask", "fact": session.sitting.drawn.menu[1].key}, {"do": "go_on"}):
        told, here = ask("round.act", number, action=action)["value"], json.loads(json.dumps(session.act(action)))
        assert {**told, "clock": 0} == {**here, "clock": 0}
    assert "refused" in ask("round.open", round="none", seed=0)
    napkin = napkin_of_day(date(2026, 3, 9))
    number = ask("napkin.open", day="2026-03-08")["value"]
    assert ask("napkin.act", number, action={"do": "turn", "day": "2026-03-09"})["value"]["question"] == napkin.question
    answer = {"do": "answer", "number": f"about {napkin.answer}", "unit": "", "seconds": 30}
    told = ask("napkin.act", number, action=answer)["value"]
    assert told["told"] == napkin.debrief(napkin.told, 30)
    assert told["kept"] == {"napkin.json": {"days": {"2026-03-09": {"on_the_day": False, "right": True}}}}
    assert "one number" in ask("napkin.act", number, action={**answer, "number": "a lot"})["refused"]
    assert "2026-01-05" in ask("napkin.open", day="today")["refused"]


@pytest.mark.usefixtures("drawn_once")
def test_what_ends_in_a_tab_is_kept_as_a_notebook_keeps_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = asking()
    number = ask("drill.open", drill="dump-13b", seed=3)["value"]
    for action in ({"do": "start"}, {"do": "hand_in", "text": "The queue."}):
        state = ask("drill.act", number, action=action)["value"]
    while state["verdict"] is None:
        assert "kept" not in state
        filled = {"dominant": "queue"} if state["stage"]["part"] == "Commit" else {}
        state = ask("drill.act", number, action={"do": "go_on", "filled": filled})["value"]
    (own,) = attempts.FILE.read().done  # of the session, which keeps it wherever it runs
    assert DrillAttempt(**{**state["kept"]["drills.json"]["done"][0], "when": own.when}) == own
    assert "kept" not in ask("drill.act", number, action={"do": "look"})["value"], "it's told once"
    monkeypatch.setattr(Incident, "today", lambda day: Incident.generate(seed=4))
    number = ask("incident.open", seed=None, difficulty=1, day="2026-03-09")["value"]
    assert "kept" not in ask("incident.act", number, action={"do": "commit", "phase": "stream"})["value"]
    kept = ask("incident.act", number, action={"do": "grade", "sure": True})["value"]["kept"]
    assert kept["incidents.json"] == {"names": [Incident.generate(seed=4).name]}
    assert kept["daily.json"]["days"]["2026-03-09"]["on_the_day"] is False
    assert "incidents.json" in bring_in(json.dumps({**state["kept"], **kept}).encode())


def test_what_travels_is_all_that_it_needs(tmp_path: Path) -> None:
    archive = files.course_archive()
    assert archive == files.course_archive()
    zipfile.ZipFile(io.BytesIO(archive)).extractall(tmp_path)
    modules = [place.partition(":")[0] for place in (*FUNCTIONS.values(), *KINDS.values())]
    program = f"""
import importlib, json, sys
sys.path[:0] = [{str(tmp_path)!r}]
for name in {NOT_IN_A_TAB}: sys.modules[name] = None
for name in {modules}: importlib.import_module(name)
from course.tab.answer import Answers
answers = Answers()
def ask(name, of=None, **given):
    return json.loads(answers.answer(json.dumps({{"name": name, "given": given, "of": of}})))["value"]
assert ask("server.open", seed=0, fields={{}}) == 1
drill = ask("drill.open", drill="dump-13b", seed=0)
ask("drill.act", drill, action={{"do": "start"}})
state = ask("drill.act", drill, action={{"do": "hand_in", "text": "The queue."}})
for _ in range(40):
    if state["stage"] is not None:
        filled = {{"dominant": "queue"}} if state["stage"]["part"] == "Commit" else {{}}
        state = ask("drill.act", drill, action={{"do": "go_on", "filled": filled}})
assert state["verdict"]["levels"]
assert ask("round.act", ask("round.open", round="rack", seed=1), action={{"do": "start"}})["page"]["fields"]
assert ask("napkin.act", ask("napkin.open", day="2026-01-05"), action={{"do": "look"}})["question"]
assert sys.modules["course"].__file__.startswith({str(tmp_path)!r})
"""
    home = {**os.environ, "MINILLM_HOME": str(tmp_path / "home")}
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path, env=home)
