"""A learner's attention computes every layer of the real model; one that breaks a rule is replaced."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from course.lab.grading.exercises import find
from course.lab.grading.plug_in import OpenLab
from course.lab.grading.source import answer_file
from course.lab.run import Run


def model_answer() -> Callable[..., np.ndarray]:
    names: dict[str, Any] = {}
    exec(answer_file(find("paged-attention"), "solution"), names)
    return names["paged_attention"]


def same_answers(ours: Run, yours: Run) -> bool:
    return [each.token_ids for each in ours.outputs] == [each.token_ids for each in yours.outputs]


def test_the_model_answer_gives_the_engines_tokens(open_lab: OpenLab) -> None:
    calls, paged_attention = [], model_answer()

    def attention(query, *others):
        calls.append(len(query))
        return paged_attention(query, *others)

    yours = open_lab.run_with("burst", attention=attention)
    assert open_lab.notes == []
    assert 1 in calls
    assert max(calls) > 1
    assert same_answers(open_lab.run("burst"), yours)


def test_another_attention_is_really_used(open_lab: OpenLab) -> None:
    yours = open_lab.run_with("burst", attention=lambda query, *others: np.zeros_like(query))
    assert open_lab.notes == []
    assert not same_answers(open_lab.run("burst"), yours)


@pytest.mark.parametrize(
    ("attention", "words"),
    [
        (lambda query, *others: query[:, :1], "has shape"),
        (lambda query, *others: query * np.nan, "not finite"),
        (lambda query: query, "TypeError"),
    ],
)
def test_one_that_breaks_a_rule_is_replaced(open_lab: OpenLab, attention: Callable[..., Any], words: str) -> None:
    yours = open_lab.run_with("burst", attention=attention)
    assert len(open_lab.notes) == 1
    assert words in open_lab.notes[0]
    assert same_answers(open_lab.run("burst"), yours)
