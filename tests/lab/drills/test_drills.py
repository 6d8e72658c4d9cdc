"""Every drill ranks its four model answers, forgives other words, and is not taken in by keywords."""

import random
import re
from itertools import pairwise

import pytest
from lab.drills import answers

from course.lab.drills.amounts import Amount, amounts_in, sums_in
from course.lab.drills.drill import LEVELS, Draw, Drill, UnknownDrillError
from course.lab.drills.grade import grade
from course.lab.drills.library import ALL, FLAGSHIP, find_drill
from course.lab.drills.patterns import Pattern, find
from course.lab.drills.reading import Numbers, read

SEEDS = (0, 1, 2, 3)
NUMBERS = Numbers({"ttft": Amount(3.2, "s")}, {"decode": Amount(14.4, "s")})


def test_there_are_enough_drills_and_each_has_its_own_name() -> None:
    assert len(ALL) >= 20
    assert len({drill.id for drill in ALL}) == len(ALL)
    assert find_drill(FLAGSHIP).minutes == 12
    with pytest.raises(UnknownDrillError, match=FLAGSHIP):
        find_drill("nothing")


@pytest.mark.parametrize("seed", SEEDS)
def test_the_four_answers_are_ranked_and_have_the_level_they_were_written_for(seed: int) -> None:
    for drill in ALL:
        drawn = drill.drawn(seed)
        grades = [grade(drawn, drawn.answers[level]) for level in LEVELS]
        assert [each.level for each in grades] == list(LEVELS), drill.id
        assert all(worse.points < better.points for worse, better in pairwise(grades)), drill.id
        assert grades[-1].beyond, f"{drill.id}: the staff answer notices what the numbers imply"


@pytest.mark.parametrize("seed", SEEDS)
def test_derived_numbers_are_not_in_the_prompt_already(seed: int) -> None:
    """Else copying the prompt would count as arithmetic."""
    for drill in ALL:
        drawn = drill.drawn(seed)
        written = amounts_in(drawn.prompt.lower())
        derived = drawn.numbers.derived.items()
        assert sum(any(w.is_about(a) and w.unit == a.unit for w in written) for _, a in derived) <= 1, drill.id
        assert grade(drawn, drawn.prompt).level == "weak", drill.id


@pytest.mark.parametrize("drill", ALL, ids=lambda drill: drill.id)
def test_every_rule_is_well_formed_and_texts_fill_their_blanks(drill: Drill) -> None:
    rubric = drill.rubric
    rules = [*rubric.diagnosis, *rubric.mechanism, *rubric.apart, *rubric.secondary, *rubric.secondary_why]
    rules += [*rubric.beyond, *rubric.moves, *rubric.moves.values(), rubric.unknowns]
    rules += [rule for trap in rubric.traps for rule in (trap.rule, *trap.unless)] + [f.rule for f in rubric.follow_ups]
    derived = drill.drawn().numbers.derived
    for rule in rules:
        for atom in (atom for group in Pattern(rule).groups for atom in group):
            kind, _, which = atom.lstrip("!?").partition(".")
            assert kind != "derived" or not which or which in derived, f"{rule}: {atom}"
    for drawn in map(drill.drawn, range(12)):
        assert all(each.value > 0 for each in {**drawn.numbers.given, **drawn.numbers.derived}.values())
        texts = drawn.prompt + drawn.impossible + "".join(drawn.answers.values())
        assert "{" not in texts and not re.search(r"\d times of\b", texts)


def test_seeds_change_the_numbers_and_equal_seeds_do_not() -> None:
    drill = find_drill(FLAGSHIP)
    assert drill.drawn(5).prompt == drill.drawn(5).prompt
    assert len({drill.drawn(seed).prompt for seed in range(8)}) > 1
    assert Draw(0)(1.0, 2.0, 3.0) == 1.0


@pytest.mark.parametrize("text", answers.FLAGSHIP_PARAPHRASES)
def test_a_staff_answer_in_other_words_is_a_staff_answer(text: str) -> None:
    graded = grade(find_drill(FLAGSHIP).drawn(), text)
    assert graded.level == "staff"
    assert graded.beyond


def test_a_short_right_answer_is_at_least_strong() -> None:
    assert grade(find_drill(FLAGSHIP).drawn(), answers.FLAGSHIP_SHORT).level in ("strong", "staff")


def test_every_right_word_without_a_thought_is_not_strong() -> None:
    for drill in ALL:
        words = re.sub(r"[.?,]", " ", drill.drawn().answers["staff"]).split()
        random.Random(1).shuffle(words)
        for text in (answers.PREACHING, answers.KEYWORDS, answers.TEMPLATE, answers.FLUENT, " ".join(words)):
            assert grade(drill.drawn(), text).level in ("weak", "passing"), f"{drill.id}: {text[:40]}"


def test_garbage_is_weak_and_never_raises() -> None:
    for text in answers.GARBAGE:
        for drill in ALL[::8]:
            graded = grade(drill.drawn(), text)
            assert graded.level == "weak", text[:40]
            assert "<script>alert" not in graded.html()
            assert graded.to_dict()["dimensions"]


def test_saying_it_twice_is_worth_no_more() -> None:
    drawn = find_drill(FLAGSHIP).drawn()
    once = drawn.answers["passing"]
    assert grade(drawn, f"{once}\n\n{once}").points <= grade(drawn, once).points


def test_each_credit_quotes_words_of_the_answer() -> None:
    drawn = find_drill(FLAGSHIP).drawn()
    flat = " ".join(drawn.answers["staff"].split())
    for dimension in grade(drawn, drawn.answers["staff"]).dimensions:
        for evidence in dimension.evidence:
            assert evidence.quote[:40] in flat


def test_a_wrong_sum_is_quoted_and_costs_points() -> None:
    drawn = find_drill(FLAGSHIP).drawn()
    evidence = grade(drawn, "Decode takes 80 ms x 180 = 24 s, because ITL is high.").dimension("evidence")
    assert any(each.points < 0 and "24 s" in each.quote for each in evidence.evidence)


def test_numbers_are_read_with_their_units() -> None:
    for text, value, unit in (
        ("80 ms", 0.08, "s"), ("132k tokens/s", 132e3, "tokens/s"), ("3.4 pflop/s", 3.4e15, "FLOP/s"),
        ("18%", 0.18, "ratio"), ("$2.69 an hour", 2.69, "$"), ("60 requests per second", 60, "requests/s"),
        ("1,056", 1056, ""), ("492 mb", 492e6, "B"), ("5.5x", 5.5, "ratio"),
    ):  # fmt: skip
        (found,) = amounts_in(text)
        assert (found.low, found.unit) == (pytest.approx(value), unit), text


def test_a_narrow_range_is_one_number_and_a_wide_one_is_two() -> None:
    assert [(w.low, w.high) for w in amounts_in("30-50 ms")] == [(pytest.approx(0.03), pytest.approx(0.05))]
    assert len(amounts_in("from 20% to 80%")) == 2


def test_written_out_sums_are_recomputed() -> None:
    right = ("80 ms x 180 = 14.4 s", "80 x 180 = 14.4 s", "90 gb / 492 mb = 183")
    for text in (*right, "80 ms x 180 = 20 s", "so 4 x 0.1 = 1.4"):
        (found,) = sums_in(text, amounts_in(text))
        assert found.holds is (text in right), text


def test_negations_are_heard() -> None:
    for text, denied in (
        ("Quantization would not help the queue at all.", True), ("Quantization does nothing here, I think.", True),
        ("I would add chunking instead of quantization.", True), ("Quantization helps decode, but not prefill.", False),
        ("Not only quantization helps the decode phase.", False),
    ):  # fmt: skip
        (sentence,) = read(text, NUMBERS).sentences
        assert ("quantization" in sentence.denied) is denied, text


def test_a_rule_wants_its_concepts_in_one_sentence_or_in_two_neighbours() -> None:
    reading = read("The queue is long today. TTFT is high because of it. Decode takes 14.4 s in all.", NUMBERS)
    assert find("queue + ttft", reading) == []
    assert find("~ queue + ttft", reading)
    assert find("decode + derived.decode", reading) == ["Decode takes 14.4 s in all."]
    with pytest.raises(ValueError, match="no concept"):
        Pattern("queue + nonsense")


@pytest.mark.parametrize("name", answers.SHORT_AND_RIGHT)
def test_a_few_right_lines_are_strong_in_other_drills_too(name: str) -> None:
    graded = grade(find_drill(name).drawn(), answers.SHORT_AND_RIGHT[name])
    assert graded.level in ("strong", "staff")
    assert not [e for d in graded.dimensions for e in d.evidence if e.points < 0], "nothing in it is wrong"
