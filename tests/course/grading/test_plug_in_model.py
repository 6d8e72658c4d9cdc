"""A learner's attention, router and grammar mask serve the real model; one that breaks a rule is replaced."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from course.grading.exercises import find
from course.grading.plug_in import OpenLab
from course.grading.source import answer_file
from course.lab.run import Run


def model_answer(exercise_id: str, name: str) -> Callable[..., Any]:
    names: dict[str, Any] = {}
    exec(answer_file(find(exercise_id), "solution"), names)
    return names[name]


ATTENTION = model_answer("paged-attention", "paged_attention")
ROUTE = model_answer("expert-routing", "route")
MATCHER = model_answer("grammar-mask", "Matcher")
AB = {"start": "s", "final": {"end"}, "next": {"s": {"a": "s", "b": "end"}}}


@pytest.fixture(scope="module")
def moe(tiny_moe_path: Path) -> Iterator[OpenLab]:
    lab = OpenLab(short=True, model=str(tiny_moe_path), dtype="float32", max_model_len=512, num_kv_blocks=96)
    yield lab
    lab.close()


def same_answers(ours: Run, yours: Run) -> bool:
    return [each.token_ids for each in ours.outputs] == [each.token_ids for each in yours.outputs]


def test_the_model_answers_give_the_engines_tokens(open_lab: OpenLab, moe: OpenLab) -> None:
    for lab, part, answer in ((open_lab, "attention", ATTENTION), (moe, "router", ROUTE)):
        calls: list[int] = []

        def counted(rows, *others, answer=answer, calls=calls):
            calls.append(len(rows))
            return answer(rows, *others)

        yours = lab.run_with("burst", **{part: counted})
        assert lab.notes == []
        assert 1 in calls
        assert max(calls) > 1
        assert same_answers(lab.run("burst"), yours)
        num_calls = len(calls)
        lab.run("burst")
        assert len(calls) == num_calls  # the next run is the engine's own again


def test_another_one_is_really_used(open_lab: OpenLab, moe: OpenLab) -> None:
    def smallest(logits, k, normalize):
        return ROUTE(-logits, k, normalize)

    for lab, parts in ((open_lab, {"attention": lambda query, *_: np.zeros_like(query)}), (moe, {"router": smallest})):
        yours = lab.run_with("burst", **parts)
        assert lab.notes == []
        assert not same_answers(lab.run("burst"), yours)


def test_every_answer_follows_the_grammar(open_lab: OpenLab) -> None:
    yours = open_lab.run_with("burst", matcher=MATCHER, grammar=AB)
    assert open_lab.notes == []
    texts = [each.text for each in yours.outputs]
    assert texts
    assert all(text.rstrip("b") == "a" * len(text.rstrip("b")) and text.count("b") <= 1 for text in texts)


@pytest.mark.parametrize(
    ("part", "broken", "words"),
    [
        ("attention", lambda query, *others: query[:, :1], "has shape"),
        ("attention", lambda query, *others: query * np.nan, "not finite"),
        ("attention", lambda query: query, "TypeError"),
        ("router", lambda logits, k, _: (logits[:, :1], logits[:, :1]), "experts and shares are"),
        ("router", lambda logits, k, _: (np.full((len(logits), k), 99), np.ones((len(logits), k))), "does not exist"),
        ("matcher", type("Silent", (MATCHER,), {"allowed": lambda self: [False]}), "no token"),
    ],
)
def test_one_that_breaks_a_rule_is_replaced(
    open_lab: OpenLab, moe: OpenLab, part: str, broken: Any, words: str
) -> None:
    lab = moe if part == "router" else open_lab
    yours = lab.run_with("burst", **{part: broken}, grammar=AB)
    assert {words in note for note in lab.notes} == {True}
    assert same_answers(lab.run("burst"), yours)
