"""Structured output: what comes out satisfies the grammar, whatever is switched on, and harms no other request."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from fake_runner import FakeRunner, drain
from frontend.grammars import compiled
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from slipping_drafts import Slipping

from minillm import Engine, EngineConfig, SamplingParams, StructuredOutputsParams
from minillm.core.errors import InvalidSamplingParamsError
from minillm.core.request import FinishReason, Request
from minillm.core.timeline import Timeline, VirtualClock
from minillm.frontend.grammar_matcher import CompiledGrammar
from minillm.frontend.grammar_worker import compile_grammar
from minillm.frontend.structured_outputs import GrammarCompiler, Vocabulary
from minillm.model.loader import LoadedModel
from minillm.runner.grammar_masks import apply_grammars

TOGGLES: dict[str, dict[str, Any]] = {
    "plain": {},
    "async": {"async_scheduling": True},
    "preempted": {"num_kv_blocks": 26, "block_size": 4},
    "swapped": {"num_kv_blocks": 26, "block_size": 4, "preemption": "swap", "async_scheduling": True},
    "chunked": {"max_num_batched_tokens": 8, "max_num_seqs": 4, "enable_prefix_caching": False},
    "static": {"batching": "static", "max_num_seqs": 3},
    "speculative": {"speculative": Slipping(min_output_tokens=1, acceptance_floor=0)},
}
WAYS = [
    dict(temperature=0.0),
    dict(temperature=1.0),
    dict(temperature=0.0, repetition_penalty=1.5, frequency_penalty=1.0),
    dict(temperature=1.5, top_k=5),
    dict(temperature=1e30, presence_penalty=2.0),
    dict(temperature=0.9, top_p=0.8, min_p=0.01, logprobs=2),
    dict(temperature=1.0, ignore_eos=True),
]


@pytest.fixture(scope="module")
def make_engine(model: LoadedModel, grammars: GrammarCompiler) -> Callable[..., Engine]:
    """Engines that share a compiler of grammars."""

    def make(**fields: Any) -> Engine:
        base = dict(model=model.name, dtype="float32", device="cpu", num_kv_blocks=64, max_model_len=96)
        engine = Engine(EngineConfig(**{**base, **fields}), model)
        engine.grammars = grammars
        return engine

    return make


def guided(seed: int = 0, max_tokens: int = 64, way: dict[str, Any] | None = None, **kind: Any) -> SamplingParams:
    return SamplingParams(
        max_tokens=max_tokens, seed=seed, structured_outputs=StructuredOutputsParams(**kind), **(way or WAYS[1])
    )


SCHEMAS = st.recursive(
    st.sampled_from(
        [{"type": "boolean"}, {"type": "null"}, {"type": "integer", "minimum": -9, "maximum": 99}]
        + [{"enum": ["a", "ß", 'q"']}, {"type": "string", "maxLength": 3}, {"const": {"x": [1]}}]
    ),
    lambda inner: st.one_of(
        st.builds(lambda items: {"type": "array", "items": items, "maxItems": 2}, inner),
        st.builds(
            lambda parts: {
                "type": "object",
                "properties": parts,
                "required": list(parts),
                "additionalProperties": False,
            },
            st.dictionaries(st.sampled_from(["k", "né"]), inner, max_size=2),
        ),
    ),
    max_leaves=3,
)
ATOMS = st.sampled_from(["a", "[b-d]", "é", "(?:[0-9]{1,3})", " ", "(?:x|yz)", "🎉"])
REPEATED = st.tuples(ATOMS, st.sampled_from(["", "?", "{0,3}"])).map("".join)
REGEXES = st.lists(REPEATED, min_size=1, max_size=4).map("".join)


def conforms(value: Any, schema: dict[str, Any]) -> bool:
    """As far as the schemas here go."""
    if "const" in schema or "enum" in schema:
        return value in schema.get("enum", [schema.get("const")])
    if schema["type"] == "object":
        parts = schema["properties"]
        return value.keys() == parts.keys() and all(conforms(value[name], part) for name, part in parts.items())
    if schema["type"] == "array":
        return len(value) <= 2 and all(conforms(item, schema["items"]) for item in value)
    if schema["type"] == "string":
        return isinstance(value, str) and len(value) <= 3
    if schema["type"] == "integer":
        return type(value) is int and -9 <= value <= 99
    return value is None if schema["type"] == "null" else isinstance(value, bool)


@pytest.mark.parametrize("toggles", TOGGLES.values(), ids=TOGGLES)
@settings(max_examples=6, phases=(Phase.explicit, Phase.generate))
@given(
    schemas=st.lists(SCHEMAS, min_size=2, max_size=3), regexes=st.lists(REGEXES, min_size=2, max_size=3), data=st.data()
)
def test_the_output_always_follows_the_grammar(
    make_engine: Any, toggles: dict[str, Any], schemas: list, regexes: list, data: st.DataObject
) -> None:
    engine = make_engine(**toggles)
    kinds = [{"json": schema} for schema in schemas] + [{"regex": regex} for regex in regexes]
    outputs = {}
    for number, kind in enumerate(kinds):
        params = guided(number, way=data.draw(st.sampled_from(WAYS)), **kind)
        engine.add_request([5, 6, 7, 8, 9] * (number + 1), params, request_id=str(number), stream=False)
        if number % 2:
            outputs |= {output.request_id: output for output in engine.step()}
    outputs |= drain(engine)
    for number, kind in enumerate(kinds):
        output = outputs[str(number)]
        matcher = compiled(engine.grammars, StructuredOutputsParams(**kind))
        if output.finish_reason is FinishReason.LENGTH:  # the small pools are full
            assert matcher.consume_tokens(output.token_ids)
        elif "json" in kind:
            assert output.finish_reason is FinishReason.STOP, output.completions[0].error
            assert conforms(json.loads(output.text), kind["json"]), (kind, output.text)
        else:
            assert output.finish_reason is FinishReason.STOP, output.completions[0].error
            assert re.fullmatch(kind["regex"], output.text), (kind, output.text)


NEIGHBOURS = [
    *(SamplingParams(max_tokens=24, seed=i, ignore_eos=True, **way) for i, way in enumerate(WAYS[:3])),
    guided(9, 24, WAYS[1], regex="[ab]{60}"),
    guided(8, 24, WAYS[0], regex="(x|yy)+z"),
]
PROMPTS = [list(range(20, 30 + i)) for i in range(len(NEIGHBOURS))]


@pytest.fixture(scope="module")
def alone(make_engine: Any) -> list[list[int]]:
    """What each of the neighbours writes in an engine of its own."""
    return [drain_one(make_engine(), params, prompt)[0].token_ids for prompt, params in zip(PROMPTS, NEIGHBOURS)]


@pytest.mark.parametrize("toggles", TOGGLES.values(), ids=TOGGLES)
def test_neighbours_write_what_they_write_alone(
    make_engine: Any, alone: list[list[int]], toggles: dict[str, Any]
) -> None:
    """Guided ones, too: a matcher forgets nothing when its request is preempted."""
    engine = make_engine(**toggles)
    ids = [engine.add_request(prompt, params, stream=False) for prompt, params in zip(PROMPTS, NEIGHBOURS)]
    outputs = drain(engine)
    together = [outputs[request_id].token_ids for request_id in ids]
    if engine.config.speculative:  # where drafts are drawn, a seed gives another text (rejection_sampler.py)
        together[1] = alone[1]
    assert together == alone
    assert engine.scheduler.num_preemptions > 0 or engine.config.num_kv_blocks != 26
    if engine.config.speculative:
        drafted = [bool(request.timeline.verifications) for request in engine.recent_requests]
        assert any(drafted[:3]) and not any(drafted[3:])


BAD: list[dict[str, Any]] = [
    *({}, {"json": {}, "regex": "a"}, {"regex": 3}, {"choice": []}, {"choice": ["a", 1]}, {"choice": "ab"}),
    *({"json": "not json"}, {"json": {"type": "bogus"}}, {"json": {"allOf": [{"type": "null"}, {"type": "string"}]}}),
    *({"json": {"$ref": "http://localhost/x"}}, {"json": {"$ref": "#"}}, {"json": {"const": {1}}}),
    *({"regex": "(a"}, {"regex": r"[^\s\S]"}, {"regex": "\ud800"}, {"regex": "(" * 10**5}),
    *({"grammar": "start: x"}, {"grammar": "start: start"}, {"grammar": ""}, {"grammar": "root ::= " + "(" * 10**5}),
]


@pytest.mark.parametrize("kind", BAD, ids=lambda value: str(value)[:40])
def test_a_bad_grammar_is_refused_and_harms_nothing(make_engine: Any, kind: dict[str, Any]) -> None:
    engine = make_engine()
    engine.add_request([5, 6], guided(max_tokens=4, regex="[ab]{3}"), request_id="good")
    with pytest.raises(InvalidSamplingParamsError, match=r"structured.outputs"):
        engine.add_request([5], guided(**kind))
    with pytest.raises(InvalidSamplingParamsError, match="wants StructuredOutputsParams"):
        engine.add_request([5], SamplingParams(structured_outputs={"regex": "a"}))
    assert list(engine.outputs.groups) == ["good"]
    assert re.fullmatch("[ab]{3}", drain(engine)["good"].text)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ({"json": {"$ref": "#"}}, "no way out of itself"),
        ({"grammar": "start: start"}, "no way out of itself"),
        ({"json": {"type": "array", "uniqueItems": True}}, '"uniqueItems". Leave them out'),
        ({"grammar": 'begin: "a"'}, "read as GBNF, as no line begins with `start:`"),
    ],
    ids=str,
)
def test_what_llguidance_says_in_its_own_words_is_explained(make_engine: Any, kind: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSamplingParamsError, match=says):
        make_engine().add_request([5], guided(**kind))


def test_without_a_tokenizer_it_is_refused() -> None:
    clock = VirtualClock()
    engine = Engine.on_runner(EngineConfig(max_model_len=64), FakeRunner(64, 4, clock), clock)
    with pytest.raises(InvalidSamplingParamsError, match="has none"):
        engine.add_request([5], guided(regex="a"))


def drain_one(engine: Engine, params: SamplingParams, prompt: Sequence[int] = (5, 6, 7)) -> list[Any]:
    engine.add_request(list(prompt), params, stream=False)
    return list(drain(engine).values())


def test_it_ends_with_its_grammar_and_says_what_the_masks_took(make_engine: Any) -> None:
    engine = make_engine()
    [output] = drain_one(engine, guided(regex="aab", way=dict(temperature=0.0, logprobs=0, n=2)))
    assert output.finish_reason is FinishReason.STOP and output.text == "aab"
    assert [entry.logprob < 0 for entry in output.logprobs] == [True] * len(output.token_ids), "of the unmasked model"
    for step in engine.steps:
        assert step.stages["mask"] > 0 and min(step.stages.values()) >= 0
        assert sum(step.stages.values()) <= step.end - step.start + 1e-9
    assert not drain_one(engine, SamplingParams(max_tokens=1))[0].text or "mask" not in engine.steps[-1].stages


def test_what_ends_lets_go_of_its_matcher(make_engine: Any) -> None:
    engine = make_engine(queue_timeout_s=1000)
    for name in "abcd":
        engine.add_request([5, 6], guided(regex="[ab]{40}"), request_id=name)
    engine.step()
    engine.abort("a")
    [broken] = [sequence.request for sequence in engine.outputs.groups["b"].sequences]
    broken.matcher.consume_token(5)  # such as no lexer state is left for
    outputs = engine.step()
    assert [output.request_id for output in outputs if output.finish_reason is FinishReason.ERROR] == ["b"]
    assert "the grammar cannot be followed" in broken.error
    assert [request.matcher is None for request in engine.recent_requests] == [True, True, False, False]
    engine.start_over()
    assert all(request.matcher is None for request in engine.recent_requests)


@pytest.mark.parametrize("vocab_size", [49152, 49155, 49184])
def test_a_mask_touches_guided_rows_only(model: LoadedModel, vocab_size: int) -> None:
    """Models pad their vocabulary; tokens that the tokenizer does not have are ruled out."""
    trie = Vocabulary.of(model.tokenizer, vocab_size, model.eos_token_ids).trie
    rows = [Request(str(i), [1], SamplingParams(), Timeline(0.0)) for i in range(3)]
    logits = torch.randn(3, vocab_size, dtype=torch.bfloat16)
    before = logits.clone()
    assert apply_grammars(logits, rows) is None
    [rows[1].matcher] = CompiledGrammar(lambda: compile_grammar(trie, "start: /[ab]?/")).matchers(1)
    allowed = apply_grammars(logits, rows)
    assert torch.equal(logits, before) and torch.equal(allowed[::2], logits[::2])
    texts = {model.tokenizer.decode(token) for token in allowed[1].isfinite().nonzero()[:, 0]}
    assert texts == {"a", "b", model.tokenizer.eos_token}


@pytest.mark.parametrize(
    ("regex", "lark"),
    [
        ("a\nb", r"a\nb"),
        ("a\\\nb", r"a\nb"),
        ("a\\\\\nb", r"a\\\nb"),
        ("a/b", r"a\/b"),
        (r"a\/b", r"a\/b"),
        (r"\\/", r"\\\/"),
    ],
    ids=repr,
)
def test_line_breaks_and_slashes_of_a_regex_stay_what_they_are(regex: str, lark: str) -> None:
    assert StructuredOutputsParams(regex=regex).lark == f"start: /{lark}/"
