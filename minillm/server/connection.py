"""One HTTP/1.1 connection, from the moment it is made: how much of a request it may send, and how slowly.

uvicorn's protocol reads request lines and headers of any size, for any time. Here each has a limit, and who goes
beyond it gets an error in OpenAI's shape and is closed; no other request notices. Bodies have their limits in wire.py.

    made --- head (max_url_bytes, max_head_bytes, head_timeout_s) --- body, answer --- idle (keep-alive) --- head ...
"""

import asyncio
import socket
import time
import uuid
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from minillm.server.calls import Call
from minillm.server.errors import ApiError
from minillm.server.service import Service
from minillm.server.wire import CONNECTION

SOCKET_SEND_BUFFER = 64 * 1024
"""Bytes the operating system keeps for a reader that lags. Its own choice grows to megabytes."""
LINGER_S = 2
"""A refused client may go on sending for so long. Closing at once would reset the connection, and it would not read
why it was refused (as nginx's lingering_close)."""
LAST_RESORT_S = 5
"""After the time that a reader has: answers that do not watch their reader themselves are cut."""


class BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 with limits, and without a user-space send buffer: a send is over when the operating system has the
    bytes before it.

    So the stream phase can end when the last byte is accepted, and a slow reader holds up 64 KiB and no more.

    Args:
        service: its limits hold, and it is told about each request that is refused here.
        uvicorn: what uvicorn gives to each connection.
    """

    def __init__(self, service: Service, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._service = service
        self._limits = service.serve
        self._answering: RequestResponseCycle | None = None
        """The newest request that the application got; with pipelining, `cycle` may be a later one."""
        self._refused = False
        self._in_head = False
        self._head_bytes = 0
        """Of this request's headers, trailers too."""
        self._unparsed = 0
        """Bytes since the parser had something to tell: the part of a header, say, that has come so far."""
        self._patience: asyncio.TimerHandle | None = None
        """Runs while the client is waited for: for a head, or for the rest of a request that was answered already."""
        self._stalled: asyncio.TimerHandle | None = None
        """Runs while the client takes nothing."""

    # ---------------------------------------------------------------- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.set_write_buffer_limits(high=0)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_SEND_BUFFER)
        super().connection_made(transport)
        limit = self._limits.max_connections
        if len(self.connections) > limit:
            self.connections.discard(self)
            message = f"{limit} connections are open, and that is the limit: try later, or use them again"
            self._refuse(ApiError(503, message, "too_many_connections", retry_after_s=1))
        else:
            self._lose_patience_later()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timers()
        self._tell_application()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._end_keep_alive()
        self._unparsed += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # we speak no other protocol: it was answered as if it had not asked
        except httptools.HttpParserError as error:
            cause = error.__context__  # what one of the callbacks below raised
            malformed = ApiError(400, "the request is not valid HTTP", "invalid_http")
            self._refuse(cause if isinstance(cause, ApiError) else malformed)
            return
        if self._unparsed > self._limits.max_head_bytes:
            self._refuse(self._head_too_large())
        elif self._is_client_due and self._patience is None and self.timeout_keep_alive_task is None:
            self._lose_patience_later()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self._limits.reader_timeout_s + LAST_RESORT_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()

    def timeout_keep_alive_handler(self) -> None:
        self.transport.abort()  # who has not taken the last answer by now never will

    # ---------------------------------------------------------------- the parser's news

    def on_message_begin(self) -> None:
        super().on_message_begin()
        extensions: dict[str, Any] = {CONNECTION: self.transport}
        self.scope["extensions"] = extensions
        self._in_head, self._head_bytes, self._unparsed = True, 0, 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._unparsed = 0
        limit = self._limits.max_url_bytes
        if len(self.url) > limit:
            raise ApiError(414, f"the URL is longer than {limit} bytes: shorten it", "url_too_long")

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._unparsed = 0
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > self._limits.max_head_bytes:
            raise self._head_too_large()

    def on_headers_complete(self) -> None:
        self._in_head, self._unparsed = False, 0
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        starts_now = self._is_client_due
        super().on_headers_complete()
        if starts_now:
            self._answering = self.cycle

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed = 0
        super().on_message_complete()
        if self._is_client_due:  # the rest of a request that was answered before: now the connection is idle
            self._cancel_timers()
            later = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
            self.timeout_keep_alive_task = later

    def on_response_complete(self) -> None:
        following = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        if following is not None:
            self._answering = following
        elif self._in_head:  # the next request has begun already: this is no idle connection
            self._end_keep_alive()
            self._lose_patience_later()

    # ---------------------------------------------------------------- refusing

    @property
    def _is_client_due(self) -> bool:
        """No answer is under way: it is the client's turn."""
        return self._answering is None or self._answering.response_complete

    def _head_too_large(self) -> ApiError:
        limit = self._limits.max_head_bytes
        return ApiError(431, f"the headers are larger than {limit} bytes: send fewer", "headers_too_large")

    def _lose_patience_later(self) -> None:
        self._patience = self.loop.call_later(self._limits.head_timeout_s, self._lose_patience)

    def _lose_patience(self) -> None:
        if self._in_head:
            seconds = self._limits.head_timeout_s
            self._refuse(ApiError(408, f"the headers did not come within {seconds:g} s", "head_timeout"))
        else:
            self.transport.abort()  # it asked for nothing, or has its answer

    def _refuse(self, error: ApiError) -> None:
        """Close the connection, with an error if the client can read one: no answer has begun. It is logged and
        counted as any request is."""
        self._refused = True
        self._cancel_timers()
        caller = self.client[0] if self.client else None
        now = self._service.clock.now()
        call = Call("http-" + uuid.uuid4().hex, "", False, now, time.time(), caller=caller)
        call.status, call.error_code = error.status, error.code
        self._service.close(call)
        if not self._is_client_due:
            self._tell_application()
            if self._answering is not None and self._answering.response_started:
                self.transport.close()
                return
        self.transport.write(raw_answer(error))
        self.transport.write_eof()
        self._patience = self.loop.call_later(LINGER_S, self.transport.abort)

    def _tell_application(self) -> None:
        """The client is gone. uvicorn tells only the last request of a pipeline."""
        if self._answering is not None:
            self._answering.disconnected = True
            self._answering.message_event.set()

    def _end_keep_alive(self) -> None:
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None

    def _cancel_timers(self) -> None:
        self._end_keep_alive()
        for timer in filter(None, (self._patience, self._stalled)):
            timer.cancel()
        self._patience = self._stalled = None


def raw_answer(error: ApiError) -> bytes:
    """A whole HTTP/1.1 response, after which the connection is closed."""
    headers = {**error.headers, "content-length": str(len(error.body)), "connection": "close"}
    lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + error.body
