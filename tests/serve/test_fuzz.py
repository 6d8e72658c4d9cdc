"""Whatever is sent, the server answers in OpenAI's shape, and never with a 500."""

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serve.running import CHAT, MODEL, Running

from minillm.serve.errors import ApiError
from minillm.serve.protocol import NEUTRAL, ChatBody, CompletionBody, parse

numbers = st.one_of(st.integers(-3, 70), st.integers(), st.floats(), st.booleans())
scalars = st.one_of(st.none(), numbers, st.text(max_size=20))
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
roles = st.sampled_from(["system", "developer", "user", "assistant", "tool", "nobody"])
messages = st.lists(st.fixed_dictionaries({"role": roles, "content": st.text(max_size=30) | anything}), max_size=3)
prompts = st.one_of(
    st.text(max_size=30),
    st.lists(st.integers(-2, 60_000), max_size=20),
    st.lists(st.text(max_size=9), max_size=3),
    st.lists(st.lists(st.integers(0, 900), max_size=5), max_size=3),
    anything,
)
FIELDS = sorted({*ChatBody.model_fields, *CompletionBody.model_fields, *NEUTRAL} - {"model", "max_tokens"})
BASE = {"model": MODEL, "max_tokens": 3}


def bodies(**wanted: st.SearchStrategy) -> st.SearchStrategy[dict]:
    """Mostly right, with a few fields that may be anything."""
    odd = st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=6), anything, max_size=3)
    return st.builds(lambda right, wrong: {**BASE, **right, **wrong}, st.fixed_dictionaries(wanted), odd)


def answers_properly(server: Running, path: str, content: bytes) -> None:
    answer = server.http.post(path, content=content)
    if answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream"):
        assert answer.text.endswith("data: [DONE]\n\n")
    elif answer.status_code == 200:
        assert answer.json()["choices"]
    else:
        assert 400 <= answer.status_code < 500, answer.text
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


relaxed = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@relaxed
@given(body=bodies(messages=messages))
def test_chat_bodies(server: Running, body: dict):
    answers_properly(server, "/v1/chat/completions", json.dumps(body).encode())


@relaxed
@given(body=bodies(prompt=prompts))
def test_completion_bodies(server: Running, body: dict):
    answers_properly(server, "/v1/completions", json.dumps(body).encode())


@relaxed
@given(content=st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_bodies_that_are_no_json(server: Running, content: bytes):
    answers_properly(server, "/v1/completions", content)


def test_bodies_that_are_meant_to_hurt(server: Running):
    deep = "[" * 900 + "]" * 900
    for content in (
        "[" * 100_000,
        json.dumps({**BASE, "messages": CHAT})[:-1] + f', "stop": {deep}}}',
        json.dumps({**BASE, "messages": CHAT})[:-1] + ', "seed": ' + "9" * 400 + "}",
        json.dumps({**BASE, "messages": CHAT})[:-1] + ', "temperature": NaN}',
        json.dumps({**BASE, "messages": [{"role": "user", "content": "\ud800"}]}),
        json.dumps({**BASE, "messages": [{"role": "user", "content": "\x00" * 50}]}),
    ):
        answers_properly(server, "/v1/chat/completions", content.encode())
    server.wait_until_idle()


@settings(max_examples=300, deadline=None)
@given(body=bodies(messages=messages) | anything)
def test_a_body_is_understood_or_refused_with_a_reason(body: object):
    refusals: list[ApiError] = []
    for kind in (ChatBody, CompletionBody):
        try:
            parsed = parse(json.dumps(body).encode(), kind)
        except ApiError as error:
            refusals.append(error)
        else:
            parsed.sampling(5), parsed.prompts()
    assert all(400 <= refusal.status < 500 and str(refusal) for refusal in refusals)
