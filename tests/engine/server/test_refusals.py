"""What a client is told about a body that is wrong, at any depth, and what is accepted because it asks for nothing."""

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessage
from server.running import CHAT, MODEL, Running

from minillm.server.errors import ApiError
from minillm.server.protocol import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    GenerationBody,
    ResponsesBody,
    TokenizeBody,
    parse,
)
from minillm.server.strict_json import StrictJson
from minillm.server.unsupported import PARTS

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,xx"}}
WEATHER = {"type": "function", "function": {"name": "get_weather"}}


def refused(kind: type[StrictJson], **fields: Any) -> ApiError:
    whole: dict[type[StrictJson], dict] = {ChatBody: {"messages": CHAT}, CompletionBody: {"prompt": "x"}}
    with pytest.raises(ApiError) as refusal:
        parse(json.dumps({"model": MODEL, **whole.get(kind, {}), **fields}).encode(), kind)
    assert refusal.value.status == 400
    return refusal.value


def user(content: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content, **fields}]}


def schema(**fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": fields}}


TEXT_ONLY = "text is all that this server reads"
OF_CHATS = [
    (user([{"type": "text", "text": "a"}, IMAGE]), "messages.0.content.1", TEXT_ONLY),
    (user([{"type": "input_audio", "input_audio": {}}]), "messages.0.content.0", TEXT_ONLY),
    (user([{"type": "text", "text": "a", "txt": "b"}]), "messages.0.content.0.txt", "did you mean 'text'?"),
    (user([{"text": "a"}]), "messages.0.content.0.type", "required"),
    (user(["hi"]), "messages.0.content.0", "should be an object (got 'hi')"),
    (user([{"type": "text", "text": 5}]), "messages.0.content.0.text", "valid string (got 5)"),
    (user(5), "messages.0.content", "a string, or a list of"),
    (user(None), "messages.0", "needs content"),
    (user("a", rol="x"), "messages.0.rol", "messages.0 has no field 'rol': did you mean 'role'?"),
    (user("a", role="nobody"), "messages.0.role", "'system', 'developer', 'user'"),
    (user("a", reasoning_content="hm"), "messages.0.reasoning_content", "leave it out"),
    ({"messages": "hi"}, "messages", "valid list (got 'hi')"),
    ({"stream_options": {"include_usge": True}}, "stream_options.include_usge", "did you mean 'include_usage'?"),
    ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, None, "needs include_usage: true"),
    ({"cache_salt": ""}, "cache_salt", "at least 1 character"),
    ({"min_tokens": -1}, "min_tokens", "greater than or equal to 0"),
    ({"tools": [{**WEATHER, "functon": 1}]}, "tools.0.functon", "tools.0 has no field 'functon': did you mean 'func"),
    ({"tools": [{"type": "function", "function": {"name": "f", "x": 1}}]}, "tools.0.function.x", "name, description"),
    ({"tools": [{"type": "web_search"}]}, "tools.0.type", "should be 'function' (got 'web_search')"),
    ({"tool_choice": "never"}, "tool_choice", "'none', 'auto' or 'required' (got 'never')"),
    ({"tool_choice": {**WEATHER, "x": 1}}, "tool_choice.x", "tool_choice has no field 'x': fields: type, function"),
    ({"tool_choice": 1}, "tool_choice", "or a function's name"),
    ({"tool_choice": "required"}, None, "tool_choice needs tools"),
    (schema(schema={}, schem=1), "response_format.json_schema.schem", "did you mean 'schema'?"),
    (schema(name="a"), "response_format", "json_schema.schema"),
    (schema(schema=5), "response_format.json_schema.schema", "JSON schema"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "'text', 'json_object' or 'json_schema'"),
    ({"structured_outputs": {"chioce": ["a"]}}, "structured_outputs.chioce", "did you mean 'choice'?"),
    ({"structured_outputs": {"choice": ["a"], "regex": "a"}}, "structured_outputs", "want one of"),
    ({"guided_json": 5}, "guided_json", "JSON schema"),
    ({"logit_bias": {"x": 1}}, "logit_bias.x", "valid integer"),
    ({"(text)": 1}, "(text)", "the body has no field '(text)'"),
]
OF_COMPLETIONS = [
    ({"stop": ["a", 5]}, "stop.1", "valid string (got 5)"),
    ({"stop": 5}, "stop", "a string, or a list of at most 16 strings"),
    ({"prompt": [1, "a"]}, "prompt.1", "valid integer (got 'a')"),
    ({"prompt": ["a", 1]}, "prompt.1", "valid string (got 1)"),
    ({"prompt": [[1], [1, "a"]]}, "prompt.1.1", "valid integer (got 'a')"),
    ({"prompt": [{"a": 1}]}, "prompt", "a string, token ids"),
]
OF_RESPONSES = [
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0", TEXT_ONLY),
    ({"input": [{"type": "function_call_output", "output": "1"}]}, "input.0", "/v1/chat/completions"),
    (
        {"input": "a", "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        None,
        "continuous_usage_stats: the last event",
    ),
    ({"input": 5}, "input", "a string, or a list of messages"),
    ({"input": "a", "text": {"formt": 1}}, "text.formt", "text has no field 'formt': did you mean 'format'?"),
    ({"input": "a", "text": {"format": {"type": "text", "schma": 1}}}, "text.format.schma", "did you mean 'schema'?"),
]
WRONG = {
    ChatBody: OF_CHATS,
    CompletionBody: OF_COMPLETIONS,
    ResponsesBody: OF_RESPONSES,
    TokenizeBody: OF_CHATS[:12],
    DetokenizeBody: [({"tokens": ["a"]}, "tokens.0", "valid integer")],
}


@pytest.mark.parametrize(
    ("kind", "fields", "param", "words"), [(kind, *case) for kind, cases in WRONG.items() for case in cases]
)
def test_the_field_and_the_remedy_are_named(
    kind: type[StrictJson], fields: dict, param: str | None, words: str
) -> None:
    refusal = refused(kind, **fields)
    assert refusal.param == param and words in refusal.message
    assert not any(word in refusal.message for word in ("function-after", "list[", ".str", "(list)", "instance of"))


@pytest.mark.parametrize("prompt", ["", [], [10**9], "a" * 9000], ids=lambda prompt: repr(prompt)[:12])
def test_a_prompt_that_cannot_be_served_is_named(server: Running, prompt: str | list[int]) -> None:
    refusal = server.http.post("/v1/completions", json={"model": MODEL, "prompt": prompt, "max_tokens": 1})
    assert refusal.status_code == 400 and refusal.json()["error"]["param"] == "prompt"
    if isinstance(prompt, str):
        refusal = server.http.post("/v1/responses", json={"model": MODEL, "input": prompt or []})
        assert refusal.status_code == 400 and refusal.json()["error"]["param"] == "input"


NOTHING: list[Any] = [None, "", [], {}]


@pytest.mark.parametrize("nothing", NOTHING, ids=repr)
@pytest.mark.parametrize("name", ["annotations", "reasoning_content", "function_call", "audio", "anything_else"])
def test_an_unknown_field_that_asks_for_nothing_is_accepted_anywhere(name: str, nothing: Any) -> None:
    extra = {name: nothing}
    part = {"type": "text", "text": "a", **extra}
    messages = [{"role": "user", "content": [part], **extra}, {"role": "assistant", "content": "b", **extra}]
    function = {"name": "f", "parameters": {"type": "object"}, **extra}
    chat = {
        "messages": messages,
        "tools": [{"type": "function", "function": function, **extra}],
        "tool_choice": {"type": "function", "function": {"name": "f", **extra}, **extra},
        "response_format": {"type": "json_schema", "json_schema": {"schema": {}, **extra}, **extra},
        "stream": True,
        "stream_options": {"include_usage": True, **extra},
        **extra,
    }
    responses = {"input": [{"type": "message", **message} for message in messages], "text": extra, **extra}
    for kind, body in ((ChatBody, chat), (ResponsesBody, responses), (CompletionBody, {"prompt": "a", **extra})):
        parsed = parse(json.dumps({"model": MODEL, **body}).encode(), kind)
        assert name not in parsed.model_dump_json()


@pytest.mark.parametrize(("name", "field"), PARTS.items(), ids=PARTS)
def test_a_part_that_asks_for_something_is_refused_with_what_to_do_instead(name: str, field: Any) -> None:
    for neutral in field["neutral"]:
        parse(json.dumps({"model": MODEL, "messages": [{**CHAT[0], name: neutral}]}).encode(), ChatBody)
    refusal = refused(ChatBody, messages=[{**CHAT[0], name: {"some": "thing"}}])
    assert refusal.param == f"messages.0.{name}" and refusal.message.endswith(field["instead"])
    assert refusal.code == "unsupported_parameter"


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (ChatBody, {"top_logprobs": 0}),
        (ChatBody, {"stream_options": {}}),
        (ChatBody, {"stream_options": {"include_usage": False, "continuous_usage_stats": False}}),
        (ChatBody, {"structured_outputs": {}}),
        (ChatBody, {"skip_special_tokens": True, "length_penalty": 1.0, "use_beam_search": False, "bad_words": []}),
        (CompletionBody, {"echo": False, "best_of": 1, "suffix": "", "include_stop_str_in_output": False}),
    ],
    ids=str,
)
def test_known_values_that_ask_for_nothing(kind: type[GenerationBody], fields: dict) -> None:
    body = {ChatBody: {"messages": CHAT}, CompletionBody: {"prompt": "x"}}[kind]
    parsed = parse(json.dumps({"model": MODEL, **body, **fields}).encode(), kind)
    assert parsed.sampling(5) == parse(json.dumps({"model": MODEL, **body}).encode(), kind).sampling(5)


def test_what_asks_for_something_is_not_taken_for_nothing() -> None:
    for extra in ({"prefix": True}, {"weight": 0}, {"x": 0}, {"x": False}, {"reasoning": " "}):
        assert refused(ChatBody, messages=[{**CHAT[0], **extra}]).param == f"messages.0.{next(iter(extra))}"


@pytest.mark.parametrize("dump", ["all", "sent", "set"])
def test_an_answer_is_sent_back_whole(server: Running, dump: str) -> None:
    """As clients do that keep what they got; also an answer that had no text."""
    answer = server.client().chat.completions.create(model=MODEL, messages=CHAT, max_tokens=3)
    ChatCompletion.model_validate(answer.model_dump())
    for message in (answer.choices[0].message, ChatCompletionMessage(role="assistant", content=None, tool_calls=[])):
        kept = message.to_dict(mode="json") if dump == "sent" else message.model_dump(exclude_unset=dump == "set")
        server.client().chat.completions.create(model=MODEL, messages=[*CHAT, kept, *CHAT], max_tokens=1)
    response = server.client().responses.create(model=MODEL, input=CHAT, max_output_tokens=16)
    kept = [item.model_dump(exclude_unset=dump == "set") for item in response.output]
    server.client().responses.create(model=MODEL, input=[*CHAT, *kept, *CHAT], max_output_tokens=16)
