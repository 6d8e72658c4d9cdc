"""Pruning keeps what is asked for, in its order and within its budget."""

import pytest

from course.lab.prompt_pruning import prune_context, split_sentences, words_of
from course.measure.scoring import load_items
from minillm.core.errors import ConfigError

TEXT = "The cat is grey. The mill was built in 1784. It stands by the river! Who built it? Josiah did."


def test_sentences_and_words() -> None:
    assert split_sentences("One. Two!  Three?\n\nA title\n\nEnd") == ["One.", "Two!", "Three?", "A title", "End"]
    assert words_of("Painted, paints; TREES-1784") == ["paint", "paint", "tre", "1784"]
    assert split_sentences("  ") == []


def test_what_is_asked_for_stays_in_order() -> None:
    pruned = prune_context(TEXT, "When was the mill built, and where does it stand?", keep=0.6)
    assert pruned.text == "The mill was built in 1784. It stands by the river!"
    assert pruned.kept == [1, 2] and pruned.num_tokens == 11


def test_the_sentence_after_an_answer_gets_half_of_its_score() -> None:
    text = "A dog slept. The door of the studio is new. It is yellow. A cat slept. It is black."
    assert prune_context(text, "What about the studio door?", keep=0.6).text == (
        "The door of the studio is new. It is yellow."
    )


def test_all_and_nearly_nothing() -> None:
    assert prune_context(TEXT, "mill", keep=1.0).text == TEXT
    assert prune_context("One.\n\n- Two.", "mill", keep=1.0).text == "One.\n\n- Two.", "nothing is changed for nothing"
    assert prune_context(TEXT, "mill", keep=0.01).kept == [1], "one sentence is always left"
    assert prune_context("", "mill", keep=0.5).text == ""
    # No word in common: the first sentences that fit.
    assert prune_context(TEXT, "zebra", keep=0.5).kept[0] == 0


@pytest.mark.parametrize("keep", [0.0, -1.0, 1.5])
def test_shares_that_are_none(keep: float) -> None:
    with pytest.raises(ConfigError, match="share of tokens"):
        prune_context(TEXT, "mill", keep)


@pytest.mark.parametrize("keep", [0.3, 0.5, 0.7])
def test_the_budget_is_kept(keep: float) -> None:
    for item in load_items("reading")["items"]:
        before = sum(map(len, split_sentences(item["text"])))
        for question, _ in item["questions"]:
            pruned = prune_context(item["text"], question, keep, count_tokens=len)
            assert 0.5 * keep < pruned.num_tokens / before <= keep


def test_answers_survive_half_of_the_text() -> None:
    """A third of the sentences would hold a third of the answers by chance; and the first ones, not many more."""
    found = dict.fromkeys((0.3, 0.5), 0)
    first_half = total = 0
    for item in load_items("reading")["items"]:
        for question, answers in item["questions"]:
            total += 1
            answer = answers[0].strip().lower()
            for keep in found:
                found[keep] += answer in prune_context(item["text"], question, keep).text.lower()
            first_half += answer in item["text"][: len(item["text"]) // 2].lower()
    assert total == 18
    assert found[0.5] >= 16 and found[0.3] >= 14
    assert first_half <= 11
