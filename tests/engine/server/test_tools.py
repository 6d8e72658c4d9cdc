"""Tools: what the grammar lets a model write, what the reader takes for a call, and what clients send back."""

import asyncio
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import openai
import pytest
import transformers
from frontend.grammars import allows as allows_text
from frontend.grammars import compiled, tokenize
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from server.running import CHAT, MODEL, Running
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from minillm.frontend.detokenizer import Detokenizer
from minillm.frontend.errors import GrammarTrialEndedError
from minillm.frontend.structured_outputs import GrammarCompiler, StructuredOutputsParams
from minillm.model.loader import LoadedModel
from minillm.server.errors import ApiError
from minillm.server.protocol import ChatBody, parse
from minillm.server.tool_grammars import ToolGrammars
from minillm.server.tools import Tool, ToolCallReader, tool_grammar


def tool(name: str, parameters: dict[str, Any] | None = None, **fields: Any) -> Tool:
    function = {"name": name, **({} if parameters is None else {"parameters": parameters}), **fields}
    return Tool.model_validate({"type": "function", "function": function})


def written(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@pytest.fixture(scope="module")
def grammars(tiny_model: LoadedModel) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(tiny_model.tokenizer, tiny_model.model_config.vocab_size, tiny_model.eos_token_ids)
    yield compiler
    compiler.close()


def allows(grammars: GrammarCompiler, tools: list[Tool], text: str, choice: str = "required") -> bool:
    """Whether a whole answer may be this text."""
    return allows_text(grammars, text, grammar=tool_grammar(tools, choice, True))


class Address(BaseModel):
    city: str


class Person(BaseModel):
    home: Address
    friend: "Person | None" = None


SELF = {"type": "object", "properties": {"child": {"$ref": "#"}}, "additionalProperties": False}
BY_ID = {
    "$id": "http://example.com/tool",
    "type": "object",
    "properties": {"a": {"$ref": "#flag"}, "b": {"$ref": "http://example.com/tool#/$defs/F"}},
    "$defs": {"F": {"$anchor": "flag", "type": "boolean"}},
}


def defining(kind: str) -> dict[str, Any]:
    return {"properties": {"x": {"$ref": "#/$defs/X"}}, "required": ["x"], "$defs": {"X": {"type": kind}}}


@pytest.mark.parametrize(
    ("tools", "right", "wrong"),
    [
        ([tool("f", Person.model_json_schema())], '{"home": {"city": "a"}, "friend": null}', '{"home": 5}'),
        ([tool("f", SELF)], '{"child": {"child": {}}}', '{"child": {"name": "f", "arguments": {}}}'),
        ([tool("f", BY_ID)], '{"a": true, "b": false}', '{"a": 1}'),
        ([tool("g", defining("boolean")), tool("f", defining("integer"))], '{"x": 7}', '{"x": true}'),
        ([tool("f", {}), tool("g", SELF)], '{"any": [1]}', "[1]"),
        ([tool("f", {"type": ["object", "null"]})], "{}", "null"),
        ([tool("f", {"anyOf": [{"type": "object"}, {"type": "string"}]})], "{}", '"x"'),
        ([tool("f", {"properties": {"n": {"type": "integer", "minimum": -(2**63)}}})], '{"n": -5}', '{"n": 0.5}'),
    ],
    ids=str,
)
def test_a_schema_means_the_same_inside_of_a_tool(
    grammars: GrammarCompiler, tools: list[Tool], right: str, wrong: str
) -> None:
    for choice in ("auto", "required"):
        assert allows(grammars, tools, written("f", right), choice)
        assert not allows(grammars, tools, written("f", wrong), choice)
        assert not allows(grammars, tools, written("nobody", "{}"), choice)


UNIQUE = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True, "items": {"type": "null"}}}}
LOOKING = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?!x)y$"}, "b": {"type": "null"}}}
FAR = {"type": "object", "properties": {"a": {"type": "number", "minimum": 1e200}}}


@pytest.mark.parametrize("schema", [UNIQUE, LOOKING, FAR], ids=str)
def test_keywords_that_cannot_be_followed_are_passed_over_unless_the_tool_is_strict(
    grammars: GrammarCompiler, schema: dict[str, Any]
) -> None:
    right = {"array": "[null]", "string": '"z"', "number": "3"}[schema["properties"]["a"]["type"]]
    assert allows(grammars, [tool("f", schema)], written("f", f'{{"a": {right}}}'))
    assert not allows(grammars, [tool("f", schema)], written("f", '{"a": {}}')), "the others hold"
    with pytest.raises((ApiError, ValueError)):
        allows(grammars, [tool("f", schema, strict=True)], "")


PATTERNS = (
    *(r"\bfoo\b", r"^a\Z", "(?>a)b", "(?#x)a", r"\cA", r"\e", r"\h", "[]", "[^]+", "^[a[b]+$", "^{a}$", "("),
    *("a^", "(?(1)a|b)", r"(a)\g1"),
)
UNREADABLE: list[dict[str, Any]] = [
    {"properties": {"a": {"type": "any"}}},
    {"$schema": "https://example.org/schema"},
    {"required": "a"},
    {"properties": None},
    {"properties": {"a": {"type": "array", "items": None}}},
    {"properties": {"a": {"$ref": "#/$defs/nowhere"}}},
    {"properties": {"a": {"enum": []}}, "required": ["a"]},
]
OVERLAPPING = {
    "patternProperties": {"^a": {"type": "string"}, "b$": {"type": "integer"}},
    "additionalProperties": False,
}


class EngineOf(NamedTuple):
    """What ToolGrammars wants of an engine's thread."""

    grammars: GrammarCompiler

    def check_alive(self) -> None:
        """It is."""


def compiles(made: ToolGrammars, tools: list[Tool], text: str) -> bool:
    """Whether a call may be this text, once it's known what the tools are held to."""
    asked = asyncio.run(made.make(tools, "required", True))
    return allows_text(made._thread.grammars, text, grammar=asked.grammar)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_of_another_dialect_is_passed_over_and_the_rest_holds(
    grammars: GrammarCompiler, pattern: str
) -> None:
    schema = {"properties": {"a": {"type": "string", "pattern": pattern}, "pattern": {"type": "null"}}}
    made = ToolGrammars(EngineOf(grammars))
    other = tool("g", {"properties": {"n": {"type": "integer"}}})
    for _ in range(2):
        assert compiles(made, [other, tool("f", schema)], written("f", '{"a": "z", "pattern": null}'))
        assert not compiles(made, [other, tool("f", schema)], written("f", '{"a": 5}'))
        assert not compiles(made, [other, tool("f", schema)], written("g", '{"n": "x"}')), "other tools are held"


@pytest.mark.parametrize("schema", UNREADABLE, ids=str)
def test_a_schema_that_cannot_be_read_means_any_object(grammars: GrammarCompiler, schema: dict[str, Any]) -> None:
    made = ToolGrammars(EngineOf(grammars))
    assert compiles(made, [tool("f", schema)], written("f", '{"any": [1]}'))
    assert not compiles(made, [tool("f", schema)], written("f", "[1]"))


def test_properties_that_only_a_pattern_allowed_are_allowed_without_it(grammars: GrammarCompiler) -> None:
    looking = {"patternProperties": {"^(?!x)": {"type": "string"}}, "additionalProperties": False}
    for schema in (OVERLAPPING, looking):
        assert compiles(ToolGrammars(EngineOf(grammars)), [tool("f", schema)], written("f", '{"ab": 1}'))


@pytest.mark.parametrize("schema", [*UNREADABLE, OVERLAPPING, {"properties": {"a": {"pattern": r"\e"}}}], ids=str)
def test_a_strict_tool_that_cannot_be_followed_is_named(grammars: GrammarCompiler, schema: dict[str, Any]) -> None:
    made = ToolGrammars(EngineOf(grammars))
    compiles(made, [tool("f", schema)], "")  # what it may be where it isn't strict is no matter
    with pytest.raises(ApiError) as refused:
        compiles(made, [tool("g"), tool("f", schema, strict=True)], "")
    assert (refused.value.status, refused.value.param) == (400, "tools.1.function.parameters")
    assert refused.value.message.startswith("tools.1.function.parameters: ")
    assert not re.search("start:|prose|tool_call|%json", refused.value.message), "nobody wrote our grammar"


def test_what_was_found_out_about_a_schema_is_remembered(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, tried = ToolGrammars(EngineOf(grammars)), []
    run = grammars.trials.run
    monkeypatch.setattr(grammars.trials, "run", lambda text, **how: tried.append(text) or run(text, **how))
    offered = [tool("f", {"properties": {"remembered": {"pattern": r"\e"}}})]
    asyncio.run(made.make(offered, "auto", True))
    assert len(tried) == 3, "all tools, this one as it is, this one without patterns"
    asyncio.run(made.make(offered, "auto", True))
    assert len(tried) == 4, "all tools, as it is known to compile"


def test_no_looser_schema_is_tried_after_a_crash(grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def crash(text: str, **_: Any) -> Any:
        tried.append(text)
        raise GrammarTrialEndedError("the grammar library crashes on it")

    monkeypatch.setattr(grammars.trials, "run", crash)
    with pytest.raises(GrammarTrialEndedError):
        asyncio.run(ToolGrammars(EngineOf(grammars)).make([tool("f", {"title": "crash"})], "auto", True))
    assert len(tried) == 1


@pytest.mark.parametrize(
    "parameters", [{"type": "string"}, {"type": ["array", "null"]}, {"type": 5}, {"items": {}, "x-guidance": 5}]
)
def test_parameters_that_describe_no_object_are_refused_by_name(parameters: dict[str, Any]) -> None:
    if "type" not in parameters:
        assert tool_grammar([tool("f", parameters)], "auto", True), "x-guidance is the server's own"
        return
    with pytest.raises(ApiError) as refused:
        tool_grammar([tool("g"), tool("f", parameters)], "auto", True)
    assert (refused.value.status, refused.value.param) == (400, "tools.1.function.parameters")


# ------------------------------------------------------------------------------------------- grammar and reader agree

pieces = st.sampled_from(
    ["<tool_call>", "</tool_call>", "\n", " ", "\t", '{"name": "f", "arguments": ', '{"name": "rm", "arguments": ']
    + ["{}", "}", '{"a": "</tool_call>\\n"}', "[", "[[" * 2000, "7", '"', "NaN", "9" * 5000, "1e999"]
    + ['{"\\ud800": 1}', "so ", "é🎉"]
    + [written("f", '{"a": 1}'), written("rm", "{}"), written("f", "7"), '{"arguments": {}, "name": "f"}']
)


@given(parts=st.lists(pieces, max_size=12), cuts=st.lists(st.integers(0, 300), max_size=6))
def test_the_reader_takes_any_text_in_pieces_of_any_size(parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    read = [ToolCallReader(["f"]).read(text, is_last=True)]
    reader = ToolCallReader(["f"])
    pairs = list(itertools.pairwise(borders))
    read.append(("", []))
    for i, (start, end) in enumerate(pairs):
        some, calls = reader.read(text[start:end], is_last=i == len(pairs) - 1)
        read[1] = (read[1][0] + some, [*read[1][1], *calls])
    whole, cut = ([call["function"] for call in calls] for _, calls in read)
    assert whole == cut
    assert all(call["name"] == "f" and isinstance(json.loads(call["arguments"]), dict) for call in whole)
    left = len(text) - sum(len(written("f", call["arguments"])) for call in whole)
    for shown, _ in read:
        assert left - text.count("\n") - text.count(" ") - text.count("\t") <= len(shown) <= left


@given(parts=st.lists(pieces, max_size=5))
def test_what_the_grammar_allows_is_read_as_it_means_it(grammars: GrammarCompiler, parts: list[str]) -> None:
    """A call that the reader finds is one that the grammar held to the schema: no text can look like another."""
    tools = [tool("f", {"properties": {"a": {"type": "integer"}}, "additionalProperties": False})]
    text = "".join(parts)
    if allows(grammars, tools, text, "auto"):
        shown, calls = ToolCallReader(["f"]).read(text, is_last=True)
        assert all(call["function"]["arguments"] in ("{}", '{"a": 1}') for call in calls)
        assert ("<tool_call>\n" in shown) == ("<tool_call>\n" in text and not calls) or calls
        assert len(calls) == text.count("<tool_call>\n")


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call> {"name": "rm", "arguments": {}}\n</tool_call>',
        '<tool_call>\t{"foo": 1}\n</tool_call>',
        "<tool_call> 5",
    ],
)
def test_a_tag_without_its_newline_is_text_to_both(grammars: GrammarCompiler, text: str) -> None:
    assert allows(grammars, [tool("f")], text, "auto")
    assert ToolCallReader(["f", "rm"]).read(text, is_last=True) == (text, [])


# ------------------------------------------------------------------------------------------- tags as special tokens


@pytest.fixture(scope="module", params=[True, False], ids=["special", "added"])
def with_special_tags(request: pytest.FixtureRequest, tiny_model: LoadedModel) -> Any:
    """The tokenizer, with the tags as tokens 3 and 4 and thoughts as 5 and 6: special, or added only, as Qwen's."""
    backend = json.loads(tiny_model.tokenizer.backend_tokenizer.to_str())
    for number, tag in {3: "<tool_call>", 4: "</tool_call>", 5: "<think>", 6: "</think>"}.items():
        [added] = [one for one in backend["added_tokens"] if one["id"] == number]
        backend["model"]["vocab"].pop(added["content"], None)
        backend["model"]["vocab"][tag] = number
        added |= {"content": tag, "special": request.param}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(backend)))


def test_tags_that_are_special_tokens_are_written_as_such(with_special_tags: Any) -> None:
    compiler = GrammarCompiler(with_special_tags, len(with_special_tags), {2})
    tokens = with_special_tags(written("f", "{}"), add_special_tokens=False)["input_ids"]
    thoughts = with_special_tags("<think>Hm</think>So ", add_special_tokens=False)["input_ids"]
    assert (tokens[0], tokens[-1], thoughts[0]) == (3, 4, 5)
    for choice in ("auto", "required"):
        begin = compiled(compiler, StructuredOutputsParams(grammar=tool_grammar([tool("f")], choice, True)))
        matcher = begin.deep_copy()
        assert matcher.consume_tokens(tokens) and matcher.is_accepting()
        assert begin.deep_copy().consume_tokens([*thoughts, *tokens, *thoughts]) == (choice == "auto")
        if choice == "auto":  # spelled out it is a call, too, and so held to the tools
            assert begin.consume_tokens(tokenize(compiler, 'So <tool_call>\n{"name": "'))
            assert not begin.consume_tokens(tokenize(compiler, "rm"))
    compiler.close()


def test_tags_that_are_special_tokens_are_a_part_of_the_text(with_special_tags: Any) -> None:
    pieces = Tokenizer(models.WordLevel({"▁so": 0, "▁a": 1, "<tool_call>": 2, "</tool_call>": 3, "<eos>": 4}, "▁so"))
    pieces.pre_tokenizer, pieces.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    pieces.add_special_tokens(["<tool_call>", "</tool_call>", "<eos>"])
    for tokenizer, ids, text in (
        (with_special_tags, [3, 2, 4, 1], "<tool_call></tool_call>"),
        (pieces, [1, 2, 0, 4, 3, 1], " a<tool_call> so</tool_call> a"),
    ):
        detokenizer = Detokenizer(tokenizer, [0])
        assert "".join(map(detokenizer.add, ids)) + detokenizer.finish() == text


# ------------------------------------------------------------------------------------------- calls in the history


def history(function: dict[str, Any]) -> dict[str, Any]:
    call = {"id": "call_1", "type": "function", "index": 0, "function": {"name": "f", **function}}
    told = [*CHAT, {"role": "assistant", "content": None, "tool_calls": [call]}]
    return {"model": MODEL, "messages": [*told, {"role": "tool", "tool_call_id": "call_1", "content": "12:00"}]}


@pytest.mark.parametrize(
    ("function", "told"),
    [
        *(({"arguments": nothing}, {}) for nothing in ("", " \n", None, "{}", {})),
        ({}, {}),
        *(
            ({"arguments": some}, {"a": [2**70]})
            for some in ('{"a": [1180591620717411303424]}', ' {"a":[1180591620717411303424]}\n')
        ),
        ({"arguments": {"a": {"b": None}}}, {"a": {"b": None}}),
    ],
    ids=str,
)
def test_arguments_in_any_shape_reach_the_template_as_an_object(function: dict[str, Any], told: dict[str, Any]) -> None:
    body = parse(json.dumps(history(function)).encode(), ChatBody)
    [call] = body.messages[1].as_template_message()["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": told}
    assert (call["id"], call["type"]) == ("call_1", "function")


@pytest.mark.parametrize("number", ["9" * 4300, "9" * 4301, "-" + "9" * 5000, "1e999", "0." + "3" * 9000], ids=len)
def test_a_call_that_the_reader_takes_can_be_sent_back(number: str) -> None:
    text = written("f", f'{{"a": {number}}}')
    [call] = ToolCallReader(["f"]).read(text, is_last=True)[1]
    body = parse(json.dumps(history(call["function"])).encode(), ChatBody)
    [told] = body.messages[1].as_template_message()["tool_calls"]
    assert told["function"]["arguments"]["a"] in (number, float(number), int(number[:4300].split(".")[0].split("e")[0]))


@pytest.mark.parametrize(
    "arguments", ["[1]", '"x"', "7", "{", "NaN", '{"a": NaN}', "[" * 9999, [1], 7, True], ids=lambda v: str(v)[:9]
)
def test_arguments_that_are_no_object_are_refused_by_name(arguments: Any) -> None:
    with pytest.raises(ApiError) as refused:
        parse(json.dumps(history({"arguments": arguments})).encode(), ChatBody)
    assert (refused.value.status, refused.value.param) == (400, "messages.1.tool_calls.0.function.arguments")


@pytest.mark.parametrize("stream", [False, True])
def test_tools_that_no_grammar_expresses_are_served(with_tools: Running, stream: bool) -> None:
    schemas = [*UNREADABLE, OVERLAPPING, *({"properties": {"a": {"pattern": one}}} for one in PATTERNS)]
    offered = [tool(f"f{i}", schema).model_dump(exclude_none=True) for i, schema in enumerate(schemas)]
    told = {"model": MODEL, "messages": CHAT, "tools": offered, "max_tokens": 3, "stream": stream}
    assert with_tools.http.post("/v1/chat/completions", json=told).status_code == 200
    offered[2]["function"]["strict"] = True
    refused = with_tools.http.post("/v1/chat/completions", json=told)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "tools.2.function.parameters"


def test_half_a_character_in_arguments_is_no_500(with_tools: Running) -> None:
    answer = with_tools.http.post("/v1/chat/completions", json=history({"arguments": '{"a": "\\ud800"}'}))
    assert answer.status_code in (200, 400), answer.text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "(a"}, "guided_regex"),
        ({"guided_grammar": "start: x"}, "guided_grammar"),
        ({"guided_json": {"type": "bogus"}}, "guided_json"),
        ({"structured_outputs": {"regex": "a?" * 20_000}}, "structured_outputs"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"minLength": -1}}}}, "response_format"),
    ],
    ids=str,
)
def test_a_grammar_that_is_refused_is_named_as_the_client_named_it(server: Running, fields: dict, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        server.client().chat.completions.create(model=MODEL, messages=CHAT, max_tokens=2, extra_body=fields)
    assert refused.value.param == param
