"""Design rounds: files that fit together, numbers that follow from facts, and judges that nonsense can't please."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from rounds.players import Player, first_of_the_menu, longest, only, play, silent, staff, staff_but, stuffed
from typer.testing import CliRunner

from course.drills.amounts import Amount
from course.rounds.board import is_kept, reached, read_edges
from course.rounds.cli import AnswersFileError, LeftRoundError, app
from course.rounds.console import RoundSession
from course.rounds.desk import RoundDesk
from course.rounds.errors import CommitmentError, RoundFileError, UnknownRoundError
from course.rounds.history import FILE, PlayedRound, keep, play_next
from course.rounds.judge import LEVELS, judge, points
from course.rounds.library import IDS, find_round, read_round
from course.rounds.pages import RoundField, RoundPage
from course.rounds.prompt import AREAS, SHOWN_STATEMENTS, DrawnRound
from course.rounds.report import debrief, everything
from course.rounds.sitting import RoundSitting
from course.rounds.typed import is_near, read_amount

SEEDS = (0, 1, 2, 5)
MID = LEVELS.index("mid")


def texts_of(drawn: DrawnRound) -> list[str]:
    """Everything that somebody reads, filled in."""
    about = drawn.round
    found = [about.opening, about.conversation]
    found += [text for columns in about.rubric.values() for text in columns]
    found += [text for fact in about.facts for text in (fact.says, fact.changes)]
    found += [rule.because for rule in about.rules] + [box.extra for box in about.components]
    for stage in about.stages:
        found += [text for each in stage.numbers for text in (each.asks, each.because)]
        found += [text for each in stage.statements for text in (each.says, each.because)]
        for choice in (*stage.choices, *stage.pushbacks):
            entries = choice.options if hasattr(choice, "options") else choice.replies
            found += [choice.asks, *(text for each in entries for text in (each.says, each.because))]
    found += [decision.says for decision in about.change.decisions]
    changed = [drawn.stage("change").says, *(decision.because for decision in about.change.decisions)]
    return [*map(drawn.fill, found), *map(drawn.changed.fill, changed)]


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_draw_of_every_round_is_consistent(name: str, seed: int) -> None:
    drawn = find_round(name).drawn(seed)
    assert not [text for text in texts_of(drawn) if "{" in text or "inf " in text]
    assert not drawn.broken(drawn.design) and not drawn.extras(drawn.design)
    for stage in drawn.round.stages:
        for choice in (*stage.choices, *stage.pushbacks):
            entries = choice.options if hasattr(choice, "options") else choice.replies
            right = [each.key for each in entries if drawn.is_true(each)]
            assert 0 < len(right) < len(entries), f"{choice.key}: {right}"
        truths = [drawn.is_true(each) for each in stage.statements]
        assert not truths or 0.35 <= sum(truths) / len(truths) <= 0.65, f"{stage.key}: {sum(truths)} of {len(truths)}"
        assert len(set(drawn.statements(stage))) in (0, SHOWN_STATEMENTS)
        for number in stage.numbers:
            asked = drawn.asked(number)
            given = [drawn.numbers.amounts[each] for each in drawn.round.given]
            assert not [each for each in given if each.unit == asked.unit and is_near(each.value, asked)], number.key
            slips = [drawn.numbers.amounts[each].value for each in number.tempting]
            assert not [slip for slip in slips if is_near(slip, asked)], f"{number.key}: a slip counts as right"
    fallen = [drawn.falls(each) for each in drawn.round.change.decisions]
    assert 0 < sum(fallen) < len(fallen)


@pytest.mark.parametrize("name", IDS)
def test_a_round_is_an_interview(name: str) -> None:
    about = find_round(name)
    assert 35 <= about.minutes <= 45 and 10 <= len(about.facts) <= 15
    assert about.questions < len(about.facts), "asking for everything takes longer than there is"
    assert 500 <= len(about.conversation.split()) <= 900
    assert all(source.url.startswith("https://") for source in about.sources)
    dives = [about.drawn().stage(key) for key in ("dive_1", "dive_2")]
    assert all(len(dive.statements) >= 12 for dive in dives) and about.drawn().stage("failure").says


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("seed", [0, 2])
def test_who_knows_is_staff_and_who_stuffs_is_not_even_mid(name: str, seed: int) -> None:
    assert judge(play(name, staff, seed)).level == "staff"
    assert judge(play(name, stuffed, seed, first_of_the_menu)).rank < MID
    assert judge(play(name, stuffed, seed)).rank < MID, "the right questions alone save nobody"
    assert judge(play(name, silent, seed)).rank < MID
    assert judge(play(name, longest, seed, first_of_the_menu)).rank < MID


def test_the_length_of_an_entry_tells_nothing() -> None:
    places = []
    for drawn in (find_round(name).drawn() for name in IDS):
        for stage in drawn.round.stages:
            for choice in (*stage.choices, *stage.pushbacks):
                options = drawn.options(choice)
                by_length = sorted(options, key=lambda key: len(options[key]))
                right = [place for place, key in enumerate(by_length) if drawn.is_right(choice, key)]
                places += [(place == 0, place == len(by_length) - 1) for place in right]
    shortest, longest_ones = (sum(column) / len(places) for column in zip(*places))
    assert 0.15 < shortest < 0.4 and 0.15 < longest_ones < 0.4


def test_weak_spots_lower_the_level_and_are_named() -> None:
    one, two = (judge(play("weights", staff_but(*areas))) for areas in (("failure",), ("failure", "change")))
    assert (one.level, two.level) == ("senior", "mid")
    assert "not at staff" in one.told() and AREAS["failure"] in one.told() and AREAS["boxes"] not in one.told()
    three = judge(play("weights", staff_but("failure", "change", "boxes")))
    assert three.level == LEVELS[0]


def test_the_rule_is_proper() -> None:
    """Whoever believes p expects most by saying p."""
    said = (0.5, 0.6, 0.7, 0.8, 0.9)
    for believed in said:
        expected = {each: believed * points(each, True) + (1 - believed) * points(each, False) for each in said}
        assert max(expected, key=expected.get) == believed
    assert points(0.5, True) == points(0.5, False) == points(0.9, None) == 0


def test_the_interviewer_answers_what_there_is_time_for() -> None:
    drawn = find_round("weights").drawn()
    sitting = RoundSitting(drawn)
    assert "25 GB/s" in sitting.ask("store")
    for fact in drawn.menu[: drawn.round.questions]:
        if sitting.questions_left:
            sitting.ask(fact.key)
    sitting.ask("store")  # said once more, that costs nothing
    with pytest.raises(CommitmentError, match="no time"):
        sitting.ask(next(fact.key for fact in drawn.menu if fact.key not in sitting.asked))
    with pytest.raises(CommitmentError, match="no question"):
        sitting.ask("price of tea")


def test_pushback_is_chosen_by_what_was_committed_and_followed_up_once() -> None:
    right = play("weights", staff)
    assert right.pushed["envelope"].key == "bottleneck"
    slipped = only({"envelope.origin": "23.6 s"}, staff)
    wrong = play("weights", slipped)
    assert wrong.pushed["envelope"].key == "store-again"
    told = next(item.told for item in judge(wrong).items if item.about.startswith("If every node pulls"))
    assert "is what you get if the store's bandwidth is taken for each node's own" in told
    both = play("weights", only({"envelope.origin": "23.6 s", "envelope.pushback.reply": "buy"}, staff))
    assert both.replies["envelope"] == ["buy", "scale"]
    asked_back = next(item for item in judge(both).items if item.about.startswith("Then why not buy"))
    assert asked_back.points == 0.5
    no_board = play("weights", staff_but("boxes"))
    assert no_board.pushed["boxes"].key == "corrupt"


def test_rules_of_the_board() -> None:
    edges = read_edges("a > b > c, b -> d\nd→c", "abcde")
    assert edges == (("a", "b"), ("b", "c"), ("b", "d"), ("d", "c")) and reached(edges, "a") == {"b", "c", "d"}
    kept = [("through", "a", "c", ("b",)), ("reach", "a", "d", ()), ("apart", "c", "a", ()), ("no_edge", "a", "c", ())]
    broken = [
        ("through", "a", "c", ("d",)),
        ("reach", "a", "e", ()),
        ("apart", "a", "c", ()),
        ("no_edge", "a", "b", ()),
    ]
    assert all(is_kept(kind, edges, *rest) for kind, *rest in kept)
    assert not any(is_kept(kind, edges, *rest) for kind, *rest in broken)
    assert not is_kept("through", (), "a", "c", ("b",)), "where nothing leads there, nothing passes there either"
    for bad, words in (
        ("a > z", "no box 'z'"),
        ("a > a", "nowhere"),
        ("a", "without an arrow"),
        ("a > > b", "no box ''"),
    ):
        with pytest.raises(CommitmentError, match=words):
            read_edges(bad, list("abc"))


@pytest.mark.parametrize(
    ("typed", "unit", "value"),
    [
        ("3.3 h", "s", 11880),
        ("11,800 s", "s", 11800),
        ("40 Gbit/s", "B/s", 5e9),
        ("90%", "ratio", 0.9),
        ("12", "", 12),
        ("about 2 minutes", "s", 120),
    ],
)
def test_a_number_is_read_with_its_unit(typed: str, unit: str, value: float) -> None:
    assert read_amount(typed, unit) == pytest.approx(value)
    assert is_near(value * 1.05, Amount(value, unit)) and not is_near(value * 1.2, Amount(value, unit))


@pytest.mark.parametrize(("typed", "unit"), [("118", "s"), ("1 to 2 s", "s"), ("2 GB", "s"), ("nan", "")])
def test_what_is_no_number_is_refused_at_the_door(typed: str, unit: str) -> None:
    with pytest.raises(CommitmentError, match="isn't one number with a unit"):
        read_amount(typed, unit)


def test_how_many_times_needs_no_unit_and_a_share_does() -> None:
    times, share = "What does an output token cost, in uncached prompt tokens?", "Which share of the time?"
    assert {read_amount(typed, "ratio", times) for typed in ("28", "28 times", "28 tokens", "28x")} == {28}
    assert read_amount("28", "ratio") == 28 and read_amount("28%", "ratio", share) == pytest.approx(0.28)
    for typed, asks in (("28", share), ("0.28", share), ("28 replicas", times), ("28 s", times)):
        with pytest.raises(CommitmentError):
            read_amount(typed, "ratio", asks)


def test_a_number_that_counts_something_else_is_refused_at_the_door() -> None:
    sitting = RoundSitting(find_round("routing").drawn())
    [(stage, number)] = [
        (stage, each)
        for stage in sitting.drawn.round.stages
        for each in stage.numbers
        if each.asks.startswith("How many requests are in flight")
    ]
    for typed in ("1,280", "1,280 requests", "1,280 in flight", "about 1.3k users"):
        sitting.check_number(stage.key, number.key, typed)
    with pytest.raises(CommitmentError, match="counts something else"):
        sitting.check_number(stage.key, number.key, "1,280 replicas")


def test_files_are_checked(tmp_path: Path) -> None:
    with pytest.raises(UnknownRoundError, match="weights"):
        find_round("wieghts")
    good = (Path(__file__).parents[3] / "course/rounds/library/weights.toml").read_text(encoding="utf-8")
    for old, new, words in (
        ('use = "idle"', 'use = "nice"', "idle"),
        ('start = "store"', 'start = "shop"', "aren't in the menu"),
        ('if_wrong = "origin"', 'if_wrong = "orgin"', "doesn't ask for"),
        ("title =", "titel =", "titel"),
        ("title =", "= ", "cannot read"),
    ):
        file = tmp_path / "weights.toml"
        file.write_text(good.replace(old, new, 1), encoding="utf-8")
        with pytest.raises(RoundFileError, match=words):
            read_round(file)
    file.write_text(good.replace("{nodes} nodes with", "{knots} nodes with"), encoding="utf-8")
    with pytest.raises(RoundFileError, match="knots"):
        texts_of(read_round(file).drawn())


def run(*arguments: str, stdin: str = "") -> str:
    result = CliRunner().invoke(app, arguments, input=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_terminal_lists_shows_and_sits(home: Path, tmp_path: Path) -> None:
    assert [row["id"] for row in json.loads(run("list", "--json"))["rounds"]] == list(IDS)
    assert "staff" not in run("show", "weights").partition("40 minutes")[0] and "junior" in run(
        "show", "weights", "--solved"
    )
    answers = tmp_path / "answers.json"
    answers.write_text(json.dumps({"ask": ["size", "vocabulary"], "envelope": {"floor": "118 s", "sure": "0.9"}}))
    found = json.loads(run("sit", "weights", "--answers", str(answers), "--json"))
    assert found["level"] == LEVELS[0]
    assert [item["right"] for item in found["areas"]["envelope"]["items"]] == [None, True, None, None, None]
    for envelope, told in (
        ({"flor": "118 s"}, "envelope doesn't ask for flor, but for .*floor"),
        ({"floor": "118 moons"}, "envelope.floor: '118 moons'"),
        ({"sure": "2"}, "envelope.sure: no '2' in this menu"),
    ):
        answers.write_text(json.dumps({"envelope": envelope}))
        with pytest.raises(AnswersFileError, match=told):
            CliRunner().invoke(app, ["sit", "weights", "--answers", str(answers)], catch_exceptions=False)
    # By hand: two questions, one of them no question; all else is left open.
    said = run("sit", "weights", stdin=f"1\n99\n\n{NOTHING}")
    assert (
        "no '.' in this menu: choose from 1 to 3" in said
        and "no question '99'" in said
        and "no hire yet" in said
        and "A staff candidate's conversation" in said
    )


NOTHING = "\n.\n" * 200
"""Leaves every field of every page open, short or long."""


def test_a_round_can_be_left_and_gone_on_with(home: Path) -> None:
    drawn = find_round("weights").drawn()
    told = drawn.fill(drawn.menu[0].says)
    for last in ("quit\n", ""):  # the second ends as Ctrl-D does
        said = run("sit", "weights", stdin="1\n" + last)
        assert told in said and "no hire yet" not in said
        assert "No verdict yet. `minillm round --resume` goes on" in said
    assert FILE.read().done == []
    said = run("--resume", stdin=f"\n{NOTHING}")
    assert told in said and "no hire yet" in said
    [kept] = FILE.read().done
    assert kept.round == "weights" and kept.seconds is not None
    for arguments, words in ((["--resume"], "nothing to go on with"), (["--resume", "list"], "no command")):
        with pytest.raises(LeftRoundError, match=words):
            CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_a_round_that_has_changed_is_not_gone_on_with(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("sit", "weights", stdin="1\nquit\n")
    monkeypatch.setattr("course.rounds.cli._offers_of", lambda _: "of a later version")
    with pytest.raises(LeftRoundError, match="has changed since"):
        CliRunner().invoke(app, ["--resume"], catch_exceptions=False)


def test_what_is_not_to_be_kept_cannot_be_gone_on_with(home: Path) -> None:
    said = run("sit", "weights", "--no-keep", stdin="1\nquit\n")
    assert "No verdict yet." in said and "goes on from here" not in said


def test_what_was_played_is_kept_and_told(home: Path, tmp_path: Path) -> None:
    assert "no round played yet" in run() and "minillm round sit platform" in run()
    answers = tmp_path / "answers.json"
    answers.write_text(json.dumps({"ask": ["size"], "envelope": {"floor": "about 118 s", "sure": "0.9"}}))
    run("sit", "weights", "--answers", str(answers), "--no-keep")
    assert "no round played yet" in run()
    run("sit", "weights", "--answers", str(answers))
    keep(play("platform", staff, 3))
    said = run()
    assert "weights, seed 0: no hire yet" in said and "platform, seed 3: staff" in said
    assert "envelope junior" in said and "your own columns: requirements staff" in said
    assert "minillm round sit routing" in said and "6 of 8 not played yet" in said
    kept = json.loads(run("--json"))["played"]
    assert [each["level"] for each in kept] == ["no hire yet", "staff"] and set(kept[1]["areas"]) == set(AREAS)
    done = [PlayedRound(round=name, seed=0, when="", level="staff" if name != "rack" else "mid") for name in IDS]
    assert play_next(done) == ("rack", 0)


@pytest.mark.parametrize("player", [staff, stuffed])
def test_a_session_judges_as_the_conversation_does(player: Player) -> None:
    played = play("weights", player, seed=3)
    clock = iter(range(0, 9000, 20))
    session = RoundSession(find_round("weights").drawn(3), now=lambda: next(clock))
    with pytest.raises(CommitmentError, match="start the clock"):
        session.act({"do": "go_on"})
    assert session.act({"do": "look"})["opening"] == ""
    state = session.act({"do": "start"})
    for key in played.asked:
        state = session.act({"do": "ask", "fact": key})
    while state["page"] is not None:
        fields = [RoundField(each["key"], each["label"], _options(each)) for each in state["page"]["fields"]]
        page = RoundPage(state["page"]["key"], "", "", fields)
        filled = {each.key: player(session.sitting, page, each) for each in fields}
        state = session.act({"do": "go_on", "filled": filled})
    report, right = json.loads(json.dumps(state))["report"], judge(played)
    assert (report["level"], report["told"]) == (right.level, f"On what can be computed: {right.told()}")
    for shown, area in zip(report["areas"], right.areas, strict=True):
        assert (shown["level"], shown["counted"]) == (area.level, area.counted)
        assert [each["told"] for each in shown["items"]] == [each.told for each in area.items]
    assert state["clock"]["state"] == "stopped"
    assert not [text for each in report["rubric"] for text in each["says"] if "{" in text]


def _options(field: dict[str, Any]) -> dict[str, str] | None:
    return None if field["options"] is None else {each["id"]: each["name"] for each in field["options"]}


def test_a_session_refuses_and_nothing_has_changed() -> None:
    session = RoundSession(find_round("weights").drawn())
    session.act({"do": "start"})
    while session.act({"do": "look"})["page"]["key"] != "envelope":
        session.act({"do": "go_on"})
    before = session.act({"do": "look"})["page"]
    for action, told in (
        ({"do": "go_on", "filled": {"origin": "soon"}}, re.escape(f"(asked: {before['fields'][0]['about']})")),
        ({"do": "go_on", "filled": {"moon": "1 s"}}, "nothing called 'moon'"),
        ({"do": "go_on", "filled": {"sure": "2"}}, "asked: how sure"),
        ({"do": "go_on", "filled": {"origin": 5}}, "filled of go_on"),
        ({"do": "ask", "fact": "moon"}, "no question 'moon'"),
        ({"do": "leap"}, "no action"),
        ("look", "an action is an object"),
    ):
        with pytest.raises(CommitmentError, match=told):
            session.act(action)
    assert session.act({"do": "look"})["page"] == before


def test_the_desk_goes_page_by_page(home: Path) -> None:
    desk = RoundDesk("weights", now=lambda: 100.0)
    assert "checkpoint" not in desk.opening.value
    desk.begin()
    assert "checkpoint" in desk.opening.value
    desk.question.value = "store"
    desk.ask()
    assert "25 GB/s" in desk.answers.value and desk.sitting.asked == ["store"]
    while not desk.is_over:
        assert desk.page is not None
        place = len(desk.asked.children)
        if desk.page.key == "envelope":
            desk.fields["floor"].value = "soon"
            desk.go_on(place)
            assert "one number with a unit" in desk.result.value and len(desk.asked.children) == place
        for key, field in desk.fields.items():
            field.value = staff(desk.sitting, desk.page, next(each for each in desk.page.fields if each.key == key))
        desk.go_on(place)
        desk.go_on(place)  # a second press of the same button does nothing
    assert [each.round for each in FILE.read().done] == ["weights"]
    assert "hire at" in desk.result.value and "side by side" in desk.result.value and desk.sitting.own
    assert debrief(desk.sitting).count("staff answer") == 1 and "Where do checkpoints appear" in everything(
        desk.sitting
    )
