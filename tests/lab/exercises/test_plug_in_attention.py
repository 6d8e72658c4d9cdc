"""A learner's attention computes every layer of the real model; one that breaks a rule is replaced."""

from collections.abc import Callable, Iterator
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


@pytest.fixture(scope="module")
def lab(tiny_llama_path) -> Iterator[OpenLab]:
    lab = OpenLab(short=True, model=str(tiny_llama_path), dtype="float32", max_model_len=512, num_kv_blocks=96)
    yield lab
    lab.close()


def same_answers(ours: Run, yours: Run) -> bool:
    return [each.token_ids for each in ours.outputs] == [each.token_ids for each in yours.outputs]


def test_the_model_answer_gives_the_engines_tokens(lab: OpenLab) -> None:
    calls, paged_attention = [], model_answer()

    def attention(query, *others):
        calls.append(len(query))
        return paged_attention(query, *others)

    yours = lab.run_with("burst", attention=attention)
    assert lab.notes == []
    assert 1 in calls
    assert max(calls) > 1
    assert same_answers(lab.run("burst"), yours)


def test_another_attention_is_really_used(lab: OpenLab) -> None:
    yours = lab.run_with("burst", attention=lambda query, *others: np.zeros_like(query))
    assert lab.notes == []
    assert not same_answers(lab.run("burst"), yours)


@pytest.mark.parametrize(
    ("attention", "words"),
    [
        (lambda query, *others: query[:, :1], "has shape"),
        (lambda query, *others: query * np.nan, "not finite"),
        (lambda query: query, "TypeError"),
    ],
)
def test_one_that_breaks_a_rule_is_replaced(lab: OpenLab, attention: Callable[..., Any], words: str) -> None:
    yours = lab.run_with("burst", attention=attention)
    assert len(lab.notes) == 1
    assert words in lab.notes[0]
    assert same_answers(lab.run("burst"), yours)
