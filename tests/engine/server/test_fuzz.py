"""Whatever is sent, the server answers in OpenAI's shape, and never with a 500."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from server.running import CHAT, MODEL, Running, running

from minillm.core.errors import RequestError
from minillm.model.loader import LoadedModel
from minillm.policies.config import EngineConfig
from minillm.server.config import ServeConfig
from minillm.server.errors import ApiError, as_api_error
from minillm.server.protocol import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    GenerationBody,
    ResponsesBody,
    TokenizeBody,
    parse,
)
from minillm.server.unsupported import PARAMETERS

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
KINDS = (ChatBody, CompletionBody, ResponsesBody)
FIELDS = sorted({*PARAMETERS, *(name for kind in KINDS for name in kind.model_fields)} - {"model", "max_tokens"})
BASE = {"model": MODEL, "max_tokens": 3}


def bodies(**wanted: st.SearchStrategy) -> st.SearchStrategy[dict]:
    """Mostly right, with a few fields that may be anything."""
    odd = st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=6), anything, max_size=3)
    return st.builds(lambda right, wrong: {**BASE, **right, **wrong}, st.fixed_dictionaries(wanted), odd)


def answers_properly(server: Running, path: str, content: bytes) -> None:
    answer = server.http.post(path, content=content)
    if answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream"):
        ending = "event: response." if path == "/v1/responses" else "data: [DONE]"
        assert ending in answer.text.rpartition("\n\n")[0].rpartition("\n\n")[2]
    elif answer.status_code == 200:
        assert answer.json()["output" if path == "/v1/responses" else "choices"]
    else:
        assert 400 <= answer.status_code < 500, answer.text
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


BODIES: dict[str, st.SearchStrategy[bytes]] = {
    "/v1/chat/completions": bodies(messages=messages).map(json.dumps).map(str.encode),
    "/v1/completions": bodies(prompt=prompts).map(json.dumps).map(str.encode)
    | st.binary(max_size=200)
    | st.text(max_size=100).map(str.encode),
    "/v1/responses": bodies(input=messages | st.text(max_size=30)).map(json.dumps).map(str.encode),
}


@pytest.mark.parametrize("path", BODIES)
@settings(max_examples=60, suppress_health_check=CHECKS)
@given(data=st.data())
def test_bodies_of_any_kind(server: Running, path: str, data: st.DataObject):
    answers_properly(server, path, data.draw(BODIES[path]))


# -------------------------------------------------------------------- methods, paths, queries, headers

ROUTES = (
    b"/v1/chat/completions /v1/completions /v1/responses /v1/models /v1/models/tiny /tokenize /health /ready /metrics"
).split()
METHODS = (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"TRACE", b"CONNECT", b"PURGE", b"LINK")
HEADERS = (
    b"host authorization content-length transfer-encoding connection upgrade expect accept content-type traceparent "
    b"tracestate x-request-id range te cookie"
).split()
VALUES = (b"", b"0", b"5", b"-1", b"99999999999999999999", b"chunked", b"close", b"websocket", b"h2c", b"Bearer \xff")

odd_bytes = st.binary(max_size=12) | st.sampled_from([b"\xff", b"%", b"%ff", b"%00", b"..", b"//", b"?", b"#", b"\t"])
methods = st.sampled_from(METHODS) | st.from_regex(rb"[A-Z]{1,12}", fullmatch=True) | odd_bytes
paths = st.sampled_from(ROUTES) | st.builds(bytes.__add__, st.sampled_from((*ROUTES, b"/", b"")), odd_bytes)
targets = st.builds(bytes.__add__, paths, st.just(b"") | st.builds(b"?".__add__, odd_bytes))
odd_headers = st.lists(st.tuples(st.sampled_from(HEADERS) | odd_bytes, st.sampled_from(VALUES) | odd_bytes), max_size=4)
contents = st.sampled_from([b"", json.dumps({**BASE, "prompt": "x"}).encode(), b"5\r\nhello\r\n0\r\n\r\n"]) | odd_bytes


@pytest.fixture(scope="module")
def hasty(tiny_config: EngineConfig, tiny_model: LoadedModel) -> Iterator[Running]:
    """A server that does not wait long for what never comes."""
    config = ServeConfig(port=0, served_model_name=MODEL, access_log=False, head_timeout_s=0.1, body_timeout_s=0.1)
    with running(tiny_config, config, tiny_model) as started:
        yield started


def check_answers(received: bytes, method: bytes) -> None:
    """Answers on one connection: each has a status that blames the client, if any side, and errors have their shape."""
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        status = int(lines[0].split()[1])
        if status == 100:
            received = rest
            continue
        assert 200 <= status < 500, received
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), None)
        if length is None:
            return  # a stream
        if method == b"HEAD" and not rest.startswith(b"{"):
            length = 0
        if status >= 400 and length:
            assert set(json.loads(rest[:length])["error"]) == {"message", "type", "param", "code"}
        received = rest[length:]


@settings(max_examples=100, suppress_health_check=CHECKS)
@given(method=methods, target=targets, headers=odd_headers, content=contents)
@example(method=b"GET", target=b"/x?\xff", headers=[], content=b"")
@example(method=b"GET", target=b"/v1/models/?\xff", headers=[], content=b"")
@example(method=b"OPTIONS", target=b"*", headers=[], content=b"")
@example(method=b"GET", target=b"/v1/models/%ff%00", headers=[], content=b"")
@example(method=b"POST", target=b"/v1/completions", headers=[(b"authorization", b"Bearer \xff\xfe")], content=b"{}")
@example(method=b"POST", target=b"/health", headers=[(b"connection", b"upgrade"), (b"upgrade", b"h2c")], content=b"{}")
def test_requests_of_any_kind(hasty: Running, method: bytes, target: bytes, headers: list, content: bytes):
    lines = [b"%s %s HTTP/1.1" % (method, target), *(b"%s: %s" % header for header in headers), b"connection: close"]
    if not any(name in (b"content-length", b"transfer-encoding") for name, _ in headers):
        lines.append(b"content-length: %d" % len(content))
    check_answers(hasty.raw(b"\r\n".join([*lines, b"", b""]) + content), method)


@settings(max_examples=60, suppress_health_check=CHECKS)
@given(sent=st.binary(min_size=1, max_size=300))
def test_bytes_of_any_kind(hasty: Running, sent: bytes):
    check_answers(hasty.raw(sent), b"")


def test_bodies_that_are_meant_to_hurt(server: Running):
    deep = "[" * 900 + "]" * 900
    for content in (
        "[" * 100_000,
        json.dumps({**BASE, "messages": CHAT})[:-1] + f', "stop": {deep}}}',
        json.dumps({**BASE, "messages": CHAT})[:-1] + ', "seed": ' + "9" * 400 + "}",
        json.dumps({**BASE, "messages": CHAT})[:-1] + ', "temperature": NaN}',
        json.dumps({**BASE, "messages": [{"role": "user", "content": "\ud800"}]}),
        json.dumps({**BASE, "messages": [{"role": "user", "content": "\x00" * 50}]}),
        json.dumps({**BASE, "messages": CHAT})[:-1]
        + ', "tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f", "parameters": '
        + '{"a":' * 900
        + "1"
        + "}" * 903
        + "]}",
    ):
        answers_properly(server, "/v1/chat/completions", content.encode())
    server.wait_until_idle()


@settings(max_examples=150)
@given(body=bodies(messages=messages) | anything)
def test_a_body_is_understood_or_refused_with_a_reason(body: object):
    refusals: list[ApiError] = []
    for kind in (*KINDS, TokenizeBody, DetokenizeBody):
        try:
            parsed = parse(json.dumps(body).encode(), kind)
            if isinstance(parsed, GenerationBody):
                parsed.sampling(5), parsed.prompts()
        except (ApiError, RequestError) as error:
            refusals.append(as_api_error(error))
    for refusal in refusals:
        assert 400 <= refusal.status < 500
        problem, place = str(refusal), refusal.param
        assert problem and not any(
            word in problem for word in ("(text)", "(list)", "function-", "list[", "instance of")
        )
        if place is not None and "." not in "".join(names_in(body)):
            *outer, _ = place.split(".")
            inside = body
            for name in outer:  # it is a place in the body, or a field that is missing there
                inside = inside[int(name) if isinstance(inside, list) else name]


def names_in(value: Any) -> list[str]:
    if isinstance(value, list):
        return [name for one in value for name in names_in(one)]
    return [*value, *names_in(list(value.values()))] if isinstance(value, dict) else []
