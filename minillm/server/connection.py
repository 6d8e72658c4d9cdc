"""One HTTP/1.1 connection, from the moment it is made: how much a client may send, and how slowly it may send and read.

It stands in for uvicorn's own protocol, which reads request lines and headers of any size, for any time. Here each has
a limit, and who goes beyond it gets an error in OpenAI's shape and is closed; no other request notices. Bodies have
their limits in wire.py. The bytes are parsed by httptools; what an application sends is framed in http_answer.py.

    made --- head (MAX_URL_BYTES, MAX_HEAD_BYTES, head_timeout_s) --- body, answer --- idle (keep-alive) --- head ...

There is no pipelining: what comes behind a request that is not answered yet is not read, and the connection ends with
the answer. A client that closes its own half after a request (`nc -N`) has left, and its request ends: one that was
killed closes the same half.

A connection that ends while its client is sending isn't closed immediately, which would reset it: many clients would
never read why. It lingers: half closed, and whatever comes is read and dropped, until the client is silent or closes,
too (nginx's lingering_close).
"""

import asyncio
import enum
import socket
import time
import urllib.parse
import uuid
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import httptools
import uvicorn
from starlette.types import ASGIApp, Scope
from uvicorn.server import ServerState

from minillm.core.timeline import Clock
from minillm.server.calls import Call
from minillm.server.config import ServeConfig
from minillm.server.cors import cors_headers
from minillm.server.errors import ApiError
from minillm.server.http_answer import HttpAnswer, whole_response
from minillm.server.wire import CONNECTION

MAX_URL_BYTES = 8 * 1024
MAX_HEAD_BYTES = 64 * 1024
SOCKET_SEND_BUFFER = 64 * 1024
"""Bytes the operating system keeps for a reader that lags. Its own choice grows to megabytes."""
BODY_HEADERS = (b"content-length", b"transfer-encoding")
PROBES = (b"/health", b"/ready", b"/metrics")
"""Answered beyond the limit on connections, too: a server with all the clients that it can have is alive."""
RESERVED = 32
"""Connections beyond the limit that may say, within a second, that they are a probe."""
LINGER_S = 2
"""Longest silence of a client that was told that the connection ends."""
LONGEST_LINGER_S = 30
"""Longest that it may go on sending."""


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


class Wait(enum.Enum):
    """What a connection waits for, no longer than its timer runs."""

    HEAD = "the first bytes of a head, or the rest of one"
    REST = "the rest of a request that is answered already"
    IDLE = "another request (keep-alive)"
    SILENCE = "the client to stop sending, since nothing is read any more"


class BoundedProtocol(asyncio.Protocol):
    """HTTP/1.1 with limits, and without a user-space send buffer: a send is over when the operating system has the
    bytes before it.

    So the stream phase can end when the last byte is accepted, and a slow reader holds up 64 KiB and no more.

    Args:
        service: its limits hold, and it is told about each request that is refused here.
        app: answers the requests.
        config: uvicorn's settings.
        server_state: uvicorn's books of what is open: it waits for these connections and tasks when it stops.
        app_state: what the application's lifespan has left for its requests.
    """

    transport: asyncio.Transport

    def __init__(
        self,
        service: Backend,
        app: ASGIApp,
        *,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._service, self._app = service, app
        self._limits = service.serve
        self._keep_alive_s = config.timeout_keep_alive
        self._state, self._app_state = server_state, app_state
        self._loop = _loop or asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        # What comes behind a request with `connection: close` is no reason not to answer the request.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.writable = asyncio.Event()
        self.writable.set()
        self.waits_for: Wait | None = None
        """What of the client is waited for; None while it is the server's turn."""
        self._answer: HttpAnswer | None = None
        """The answer to the last request whose head has come."""
        self.was_cut = False
        """The client took nothing of an answer for too long: it is gone because it was cut off."""
        self._is_deaf = False
        """Nothing is read any more: a request was refused, or came before the answer to the last one was out."""
        self._in_head = self._in_body = self._is_beyond = False
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._problem: ApiError | None = None
        """Why a callback of the parser has failed."""
        self._unparsed = 0
        """Bytes that have come since a request began, or since the last piece of its body: its head, or trailers."""
        self._timer: asyncio.TimerHandle | None = None
        """Runs while the client is waited for."""
        self._rest_until = 0.0
        """When what it sends is no longer waited for, of a request that was answered or refused; the loop's clock."""
        self._stalled: asyncio.TimerHandle | None = None
        """Runs while the client takes nothing."""

    # ---------------------------------------------------------------- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        transport.set_write_buffer_limits(high=0)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_SEND_BUFFER)
        self._state.connections.add(self)  # type: ignore[arg-type]
        num_beyond = len(self._state.connections) - self._limits.max_connections
        self._is_beyond = num_beyond > 0
        if num_beyond > RESERVED:
            self.refuse(self._too_many())
        else:
            patience = min(1, self._limits.head_timeout_s) if self._is_beyond else self._limits.head_timeout_s
            self._wait(Wait.HEAD, patience)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timers()
        self._state.connections.discard(self)
        if self._answer is not None:
            self._answer.leave()
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            if self.waits_for is Wait.SILENCE:
                self._wait_for_rest(Wait.SILENCE, LINGER_S)
            return
        if self.waits_for is Wait.IDLE:
            self._stop_waiting()
        self._unparsed += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._is_deaf = True  # what follows would be of another protocol; the request is answered, and is the last
        except httptools.HttpParserError:
            self._refuse_what_cannot_be_parsed()
        if self._is_deaf:
            return
        if self._unparsed > MAX_URL_BYTES + MAX_HEAD_BYTES:
            self.refuse(head_too_large())
        elif not self._is_answering and self._in_body:
            self._wait_for_rest(Wait.REST, self._limits.head_timeout_s)
        elif not self._is_answering and self.waits_for in (None, Wait.IDLE) and (self._in_head or self._unparsed):
            self._wait(Wait.HEAD, self._limits.head_timeout_s)

    def _refuse_what_cannot_be_parsed(self) -> None:
        if self._answer is not None and self._is_answering and self._answer.body_is_whole:
            self._is_deaf = True  # it stands behind a whole request, and that is answered first
            self._answer.keep_alive = False
        else:
            self.refuse(self._problem or ApiError(400, "the request is not valid HTTP", "invalid_http"))

    def pause_writing(self) -> None:
        self.writable.clear()
        self._stalled = self._loop.call_later(self._limits.reader_timeout_s, self._cut_slow_reader)

    def resume_writing(self) -> None:
        self.writable.set()
        if self._stalled is not None:
            self._stalled.cancel()

    def _cut_slow_reader(self) -> None:
        self.was_cut = True
        self.transport.abort()

    def shutdown(self) -> None:
        """The server stops: uvicorn calls it. An answer that is under way is the last one."""
        if self._answer is not None and self._is_answering:
            self._answer.keep_alive = False
        else:
            self.transport.close()

    # ---------------------------------------------------------------- past ASGI, where a token passes four coroutines

    @property
    def lags(self) -> bool:
        """What is written now would have to wait, or would never be read."""
        return self.is_gone or not self.writable.is_set()

    @property
    def is_gone(self) -> bool:
        """The client has left: the answer is read no more."""
        return self._answer is not None and self._answer.is_gone

    def write_chunk(self, body: bytes) -> None:
        """A piece of a stream that has begun, as ASGI's `send` would write it. Not while it lags."""
        assert self._answer is not None
        self._answer.write(body)

    # ---------------------------------------------------------------- the parser's news

    def _fail(self, error: ApiError) -> NoReturn:
        """End a callback of the parser, which then raises an error of its own."""
        self._problem = error
        raise error

    def on_message_begin(self) -> None:
        """httptools: a request begins."""
        if self._is_answering:
            self._fail(ApiError(400, "a request came before the answer to the last one was out", "pipelined"))
        self._url, self._headers, self._in_head = b"", [], True

    def on_url(self, url: bytes) -> None:
        """httptools: a piece of the URL."""
        self._url += url
        if len(self._url) > MAX_URL_BYTES:
            self._fail(ApiError(414, f"the URL is longer than {MAX_URL_BYTES} bytes: shorten it", "url_too_long"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: one header, or a trailer."""
        if self._in_head:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """httptools: the head is whole, and the application is asked."""
        if sum(len(name) + len(value) for name, value in self._headers) > MAX_HEAD_BYTES:
            self._fail(head_too_large())
        if self._is_beyond and self._url not in PROBES:
            self._fail(self._too_many())
        if self._parser.should_upgrade() and any(name in BODY_HEADERS for name, _ in self._headers):
            message = "no protocol is upgraded to here: send the request without Connection: upgrade"
            self._fail(ApiError(400, message, "invalid_http"))  # httptools would not read its body as one
        scope = self._scope()
        self._in_head, self._in_body, self._unparsed = False, True, 0
        self._stop_waiting()
        expects_continue = any(name == b"expect" and value.lower() == b"100-continue" for name, value in self._headers)
        keep_alive = self._parser.should_keep_alive() and not self._parser.should_upgrade() and not self._is_beyond
        self._answer = HttpAnswer(self, scope, keep_alive, expects_continue)
        task = self._loop.create_task(self._answer.run(self._app))
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    def on_body(self, body: bytes) -> None:
        """httptools: a piece of the body."""
        self._unparsed = 0
        assert self._answer is not None
        self._answer.feed(body)

    def on_message_complete(self) -> None:
        """httptools: the request is whole."""
        self._in_body, self._unparsed = False, 0
        assert self._answer is not None
        self._answer.feed_end()
        if self._answer.has_ended:  # it was answered before it was whole, and from now on the connection is idle
            self._wait(Wait.IDLE, self._keep_alive_s)

    def _scope(self) -> Scope:
        """ASGI's picture of the head. Raises an error of httptools, or ValueError, where the URL is none."""
        url = httptools.parse_url(self._url)
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": self._parser.get_http_version(),
            "method": self._parser.get_method().decode("ascii"),
            "scheme": "http",
            "path": urllib.parse.unquote(url.path.decode("ascii")),
            "raw_path": url.path,
            "query_string": url.query or b"",
            "root_path": "",
            "headers": self._headers,
            "server": self._address("sockname"),
            "client": self._address("peername"),
            "state": self._app_state.copy(),
            CONNECTION: self,
        }

    def _address(self, end: str) -> tuple[str, int] | None:
        """Host and port of one end of the connection; None where it has none."""
        address = self.transport.get_extra_info(end)
        return (str(address[0]), int(address[1])) if isinstance(address, tuple) else None

    # ---------------------------------------------------------------- the answer

    @property
    def _is_answering(self) -> bool:
        """An answer is under way. Otherwise it is the client's turn."""
        return self._answer is not None and not self._answer.has_ended

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """Headers of every answer: the date."""
        return self._state.default_headers

    def answer_ended(self) -> None:
        """The last byte of the answer is written: the connection waits for the next request, or ends."""
        assert self._answer is not None
        self._state.total_requests += 1
        if self.transport.is_closing():
            return
        if not self._answer.keep_alive:
            if self._in_body or self._is_deaf:
                self._linger()
            else:
                self.transport.close()
            return
        self.transport.resume_reading()
        self._rest_until = self._loop.time() + LONGEST_LINGER_S
        self._wait(Wait.IDLE, self._keep_alive_s)

    # ---------------------------------------------------------------- refusing

    def _too_many(self) -> ApiError:
        """This one, which counts no longer, is beyond the limit, and no probe."""
        self._state.connections.discard(self)
        limit = self._limits.max_connections
        message = f"{limit} connections are open, and that is the limit: try later, or use them again"
        return ApiError(503, message, "too_many_connections")

    def refuse(self, error: ApiError) -> None:
        """Close the connection, with an error if the client can read one: no answer has begun. It is logged and
        counted as any request is."""
        self._is_deaf = True
        self._cancel_timers()
        address = self._address("peername")
        now = self._service.clock.now()
        caller = address[0] if address else None
        call = Call("http-" + uuid.uuid4().hex, "", False, now, time.time(), caller=caller)
        call.status, call.error_code = error.status, error.code
        self._service.close(call)
        if self._answer is not None and self._is_answering:
            self._answer.leave()
            if self._answer.has_begun:
                self.transport.close()
                return
        if self._is_answering or not self._in_body:  # else the request was answered before it was whole
            self.transport.write(whole_response(error, cors_headers(self._headers, self._limits.cors_origin)))
        self._linger()

    def _linger(self) -> None:
        """The answer is out, and the connection ends with it: once the client has stopped sending."""
        self._is_deaf = True
        self._cancel_timers()
        self.transport.write_eof()
        self.transport.resume_reading()
        is_short = self._is_beyond or self._service.draining
        self._rest_until = self._loop.time() + (LINGER_S if is_short else LONGEST_LINGER_S)
        self._wait_for_rest(Wait.SILENCE, LINGER_S)

    # ---------------------------------------------------------------- patience

    def _wait(self, what: Wait, seconds: float) -> None:
        """Wait for the client, and then lose patience."""
        self._stop_waiting()
        self.waits_for = what
        self._timer = self._loop.call_later(seconds, self._lose_patience)

    def _wait_for_rest(self, what: Wait, silence_s: float) -> None:
        """Bear what the client sends of a request that was answered or refused, and that it is silent for so long."""
        self._wait(what, min(silence_s, self._rest_until - self._loop.time()))

    def _lose_patience(self) -> None:
        waited_for, self.waits_for = self.waits_for, None
        if waited_for is Wait.IDLE:
            self.transport.close()
        elif waited_for is Wait.HEAD and self._is_beyond:
            self.refuse(self._too_many())
        elif waited_for is Wait.HEAD and self._in_head:
            seconds = self._limits.head_timeout_s
            self.refuse(ApiError(408, f"the headers did not come within {seconds:g} s", "head_timeout"))
        else:
            self.transport.abort()  # it asked for nothing, or has its answer

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.waits_for = None

    def _cancel_timers(self) -> None:
        self._stop_waiting()
        if self._stalled is not None:
            self._stalled.cancel()


def head_too_large() -> ApiError:
    """431."""
    return ApiError(431, f"the headers are larger than {MAX_HEAD_BYTES} bytes: send fewer", "headers_too_large")
