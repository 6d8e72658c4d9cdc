"""The API as the official client sees it."""

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import openai
import pytest
from server.running import CHAT, GREEDY, MODEL, Running, Serve

import minillm
from minillm.server.answers import AnswerShape
from minillm.server.connection import BoundedProtocol
from minillm.server.unsupported import ENDPOINTS


def text_of(stream: openai.Stream) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def test_chat(server: Running, expected: Callable[..., str]):
    answer = server.client().chat.completions.create(model=MODEL, messages=CHAT, **GREEDY)
    assert answer.choices[0].message.content == expected() != ""
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12
    assert answer.id == answer._request_id


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 7}], ids=["greedy", "seeded"])
def test_streamed_equals_whole_byte_for_byte(server: Running, sampling: dict):
    asked = {"model": MODEL, "messages": CHAT, **GREEDY, "max_tokens": 60, "logprobs": True, "top_logprobs": 2}
    whole = server.client().chat.completions.create(**{**asked, **sampling})
    chunks = list(server.client().chat.completions.create(**{**asked, **sampling}, stream=True))
    content = whole.choices[0].message.content
    assert "".join(chunk.choices[0].delta.content for chunk in chunks).encode() == content.encode()
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[0].choices[0].delta.content is not None
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    logprobs = [entry for chunk in chunks for entry in chunk.choices[0].logprobs.content]
    assert logprobs == whole.choices[0].logprobs.content and len(logprobs) == 60
    assert [len(entry.top_logprobs) for entry in logprobs] == [2] * 60
    assert not any(server.engine(lambda engine: [request.logprobs for request in engine.recent_requests]))
    written = [bytes(entry.bytes) for entry in logprobs if not entry.token.startswith("<")]  # but special tokens
    assert b"".join(written).decode(errors="replace") == content


def test_tokens_pass_straight_from_a_step_to_the_connection(server: Running, monkeypatch: pytest.MonkeyPatch):
    written, write = [], BoundedProtocol.write_chunk
    monkeypatch.setattr(BoundedProtocol, "write_chunk", lambda self, body: (written.append(body), write(self, body)))
    wanted = {**GREEDY, "max_tokens": 100}
    assert text_of(server.client().chat.completions.create(model=MODEL, messages=CHAT, **wanted, stream=True))
    assert len(written) > 10 and all(body.startswith(b"data: {") for body in written)


def test_usage_comes_at_the_end_of_a_stream(server: Running):
    stream = server.client().chat.completions.create(
        model=MODEL, messages=CHAT, **GREEDY, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = stream
    assert 1 < len(chunks) <= 12  # one for each delivery; what a lagging reader has not taken yet is merged
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == [] and last.usage.completion_tokens == 12


def test_usage_so_far_is_in_each_chunk_of_its_choice(server: Running):
    """As GuideLLM and vLLM's own clients ask for it."""
    prompts = [[1, 2, 3], [4, 5]]
    asked = {"model": MODEL, "prompt": prompts, "max_tokens": 6, "n": 2, "temperature": 0, "stream": True}
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"ignore_eos": True, "stream_options": options}
    *chunks, last = server.client().completions.create(**asked, extra_body=body)
    seen: dict[int, list[int]] = {}
    for chunk in chunks:
        [choice], usage = chunk.choices, chunk.usage
        seen.setdefault(choice.index, []).append(usage.completion_tokens)
        assert usage.prompt_tokens == len(prompts[choice.index // 2])
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert sorted(seen) == [0, 1, 2, 3]
    for counts in seen.values():
        assert counts == sorted(set(counts)) and counts[0] >= 1 and counts[-1] == 6
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (5, 24)


@pytest.mark.parametrize("stream", [False, True])
def test_many_logprobs_are_shaped_beside_the_event_loop(server: Running, monkeypatch: pytest.MonkeyPatch, stream: bool):
    threads: list[str] = []

    class Watched(AnswerShape):
        def _logprobs(self, *args: object) -> dict:
            threads.append(threading.current_thread().name)
            return super()._logprobs(*args)

    monkeypatch.setattr("minillm.server.endpoint.AnswerShape", Watched)
    monkeypatch.setattr("minillm.server.endpoint.MANY_LOGPROBS", 100)
    asked = {"model": MODEL, "messages": CHAT, **GREEDY, "logprobs": True, "stream": stream}
    few = server.client().chat.completions.create(**asked)
    assert len(list(few)) > 0 and set(threads) == {"server"}
    threads.clear()
    many = server.client().chat.completions.create(**asked, n=8, top_logprobs=20)
    assert len(list(many)) > 0 and any(name.startswith("minillm-helper") for name in threads)
    assert stream or "server" not in threads


def test_completions_of_many_prompts_and_n(server: Running, expected: Callable[..., str]):
    asked = {"model": MODEL, "temperature": 0, "max_tokens": 6, "n": 2, "extra_body": {"ignore_eos": True}}
    prompts = ["The capital of France", "One two three"]
    wanted = [expected(prompt, max_tokens=6) for prompt in prompts for _ in range(2)]
    whole = server.client().completions.create(prompt=prompts, logprobs=1, **asked)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in whole.choices] == wanted
    assert whole.usage.completion_tokens == 24
    streamed, offsets = [""] * 4, [[], [], [], []]
    for chunk in server.client().completions.create(prompt=prompts, logprobs=1, stream=True, **asked):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
            offsets[choice.index] += choice.logprobs.text_offset
    assert streamed == wanted
    assert offsets == [choice.logprobs.text_offset for choice in whole.choices]
    assert all(len(choice.logprobs.top_logprobs[0]) == 1 for choice in whole.choices)


def test_token_ids_are_prompts(server: Running):
    answer = server.client().completions.create(model=MODEL, prompt=[[1, 2, 3], [4, 5]], max_tokens=2, temperature=0)
    assert len(answer.choices) == 2 and answer.usage.prompt_tokens == 5


def test_a_stop_string_ends_the_answer_and_is_not_in_it(server: Running, expected: Callable[..., str]):
    full = expected()
    stop = full[len(full) // 2 :][:3]
    answer = server.client().chat.completions.create(model=MODEL, messages=CHAT, **GREEDY, stop=[stop])
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == full[: full.index(stop)]
    stream = server.client().chat.completions.create(model=MODEL, messages=CHAT, **GREEDY, stop=[stop], stream=True)
    assert text_of(stream) == full[: full.index(stop)]


def test_nothing_stops_an_answer_before_min_tokens(server: Running, expected: Callable[..., str]):
    """Neither a stop token nor a stop string, both of which come third when they may."""
    client = server.client()
    tokens = server.http.post("/tokenize", json={"messages": CHAT}).json()["tokens"]

    def ask(**fields: object) -> tuple[int, str]:
        body = {"model": MODEL, "prompt": tokens, "temperature": 0, "max_tokens": 8, "ignore_eos": True, **fields}
        answer = server.http.post("/v1/completions", json=body).json()
        return answer["usage"]["completion_tokens"], answer["choices"][0]["text"]

    stop = expected(max_tokens=3)[len(expected(max_tokens=2)) :]
    count, text = ask(stop=[stop])
    assert count <= 3 and stop not in text
    count, longer = ask(stop=[stop], min_tokens=5)
    assert count > 5 and stop in longer and longer.startswith(text)
    [third] = server.http.post("/tokenize", json={"prompt": stop}).json()["tokens"][-1:]
    assert ask(stop_token_ids=[third])[0] <= 3 < 6 <= ask(stop_token_ids=[third], min_tokens=6)[0]
    either = {"structured_outputs": {"choice": ["yes", "no"]}, "ignore_eos": False, "min_tokens": 8}
    assert ask(**either)[1] in ("yes", "no"), "the grammar has the last word"
    for fields, cure in (
        ({"max_tokens": 3}, "ask for fewer, or raise max_tokens"),
        ({"max_completion_tokens": 3}, "ask for fewer, or raise max_completion_tokens"),
        ({}, "ask for fewer$"),
    ):
        with pytest.raises(openai.BadRequestError, match=cure) as refused:
            client.chat.completions.create(model=MODEL, messages=CHAT, **fields, extra_body={"min_tokens": 500})
        assert refused.value.param == "min_tokens" and refused.value.code == "invalid_value"


def test_prefixes_are_shared_within_a_cache_salt(server: Running):
    def cached(**fields: object) -> int:
        asked = {"model": MODEL, "prompt": [7, 5] * 40, "max_tokens": 1, "extra_body": fields}
        return server.client().completions.create(**asked).usage.prompt_tokens_details.cached_tokens

    assert [cached(cache_salt=salt) > 0 for salt in ("a", "b", "a", "b", "c")] == [False, False, True, True, False]
    assert not cached() and cached() and cached(cache_salt=None)
    with pytest.raises(openai.BadRequestError, match="cache_salt"):
        cached(cache_salt="s" * 129)


def test_penalties_and_seeds_matter(server: Running, expected: Callable[..., str]):
    def ask(**options: object) -> str:
        asked = {"model": MODEL, "messages": CHAT, **GREEDY, "max_tokens": 40, **options}
        return server.client().chat.completions.create(**asked).choices[0].message.content

    assert ask(presence_penalty=2, frequency_penalty=2) == expected(
        max_tokens=40, presence_penalty=2, frequency_penalty=2
    )
    assert ask(temperature=1, seed=1) == ask(temperature=1, seed=1) != ask(temperature=1, seed=2)


def test_max_completion_tokens_and_the_window(server: Running):
    client = server.client()
    asked = {"model": MODEL, "messages": CHAT, "temperature": 0, "extra_body": {"ignore_eos": True}}
    assert client.chat.completions.create(**asked, max_completion_tokens=3).usage.completion_tokens == 3
    to_the_end = client.chat.completions.create(**asked)
    assert to_the_end.usage.total_tokens == server.service.context_limit
    assert to_the_end.choices[0].finish_reason == "length"
    nearly_full = client.completions.create(model=MODEL, prompt=[5] * 505, extra_body={"ignore_eos": True})
    assert nearly_full.usage.completion_tokens == server.service.context_limit - 505 < 16
    with pytest.raises(openai.BadRequestError, match="ask for fewer") as refused:
        client.chat.completions.create(**asked, max_completion_tokens=512)
    assert refused.value.code == "context_length_exceeded" and refused.value.param == "max_completion_tokens"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**asked, max_tokens=512)
    assert refused.value.param == "max_tokens", "the name that was sent"


def test_many_at_once_get_what_they_would_get_alone(server: Running, expected: Callable[..., str]):
    prompts = [[{"role": "user", "content": f"What about the number {i}?"}] for i in range(24)]

    async def one(client: openai.AsyncOpenAI, i: int) -> str:
        asked = {"model": MODEL, "messages": prompts[i], **GREEDY}
        if i % 2:
            return (await client.chat.completions.create(**asked)).choices[0].message.content
        stream = await client.chat.completions.create(**asked, stream=True)
        return "".join([chunk.choices[0].delta.content async for chunk in stream])

    async def main() -> list[str]:
        async with server.async_client() as client:
            return await asyncio.gather(*(one(client, i) for i in range(24)))

    assert asyncio.run(main()) == [expected(prompt) for prompt in prompts]


def json_schema(schema: dict) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


def test_the_answer_follows_the_response_format(server: Running):
    asked = {"model": MODEL, "messages": CHAT, "max_tokens": 40}
    for response_format, choices in (
        (json_schema({"enum": ["yes", "no"]}), ["yes", "no"]),
        (
            json_schema(
                {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
            ),
            [{"a": 1}],
        ),
    ):
        answer = server.client().chat.completions.create(**asked, response_format=response_format).choices[0]
        assert answer.finish_reason == "stop" and json.loads(answer.message.content) in choices
    [choice] = server.client().chat.completions.create(**asked, response_format={"type": "json_object"}).choices
    assert choice.message.content.startswith("{")


@pytest.mark.parametrize(
    ("change", "error", "code", "param"),
    [
        ({"model": "gpt-4"}, openai.NotFoundError, "model_not_found", "model"),
        ({"messages": []}, openai.BadRequestError, "invalid_value", "messages"),
        ({"temperature": 3}, openai.BadRequestError, "invalid_value", "temperature"),
        ({"stop": ""}, openai.BadRequestError, "invalid_value", "stop"),
        ({"logit_bias": {"1": 500}}, openai.BadRequestError, "invalid_value", "logit_bias.1"),
        ({"logit_bias": {"100000": 5}}, openai.BadRequestError, "invalid_value", None),
        ({"response_format": json_schema({"type": "bogus"})}, openai.BadRequestError, "invalid_value", None),
        ({"response_format": {"type": "json_schema"}}, openai.BadRequestError, "invalid_value", None),
        ({"extra_body": {"max_token": 1}}, openai.BadRequestError, "unknown_parameter", "max_token"),
        ({"messages": [{"role": "user", "content": "word " * 600}]}, openai.BadRequestError, None, None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_errors_are_typed(server: Running, change: dict, error: type, code: str | None, param: str | None):
    with pytest.raises(error) as refused:
        server.client().chat.completions.create(**{"model": MODEL, "messages": CHAT, **change})
    assert refused.value.body["message"]
    assert code is None or refused.value.code == code
    assert param is None or refused.value.param == param


def test_what_asks_for_nothing_is_accepted(server: Running):
    server.client().chat.completions.create(
        model=MODEL,
        messages=CHAT,
        max_tokens=1,
        tools=[],
        logit_bias={},
        response_format={"type": "text"},
        parallel_tool_calls=False,
        store=False,
        user="somebody",
    )


def test_models_and_health_and_unknown_routes(server: Running):
    assert [model.id for model in server.client().models.list()] == [MODEL]
    assert server.client().models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        server.client().models.retrieve("another")
    health = [server.http.get("/health").json() for _ in range(2)]
    assert [answer["status"] for answer in health] == ["ok", "ok"]
    assert server.http.get("/version").json() == {"version": minillm.__version__}
    assert health[0]["clock"] < health[1]["clock"]  # seconds of the server's own clock
    unknown = server.http.get("/v1/nothing").json()["error"]["message"]
    assert unknown.startswith("GET /v1/nothing: Not Found: ") and unknown.endswith(ENDPOINTS[""])
    for path in ("/chat/completions", "/v1/v1/chat/completions"):
        assert "/v1/chat/completions is meant" in server.http.post(path).json()["error"]["message"]
    root = server.http.get("/v1/models").json()["data"][0]["root"]
    assert root == server.service.thread.config.model != MODEL
    unnamed = server.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).json()
    assert unnamed["model"] == MODEL
    wrong = server.http.get("/v1/completions")
    assert wrong.status_code == 405 and wrong.json()["error"]["type"] == "invalid_request_error"


def test_api_keys(serve: Serve, tmp_path: Path):
    keys = tmp_path / "keys"
    keys.write_text("# ours\nfirst-key\nsecond-key\n")
    guarded = serve(api_key_file=str(keys))
    for key in ("first-key", "second-key"):
        guarded.client(api_key=key).completions.create(model=MODEL, prompt="x", max_tokens=1)
    for key in ("first-ke", "# ours", "none"):
        with pytest.raises(openai.AuthenticationError):
            guarded.client(api_key=key).completions.create(model=MODEL, prompt="x", max_tokens=1)
    with pytest.raises(openai.AuthenticationError):
        guarded.client().models.list()
    assert httpx.get(f"{guarded.url}/health").status_code == 200


def test_the_stream_phase_ends_when_the_transport_has_the_last_byte(server: Running):
    ended = server.watched()
    list(server.client().chat.completions.create(model=MODEL, messages=CHAT, **GREEDY, stream=True))
    server.client().chat.completions.create(model=MODEL, messages=CHAT, **GREEDY)
    server.service.observers = server.service.observers[:-1]
    for call in ended:
        timeline = call.outputs[0].timeline
        phases = timeline.phases()
        assert phases["stream"] > 0 and sum(phases.values()) == pytest.approx(timeline.e2e)
        assert timeline.arrival == call.arrival and timeline.finished <= call.finished


def test_a_priority_is_honoured_or_refused(server: Running, serve: Serve):
    asked = {"model": MODEL, "messages": CHAT, "max_tokens": 1}
    refused = server.http.post("/v1/chat/completions", json={**asked, "priority": 1})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "priority"
    assert server.http.post("/v1/chat/completions", json={**asked, "priority": 0}).status_code == 200
    sorting = serve(engine={"scheduling_order": "priority"})
    assert sorting.http.post("/v1/chat/completions", json={**asked, "priority": 1}).status_code == 200


def test_the_tenant_is_the_user_or_the_key(server: Running, serve: Serve, tmp_path: Path):
    def tenant_of(where: Running, fields: dict, **options: object) -> str:
        body = {"model": MODEL, "messages": CHAT, "max_tokens": 1, **fields}
        where.http.post("/v1/chat/completions", json=body, **options)
        return where.engine(lambda engine: engine.recent_requests[-1].tenant)

    for fields, tenant in (({"user": "ann"}, "ann"), ({}, ""), ({"safety_identifier": "bob"}, "bob")):
        assert tenant_of(server, fields) == tenant
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    guarded = serve(api_key_file=str(keys), engine={"scheduling_order": "fair"})
    tenant = tenant_of(guarded, {"user": "ann"}, headers={"authorization": "Bearer secret"})
    assert tenant == guarded.service.keys.caller("Bearer secret", "") != "ann", "a key cannot be made up"
    assert guarded.metric("tenant_tokens_total", tenant=tenant, kind="generation") == 1
    assert guarded.metric("tenant_tokens_total", tenant=tenant, kind="prompt") > 1
    made_up = serve()
    assert tenant_of(made_up, {"user": "u" * 10**5}) == "u" * 10**5
    assert made_up.metric("tenant_tokens_total", tenant="other", kind="generation") == 1
    assert len(made_up.http.get("/metrics").content) < 10**5
