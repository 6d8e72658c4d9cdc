"""Each grader judges what it can tell: what was committed to, what is known of the case; words alone earn nothing."""

import os
import random
import re
from dataclasses import replace

import httpx
import pytest
from fake_endpoint import FakeEndpoint, Reply

from course.drills import calibrate, judge
from course.drills.amounts import TOLERANCE, UNITS, Amount, AmountError, read_amount
from course.drills.checks import CommitError, check, number_state, share, verified
from course.drills.drill import (
    BARS,
    FLUENT,
    LEVELS,
    ROUNDS,
    SAMPLES,
    Commit,
    DrawnDrill,
    Drill,
    PromptDraw,
    UnknownDrillError,
)
from course.drills.interviewer import PUSHBACKS, QUESTIONS, QuestionError, press
from course.drills.library import ALL, FLAGSHIP, find_drill, number_of
from course.drills.library.formulas import accepted
from course.drills.sitting import DisputeError, Sitting, sit
from course.drills.stated import acts_on, menu, table
from course.drills.statements import SURE, WORST, StatementError, read_answers, score
from course.drills.talk import has_talk, talk_of
from course.drills.verdict import sentences

EACH = pytest.mark.parametrize("drill", ALL, ids=lambda drill: drill.id)
MANY_SEEDS = range(60)


def committed(drawn: DrawnDrill, sample: str, **changed: str) -> Commit:
    """What a sample commits to, as a plain commit."""
    fields = drawn.rubric.samples[sample].model_dump(include=set(Commit.model_fields))
    return Commit.model_validate({**fields, **changed})


def with_a_finding(drawn: DrawnDrill, commit: Commit, use: str = "useful") -> Commit:
    """The same, and what would change its mind: the first finding of that use, and a fix that acts on it."""
    for fact in talk_of(drawn).facts:
        fixes = [each for each in menu("techniques") if acts_on(each, fact.changes) and each not in commit.fixes[:1]]
        if fact.use == use and (fixes or use == "idle"):
            return commit.model_copy(update={"finding": fact.key, "then": fixes[0] if fixes else "replicas"})
    return commit


def answered(drawn: DrawnDrill, right: int, sure: str, sure_when_wrong: str = "") -> list[tuple[bool, int]]:
    """Answers to the statements on the table, of which the first so many are right."""
    truths = [each.is_true for each in talk_of(drawn).put()]
    levels = SURE[sure], SURE[sure_when_wrong or sure]
    return [(t, levels[0]) if place < right else (not t, levels[1]) for place, t in enumerate(truths)]


def ideal(drawn: DrawnDrill, sample: str) -> Sitting:
    """One who grades as the rubric does, and quotes a sentence for each level."""
    said = [each for each in sentences(drawn.answers[sample]) if len(each.split()) >= calibrate.LEAST_WORDS]
    levels = {each.key: drawn.grade_of(sample, each.key) for each in drawn.rubric.criteria}
    own = {key: (level, said[place % len(said)]) for place, (key, level) in enumerate(levels.items())}
    shown = calibrate.samples(drawn).items()
    grades = {label: {c.key: drawn.grade_of(name, c.key) for c in drawn.rubric.criteria} for label, name in shown}
    return sit(drawn, text=drawn.answers[sample], commit=committed(drawn, sample), samples=grades, own=own)


@EACH
def test_a_rubric_names_what_there_is(drill: Drill) -> None:
    rubric = drill.rubric
    assert set(rubric.samples) == set(SAMPLES) == set(drill.drawn().answers)
    for sample in SAMPLES:
        verified(committed(drill.drawn(), sample))
    causes, techniques = menu("causes").keys(), menu("techniques").keys()
    assert {*rubric.commit.dominant, *rubric.commit.second} <= causes and rubric.commit.fixes.keys() <= techniques
    keys = {each.key for each in rubric.criteria}
    assert set(rubric.samples[FLUENT].grades) == set(rubric.samples[FLUENT].why) == keys
    for each in rubric.follow_ups:
        assert {*each.if_dominant, *each.unless_dominant, *each.if_second, *each.unless_second} <= causes
        assert {*each.if_fix, *each.unless_fix} <= techniques and each.number in ("", "right", "wrong", "missing")
    assert drill.round in ROUNDS and drill.level in BARS and find_drill(f"{number_of(drill)}") is drill


def test_every_cause_has_techniques_that_act_on_it() -> None:
    assert table()["remedies"].keys() == menu("causes").keys()
    assert {each for fixes in table()["remedies"].values() for each in fixes} <= menu("techniques").keys()


@EACH
def test_samples_are_ranked_by_what_they_commit_to(drill: Drill) -> None:
    for drawn in map(drill.drawn, range(4)):
        texts = drawn.prompt + drawn.impossible + "".join(drawn.answers.values())
        assert "{" not in texts and not re.search(r"\d times of\b", texts)
        points = {name: share(check(drawn, committed(drawn, name))[:4]) for name in SAMPLES}
        assert points["weak"] <= points["passing"] < points["strong"] <= points["staff"], points
        assert points[FLUENT] < points["strong"]
        for name in SAMPLES:
            sitting = ideal(drawn, name)
            assert sitting.calibration.weight == 1 and len(sitting.turns) >= 2
        own = {name: sum(each.points for each in ideal(drawn, name).own.values()) for name in SAMPLES}
        assert own["weak"] < own["passing"] < own["strong"] < own["staff"] and own[FLUENT] < own["strong"]


# ---------------------------------------------------------------- numbers


@EACH
def test_no_number_of_the_prompt_passes_for_the_one_that_is_asked_for(drill: Drill) -> None:
    for drawn in map(drill.drawn, range(6)):
        numbers = drawn.numbers
        for other in (*numbers.given.values(), *numbers.tempting.values()):
            if other.unit == drawn.asked.unit:
                assert drawn.asked.off_by(other.value) > drawn.room, (drawn.id, drawn.seed)
        units = [name for name, (base, _) in UNITS.items() if base == drawn.asked.unit]
        for unit in units:
            commit = Commit(number=f"{drawn.asked.value / UNITS[unit][1]:.6g}", unit=unit)
            assert number_state(drawn, commit) == "right"
        assert all(each.value > 0 for each in numbers.by_name.values())


@pytest.mark.parametrize(
    ("number", "unit", "value", "base"),
    [
        ("80", "ms", 0.08, "s"),
        ("80 ms", "", 0.08, "s"),
        ("132k", "tokens/s", 132e3, "tokens/s"),
        ("1,056", "(a count)", 1056, ""),
        ("7 replicas", "", 7, ""),
        ("$2.15", "", 2.15, "$"),
        ("18%", "", 0.18, "ratio"),
        ("5.4x", "", 5.4, "ratio"),
        ("3 QPS", "", 3, "requests/s"),
        (".5 GB", "", 5e8, "B"),
        ("~5 s to the first token", "", 5, "s"),
        ("about $47k", "", 47e3, "$"),
        ("16 requests per second", "", 16, "requests/s"),
        ("16 queries/s", "", 16, "requests/s"),
        ("at most 87.6", "ms", 0.0876, "s"),
        ("at least 28 replicas", "", 28, ""),
        ("80 ms", "ms", 0.08, "s"),
        ("2.5 GiB", "", 2.5 * 2**30, "B"),
        ("40 Gbit/s", "", 5e9, "B/s"),
        ("1.5 min", "", 90, "s"),
        ("2,600 mb", "", 2.6e9, "B"),
        ("at most about 87.6 requests.", "", 87.6, ""),
        ("I'd say 2.2 GB, give or take", "", 2.2e9, "B"),
        ("<= 2.2 gigabytes of KV", "", 2.2e9, "B"),
        ("90 ± 10 ms", "", 0.09, "s"),
        ("90 ms +/- 5%", "", 0.09, "s"),
        ("90 msec a step", "", 0.09, "s"),
        ("under 70 percent", "", 0.7, "ratio"),
        ("2.4 million tokens", "", 2.4e6, "tokens"),
        ("2.4 x 10^6 tokens", "", 2.4e6, "tokens"),
        ("80k tokens per second", "", 8e4, "tokens/s"),
        ("1.2k requests per minute", "", 20, "requests/s"),
        ("18k", "requests", 18e3, ""),
        ("36M tokens an hour", "", 1e4, "tokens/s"),
        ("roughly $47k a month", "", 47e3, "$"),
        ("2.15 dollars an hour", "", 2.15, "$"),
        ("12 GB as weights", "", 12e9, "B"),
        ("12 Gbit", "", 1.5e9, "B"),
        ("400 Gb/s", "", 50e9, "B/s"),
        ("400 GB per second", "", 400e9, "B/s"),
        ("200 MBps", "", 200e6, "B/s"),
        ("3 GiB/s", "", 3 * 2**30, "B/s"),
    ],
)
def test_a_number_is_read_with_its_unit(number: str, unit: str, value: float, base: str) -> None:
    read = read_amount(number, unit)
    assert read is not None and (read.value, read.unit) == (pytest.approx(value), base)


def test_what_is_no_number_is_refused_and_one_in_another_unit_than_asked_is_half() -> None:
    for number, unit in (
        ("a lot", ""),
        ("5", "bananas"),
        ("1e999", "s"),
        ("9" * 5000, "s"),
        ("-", "s"),
        ("1 to 2", "s"),
        ("1 h 30 min", ""),
        ("1.2.3 s", ""),
        ("at most", "s"),
        ("80 ms", "s"),
    ):
        with pytest.raises(AmountError):
            read_amount(number, unit)
    assert read_amount(" ") is None
    drawn = find_drill(FLAGSHIP).drawn()
    points = {text: check(drawn, Commit(number=text))[2].points for text in ("5.4 times", "5.4", "5.4 ms", "540%", "2")}
    assert points == {"5.4 times": 2, "5.4": 2, "5.4 ms": 0, "540%": 2, "2": 0}
    for drill, texts, points in (
        ("p99-8s", ("5 s", "5", "5020 ms", "5 hours"), [2, 2, 2, 0]),  # it asks for seconds
        ("itl-250ms", ("4.2", "4.2 ms", "0.0042", "4.2 s"), [2, 2, 1, 0]),  # for ms
        ("hit-rate-zero", ("78", "78%", "0.78", "0.78%", "7.8"), [2, 2, 2, 0, 0]),  # for percent
        ("buy-hardware", ("5.2", "5.2 years", "63 months", "45,700 hours", "13,700 hours"), [2, 2, 2, 2, 0]),
        ("load-test-lied", ("16", "16 rps", "960 requests/min", "16/s", "16 per hour", "16 ms"), [2, 2, 2, 2, 0, 0]),
        ("load-test-lied", ("16 requests", "16 calls", "17.4 requests", "16 tokens"), [1, 1, 0, 0]),  # per what?
        ("load-test-lied", ("16 replicas", "16 slots", "16 users", "16 GPUs", "16 replicas/s"), [0] * 5),
        ("size-a-fleet", ("28", "28 of them", "28 replicas, two cards each", "28 GPU servers", "28 boxes"), [2] * 5),
        ("size-a-fleet", ("28 requests", "28 GPUs", "28 tokens", "28 adapters", "28 requests/s"), [0] * 5),
        ("tenfold-spike", ("18,000", "18k queued requests", "18,000 users", "18,000 replicas"), [2, 2, 2, 0]),
        ("lora-tenants", ("55 adapters", "55 different LoRAs", "55 tenants", "55 cards"), [2, 2, 2, 0]),
        ("chunk-size", ("1,000 tokens of prefill", "1,000", "1,000 requests"), [2, 2, 0]),
        ("hot-prefix", ("1.5 times", "1.5", "1.5 replicas", "1.5 requests"), [2, 2, 2, 0]),
        ("code-drafts", ("2.4x", "2.4 tokens", "2.4 replicas"), [2, 0, 0]),
    ):
        asked = find_drill(drill).drawn()
        assert [check(asked, Commit(number=text))[2].points for text in texts] == points, drill
    says = check(find_drill("load-test-lied").drawn(), Commit(number="16 requests"))[2].says
    assert says.startswith("16 requests: the number is right, but it doesn't say per what.")
    says = check(find_drill("size-a-fleet").drawn(), Commit(number="28 GPUs"))[2].says
    assert says == "28 GPUs: no, that counts something else. It's 28."


def test_switching_speculation_off_under_load_gives_capacity_back() -> None:
    assert acts_on("gate", "capacity") and not acts_on("gate", "client")


def test_causes_in_the_other_order_are_partly_right_and_one_named_twice_counts_once() -> None:
    drawn = find_drill("growing-agents").drawn()
    points = {
        pair: tuple(each.points for each in check(drawn, Commit(dominant=pair[0], second=pair[1]))[:2])
        for pair in (("eviction", "prefill"), ("prefill", "kv_room"), ("kv_room", "eviction"), ("eviction", "eviction"))
    }
    assert points == {
        ("eviction", "prefill"): (2, 1),  # both dominate by the key
        ("prefill", "kv_room"): (2, 1),
        ("kv_room", "eviction"): (1, 1),
        ("eviction", "eviction"): (2, 0),
    }


def test_a_wrong_number_is_told_what_may_have_gone_wrong() -> None:
    for drill, number, word in (
        ("itl-250ms", "33.2 ms", "bits"),
        ("itl-250ms", "4.15 s", "thousand"),
        ("moe-8-gpus", "9.49 ms", "copy"),
        ("moe-8-gpus", "0.59 ms", "one token"),
        ("code-drafts", "3.2 times", "popular"),
        ("p99-8s", "8 s", "in the prompt"),
    ):
        drawn = find_drill(drill).drawn()
        assert word in check(drawn, Commit(number=number))[2].says, (drill, number)
    assert check(drawn, Commit(number="3.3 s"))[2].says.endswith("it's 5 s.")
    assert "bits" not in check(find_drill("dashboard").drawn(), Commit(number="45"))[2].says, "requests have no bits"


def test_whole_things_are_counted_and_shares_are_not_rounded_up() -> None:
    assert Amount(29).room() * 29 < 1 and Amount(1200).room() == TOLERANCE
    assert Amount(0.95, "ratio").off_by(0.99) > Amount(0.95, "ratio").room()
    assert Amount(5.0, "s").room(Amount(5.1, "s"), Amount(5.2, "B")) == pytest.approx(0.01)


# ---------------------------------------------------------------- statements, and what would change one's mind


def test_prose_is_neither_paid_nor_fined() -> None:
    drawn = find_drill(FLAGSHIP).drawn()
    true = "Doubling the fleet will bring ITL down as well. 1,500 squared times 80 is 1.8e8."
    texts = (true, "Speculation cuts prefill by half. " * 40, drawn.answers["staff"], drawn.prompt, "")
    assert len({sit(drawn, text=text, commit=committed(drawn, "strong")).standing for text in texts}) == 1


def test_the_rule_is_proper_and_a_bluff_costs() -> None:
    drawn = made()
    for often in SURE.values():
        means = {}
        for percent in SURE.values():
            truth = drawn.put[0].is_true
            right, wrong = (
                sit(drawn.drill, statements={1: (agrees, percent)}).judged[0].points for agrees in (truth, not truth)
            )
            means[percent] = often / 100 * right + (1 - often / 100) * wrong
            assert WORST <= wrong <= right <= 1
        assert max(means, key=lambda percent: means[percent]) == often
    assert score(drawn.judged) == 0
    bluff = sit(drawn.drill, statements=["agree, sure"] * 8)
    assert score(bluff.judged) < 0, "half of them are false"


def test_forty_true_sentences_cost_nothing_and_forty_false_ones_are_each_scored() -> None:
    true = false = 0
    for drawn in (drill.drawn(11) for drill in ALL[::2]):
        put, commit = talk_of(drawn).put(), committed(drawn, "staff")
        said = " ".join(each.says for each in put if each.is_true)
        right = {place: ("agree" if each.is_true else "disagree", 95) for place, each in enumerate(put, 1)}
        plain, told = (sit(drawn, text=text, commit=commit, statements=right) for text in ("", said))
        assert told.standing == plain.standing and not told.verdict.hurt, "a true sentence in the answer is no fault"
        for place, each in enumerate(put, 1):
            agreed, denied = (
                sit(drawn, statements={place: (word, 80)}).judged[place - 1] for word in ("agree", "disagree")
            )
            assert (agreed.points > 0 > denied.points) is each.is_true and (
                denied.points > 0 > agreed.points
            ) is not each.is_true
            assert agreed.is_right is each.is_true and each.because in agreed.says
            true, false = true + each.is_true, false + (not each.is_true)
    assert min(true, false) >= 40


def made(seed: int = 0, **given: object) -> Sitting:
    """A sitting of the flagship."""
    return sit(FLAGSHIP, seed, **given)


@pytest.mark.parametrize(
    "answers",
    [
        {9: "agree"},
        {0: "agree"},
        {1: "perhaps"},
        {1: "agree 40"},
        {1: "agree quite"},
        {1: ("agree", 200)},
        {"1": "agree"},
    ],
)
def test_an_answer_that_cannot_be_read_is_named(answers: dict[int, object]) -> None:
    with pytest.raises(StatementError, match=f"{next(iter(answers))}"):
        read_answers(answers, 8)


def test_two_can_be_disputed_and_then_cost_nothing() -> None:
    drawn = find_drill(FLAGSHIP).drawn()
    wrong = answered(drawn, 5, "sure")
    before, after = (sit(drawn, statements=wrong, disputed=d) for d in (None, {"6": "not at this load", "7": "see x"}))
    assert score(before.judged) < score(after.judged) and after.judged[5].points == 0
    assert "not at this load" in str(after) and "disputed" in str(after) and "6" in after.costly
    harmful = Commit(fixes=("quantization", "admission"))
    plain, spared = (sit(drawn, commit=harmful, disputed=d) for d in ({}, {"quantization": "it's int8"}))
    assert plain.checks[3].points < spared.checks[3].points
    for disputed in ({str(place): "no" for place in (6, 7, 8)}, {"6": " "}, {"moon": "no"}, {"tp": "no"}):
        with pytest.raises(DisputeError):
            sit(drawn, statements=wrong, disputed=disputed)


def test_what_would_change_your_mind_has_to_bear_on_the_case() -> None:
    drawn = find_drill(FLAGSHIP).drawn()
    plain = committed(drawn, "staff")
    useful, idle = with_a_finding(drawn, plain), with_a_finding(drawn, plain, "idle")
    same = useful.model_copy(update={"then": plain.fixes[0]})
    nothing = useful.model_copy(update={"then": ""})
    assert [check(drawn, each)[4].points for each in (useful, same, nothing, idle, plain)] == [2, 1, 1, 0, 0]
    drawn = find_drill("drafts-at-noon").drawn()
    gate = Commit(fixes=("gate",), finding="engine-gate")
    points = [check(drawn, gate.model_copy(update={"then": each}))[4] for each in ("rollback", "gate", "quantization")]
    assert [each.points for each in points] == [2, 1, 1] and "takes its place" in points[0].says
    drawn = find_drill("p99-8s").drawn()
    points = [
        check(drawn, with_a_finding(drawn, Commit(fixes=("measure",)), use))[3].points for use in ("useful", "idle")
    ]
    assert points[0] > points[1] == 0, "one who measures what changes nothing measures nothing"
    with pytest.raises(CommitError, match="no question 'moon'"):
        sit(drawn, commit={"finding": "moon"})


KINDS = ("staff", "senior", "mid", "weak", "stuffed", "fluent-false", "lucky-false", "lucky guesser")


def candidate(drawn: DrawnDrill, kind: str) -> Sitting:
    """What candidates of a kind do: commitments from the sample that fits, statements by what they know."""
    sample, right, sure, when_wrong = {
        "staff": ("staff", 7, "sure", "leaning"),
        "senior": ("strong", 6, "fairly sure", "leaning"),
        "mid": ("passing", 5, "leaning", "leaning"),
        "weak": ("weak", 4, "fairly sure", "fairly sure"),
        "stuffed": ("staff", 4, "sure", "sure"),
        "fluent-false": (FLUENT, 2, "sure", "sure"),
        "lucky-false": ("staff", 3, "fairly sure", "fairly sure"),
        "lucky guesser": ("staff", 4, "leaning", "leaning"),
    }[kind]
    commit = committed(drawn, sample)
    if kind in ("staff", "senior"):
        commit = with_a_finding(drawn, commit)
    text = drawn.answers["staff"] * 2 if kind == "stuffed" else drawn.answers[sample]
    return sit(drawn, text=text, commit=commit, statements=answered(drawn, right, sure, when_wrong))


@pytest.mark.parametrize("drill", [each for each in ALL if has_talk(each.id)], ids=lambda drill: drill.id)
def test_who_knows_the_case_stands_above_who_had_luck_with_the_menus(drill: Drill) -> None:
    for drawn in map(drill.drawn, (0, 1, 101)):
        stands = {kind: candidate(drawn, kind).standing.value for kind in KINDS}
        assert stands["staff"] >= stands["senior"] > stands["mid"] > stands["weak"], stands
        assert all(stands["mid"] > stands[kind] for kind in KINDS[4:]), stands
        silent = sit(drawn, text=drawn.answers["staff"], commit=with_a_finding(drawn, committed(drawn, "staff")))
        bold = sit(
            drawn, commit=committed(drawn, "passing"), statements=answered(drawn, 5, "fairly sure", "fairly sure")
        )
        assert bold.standing.value > silent.standing.value, "right menus and no word on the case show nothing"


@pytest.mark.slow
def test_with_luck_in_it_knowledge_still_decides() -> None:
    """Each statement is known with a chance, and said with the confidence that goes with it, or with a bluffer's: the
    means over a dozen draws of each drill.
    """
    knows = {
        "staff": ("staff", 0.92, 95),
        "senior": ("strong", 0.8, 80),
        "mid": ("passing", 0.65, 65),
        "weak": ("weak", 0.5, 65),
        "stuffed": ("staff", 0.5, 80),
        "fluent-false": (FLUENT, 0.3, 95),
        "lucky-false": ("staff", 0.3, 80),
    }
    luck, stands = random.Random(7), dict.fromkeys(knows, 0.0)
    for drawn in (drill.drawn(seed) for drill in ALL for seed in range(9100, 9112)):
        truths = [each.is_true for each in talk_of(drawn).put()]
        for kind, (sample, share_known, sure) in knows.items():
            commit = committed(drawn, sample)
            commit = with_a_finding(drawn, commit) if kind in ("staff", "senior") else commit
            said = [(truth == (luck.random() < share_known), sure) for truth in truths]
            stands[kind] += sit(drawn, commit=commit, statements=said).standing.value / (12 * len(ALL))
    assert stands["staff"] > stands["senior"] + 0.1 > stands["mid"] + 0.2 > stands["weak"] + 0.2, stands
    assert all(stands["mid"] > stands[kind] + 0.2 for kind in list(knows)[4:]), stands


def test_a_verdict_names_a_level_a_reason_and_sentences() -> None:
    drawn = find_drill(FLAGSHIP).drawn()
    staff, weak = candidate(drawn, "staff"), candidate(drawn, "fluent-false")
    assert staff.standing.level == "staff" and staff.verdict.says.startswith("Hire at staff")
    assert weak.standing.level == "" and weak.verdict.says.startswith("No hire yet. You lost most on ")
    assert "6 of 8 statements (which you got wrong" in weak.verdict.says
    blank = sit(drawn, statements=answered(drawn, 8, "sure")).verdict.says
    assert "You lost most on what dominates (you committed to nothing; it's " in blank and blank.count(".") == 2
    for each in (staff, weak):
        found = each.verdict
        assert found.again in each.text and found.with_this
        for pointed in (*found.helped, *found.hurt):
            assert pointed.sentence in " ".join(each.text.split()) and pointed.why
    assert len(staff.verdict.helped) == 2 and len(weak.verdict.hurt) == 2
    assert not {each.sentence for each in weak.verdict.helped} & {each.sentence for each in weak.verdict.hurt}
    assert "your own grades" in staff.headline and "statements 7 of 8" in staff.headline
    assert sit(drawn).verdict.says and str(sit(drawn, text="\x00<script>" * 2000))


def test_a_true_sentence_that_shares_one_word_with_a_wrong_commitment_is_not_said_to_hurt() -> None:
    text = "After 26 GB of weights the card has room for 29 of them. All of a step is reading the weights once more."
    wrong = Commit(dominant="kv_room", second="weights", number="1.97 GB")
    hurt = sit("shrink-the-kv", 77, text=text, commit=wrong).verdict.hurt
    assert [each.sentence[:13] for each in hurt] == ["All of a step"]


# ---------------------------------------------------------------- conversation


def test_the_interviewer_tells_what_is_asked_and_five_things_at_most() -> None:
    drawn = find_drill(FLAGSHIP).drawn()
    facts = talk_of(drawn).facts
    asked = [each.key for each in facts][:QUESTIONS]
    assert [each.says for each in sit(drawn, asked=asked).facts] == [each.says for each in facts][:QUESTIONS]
    for wrong in ([each.key for each in facts][: QUESTIONS + 1], asked[:1] * 2):
        with pytest.raises(QuestionError):
            sit(drawn, asked=wrong)


def test_pushback_comes_one_by_one_skips_what_was_said_and_asks_back() -> None:
    drawn = find_drill(FLAGSHIP).drawn()
    text = drawn.answers["strong"]
    wrong = committed(drawn, "strong", number="0.4 times")
    first, *rest = sit(drawn, text=text, commit=wrong).turns
    assert [each.press for each in (first, *rest)] == table()["presses"]["silent"][:PUSHBACKS], "none is asked twice"
    said = next(each for each in sentences(text) if len(each.split()) > calibrate.LEAST_WORDS)
    skipped = sit(drawn, text=text, commit=wrong, replies={first.asks: said}).turns
    assert skipped[0].said == said and not skipped[0].press and len(skipped) == PUSHBACKS + 1
    (question, *_) = [each for each in drawn.rubric.follow_ups if each.number == "wrong"]
    assert question.asks in [each.asks for each in (first, *rest)], "what went wrong comes first"
    bare = table()["presses"]["bare"]
    assert press(question, "Because.") == bare[0] != press(question, "It's 5 times.")
    assert press(question, "Because.", bare[:1]) == bare[1]


# ---------------------------------------------------------------- self-grades, and a judge model


def test_two_of_five_samples_are_drawn_strong_against_staff_among_them() -> None:
    drawn = [find_drill(FLAGSHIP).drawn(seed) for seed in MANY_SEEDS]
    pairs = {frozenset(calibrate.samples(each).values()) for each in drawn}
    assert frozenset(("strong", "staff")) in pairs and len(pairs) == 10


def test_a_self_grade_weighs_what_two_samples_say() -> None:
    drawn = find_drill(FLAGSHIP).drawn()
    good = ideal(drawn, "strong")
    high = {
        label: {key: LEVELS[min(LEVELS.index(level) + 2, 3)] for key, level in grades.items()}
        for label, grades in good.samples.items()
    }
    assert replace(good, samples=high).calibration.weight < 1 and replace(good, samples={}).calibration.weight == 0
    assert replace(good, samples={"A": good.samples["A"]}).calibration.weight == 0.5, "what is left out is a guess"
    one, other = (each.key for each in drawn.rubric.criteria[:2])
    said = [each for each in sentences(good.text) if len(each.split()) >= calibrate.LEAST_WORDS]
    for quote, counts in (
        (said[0], True),
        ("eight words that were never written in this answer", False),
        ("The queue", False),
    ):
        assert replace(good, own_written={one: ("staff", quote)}).own[one].counts is counts
    twice = replace(good, own_written={one: ("staff", said[0]), other: ("strong", said[0].upper())}).own
    assert twice[one].counts and "already" in twice[other].problem
    assert replace(good, own_written={one: ("weak", "")}).own[one].counts, "there's nothing to quote"
    assert replace(good, ticks={1: said[0], 2: "nothing that stands there, in eight words or more"}).ticked == {
        1: said[0]
    }
    for wrong in ({"samples": {"A": {"tone": "weak"}}}, {"ticks": {99: "a"}}, {"own": {"tone": ("weak", "")}}):
        with pytest.raises(calibrate.GradesError):
            sit(drawn, **wrong)


def graded_as(drawn: DrawnDrill, levels: dict[str, str]) -> httpx.Client:
    """A judge that gives each sample one level, and quotes it."""

    def reply(request: httpx.Request) -> httpx.Response:
        answer = request.content.decode().split("-----")[1]
        name = next((name for name, text in drawn.answers.items() if text[:40] in answer.replace("\\n", "\n")), "mine")
        words = " ".join(re.findall(r"\w+", answer.replace("\\n", " "))[:6])
        said = f'{{"quote": "{words}", "level": "{levels[name]}"}}'
        return httpx.Response(200, json={"choices": [{"message": {"content": said}}]})

    return httpx.Client(transport=httpx.MockTransport(reply))


def test_a_judge_is_heard_only_after_it_has_graded_the_samples() -> None:
    drawn = find_drill(FLAGSHIP).drawn()
    right = {**dict(zip(LEVELS, LEVELS)), FLUENT: "weak", "mine": "strong"}
    mine = "I would ask for the queue wait before anything else is decided here."
    for levels, may_speak in ((right, True), ({**right, FLUENT: "staff", "strong": "weak"}, False)):
        heard = judge.hear(drawn, mine, "http://j", "m", graded_as(drawn, levels))
        assert heard.agreement.may_speak is may_speak and bool(heard.opinions) is may_speak
        shown = f"{replace(sit(drawn, text=mine), heard=heard)}"
        assert ("judge model: strong" in shown) is may_speak and f"of {heard.agreement.asked} grades" in shown


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
        opinions = judge.ask(drawn, answer, f"{fake.url}/v1", "m", httpx.Client())
    first, second, third, *rest = opinions.values()
    assert first.levels == ("strong", "passing") and "disagrees" in str(first) and len(first.quotes) == 2
    assert (
        not second.levels and "isn't in the answer" in second.problems[0] and "could not be read" in second.problems[1]
    )
    assert str(third) == "weak" and all(each.problems and not each.levels for each in rest)
    assert len(fake.bodies) == 2 * len(drawn.rubric.criteria) and all(body["temperature"] == 0 for body in fake.bodies)
    one, other = (body["messages"][0]["content"] for body in fake.bodies[:2])
    assert sorted(one.splitlines()) == sorted(other.splitlines()) and one != other


@pytest.mark.parametrize("said", [[], {"choices": [{"message": {"content": None}}]}])
def test_a_judge_that_answers_nonsense_breaks_nothing(said: object) -> None:
    client = httpx.Client(transport=httpx.MockTransport(lambda request: httpx.Response(200, json=said)))
    assert all(each.problems for each in judge.ask(find_drill(FLAGSHIP).drawn(), "a", "http://j", "m", client).values())


def test_a_judge_that_cannot_do_it_is_asked_twice_and_refused_in_words() -> None:
    drawn = find_drill("p99-8s").drawn()
    for reply, why in (
        (Reply(text="Sure! A strong answer."), "its answer could not be read: no JSON object in it"),
        (Reply(status=500), "the endpoint refused: 500, "),
    ):
        with FakeEndpoint(lambda number, body, reply=reply: reply) as fake:
            heard = judge.hear(drawn, "The queue.", f"{fake.url}/v1", judge.DEFAULT)
        assert len(fake.bodies) == 2 and not heard.opinions and not heard.agreement.may_speak
        assert f"on the five samples it gave no grade, so it isn't heard: {why}" in str(heard.agreement)


@pytest.mark.skipif("MINILLM_JUDGE_URL" not in os.environ, reason="no judge model is configured")
@pytest.mark.parametrize("name", [FLAGSHIP, "p99-8s", "choppy-stream"])
def test_a_real_judge_tells_the_samples_apart(name: str) -> None:
    drawn, mean = find_drill(name).drawn(), {}
    for sample, text in drawn.answers.items():
        url, model = os.environ["MINILLM_JUDGE_URL"], os.environ.get(judge.MODEL, judge.DEFAULT)
        opinions = judge.ask(drawn, text, url, model, httpx.Client(timeout=judge.TIMEOUT_S))
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
