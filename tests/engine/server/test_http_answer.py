"""What an application sends, as bytes on an HTTP/1.1 connection; and what becomes of an application that fails."""

import asyncio
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from minillm.server.errors import ApiError
from minillm.server.http_answer import HttpAnswer

WHOLE = [(b"content-length", b"2")]


class Wire(asyncio.Transport):
    """Takes all bytes immediately."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.is_closed = b"", False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def resume_reading(self) -> None:
        pass


class Line:
    """A connection that notes what it is told."""

    default_headers = ((b"date", b"today"),)

    def __init__(self) -> None:
        self.transport: Any = Wire()
        self.writable = asyncio.Event()
        self.writable.set()
        self.num_ended = 0
        self.refused: list[int] = []

    def answer_ended(self) -> None:
        self.num_ended += 1

    def refuse(self, error: ApiError) -> None:
        self.refused.append(error.status)


def answered(app: ASGIApp, method: str = "GET", version: str = "1.1") -> Line:
    async def run() -> Line:
        line = Line()
        answer = HttpAnswer(line, {"http_version": version, "method": method}, keep_alive=True, expects_continue=False)
        answer.feed_end()
        await answer.run(app)
        return line

    return asyncio.run(run())


def sends(*pieces: bytes, status: int = 200, headers: list[tuple[bytes, bytes]] | None = None) -> ASGIApp:
    """An application that sends these pieces, and then the end."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        messages: list[Message] = [{"type": "http.response.start", "status": status, "headers": headers or []}]
        messages += [{"type": "http.response.body", "body": piece, "more_body": True} for piece in pieces]
        for message in [*messages, {"type": "http.response.body"}]:
            await send(message)

    return app


@pytest.mark.parametrize(
    ("app", "request_line", "head", "body"),
    [
        pytest.param(sends(b"ab", headers=WHOLE), {}, b"content-length: 2", b"ab", id="whole"),
        pytest.param(
            sends(b"ab", b"", b"c"),
            {},
            b"transfer-encoding: chunked",
            b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
            id="in pieces",
        ),
        pytest.param(sends(b"ab", b"c"), {"version": "1.0"}, b"connection: close", b"abc", id="HTTP/1.0"),
        pytest.param(sends(b"ab", headers=WHOLE), {"method": "HEAD"}, b"content-length: 2", b"", id="HEAD"),
        pytest.param(sends(status=204), {}, b"date: today", b"", id="without a body"),
    ],
)
def test_an_answer_is_framed(app: ASGIApp, request_line: dict[str, str], head: bytes, body: bytes) -> None:
    line = answered(app, **request_line)
    first, _, rest = line.transport.written.partition(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 20") and head in first.split(b"\r\n") and rest == body
    assert b"chunked" in first or b"chunked" not in head
    assert line.num_ended == 1 and not line.refused


async def _leaves(scope: Scope, receive: Receive, send: Send) -> None:
    """It answers nothing."""


@pytest.mark.parametrize(
    "app",
    [
        pytest.param(_leaves, id="leaves"),
        pytest.param(sends(headers=[(b"x", b"y\r\nz: injected")]), id="a header that is two"),
        pytest.param(sends(headers=[(b"content-length", b"many")]), id="a length that is none"),
    ],
)
def test_an_application_that_fails_before_its_answer_gets_the_client_an_error(app: ASGIApp) -> None:
    line = answered(app)
    assert line.refused == [500] and line.transport.written == b"" and line.num_ended == 0


@pytest.mark.parametrize("body", [b"abc", b"a"], ids=["longer than announced", "shorter"])
def test_an_answer_of_another_length_than_announced_is_cut_off(body: bytes) -> None:
    line = answered(sends(body, headers=WHOLE))
    assert line.transport.is_closed and not line.num_ended and not line.refused
