"""Sampling parameters at the door: what is wrong is named, quoted in short, and nothing is ignored."""

import re
from typing import Any

import pytest

from minillm.core.errors import ConfigError, InvalidSamplingParamsError
from minillm.core.params import SamplingParams
from minillm.policies.config import EngineConfig
from minillm.strict_model import MAX_PROBLEMS, StrictModel


@pytest.mark.parametrize(
    ("fields", "lines"),
    [
        ({"temperatur": 1}, ["SamplingParams has no field 'temperatur': did you mean 'temperature'?"]),
        ({"max_tokens": 0}, ["max_tokens: Input should be greater than or equal to 1 (got 0)"]),
        ({"stop": ("a", "")}, ["stop: a stop string must not be empty (got ('a', ''))"]),
        ({"logit_bias": {5: 1e300}}, ["logit_bias.0.1: Input should be less than or equal to"]),
        ({"stop_token_ids": ["x"]}, ["stop_token_ids.0: Input should be a valid integer, unable to parse"]),
        ({"min_tokens": 4, "max_tokens": 3}, ["min_tokens is 4, and max_tokens 3: it can't be more"]),
        ({"top_k": -1, "n": 0, "top_p": 0}, ["top_k: ", "top_p: ", "n: "]),
        (
            {"top_k": -1, "n": 0, "top_p": 0, "min_p": 2, "logprobs": 21},
            ["top_k: ", "top_p: ", "min_p: ", "and 2 more"],
        ),
    ],
)
def test_each_bad_field_has_its_line(fields: dict[str, object], lines: list[str]) -> None:
    with pytest.raises(InvalidSamplingParamsError) as caught:
        SamplingParams(**fields)
    said = str(caught.value).splitlines()
    assert len(said) == len(lines) and all(a.startswith(b) for a, b in zip(said, lines)), said


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        (
            {"attention_sinks": 4},
            "attention_sinks is read only with a sliding_window: set that, too, or leave attention_sinks out",
        ),
        (
            {"speculative": {"method": "ngram", "k": -1}},
            "speculative: k: Input should be greater than or equal to 1 (got -1)",
        ),
        # max_num_batched_tokens follows from other fields if it isn't given: there's nothing to say about it.
        ({"block_size": 0}, "block_size: Input should be greater than or equal to 1 (got 0)"),
        (
            {"kv_cache_memory_gb": 1e300},
            "kv_cache_memory_gb: Input should be less than or equal to 1000000000 (got 1e+300)",
        ),
    ],
)
def test_rules_over_fields_and_models_within_speak_for_themselves(fields: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(line)}$"):
        EngineConfig(**fields)


def test_nothing_like_it_lists_the_fields_and_quotes_no_megabyte() -> None:
    class Small(StrictModel):
        one: int = 1
        two: int = 2

    with pytest.raises(ValueError, match=r"Small has no field 'x{100}': fields: one, two$"):
        Small(**{"x" * 10**6: 1})
    with pytest.raises(ValueError, match=r"^one: .* \(got 'y{5,100}\.\.\.y{5,100}'\)$"):
        Small(one="y" * 10**6)
    many = {f"field {i}": 1 for i in range(MAX_PROBLEMS + 7)}
    with pytest.raises(ValueError, match=r"and 7 more$"):
        Small(**many)


def test_one_value_stands_for_a_list_of_one() -> None:
    assert SamplingParams(stop="a", stop_token_ids=7) == SamplingParams(stop=["a"], stop_token_ids=[7])
    assert SamplingParams(stop=None) == SamplingParams()
    assert SamplingParams(seed=1).replace(n=2) == SamplingParams(seed=1, n=2)
    assert SamplingParams(seed=1).replace(n=2).model_fields_set == {"seed", "n"}


@pytest.mark.parametrize("field", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
def test_what_a_sampler_must_look_at(field: str) -> None:
    plain = SamplingParams()
    assert not plain.has_penalty and not plain.has_filter
    assert SamplingParams(**{field: 0.5}).has_penalty
    assert all(SamplingParams(**one).has_filter for one in ({"top_k": 1}, {"top_p": 0.9}, {"min_p": 0.1}))
