"""One request and its answer on an HTTP/1.1 connection, as its ASGI application sees them: what it receives and sends.

head in --- http.request ... (the body) --- http.response.start --- http.response.body ... --- ended
"""

import asyncio
import logging
import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Scope

from minillm.server.errors import INTERNAL_ERROR, ApiError

if TYPE_CHECKING:
    from minillm.server.connection import BoundedProtocol

logger = logging.getLogger(__name__)

READ_AHEAD = 64 * 1024
"""Bytes of a body that the application has not asked for yet: beyond it, no more is read from the connection."""
UNFIT_FOR_A_HEADER = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
WITHOUT_BODY = (204, 304)

Headers = Iterable[tuple[bytes, bytes]]


class HttpAnswer:
    """The answer to one request, and the request's body as it comes.

    Args:
        line: the connection.
        scope: the request's head.
        keep_alive: the client wants to use the connection again.
        expects_continue: the client sends its body only when it is asked for it.
    """

    def __init__(self, line: "BoundedProtocol", scope: Scope, keep_alive: bool, expects_continue: bool) -> None:
        is_old = scope["http_version"] < "1.1"  # it ends with the answer, and nothing is promised before
        self.scope = scope
        self.keep_alive = keep_alive and not is_old
        self.has_begun = self.has_ended = False
        self.is_gone = False
        """The client has left: the answer is read no more."""
        self.is_chunked = False
        """Each piece is sent with its length before it: the length of the whole isn't known at the start."""
        self.body_is_whole = False
        self._line = line
        self._is_old = is_old
        self._expects_continue = expects_continue and not is_old
        self._body = bytearray()
        self._news = asyncio.Event()
        """Set when more of the body has come, or the client has left."""
        self._left: int | None = None
        """Bytes still to be sent, where the length was announced."""

    async def run(self, app: ASGIApp) -> None:
        """Have the application answer. What it leaves undone ends the connection."""
        try:
            await app(self.scope, self.receive, self.send)
            if not self.has_ended and not self.is_gone:
                raise RuntimeError("the application has left before its answer was whole")
        except asyncio.CancelledError:
            self._give_up()
            raise
        except Exception:
            logger.exception("a request failed because of a bug")
            self._give_up()

    def _give_up(self) -> None:
        if self.is_gone:
            return  # the connection is lost, or lingers with a refusal that is still to be read
        if self.has_begun:
            self._line.transport.close()
        else:
            self._line.refuse(ApiError(500, "this server could not answer", INTERNAL_ERROR))

    # ---------------------------------------------------------------- the request's body

    def feed(self, piece: bytes) -> None:
        """A piece of the body has come."""
        if self.has_ended:
            return
        self._body += piece
        if len(self._body) > READ_AHEAD:
            self._line.transport.pause_reading()
        self._news.set()

    def feed_end(self) -> None:
        """The whole body has come."""
        self.body_is_whole = True
        self._news.set()

    def leave(self) -> None:
        """The client is gone."""
        self.is_gone = self.is_gone or not self.has_ended
        self._news.set()

    async def receive(self) -> Message:
        """ASGI: the next piece of the body, or that the client has left."""
        if self._expects_continue and not self.is_gone and not self._line.transport.is_closing():
            self._line.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._expects_continue = False
        if not self.is_gone and not self.has_ended:
            self._line.transport.resume_reading()
            await self._news.wait()
            self._news.clear()
        if self.is_gone or self.has_ended:
            return {"type": "http.disconnect"}
        piece, self._body = bytes(self._body), bytearray()
        return {"type": "http.request", "body": piece, "more_body": not self.body_is_whole}

    # ---------------------------------------------------------------- the answer

    async def send(self, message: Message) -> None:
        """ASGI: write the head, or a piece of the body, once the operating system has taken all before it."""
        if not self.is_gone:
            await self._line.writable.wait()
        if self.is_gone:
            return
        if message["type"] == "http.response.start" and not self.has_begun:
            self._begin(message["status"], [*self._line.default_headers, *message.get("headers", ())])
        elif message["type"] == "http.response.body" and self.has_begun and not self.has_ended:
            self.write(message.get("body", b""))
            if not message.get("more_body", False):
                self._end()
        else:
            raise RuntimeError(f"an ASGI message that can't come here: {message['type']!r}")

    def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        fields = {name.lower(): value for name, value in headers}
        if self._expects_continue or b"close" in fields.get(b"connection", b"").lower():
            # What comes after an answer that didn't wait for the body may be the body, or another request.
            self.keep_alive = self._expects_continue = False
        if not self.keep_alive and b"connection" not in fields:
            headers.append((b"connection", b"close"))
        if self.scope["method"] == "HEAD" or status in WITHOUT_BODY:
            self._left = 0
        elif b"content-length" in fields:
            self._left = int(fields[b"content-length"])
        elif not self._is_old:  # HTTP/1.0 knows no chunks: there, the answer ends with the connection
            self.is_chunked = True
            headers.append((b"transfer-encoding", b"chunked"))
        head = response_head(status, headers)
        self.has_begun = True
        self._line.transport.write(head)

    def write(self, body: bytes) -> None:
        """A piece of the body, of an answer that has begun."""
        if not body or self.scope["method"] == "HEAD":  # an empty chunk would end the answer
            return
        if self._left is not None:
            self._left -= len(body)
            if self._left < 0:
                raise RuntimeError("the answer is longer than its content-length")
        self._line.transport.write(b"%x\r\n%b\r\n" % (len(body), body) if self.is_chunked else body)

    def _end(self) -> None:
        if self._left:
            raise RuntimeError("the answer is shorter than its content-length")
        if self.is_chunked:
            self._line.transport.write(b"0\r\n\r\n")
        self.has_ended = True
        self._news.set()
        self._line.answer_ended()


def response_head(status: int, headers: Headers) -> bytes:
    """The status line and headers of an HTTP/1.1 response."""
    lines = [b"HTTP/1.1 %d %b" % (status, HTTPStatus(status).phrase.encode())]
    for name, value in headers:
        if UNFIT_FOR_A_HEADER.search(name + value):
            raise RuntimeError(f"a header can't be {name + b': ' + value!r}")
        lines.append(name.lower() + b": " + value)
    return b"\r\n".join([*lines, b"", b""])


def whole_response(error: ApiError, more: dict[str, str]) -> bytes:
    """An error as a whole HTTP/1.1 response with some more headers, after which the connection is closed."""
    headers = {**error.headers, **more, "content-length": str(len(error.body)), "connection": "close"}
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    return response_head(error.status, pairs) + error.body
