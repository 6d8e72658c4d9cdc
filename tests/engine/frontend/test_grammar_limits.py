"""What is counted before native code reads a grammar: what means the same stays, what can't be honoured is named."""

import math
from typing import Any

import pytest
from frontend.grammars import allows, compiled
from hypothesis import given
from hypothesis import strategies as st
from server.nasty_grammars import rules, schemas

from minillm.core.errors import InvalidSamplingParamsError
from minillm.frontend.errors import InvalidGrammarError
from minillm.frontend.grammar_limits import EDGE, NO_BOUND, prepare_schema
from minillm.frontend.structured_outputs import GrammarCompiler, StructuredOutputsParams, resolve_tokens
from minillm.server.tools import ToolCallReader

I64 = 2**63


@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        ({"type": "integer", "minimum": -I64, "maximum": I64 - 1}, ["0", str(10**18), str(-(10**18))], [str(10**19)]),
        ({"type": "integer", "minimum": -I64, "exclusiveMaximum": 9223372036854776000}, ["-5"], ["0.5"]),
        ({"type": "integer", "minimum": -1e30, "maximum": 7}, ["7", "-99"], ["8"]),
        ({"type": "integer", "minimum": 10**18 + 1}, [str(2 * 10**18)], ["5", "-1"]),
        ({"type": "integer", "maximum": -(2**62)}, [str(-(2**62) - 1000)], ["5", "-1"]),
        ({"type": "number", "minimum": -1e300, "maximum": 1e300}, ["6.02e23", "-0.5"], ['"x"']),
        ({"type": "number", "minimum": -1.8e308, "maximum": 3}, ["3", "-1000.5"], ["3.5"]),
        ({"type": "number", "minimum": -3.4e38, "maximum": 3.4e38}, ["0.25", "-123456.5"], ['"x"']),
        ({"type": "number", "minimum": 5e-324}, ["0.1", "7"], ["0", "-1"]),
        ({"type": "string", "maxLength": 2**64}, ['"abc"'], ["5"]),
        (
            {"type": "array", "items": {"type": "null"}, "minItems": 2.0, "maxItems": 1e300},
            ["[null, null]"],
            ["[null]"],
        ),
        ({"const": {"maxLength": -1}}, ['{"maxLength": -1}'], ["5"]),
        (
            {"type": "object", "properties": {"enum": {"type": "integer", "minimum": -I64}}, "required": ["enum"]},
            ['{"enum": 5}'],
            ['{"enum": "x"}'],
        ),
        (
            {"$defs": {"b": {"$anchor": "yes", "type": "boolean"}}, "type": "array", "items": {"$ref": "#yes"}},
            ["[true]"],
            ["[1]"],
        ),
    ],
    ids=lambda value: str(value)[:50],
)
def test_bounds_that_mean_any_number_are_accepted_and_others_hold(
    grammars: GrammarCompiler, schema: dict[str, Any], inside: list[str], outside: list[str]
) -> None:
    assert [allows(grammars, text, json=schema) for text in inside] == [True] * len(inside)
    assert [allows(grammars, text, json=schema) for text in outside] == [False] * len(outside)


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "integer", "minimum": -1e20, "maximum": -1e19}, "maximum at #"),
        ({"type": "array", "items": {"type": "number", "exclusiveMinimum": 1e20}}, "exclusiveMinimum at #/items"),
        ({"properties": {"a/b": {"type": "string", "minLength": 10**9}}}, "minLength at #/properties/a~1b"),
        ({"type": "array", "maxItems": -1}, "maxItems at #"),
        ({"type": "string", "minLength": 1.5}, "minLength at #"),
        ({"x-guidance": 5}, "x-guidance is an object"),
    ],
)
def test_a_number_that_cannot_be_honoured_is_refused_by_name(
    grammars: GrammarCompiler, schema: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidSamplingParamsError, match=f"json: {named}"):
        compiled(grammars, StructuredOutputsParams(json=schema))


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def referring(length: int) -> dict[str, Any]:
    links = {f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}]} for i in range(length)}
    return {"properties": {"x": {"$ref": "#/$defs/a0"}}, "$defs": {**links, f"a{length}": {"type": "null"}}}


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ({"json": deep(101)}, "nested more than 100 deep"),
        ({"json": {"enum": [deep(101)]}}, "nested more than 100 deep"),
        ({"json": {"enum": ["x" * 1_000_001]}}, "make it smaller"),
        ({"json": {"enum": [[]] * 200_001}}, "more than 200,000 objects and lists"),
        ({"json": '{"type": ' + "9" * 9999 + "}"}, "digits"),
        ({"json": "[" * 100_000}, "recursion|nested"),
        ({"json": "[1]"}, "a schema is an object"),
        ({"regex": "a?" * 20_000}, "at most 32,768"),
        ({"regex": "\ud800"}, r"no Unicode text: U\+D800"),
        ({"choice": ["a", "\ud800"]}, r"no Unicode text: U\+D800"),
        ({"json": '{"enum": ["\\\\", "\\udfff"]}'}, r"no Unicode text: U\+DFFF"),
        ({"choice": ["a" * 1_000_001]}, "make it smaller"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_too_large_or_too_deep_never_reaches_native_code(kind: dict[str, Any], why: str) -> None:
    untouched = GrammarCompiler(object(), None, [])  # with this tokenizer nothing can be tried
    with pytest.raises(InvalidSamplingParamsError, match=f"structured outputs: {next(iter(kind))}: .*({why})"):
        compiled(untouched, StructuredOutputsParams(**kind))


@pytest.mark.parametrize("kind", [{"json": referring(300)}, {"grammar": rules(300)}, {"json": deep(45)}], ids=str)
def test_what_is_within_the_limits_compiles(grammars: GrammarCompiler, kind: dict[str, Any]) -> None:
    assert compiled(grammars, StructuredOutputsParams(**kind)) is not None


@pytest.mark.parametrize(
    "text",
    ['"' + '\\"' * 450_000, "[" * 900_000, "/" + "\\/" * 450_000, '"' + '\\"' * 450_000 + "\\", "<" * 900_000]
    + [
        "a" * 900_000,
        "a.1" * 300_000,
        "a[" * 450_000,
        "\n" * 900_000,
        " " * 900_000,
        "(\n" * 90,
        "a:\n" * 4999,
        "a\n:" * 4999,
    ],
    ids=lambda text: text[:5],
)
def test_a_million_characters_of_any_kind_are_counted_at_once(text: str) -> None:
    """In linear time, that is: this would take hours otherwise."""
    for grammar in (text, f"start: {text}"):
        assert StructuredOutputsParams(grammar=grammar).lark == grammar
        resolve_tokens(grammar, ())
    if len(text) <= 32_768:
        assert StructuredOutputsParams(regex=text).lark
    assert ToolCallReader(["f"]).read(text, is_last=True) == (text, [])


@given(schema=schemas, relaxed=st.booleans())
def test_numbers_that_are_left_are_small_and_no_bound_became_wider(schema: dict[str, Any], relaxed: bool) -> None:
    try:
        prepared = prepare_schema(schema, relaxed=relaxed)
    except InvalidGrammarError:
        return
    before, after = leaf(schema), leaf(prepared)
    for key, sign in {"minimum": -1, "exclusiveMinimum": -1, "maximum": 1, "exclusiveMaximum": 1}.items():
        number = before.get(key)
        if isinstance(number, bool) or number is None or math.isnan(number):
            continue
        if key in after:
            assert abs(after[key]) <= EDGE and after[key] * sign <= number * sign
        else:
            assert number * sign >= NO_BOUND or relaxed
    assert prepare_schema(prepared, relaxed=relaxed) == prepared


def leaf(schema: dict[str, Any]) -> dict[str, Any]:
    return schema if "type" in schema else {}
