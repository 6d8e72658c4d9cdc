"""One HTTP/1.1 connection, from the moment it is made: how much a client may send, and how slowly it may send and read.

uvicorn's protocol reads request lines and headers of any size, for any time. Here each has a limit, and who goes
beyond it gets an error in OpenAI's shape and is closed; no other request notices. Bodies have their limits in wire.py.

    made --- head (MAX_URL_BYTES, MAX_HEAD_BYTES, head_timeout_s) --- body, answer --- idle (keep-alive) --- head ...

There is no pipelining: what comes behind a request that is not answered yet is not read, and the connection ends with
the answer. A client that closes its own half after a request (`nc -N`) has left, and its request ends: one that was
killed closes the same half.

A connection that ends while its client is sending isn't closed at once, which would reset it: many clients would never
read why. It lingers: half closed, and whatever comes is read and dropped, until the client is silent or closes, too
(nginx's lingering_close).
"""

import asyncio
import socket
import sys
import time
import uuid
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from minillm.core.timeline import Clock
from minillm.server.calls import Call
from minillm.server.config import ServeConfig
from minillm.server.cors import cors_headers
from minillm.server.errors import ApiError
from minillm.server.wire import CONNECTION, SLOW_READER

MAX_URL_BYTES = 8 * 1024
MAX_HEAD_BYTES = 64 * 1024
SOCKET_SEND_BUFFER = 64 * 1024
"""Bytes the operating system keeps for a reader that lags. Its own choice grows to megabytes."""
PROBES = (b"/health", b"/ready", b"/metrics")
"""Answered beyond the limit on connections, too: a server with all the clients that it can have is alive."""
RESERVED = 32
"""So many connections beyond the limit may say, within a second, that they are a probe."""
LINGER_S = 2
"""A client that was told that the connection ends may be silent for so long."""
LONGEST_LINGER_S = 30
"""And it may go on sending for so long."""


class Backend(Protocol):
    """What connections lead to, as far as their server has to know."""

    serve: ServeConfig
    num_connections: Callable[[], int]
    draining: bool

    @property
    def clock(self) -> Clock: ...

    def close(self, call: Call) -> None:
        """A call is over."""

    def check_alive(self) -> None:
        """Raise EngineDeadError if nothing can be served any more."""

    def abort_all(self) -> None:
        """End all requests: the time to drain is over."""


class BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 with limits, and without a user-space send buffer: a send is over when the operating system has the
    bytes before it.

    So the stream phase can end when the last byte is accepted, and a slow reader holds up 64 KiB and no more.

    Args:
        service: its limits hold, and it is told about each request that is refused here.
        uvicorn: what uvicorn gives to each connection.
    """

    def __init__(self, service: Backend, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._service = service
        self._limits = service.serve
        self._is_deaf = False
        """Nothing is read any more: a request was refused, or came before the answer to the last one was out."""
        self._is_lingering = False
        """Nothing is written any more, either."""
        self._in_head = self._in_body = self._is_beyond = False
        self._unparsed = 0
        """Bytes that have come since a request began, or since the last piece of its body: its head, or trailers."""
        self._patience: asyncio.TimerHandle | None = None
        """Runs while the client is waited for: for a head, for the rest of a request that was answered already, or for
        it to stop sending."""
        self._rest_until = 0.0
        """When what it sends is no longer waited for, of a request that was answered or refused; the loop's clock."""
        self._stalled: asyncio.TimerHandle | None = None
        """Runs while the client takes nothing."""

    # ---------------------------------------------------------------- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.set_write_buffer_limits(high=0)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_SEND_BUFFER)
        super().connection_made(transport)
        self._is_beyond = len(self.connections) > self._limits.max_connections
        if len(self.connections) > self._limits.max_connections + RESERVED:
            self._refuse(self._too_many())
        else:
            patience = min(1, self._limits.head_timeout_s) if self._is_beyond else self._limits.head_timeout_s
            self._patience = self.loop.call_later(patience, self._lose_patience)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            if self._is_lingering:
                self._wait_for_rest(LINGER_S)
            return
        self._unparsed += len(data)
        super().data_received(data)
        if self._is_deaf:
            return
        if self._unparsed > MAX_URL_BYTES + MAX_HEAD_BYTES:
            self._refuse(head_too_large())
        elif not self._is_answering and self._in_body:
            self._wait_for_rest(self._limits.head_timeout_s)
        elif not self._is_answering and self._patience is None and (self._in_head or self._unparsed):
            self._patience = self.loop.call_later(self._limits.head_timeout_s, self._lose_patience)

    def send_400_response(self, msg: str) -> None:
        """uvicorn calls it where the parser fails, or one of its callbacks below raises."""
        error = sys.exception()
        cause = None if error is None else error.__context__
        if self._is_answering and not self.cycle.more_body:  # behind a whole request: that is answered first
            self._is_deaf = True
            self.shutdown()
        else:
            self._refuse(
                cause if isinstance(cause, ApiError) else ApiError(400, "the request is not valid HTTP", "invalid_http")
            )

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self._limits.reader_timeout_s, self._cut_slow_reader)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()

    def _cut_slow_reader(self) -> None:
        if self.scope is not None:
            self.scope["extensions"] = {SLOW_READER: {}}
        self.transport.abort()

    # ---------------------------------------------------------------- past ASGI, where a token passes four coroutines

    @property
    def lags(self) -> bool:
        """What is written now would have to wait, or would never be read."""
        return self.flow.write_paused or self.cycle.disconnected

    def write_chunk(self, body: bytes) -> None:
        """A piece of a stream that has begun, as uvicorn's `send` would write it. Not while it lags."""
        if not body:  # an empty chunk would end the answer
            return
        self.transport.write(b"%x\r\n%b\r\n" % (len(body), body) if self.cycle.chunked_encoding else body)

    # ---------------------------------------------------------------- the parser's news

    def on_message_begin(self) -> None:
        if self._is_answering:
            raise ApiError(400, "a request came before the answer to the last one was out", "pipelined")
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[literal-required]
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > MAX_URL_BYTES:
            raise ApiError(414, f"the URL is longer than {MAX_URL_BYTES} bytes: shorten it", "url_too_long")

    def on_headers_complete(self) -> None:
        if sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            raise head_too_large()
        if self._is_beyond and self.url not in PROBES:
            raise self._too_many()
        self._in_head, self._in_body, self._unparsed = False, True, 0
        self._stop_waiting()
        super().on_headers_complete()
        if self._is_beyond:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body, self._unparsed = False, 0
        super().on_message_complete()
        if self.cycle.response_complete:  # it was answered before it was whole, and from now on the connection is idle
            self._stop_waiting()
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    # ---------------------------------------------------------------- the answer

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:  # type: ignore[override]
        """uvicorn calls it with each request."""
        is_old = cycle.scope["http_version"] < "1.1"
        if is_old:  # it ends with the answer, and nothing is promised before
            cycle.keep_alive = cycle.waiting_for_100_continue = False

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            async def send_framed(message: Message) -> None:
                if is_old:
                    until_close(cycle, message)
                await self._send(cycle, send, message)

            await app(scope, receive, send_framed)

        super()._start_asgi_task(cycle, answer)  # type: ignore[arg-type]

    async def _send(self, cycle: RequestResponseCycle, send: Send, message: Message) -> None:
        """As uvicorn's `send`, which would close a connection that ends with the answer, whatever still comes."""
        begins = message["type"] == "http.response.start"
        ends = not begins and not message.get("more_body", False)
        if begins and cycle.waiting_for_100_continue:
            cycle.keep_alive = False  # what comes next may be the body, or another request
        lingers = ends and not cycle.keep_alive and (self._in_body or self._is_deaf)
        if lingers:
            cycle.keep_alive = True
        await send(message)
        if lingers and not cycle.disconnected:
            self._linger()
        elif ends:
            self._rest_until = self.loop.time() + LONGEST_LINGER_S

    # ---------------------------------------------------------------- refusing

    @property
    def _is_answering(self) -> bool:
        """An answer is under way. Otherwise it is the client's turn."""
        return self.cycle is not None and not self.cycle.response_complete

    def _too_many(self) -> ApiError:
        """This one, which counts no longer, is beyond the limit, and no probe."""
        self.connections.discard(self)
        limit = self._limits.max_connections
        message = f"{limit} connections are open, and that is the limit: try later, or use them again"
        return ApiError(503, message, "too_many_connections")

    def _lose_patience(self) -> None:
        if self._is_lingering:
            self.transport.abort()
        elif self._is_beyond and not self._is_answering:
            self._refuse(self._too_many())
        elif self._in_head:
            seconds = self._limits.head_timeout_s
            self._refuse(ApiError(408, f"the headers did not come within {seconds:g} s", "head_timeout"))
        else:
            self.transport.abort()  # it asked for nothing, or has its answer

    def _refuse(self, error: ApiError) -> None:
        """Close the connection, with an error if the client can read one: no answer has begun. It is logged and
        counted as any request is."""
        self._is_deaf = True
        self._cancel_timers()
        caller = self.client[0] if self.client else None
        now = self._service.clock.now()
        call = Call("http-" + uuid.uuid4().hex, "", False, now, time.time(), caller=caller)
        call.status, call.error_code = error.status, error.code
        self._service.close(call)
        if self._is_answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.close()
                return
        self.transport.write(raw_answer(error, cors_headers(self.headers or (), self._limits.cors_origin)))
        self._linger()

    def _linger(self) -> None:
        """The answer is out, and the connection ends with it: once the client has stopped sending."""
        self._is_deaf = self._is_lingering = True
        self._cancel_timers()
        self.transport.write_eof()
        self.flow.resume_reading()
        is_short = self._is_beyond or self._service.draining
        self._rest_until = self.loop.time() + (LINGER_S if is_short else LONGEST_LINGER_S)
        self._wait_for_rest(LINGER_S)

    def _wait_for_rest(self, silence_s: float) -> None:
        """Bear what the client sends of a request that was answered or refused, and that it is silent for so long."""
        self._stop_waiting()
        left = self._rest_until - self.loop.time()
        self._patience = self.loop.call_later(min(silence_s, left), self._lose_patience)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _cancel_timers(self) -> None:
        for timer in filter(None, (self._patience, self._stalled, self.timeout_keep_alive_task)):
            timer.cancel()
        self._patience = self._stalled = self.timeout_keep_alive_task = None


def head_too_large() -> ApiError:
    """431."""
    return ApiError(431, f"the headers are larger than {MAX_HEAD_BYTES} bytes: send fewer", "headers_too_large")


def until_close(cycle: RequestResponseCycle, message: Message) -> None:
    """Prepare uvicorn's framing for HTTP/1.0, which knows no chunks: an answer of unknown length ends with the
    connection."""
    if message["type"] != "http.response.start":
        cycle.expected_content_length = len(message.get("body", b""))
    elif b"content-length" not in dict(message["headers"]):
        cycle.chunked_encoding = False


def raw_answer(error: ApiError, more: dict[str, str]) -> bytes:
    """A whole HTTP/1.1 response with some more headers, after which the connection is closed."""
    headers = {**error.headers, **more, "content-length": str(len(error.body)), "connection": "close"}
    lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + error.body
