"""Each grader ranks what it can tell: what is false costs, what is right doesn't, and words alone earn nothing."""

import os
import random
import re
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from fake_endpoint import FakeEndpoint, Reply

from course.drills import calibrate, judge, lesson
from course.drills.amounts import amounts_in, sums_in
from course.drills.checks import check, false_statements, follow_ups, share, verified
from course.drills.drill import FLUENT, LEVELS, SAMPLES, Commit, DrawnDrill, Drill, PromptDraw, UnknownDrillError
from course.drills.falsehoods import against_itself, falsehoods_in
from course.drills.library import ALL, FLAGSHIP, find_drill
from course.drills.library.formulas import accepted
from course.drills.sitting import Sitting
from course.drills.stated import declared_innocent, named_in, table
from course.grading.growth import WorkCost, hold_steady

CASES = tomllib.loads(Path(__file__).with_name("statements.toml").read_text(encoding="utf-8"))
EACH = pytest.mark.parametrize("drill", ALL, ids=lambda drill: drill.id)
MANY_SEEDS = range(60)
OF_A_DRILL = [("Quantizing the weights shortens the queue.", ""), ("Speculative decoding shortens the queue.", "")]
"""False of most drills' queues, and left alone in general: it depends on what the queue waits for."""


def ideal(drawn: DrawnDrill, sample: str) -> Sitting:
    """One who grades as the rubric does, and quotes the sentence nearest to the anchor of that level."""
    said = re.split(r"(?<=[.!?])\s+", drawn.answers[sample])
    levels = {each.key: drawn.grade_of(sample, each.key) for each in drawn.rubric.criteria}
    own = {}
    for each in drawn.rubric.criteria:
        anchor = set(each.anchors[LEVELS.index(levels[each.key])].split())
        own[each.key] = (levels[each.key], max(said, key=lambda sentence: len(anchor & set(sentence.split()))))
    shown = calibrate.samples(drawn).items()
    grades = {label: {c.key: drawn.grade_of(name, c.key) for c in drawn.rubric.criteria} for label, name in shown}
    return Sitting(drawn, drawn.answers[sample], drawn.rubric.samples[sample], samples=grades, own_written=own)


@EACH
def test_a_rubric_names_what_there_is(drill: Drill) -> None:
    rubric = drill.rubric
    assert set(rubric.samples) == set(SAMPLES) == set(drill.drawn().answers)
    for commit in (*rubric.samples.values(), Commit(fixes=()), *(Commit(dominant=d) for d in rubric.commit.dominant)):
        verified(commit)
    causes, techniques = table()["causes"].keys(), table()["techniques"].keys()
    assert rubric.commit.second.keys() <= causes and rubric.commit.fixes.keys() <= techniques
    keys = {each.key for each in rubric.criteria}
    assert set(rubric.samples[FLUENT].grades) == set(rubric.samples[FLUENT].why) == keys
    drawn = drill.drawn()
    for each in drawn.rubric.must_not_say:
        assert false_statements(drawn, each.says) and not false_statements(drawn, each.right), each.says
    names = {*causes, *techniques, *table()["quantities"]}
    for each in rubric.follow_ups:
        assert {*each.if_dominant, *each.unless_dominant, *each.if_second, *each.unless_second} <= causes
        assert {*each.if_fix, *each.unless_fix} <= techniques
        assert {*each.if_says, *each.unless_says} <= names and each.number in ("", "right", "wrong", "missing")


@EACH
def test_samples_are_ranked_by_what_is_computed_and_by_an_ideal_reader(drill: Drill) -> None:
    for drawn in map(drill.drawn, range(4)):
        texts = drawn.prompt + drawn.impossible + "".join(drawn.answers.values())
        assert "{" not in texts and not re.search(r"\d times of\b", texts)
        sittings = {name: ideal(drawn, name) for name in SAMPLES}
        points = {name: share(each.checks) for name, each in sittings.items()}
        assert points["weak"] < points["passing"] < points["strong"] <= points["staff"], points
        assert points[FLUENT] < points["strong"]
        faults = {name: [c for c in each.checks if not c.most] for name, each in sittings.items()}
        assert not faults["strong"] and not faults["staff"] and faults[FLUENT], faults
        for each in sittings.values():
            assert each.calibration.weight == 1
            assert all(own.counts for own in each.own.values())
            assert len(each.follow_ups) >= 2
        own = {name: sum(each.points for each in sitting.own.values()) for name, sitting in sittings.items()}
        assert own["weak"] < own["passing"] < own["strong"] < own["staff"] and own[FLUENT] < own["strong"]


@EACH
def test_words_alone_earn_nothing(drill: Drill) -> None:
    drawn = drill.drawn()
    jargon = "".join(lesson.PADDING) * 3
    words = re.sub(r"[.?,\d]", " ", drawn.answers["strong"]).split()
    random.Random(1).shuffle(words)
    for text in (jargon, " ".join(words), drawn.prompt):
        assert sum(c.points for c in check(drawn, text, Commit())) <= 1, text[:60]
    staff = drawn.rubric.samples["staff"]
    plain, stuffed = (share(check(drawn, drawn.answers["staff"] + more, staff)) for more in ("", jargon))
    assert plain >= stuffed


def test_what_is_false_is_caught_and_what_is_true_or_not_said_is_left_alone() -> None:
    assert [text for text in CASES["false"] if not falsehoods_in(text, OF_A_DRILL)] == []
    assert [text for text in CASES["true"] if falsehoods_in(text, OF_A_DRILL)] == []


def test_what_lessons_01_02_and_09_measure_is_not_false_in_general() -> None:
    assert not any(falsehoods_in(says) for says, _ in OF_A_DRILL) and falsehoods_in(OF_A_DRILL[0][0], OF_A_DRILL)


def test_written_out_sums_are_recomputed() -> None:
    for text in CASES["right_sums"] + CASES["no_sums"] + CASES["wrong_sums"]:
        found = {each.holds for each in sums_in(text.lower(), amounts_in(text.lower()))}
        assert (False in found) == (text in CASES["wrong_sums"]), text


def test_a_cause_is_acquitted_outright_only() -> None:
    assert all(map(declared_innocent, CASES["acquitted"])) and not any(map(declared_innocent, CASES["not_acquitted"]))


def test_what_contradicts_a_commit_or_itself_costs() -> None:
    drawn = find_drill(FLAGSHIP).drawn()
    innocent = "The queue has nothing to do with it."
    found = [c.key for c in check(drawn, innocent, Commit(dominant="queue"))]
    assert "contradiction" in found and "contradiction" not in [c.key for c in check(drawn, innocent, Commit())]
    both = "A smaller model lowers cost. Later on: a smaller model doesn't lower cost."
    assert against_itself(both) and not against_itself(both.split(". ")[0])
    falsehood = drawn.rubric.must_not_say[0]
    (false,) = false_statements(drawn, "Int8 weights cut the queue.")
    assert false.right == falsehood.right
    assert not false_statements(drawn, "Int8 weights free KV memory, and that cuts the queue."), (
        "what makes it right is heard"
    )
    useless, hot = "More replicas do nothing for the queue.", find_drill("hot-prefix").drawn()
    assert false_statements(drawn, useless) and not false_statements(hot, useless), (
        "there the router sends them nothing"
    )


def test_the_asked_for_number_is_checked_wherever_it_stands() -> None:
    fleet = find_drill(FLAGSHIP).drawn()
    right = ("5.4 times", "5.4x", "3.35/0.624 = 5.4", "5.4 s of work a second", "5.4 / 2 = 5.4")
    for number, points in (*((each, 2) for each in right), ("12 times", 0), ("4 / 2 = 5.4", 0), ("", 0)):
        assert next(c.points for c in check(fleet, "", Commit(number=number)) if c.key == "number") == points
    in_prose = check(fleet, "The prompts ask for 5.4 times what it has.", Commit())
    assert next(c.points for c in in_prose if c.key == "number") == 1
    (stray,) = [c for c in check(fleet, "So we need 12 servers.", Commit()) if not c.most]
    assert "12 servers" in stray.quotes[0]
    assert not [c for c in check(fleet, "So we need 12 servers.", Commit(number="12 servers")) if not c.most], "once"
    innocents = (
        "It takes 5.4 servers. So I need 2 servers.",
        "I'd keep two servers spare.",
        "Today there are 3 servers.",
    )
    for innocent in innocents:
        assert not [c for c in check(fleet, innocent, Commit()) if not c.most]


def test_hostile_texts_take_time_in_proportion_to_their_length() -> None:
    drawn = find_drill(FLAGSHIP).drawn()
    for piece in (
        "1 x ",
        "1-",
        "quantization ",
        "queue lowers ",
        "kv ",
        "(",
        " and it",
        "9",
        "a",
        "not ",
        "\x00?\n",
        "2 x 3 = 1e999. 1e999 x 1e999 = 3. 1 / 0 = 0. ",
    ):

        def reading(size: int, piece: str = piece) -> WorkCost:
            text, began = piece * (size // len(piece)), time.process_time()
            check(drawn, text, Commit(number=text)), follow_ups(drawn, text, Commit()), named_in(text)
            return WorkCost(time.process_time() - began, size)

        hold_steady(reading, (500, 5_000), f"the time per character grows with the length of {piece!r}, repeated")
    assert "<script>" not in Sitting(drawn, "<script>alert(1)</script> quantization cuts the queue.").html()


def test_a_self_grade_weighs_what_two_samples_say() -> None:
    drawn = find_drill(FLAGSHIP).drawn()
    good = ideal(drawn, "strong")
    all_staff = {label: {each.key: "staff" for each in drawn.rubric.criteria} for label in "AB"}
    assert replace(good, samples=all_staff).calibration.weight == 0 < replace(good, samples=all_staff).calibration.bias
    assert replace(good, samples={}).calibration.weight == 0
    assert replace(good, samples={"A": good.samples["A"]}).calibration.weight == 0.5, "what is left out is a guess"
    (off,) = replace(good, samples={**good.samples, "A": {**good.samples["A"], "questions": "weak"}}).calibration.off
    assert off.gap < 0 and off.why
    key = drawn.rubric.criteria[0].key
    for quote, counts in (("nothing that was written there", False), ("the", False), ("", False)):
        assert replace(good, own_written={key: ("staff", quote)}).own[key].counts is counts
    assert replace(good, own_written={key: ("weak", "")}).own[key].counts, "there's nothing to quote"
    with pytest.raises(calibrate.GradesError, match="tone"):
        calibrate.calibrate(drawn, {"A": {"tone": "weak"}})


def test_a_judge_has_to_quote_and_its_disagreement_is_shown() -> None:
    drawn = find_drill(FLAGSHIP).drawn()
    answer = drawn.answers["strong"]
    told = [
        '{"level": "Strong", "quote": "most of the TTFT must be waiting in the queue"}',
        'So: {"level": "passing", "quote": "TTFT of 3.2 s is the primary problem"}',
        '{"level": "staff", "quote": "never said by this one"}',
        "no JSON",
        '{"level": "weak", "quote": ""}',
        '{"level": "weak", "quote": ""}',
    ]
    with FakeEndpoint(
        lambda number, body: Reply(text=told[number]) if number < len(told) else Reply(status=500)
    ) as fake:
        opinions = judge.ask(drawn, answer, f"{fake.url}/v1", "m")
    first, second, third, *rest = opinions.values()
    assert first.levels == ("strong", "passing") and "disagrees" in str(first) and len(first.quotes) == 2
    assert (
        not second.levels and "isn't in the answer" in second.problems[0] and "could not be read" in second.problems[1]
    )
    assert str(third) == "weak" and all(each.problems and not each.levels for each in rest)
    assert len(fake.bodies) == 2 * len(drawn.rubric.criteria) and all(body["temperature"] == 0 for body in fake.bodies)
    one, other = (body["messages"][0]["content"] for body in fake.bodies[:2])
    assert sorted(one.splitlines()) == sorted(other.splitlines()) and one != other
    assert "disagrees" in Sitting(drawn, answer, opinions=opinions).html()


@pytest.mark.parametrize("said", [[], {"choices": [{"message": {"content": None}}]}])
def test_a_judge_that_answers_nonsense_breaks_nothing(said: object) -> None:
    client = httpx.Client(transport=httpx.MockTransport(lambda request: httpx.Response(200, json=said)))
    assert all(each.problems for each in judge.ask(find_drill(FLAGSHIP).drawn(), "a", "http://j", "m", client).values())


@pytest.mark.skipif("MINILLM_JUDGE_URL" not in os.environ, reason="no judge model is configured")
@pytest.mark.parametrize("name", [FLAGSHIP, "p99-8s", "choppy-stream"])
def test_a_real_judge_tells_the_samples_apart(name: str) -> None:
    drawn, mean = find_drill(name).drawn(), {}
    for sample, text in drawn.answers.items():
        opinions = judge.ask(
            drawn, text, os.environ["MINILLM_JUDGE_URL"], os.environ.get("MINILLM_JUDGE_MODEL", "default")
        )
        levels = [LEVELS.index(level) for each in opinions.values() for level in each.levels]
        mean[sample] = sum(levels) / max(len(levels), 1)
    assert mean["weak"] < mean["passing"] < mean["strong"] <= mean["staff"] and mean[FLUENT] < mean["strong"], mean


# ---------------------------------------------------------------- numbers of the drills


def test_seeds_change_the_numbers_and_equal_seeds_do_not() -> None:
    drill = find_drill(FLAGSHIP)
    assert drill.drawn(5).prompt == drill.drawn(5).prompt
    assert len({drill.drawn(seed).prompt for seed in range(8)}) > 1
    assert PromptDraw(0)(1.0, 2.0, 3.0) == 1.0
    with pytest.raises(UnknownDrillError, match=FLAGSHIP):
        find_drill("nothing")


@EACH
def test_what_is_asked_for_is_not_in_the_prompt(drill: Drill) -> None:
    for drawn in map(drill.drawn, range(4)):
        assert not any(w.is_about(drawn.asked, 0.01) and w.unit == drawn.asked.unit for w in amounts_in(drawn.prompt))
        assert all(each.value > 0 for each in drawn.numbers.by_name.values())


def test_numbers_are_read_with_their_units() -> None:
    for text, value, unit in (
        ("80 ms", 0.08, "s"),
        ("132k tokens/s", 132e3, "tokens/s"),
        ("3.4 pflop/s", 3.4e15, "FLOP/s"),
        ("18%", 0.18, "ratio"),
        ("$2.69 an hour", 2.69, "$"),
        ("60 requests per second", 60, "requests/s"),
        ("1,056", 1056, ""),
        ("492 mb", 492e6, "B"),
        ("$2-3 an hour", 2, "$"),
        ("5.5x", 5.5, "ratio"),
    ):
        (found,) = amounts_in(text)
        assert (found.low, found.unit) == (pytest.approx(value), unit), text
    assert [(w.low, w.high) for w in amounts_in("30-50 ms")] == [(pytest.approx(0.03), pytest.approx(0.05))]
    assert len(amounts_in("from 20% to 80%")) == 2


def test_numbers_of_some_drills_fit_their_stories() -> None:
    for seed in MANY_SEEDS:
        derived = find_drill("p99-8s").drawn(seed).numbers.derived
        assert derived["slow_ttft"].value > 3 and derived["slow_itl"].value > 0.04, (
            "smooth text in one, not in the other"
        )
        nightly = find_drill("batch-beside-chat").drawn(seed).numbers
        assert nightly.derived["hours_beside"].value < nightly.given["window"].value
        drafts = find_drill("new-draft").drawn(seed).numbers
        given, derived = drafts.given, drafts.derived
        assert 0 < derived["percent"].value < derived["jump"].value
        even = derived["break_even"].value
        assert given["old"].value < even < given["new"].value
        round_old = 1 + given["k"].value * given["old_cost"].value
        speed = accepted(even, given["k"].value) / derived["round_new"].value
        assert speed == pytest.approx(accepted(given["old"].value, given["k"].value) / round_old, rel=0.02)
