"""What one connection may cost: too long, too large, too slow, too many. Raw sockets, since clients behave too well."""

import asyncio
import json
import resource
import socket
import sys
from collections.abc import Callable
from typing import Any

import pytest
from patience import PATIENCE_S, wait_for
from server.running import CHAT, GREEDY, MODEL, Running, Serve

from minillm.core.errors import ConfigError
from minillm.server import endpoint
from minillm.server.connection import Wait
from minillm.server.server import make_room

POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
GET = b"GET /health HTTP/1.1\r\nhost: x\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"


def refusal(answer: bytes) -> tuple[int, str]:
    """Status and code of an answer that is an error in OpenAI's shape, on a connection that was then closed."""
    head, _, body = answer.partition(b"\r\n\r\n")
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert b"connection: close" in head and b"content-type: application/json" in head
    return int(head.split()[1]), error["code"]


def is_well(server: Running, expected: Callable[..., str]) -> bool:
    """Others notice nothing."""
    answer = server.client().chat.completions.create(model=MODEL, messages=CHAT, **GREEDY)
    return answer.choices[0].message.content == expected()


TOO_MUCH = {
    "a long URL": (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n", 414, "url_too_long"),
    "a URL without end": (b"GET /" + b"x" * 300_000, 414, "url_too_long"),
    "a long query": (b"GET /health?" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n", 414, "url_too_long"),
    "a large header": (GET + b"x: " + b"y" * 70_000 + b"\r\n\r\n", 431, "headers_too_large"),
    "many headers": (GET + b"x: y\r\n" * 40_000 + b"\r\n", 431, "headers_too_large"),
    "a header without end": (GET + b"x: " + b"y" * 600_000, 431, "headers_too_large"),
    "a header's name without end": (GET + b"y" * 600_000, 431, "headers_too_large"),
    "large trailers": (CHUNKED + b"0\r\n" + b"x: y\r\n" * 40_000, 431, "headers_too_large"),
    "a trailer without end": (CHUNKED + b"0\r\nx: " + b"y" * 600_000, 431, "headers_too_large"),
    "a chunk's extension without end": (CHUNKED + b"5;x=" + b"y" * 600_000, 431, "headers_too_large"),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 40, 400, "invalid_http"),
    "a path that is no text": (b"GET /\xff HTTP/1.1\r\n\r\n", 400, "invalid_http"),
    "a length that is none": (POST + b"content-length: many\r\n\r\n", 400, "invalid_http"),
}


@pytest.mark.parametrize(("payload", "status", "code"), TOO_MUCH.values(), ids=TOO_MUCH)
def test_what_is_too_much_is_refused_while_it_is_read(server: Running, payload: bytes, status: int, code: str):
    before = server.metric("http_requests_total", status=str(status), outcome=code)
    assert refusal(server.raw(payload)) == (status, code)
    assert server.metric("http_requests_total", status=str(status), outcome=code) == before + 1


def test_what_is_just_small_enough_is_served(server: Running, expected: Callable[..., str]):
    head = b"GET /health?" + b"q" * 8100 + b" HTTP/1.1\r\nconnection: close\r\n" + b"x: " + b"y" * 60_000 + b"\r\n\r\n"
    assert server.raw(head).startswith(b"HTTP/1.1 200")
    assert is_well(server, expected)


def test_a_head_that_comes_too_slowly(serve: Serve):
    server = serve(head_timeout_s=0.2)
    for part in (b"G", b"GET /health HTTP/1.1\r\n", GET + b"x: y"):
        assert refusal(server.raw(part, at_once=True)) == (408, "head_timeout")
    assert server.raw(b"") == server.raw(b"\r\n") == b"", "who asks for nothing gets nothing"
    first = server.raw(GET + b"\r\n", after=b"}", then=GET, at_once=True)  # on a connection that is kept alive as well
    assert first.startswith(b"HTTP/1.1 200") and refusal(first[first.rindex(b"HTTP/1.1") :]) == (408, "head_timeout")
    assert server.raw(GET + b"connection: close\r\n\r\n", at_once=True).startswith(b"HTTP/1.1 200"), "others get theirs"


def test_the_rest_of_a_request_that_was_answered_is_not_waited_for_for_ever(serve: Serve):
    server = serve(head_timeout_s=0.2)
    short = b"POST /nowhere HTTP/1.1\r\ncontent-length: 9\r\n\r\n"
    answer = server.raw(short, after=b"}", then=b"x", at_once=True)
    assert answer.startswith(b"HTTP/1.1 404") and answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("pieces", [(b"xyz",), (b"x", b"y", b"z")], ids=len)
def test_after_the_rest_of_a_request_that_was_answered_the_connection_is_idle(serve: Serve, pieces: tuple[bytes, ...]):
    """Not for the time that a head or a body has, but as long as any other; then it may be used again."""
    server = serve(head_timeout_s=600)

    def waits_for(wanted: Wait) -> bool:
        """Whether the only connection waits for that."""

        async def look() -> list[Wait | None]:
            return [connection.waits_for for connection in server.server.server_state.connections]

        return asyncio.run_coroutine_threadsafe(look(), server.loop).result(PATIENCE_S) == [wanted]

    with server.connect() as sock:
        sock.sendall(b"POST /nowhere HTTP/1.1\r\ncontent-length: 3\r\n\r\n")
        assert sock.recv(65_536).startswith(b"HTTP/1.1 404")
        for piece in pieces[:-1]:
            sock.sendall(piece)
            wait_for(lambda: waits_for(Wait.REST), "the rest is waited for")
        sock.sendall(pieces[-1])
        wait_for(lambda: waits_for(Wait.IDLE), "the connection is idle")
        sock.sendall(GET)
        wait_for(lambda: waits_for(Wait.HEAD), "a head is waited for")
        sock.sendall(b"\r\n")
        assert sock.recv(65_536).startswith(b"HTTP/1.1 200")


def test_one_connection_too_many(serve: Serve):
    server = serve(max_connections=2)
    with server.connect() as first:
        first.sendall(GET + b"\r\n")
        assert first.recv(4096).startswith(b"HTTP/1.1 200")
        with server.connect() as second:
            second.sendall(GET + b"\r\n")
            assert second.recv(4096).startswith(b"HTTP/1.1 200")
            for _ in range(3):
                refused = server.raw(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
                assert refusal(refused) == (503, "too_many_connections") and b"retry-after: 1" in refused
                assert server.raw(GET + b"\r\n").startswith(b"HTTP/1.1 200"), "the process is well, and says so"
            assert refusal(server.raw(b"")) == (503, "too_many_connections"), "it has a second to say what it wants"
            waiting = server.raw(b"GET /ready HTTP/1.1\r\nhost: x\r\n\r\n")
            assert refusal(waiting) == (503, "too_many_connections") and b"retry-after: 1" in waiting
            first.sendall(GET + b"\r\n")  # who is in notices nothing
            assert first.recv(4096).startswith(b"HTTP/1.1 200")
        wait = server.raw(GET + b"connection: close\r\n\r\n")
        assert wait.startswith((b"HTTP/1.1 200", b"HTTP/1.1 503"))  # the server may not know yet that one has left
    again = GET + b"connection: close\r\n\r\n"
    wait_for(lambda: server.raw(again).startswith(b"HTTP/1.1 200"), "connections get in again")


def request(body: dict) -> bytes:
    content = json.dumps({"model": MODEL, "messages": CHAT, "ignore_eos": True, **body}).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(content) + content


BEHIND = {"a request": request({"max_tokens": 400}), "the beginning of one": GET, "nonsense": b"nonsense\r\n\r\n"}


@pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND)
def test_a_client_that_leaves_with_more_behind_its_request(serve: Serve, behind: bytes):
    server = serve()
    with server.connect() as sock:
        sock.sendall(request({"max_tokens": 400}) + behind)
        server.wait_until(lambda engine: len(engine.scheduler.running) == 1)
    server.wait_until_idle()
    assert server.metric("http_requests_total", outcome="disconnected") == 1
    assert server.metric("http_requests_total", outcome="ok") == 0


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND)
def test_what_comes_before_the_answer_is_out_never_stands_in_it(serve: Serve, stream: bool, behind: bytes):
    """It is not read: there is no pipelining. The connection ends with the answer."""
    server = serve()
    with server.connect() as sock:
        sock.sendall(request({"max_tokens": 60, "stream": stream}) + behind)
        answer = b"".join(iter(lambda: sock.recv(65_536), b""))
    server.wait_until_idle()
    assert answer.startswith(b"HTTP/1.1 200") and answer.count(b"HTTP/1.1") == 1 and b"error" not in answer
    assert b"[DONE]" in answer if stream else b'"completion_tokens":60' in answer
    assert server.metric("http_requests_total") == server.metric("http_requests_total", outcome="ok") == 1


def test_room_for_connections_is_made_or_refused(monkeypatch: pytest.MonkeyPatch):
    limits = [(256, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: limits.append(both))
    make_room(100)
    assert limits == [(256, 4096)]
    make_room(1000)
    assert limits[-1] == (1128, 4096)
    with pytest.raises(ConfigError, match="lower --max-connections"):
        make_room(5000)


def test_where_there_is_no_limit_on_open_files_there_is_room(monkeypatch: pytest.MonkeyPatch):
    """Windows: Python has no module for it."""
    monkeypatch.setitem(sys.modules, "resource", None)
    make_room(10**9)


# -------------------------------------------------------------------- what is refused while its client is sending

MUCH = 5_000_000
LARGE = POST + b"content-length: %d\r\n\r\n" % MUCH
SLOW = POST + b"content-length: 5\r\n\r\n"


def answer_to_a_sender(server: Running, head: bytes, rest: bytes) -> bytes:
    """What a client reads that goes on sending after the answer is there."""
    with server.connect() as sock:
        sock.sendall(head)
        assert sock.recv(1, socket.MSG_PEEK), "there must be an answer"
        for start in range(0, len(rest), 500_000):
            sock.sendall(rest[start : start + 500_000])
        sock.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: sock.recv(65_536), b""))


TOKENIZE = CHUNKED.replace(b"/v1/completions", b"/tokenize")
STILL_SENDING = {
    "a chunk that is none, to a handler that raises": (TOKENIZE + b"zz\r\n", b"x" * MUCH, 400, "invalid_http"),
    "announced": (LARGE, b"x" * MUCH, 413, "body_too_large"),
    "announced, in HTTP/1.0": (LARGE.replace(b"1.1", b"1.0"), b"x" * MUCH, 413, "body_too_large"),
    "in chunks": (CHUNKED + b"1e8480\r\n" + b"x" * 2_000_000, b"x" * MUCH, 413, "body_too_large"),
    "too slowly": (SLOW + b"x", b"x" * 4, 408, "body_timeout"),
    "headers": (GET + b"x: " + b"y" * 600_000, b"y" * MUCH, 431, "headers_too_large"),
    "in the name of nobody": (LARGE.replace(b"completions", b"nothing"), b"x" * MUCH, 404, None),
    "with the wrong method": (LARGE.replace(b"/v1/completions", b"/health"), b"x" * MUCH, 405, None),
}


@pytest.mark.parametrize(("head", "rest", "status", "code"), STILL_SENDING.values(), ids=STILL_SENDING)
def test_who_is_refused_while_it_sends_can_read_why(serve: Serve, head: bytes, rest: bytes, status: int, code: str):
    server = serve(body_timeout_s=0.2 if code == "body_timeout" else PATIENCE_S)
    answer = answer_to_a_sender(server, head, rest)
    if code is None:
        assert answer.startswith(b"HTTP/1.1 %d" % status)
    else:
        assert refusal(answer) == (status, code)
    wait_for(lambda: not server.num_connections(), "the connection isn't kept")


def test_nothing_is_asked_for_or_said_once_a_request_is_refused_or_answered(serve: Serve):
    server = serve()
    expecting = CHUNKED.replace(b"\r\n\r\n", b"\r\nexpect: 100-continue\r\n\r\n")
    assert refusal(server.raw(expecting + b"zz\r\n")) == (400, "invalid_http")
    assert server.metric("http_requests_total", outcome="disconnected") == 1, "and the handler learns that it is over"
    answered = CHUNKED.replace(b"completions", b"nothing")
    answer = server.raw(answered, after=b"}", then=b"zz\r\n")
    assert answer.startswith(b"HTTP/1.1 404") and answer.count(b"HTTP/1.1") == 1


UPGRADE = b"connection: upgrade\r\nupgrade: h2c\r\n"


def test_nothing_is_upgraded_and_no_request_hides_in_a_body(server: Running):
    hidden = GET + b"\r\n"
    for head in (b"content-length: %d\r\n\r\n" % len(hidden), b"transfer-encoding: chunked\r\n\r\n"):
        answer = server.raw(POST + UPGRADE + head + hidden)
        assert refusal(answer) == (400, "invalid_http") and answer.count(b"HTTP/1.1") == 1
    answer = server.raw(GET + UPGRADE + b"\r\n" + hidden)
    assert answer.startswith(b"HTTP/1.1 200") and b"connection: close" in answer and answer.count(b"HTTP/1.1") == 1


def test_a_body_is_not_asked_for_in_order_to_refuse_it(server: Running):
    answer = server.raw(LARGE.replace(b"\r\n\r\n", b"\r\nexpect: 100-continue\r\n\r\n"))
    assert refusal(answer) == (413, "body_too_large") and b"100 Continue" not in answer
    missing = POST.replace(b"completions", b"nothing") + b"expect: 100-continue\r\ncontent-length: 5\r\n\r\n"
    answer = server.raw(missing, after=b"}", then=GET + b"\r\n")  # no server can tell a body from the next request
    assert answer.startswith(b"HTTP/1.1 404") and b"connection: close" in answer and answer.count(b"HTTP/1.1") == 1


def test_a_refused_client_that_never_stops_is_cut(serve: Serve, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("minillm.server.connection.LONGEST_LINGER_S", 0.2)
    server = serve()
    with server.connect() as sock, pytest.raises((ConnectionResetError, BrokenPipeError)):
        sock.sendall(LARGE)
        while True:
            sock.sendall(b"x" * 1000)


# -------------------------------------------------------------------- HTTP/1.0


@pytest.mark.parametrize("logprobs", [False, True], ids=["past ASGI", "through ASGI"])
def test_a_stream_for_http_1_0_ends_with_the_connection(server: Running, logprobs: bool):
    sent = request({"max_tokens": 40, "stream": True, "temperature": 0, "logprobs": logprobs})
    assert b"transfer-encoding: chunked" in server.raw(sent.replace(b"\r\n", b"\r\nconnection: close\r\n", 1))
    head, _, events = server.raw(sent.replace(b"HTTP/1.1", b"HTTP/1.0")).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head and b"connection: close" in head
    lines = events.split(b"\n")
    assert all(line == b"" or line.startswith(b"data: ") for line in lines) and events.endswith(b"data: [DONE]\n\n")
    texts = [json.loads(line[6:])["choices"][0]["delta"]["content"] for line in lines if b'"delta"' in line]
    assert len(texts) > 1 and len(lines) == 2 * (len(texts) + 1) + 1, "none is lost, none is merged with a length"


@pytest.mark.parametrize("keep", [b"", b"connection: keep-alive\r\n", b"expect: 100-continue\r\n"], ids=str)
def test_whole_answers_for_http_1_0(server: Running, keep: bytes):
    for sent in (request({"max_tokens": 3}), request({"max_tokens": 0}), GET + b"\r\n"):
        head, _, body = server.raw(sent.replace(b"HTTP/1.1\r\n", b"HTTP/1.0\r\n" + keep)).partition(b"\r\n\r\n")
        length = int(head.partition(b"content-length: ")[2].split()[0])
        assert len(body) == length and json.loads(body) and b"transfer-encoding" not in head


def test_an_answer_is_counted_before_its_last_byte_can_be_read(serve: Serve, monkeypatch: pytest.MonkeyPatch):
    """Otherwise a client that reads it and asks for the metrics may come too early, or finds its slot taken."""
    server, told = serve(), []
    send_last = endpoint.send_last

    async def observed(*args: Any) -> None:
        await send_last(*args)
        asyncio.get_running_loop().call_soon(told.append, "the loop turns")

    monkeypatch.setattr(endpoint, "send_last", observed)
    monkeypatch.setattr("minillm.server.wire.send_last", observed)
    server.service.observers = (
        *server.service.observers,
        lambda call: told.append(server.service.limiter.num_sequences),
    )
    for stream in (True, False):
        server.raw(request({"max_tokens": 3, "stream": stream}).replace(b"HTTP/1.1", b"HTTP/1.0"))
        server.wait_until_idle()
    assert told == [0, "the loop turns"] * 2
