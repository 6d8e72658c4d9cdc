"""What one connection may cost: too long, too large, too slow, too many. Raw sockets, since clients behave too well."""

import json
import resource
import sys
import threading
from collections.abc import Callable

import pytest
from server.running import CHAT, GREEDY, MODEL, Running, Serve

from minillm.core.errors import ConfigError
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


def test_a_head_that_comes_too_slowly(serve: Serve, expected: Callable[..., str]):
    server = serve(head_timeout_s=0.2)
    for part in (b"G", b"GET /health HTTP/1.1\r\n", GET + b"x: y"):
        assert refusal(server.raw(part)) == (408, "head_timeout")
    assert server.raw(b"") == server.raw(b"\r\n") == b"", "who asks for nothing gets nothing"
    first = server.raw(GET + b"\r\n", after=b"}", then=GET)  # on a connection that is kept alive as well
    assert first.startswith(b"HTTP/1.1 200") and refusal(first[first.rindex(b"HTTP/1.1") :]) == (408, "head_timeout")
    assert is_well(server, expected)


def test_the_rest_of_a_request_that_was_answered_is_not_waited_for_for_ever(serve: Serve):
    server = serve(head_timeout_s=0.2)
    answer = server.raw(b"POST /nowhere HTTP/1.1\r\ncontent-length: 9\r\n\r\n", after=b"}", then=b"x")
    assert answer.startswith(b"HTTP/1.1 404") and answer.count(b"HTTP/1.1") == 1
    whole = b"POST /nowhere HTTP/1.1\r\ncontent-length: 1\r\n\r\n"  # if it comes, the connection can be used again
    again = server.raw(whole, after=b"}", then=b"x" + GET + b"connection: close\r\n\r\n")
    assert again.count(b"HTTP/1.1 200") == 1


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
    for _ in range(100):
        if server.raw(GET + b"connection: close\r\n\r\n").startswith(b"HTTP/1.1 200"):
            return
    raise AssertionError("no connection gets in any more")


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


def test_a_chunk_that_is_none_ends_its_request(serve: Serve):
    server = serve()
    assert refusal(server.raw(CHUNKED + b"no length")) == (400, "invalid_http")
    assert server.metric("http_requests_total", outcome="disconnected") == 1


def test_a_reader_of_metrics_that_takes_nothing_is_cut(serve: Serve, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("minillm.server.connection.SOCKET_SEND_BUFFER", 4096)
    server = serve(reader_timeout_s=0.2)
    with server.connect(receive_buffer=4096) as sock:
        sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        for _ in range(2000):
            if not server.num_connections():
                return
            threading.Event().wait(0.005)
    raise AssertionError("it is still connected")


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
