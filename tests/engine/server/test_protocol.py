"""What the API has of OpenAI's reference and of vLLM's extensions, and what it says of the rest."""

import json
from collections.abc import Callable
from functools import cached_property
from typing import Any

import httpx
import openai
import pytest
from openai.types import completion_create_params
from openai.types.chat import ChatCompletion
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import Response, response_create_params
from server.running import CHAT, GREEDY, MODEL, Running, running, with_template

from minillm.model.loader import LoadedModel
from minillm.policies.config import EngineConfig
from minillm.server.config import ServeConfig
from minillm.server.errors import ApiError
from minillm.server.protocol import ChatBody, CompletionBody, GenerationBody, ResponsesBody, parse
from minillm.server.unsupported import ENDPOINTS, PARAMETERS

REFERENCE = {
    ChatBody: (chat_create_params.CompletionCreateParamsBase, {"messages": CHAT}),
    CompletionBody: (completion_create_params.CompletionCreateParamsBase, {"prompt": "x"}),
    ResponsesBody: (response_create_params.ResponseCreateParamsBase, {"input": "x"}),
}
FIELDS = [(kind, name) for kind, (params, _) in REFERENCE.items() for name in sorted(params.__annotations__)]


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=lambda value: getattr(value, "__name__", value))
def test_each_field_of_the_reference_is_honoured_or_refused_with_what_to_use_instead(
    kind: type[GenerationBody], name: str
) -> None:
    if name in kind.model_fields:
        assert name not in PARAMETERS or kind is not CompletionBody or name == "prompt"
        return
    body = {"model": MODEL, **REFERENCE[kind][1]}
    with pytest.raises(ApiError) as refused:
        parse(json.dumps({**body, name: {"some": "thing"}}).encode(), kind)
    assert refused.value.status == 400 and refused.value.param == name
    assert refused.value.code == "unsupported_parameter" and refused.value.message.endswith(PARAMETERS[name]["instead"])
    for neutral in (None, *PARAMETERS[name]["neutral"]):
        parse(json.dumps({**body, name: neutral}).encode(), kind)


def test_each_endpoint_of_the_reference_is_there_or_says_what_to_use_instead(server: Running) -> None:
    resources = [name for name, kind in vars(openai.OpenAI).items() if isinstance(kind, cached_property)]
    resources = [name for name in resources if not name.startswith("with_")]
    assert {"chat", "embeddings", "files", "responses", "models"} <= set(resources)
    for name in set(resources) - {"models"}:
        answer = server.http.post(f"/v1/{name}/nothing", json={})
        assert answer.status_code == 404, name
        assert answer.json()["error"]["message"].endswith(ENDPOINTS.get(name, ENDPOINTS[""]))
    assert server.http.get("/v1").status_code == 404


# ---------------------------------------------------------------- vLLM's names


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"guided_choice": ["yes", "no"]}, ("yes", "no")),
        ({"guided_regex": "[ab]{3}c"}, ("aaac", "aabc", "abac", "abbc", "baac", "babc", "bbac", "bbbc")),
        ({"guided_json": {"const": 7}}, ("7",)),
        ({"guided_grammar": 'start: "x" "y"'}, ("xy",)),
        ({"structured_outputs": {"choice": ["only"]}}, ("only",)),
        ({"structured_outputs": {"json": {"const": "a"}}}, ('"a"',)),
    ],
    ids=lambda value: str(value)[:30],
)
def test_structured_outputs_by_their_names_in_vllm(server: Running, asked: dict, text: tuple[str, ...]) -> None:
    answer = server.client().chat.completions.create(model=MODEL, messages=CHAT, max_tokens=20, extra_body=asked)
    assert answer.choices[0].message.content in text and answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"structured_outputs": {"choice": ["a"], "regex": "b"}}, "want one of"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structural_tag"),
        ({"guided_choice": ["a"], "response_format": {"type": "json_object"}}, "send one"),
        ({"guided_choice": []}, "guided_choice: send at least one"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_contradicts_itself_is_refused(server: Running, fields: dict, words: str) -> None:
    with pytest.raises(openai.BadRequestError, match=words):
        server.client().chat.completions.create(model=MODEL, messages=CHAT, extra_body=fields)


def test_tokenize_and_detokenize(server: Running) -> None:
    def tokens(**body: Any) -> dict:
        return server.http.post("/tokenize", json=body).json()

    told = tokens(model=MODEL, prompt="Hello there", return_token_strs=True)
    assert told["count"] == len(told["tokens"]) > 1 and told["max_model_len"] == server.service.context_limit
    assert "".join(told["token_strs"]) == "Hello there" and tokens(prompt="Hello there")["token_strs"] is None
    assert server.http.post("/detokenize", json={"tokens": told["tokens"]}).json() == {"prompt": "Hello there"}
    usage = server.client().chat.completions.create(model=MODEL, messages=CHAT, max_tokens=1).usage
    assert tokens(messages=CHAT)["count"] == usage.prompt_tokens
    assert tokens(prompt="", return_token_strs=True) == {**told, "count": 0, "tokens": [], "token_strs": []}
    assert server.http.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}
    for path, body in (("/tokenize", {}), ("/detokenize", {"tokens": [10**9]}), ("/tokenize", {"promt": ""})):
        assert server.http.post(path, json=body).status_code == 400, body
    assert server.http.post("/tokenize", json={"model": "another", "prompt": ""}).status_code == 404


THINKING = (
    "{{ eos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    "{{ '' if enable_thinking else ' no thoughts' * 5 }}"
)


def test_a_template_is_told_what_it_reads_and_nothing_else(tiny_config: EngineConfig, tiny_model: LoadedModel) -> None:
    config = ServeConfig(port=0, served_model_name=MODEL, access_log=False)
    with running(tiny_config, config, with_template(tiny_model, THINKING)) as server:

        def ask(path: str, **fields: Any) -> httpx.Response:
            return server.http.post(path, json={"messages": CHAT, **fields})

        counts = []
        for fields in ({}, {"chat_template_kwargs": {"enable_thinking": True}}, {"chat_template_kwargs": {}}):
            usage = ask("/v1/chat/completions", max_tokens=1, **fields).json()["usage"]
            counts.append(ask("/tokenize", **fields).json()["count"])
            assert usage["prompt_tokens"] == counts[-1]
        assert counts[0] == counts[2] > counts[1]
        own = [(name, "the server's own") for name in ("messages", "eos_token")]
        for name, words in (*own, *((name, "doesn't read") for name in ("enable_thinkin", "m\n", ""))):
            problem = ask("/v1/chat/completions", chat_template_kwargs={name: 1}).json()["error"]
            assert problem["param"] == f"chat_template_kwargs.{name}" and words in problem["message"]
        assert server.http.post("/tokenize", json={"prompt": "a", "chat_template_kwargs": {"x": 1}}).status_code == 400


# ---------------------------------------------------------------- logit_bias


def test_a_bias_bans_and_forces_tokens(server: Running) -> None:
    def ask(bias: dict[str, float], **options: Any) -> tuple[list[str], str]:
        answer = server.client().completions.create(
            model=MODEL, prompt="One", logprobs=0, logit_bias=bias, max_tokens=6, **options
        )
        return answer.choices[0].logprobs.tokens, answer.choices[0].text

    (forced,) = server.http.post("/tokenize", json={"prompt": " dog"}).json()["tokens"]
    for sampling in ({"temperature": 0}, {"temperature": 1, "top_p": 0.9}):
        assert ask({str(forced): 100}, **sampling)[0] == [" dog"] * 6
    (first, *_), _ = ask({}, temperature=0)
    (token,) = server.http.post("/tokenize", json={"prompt": first}).json()["tokens"]
    assert ask({str(token): -100}, temperature=0)[0][0] != first


# ---------------------------------------------------------------- responses


def test_a_response_whole_and_streamed(server: Running, expected: Callable[..., str]) -> None:
    asked = {
        "model": MODEL,
        "input": CHAT,
        "max_output_tokens": 12,
        **{k: GREEDY[k] for k in ("temperature", "extra_body")},
    }
    whole = server.client().responses.create(**asked)
    assert whole.output_text == expected() and whole.status == "incomplete"
    assert whole.incomplete_details.reason == "max_output_tokens" and whole.usage.output_tokens == 12
    Response.model_validate(json.loads(whole.to_json()))  # nothing that the reference requires is missing
    *events, last = server.client().responses.create(**asked, stream=True)
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == expected()
    assert [event.sequence_number for event in (*events, last)] == list(range(len(events) + 1))
    assert last.type == "response.incomplete" and last.response.output_text == whole.output_text
    assert {event.type.removeprefix("response.") for event in events} == {
        "created",
        "in_progress",
        *(f"{part}.{change}" for part in ("output_item", "content_part") for change in ("added", "done")),
        *(f"output_text.{change}" for change in ("delta", "done")),
    }


def test_a_response_follows_instructions_parts_and_a_format(server: Running) -> None:
    form = {"type": "json_schema", "name": "one", "schema": {"const": 1}}
    message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": CHAT[0]["content"]}]}
    answer = server.client().responses.create(
        model=MODEL, input=[message], instructions="Be brief.", text={"format": form}
    )
    assert answer.output_text == "1" and answer.status == "completed" and answer.text.format.name == "one"
    told = [{"role": "system", "content": "Be brief."}, *CHAT]
    counted = server.http.post("/tokenize", json={"messages": told}).json()["count"]
    assert answer.usage.input_tokens == counted


# ---------------------------------------------------------------- tools

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"enum": [1, 2]}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}], ids=str)
def test_a_tool_is_called_with_arguments_that_follow_its_schema(with_tools: Running, choice: Any) -> None:
    asked = {"model": MODEL, "messages": CHAT, "tools": [WEATHER], "tool_choice": choice, "seed": 1}
    answer = with_tools.client().chat.completions.create(**asked, parallel_tool_calls=False)
    ChatCompletion.model_validate(json.loads(answer.to_json()))
    [call] = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather" and answer.choices[0].finish_reason == "tool_calls"
    arguments = json.loads(call.function.arguments)
    assert arguments["city"] in ("Oslo", "Rome") and arguments["days"] in (1, 2)
    assert answer.choices[0].message.content is None

    *chunks, last = with_tools.client().chat.completions.create(**asked, parallel_tool_calls=False, stream=True)
    [streamed] = [one for chunk in (*chunks, last) for one in chunk.choices[0].delta.tool_calls or []]
    assert streamed.index == 0 and streamed.function.to_dict() == call.function.to_dict()
    assert last.choices[0].finish_reason == "tool_calls"

    result = [
        {"role": "assistant", "tool_calls": [call.to_dict()]},
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    told = with_tools.client().chat.completions.create(
        model=MODEL, messages=[*CHAT, *result], tools=[WEATHER, TIME], tool_choice="none", max_tokens=3
    )
    assert told.choices[0].finish_reason == "length"


def test_an_answer_may_call_a_tool_or_not(with_tools: Running) -> None:
    answer = with_tools.client().chat.completions.create(
        model=MODEL, messages=CHAT, tools=[WEATHER, TIME], max_tokens=5, temperature=0
    )
    assert answer.choices[0].message.content and answer.choices[0].message.tool_calls is None


@pytest.mark.parametrize("fields", [{"tools": [WEATHER]}, {"tools": [WEATHER], "tool_choice": "required"}], ids=str)
def test_a_template_without_tools_is_a_400(server: Running, fields: dict) -> None:
    with pytest.raises(openai.BadRequestError, match="response_format") as refused:
        server.client().chat.completions.create(model=MODEL, messages=CHAT, **fields)
    assert refused.value.param == "tools" and refused.value.code == "unsupported_parameter"


def test_a_choice_that_is_no_tool_is_a_400(with_tools: Running) -> None:
    choice = {"type": "function", "function": {"name": "get_time"}}
    with pytest.raises(openai.BadRequestError, match="not among the tools"):
        with_tools.client().chat.completions.create(model=MODEL, messages=CHAT, tools=[WEATHER], tool_choice=choice)
