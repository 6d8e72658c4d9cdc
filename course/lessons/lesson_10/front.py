"""What a chunk costs: the server's front alone, its own shapes, SSE and HTTP, fed from a clock and not by an engine."""

import asyncio
import contextlib
import selectors
import socket
import threading
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from course.lab.display import Html, table_by_name
from course.lab.http_client import NAME
from course.lab.lab import Lab
from course.lab.run import percentile
from course.lab.server import HOST, in_background
from course.lab.style import number, seconds
from minillm.core.brief import brief
from minillm.core.timeline import Timeline
from minillm.frontend.outputs import Completion
from minillm.server.answers import DONE, AnswerShape
from minillm.server.logprobs import TokenTexts
from minillm.server.protocol import CompletionBody
from minillm.server.server import make_room

WORD = " word"
EVERY = (1, 2, 4, 8, 16)
"""Tokens in a chunk."""
CALM = 160.0
"""Chunks a second of each stream, when the front is to have time."""
DRAIN_S = 0.05
"""Between two looks at the sockets: the reader must not take the server's time."""
SILENCE_S = 30.0
"""A front that sends nothing for so long has died."""


@dataclass(frozen=True)
class Fed:
    """Streams that were fed by the clock. Seconds."""

    streams: int
    every: int
    """Tokens in a chunk."""
    chunks: int
    cpu_s: float
    """That the front used."""
    wall_s: float
    lateness: tuple[float, ...]
    """Of each chunk: from the moment at which it was due to the one at which the front had got round to it."""

    __repr__ = brief

    @property
    def cpu_per_chunk(self) -> float:
        return self.cpu_s / self.chunks

    @property
    def busy(self) -> float:
        """Share of one core."""
        return self.cpu_s / self.wall_s


def feed(lab: Lab, streams: int, every: int = 1, rate: float = CALM, tokens: int = 32) -> Fed:
    """So many streams at once, a chunk of `every` tokens whenever these are due.

    Args:
        rate: tokens a second, of each stream; 0 = as fast as the front can.
        tokens: of each stream.

    Raises:
        ConfigError: this process may not have so many connections.
        TimeoutError: the front fell silent.
    """
    make_room(2 * streams)  # both ends are in this process
    front = _Front(lab, streams, every, rate, tokens)
    with in_background(front.app, timeout_keep_alive=5) as running:
        before, begun = running.ask(time.thread_time), time.perf_counter()
        _read_all(running.port, streams)
        spent, wall = running.ask(time.thread_time) - before, time.perf_counter() - begun
    return Fed(streams, every, len(front.lateness), spent, wall, tuple(front.lateness))


class _Front:
    """An application that streams one word again and again, shaped as the real server shapes it."""

    def __init__(self, lab: Lab, streams: int, every: int, rate: float, tokens: int) -> None:
        self.every, self.rate, self.chunks = every, rate, max(1, tokens // every)
        self.streams = streams
        self.begun: float | None = None
        self.lateness: list[float] = []
        self._body = CompletionBody(model=NAME, prompt="", stream=True)
        self._texts = TokenTexts(lab.model.tokenizer)
        self.app = Starlette(routes=[Route("/", self.answer)])

    async def answer(self, request: Request) -> Response:
        return StreamingResponse(self.events(int(request.query_params["stream"])), media_type="text/event-stream")

    async def events(self, stream: int) -> AsyncIterator[bytes]:
        shape = AnswerShape(self._body, f"cmpl-{stream:032d}", 0, NAME, self._texts)
        news = Completion(WORD * self.every, [], None, None, Timeline(0.0), new_text=WORD * self.every)
        if self.begun is None:
            self.begun = time.perf_counter() + 0.2  # all streams are open by then
        for i in range(self.chunks):
            due = self._due(stream, i)
            await asyncio.sleep(max(due - time.perf_counter(), 0))
            yield shape.chunk(0, news)
            self.lateness.append(max(time.perf_counter() - due, 0.0))
        yield DONE

    def _due(self, stream: int, chunk: int) -> float:
        """Streams are spread evenly over the time of one chunk."""
        if not self.rate:
            return 0.0
        return self.begun + (chunk + 1 + stream / self.streams) * self.every / self.rate


def _read_all(port: int, streams: int) -> None:
    """Read every stream to its end, seldom and much at a time.

    Raises:
        TimeoutError: nothing came for SILENCE_S.
    """
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as looking:
        for i in range(streams):
            sock = stack.enter_context(socket.create_connection((HOST, port), SILENCE_S))
            sock.sendall(f"GET /?stream={i} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
            looking.register(sock, selectors.EVENT_READ)
        while looking.get_map():
            ready = looking.select(SILENCE_S)
            if not ready:
                raise TimeoutError(f"{len(looking.get_map())} of {streams} streams have fallen silent")
            for key, _ in ready:
                if not key.fileobj.recv(1 << 20):
                    looking.unregister(key.fileobj)
                    key.fileobj.close()
            threading.Event().wait(DRAIN_S)


LEAST_S = 1e-6
"""CPU of a chunk that no Python is below: where two runs differ by less, it was noise."""


def by_size(lab: Lab) -> list[Fed]:
    """At a pace that leaves the front time, with more and more tokens in a chunk."""
    feed(lab, 4, 1, 0, 16)  # the first use of anything is slower
    return [chunks_alone(lab, every) for every in EVERY]


def chunks_alone(lab: Lab, every: int) -> Fed:
    """What many chunks cost more than few: so the price of opening streams is not in it."""
    few, many = (32, 288) if lab.scale == 1 else (8, 72)
    short, long = (feed(lab, 16, every, CALM * every, count * every) for count in (few, many))
    chunks, wall = long.chunks - short.chunks, long.wall_s - short.wall_s
    spent = max(long.cpu_s - short.cpu_s, LEAST_S * chunks)
    return Fed(16, every, chunks, spent, wall, long.lateness)


def chunk_cost_table(costs: Sequence[Fed]) -> Html:
    """CPU of the front, for a chunk and for a token."""
    return table_by_name(
        "tokens in a chunk",
        {str(each.every): each for each in costs},
        {
            "CPU for a chunk": lambda fed: seconds(fed.cpu_per_chunk),
            "CPU for a token": lambda fed: seconds(fed.cpu_per_chunk / fed.every),
            "tokens/s that fill a core": lambda fed: number(fed.every / fed.cpu_per_chunk),
        },
    )


def too_many(lab: Lab) -> list[Fed]:
    """More streams than one core can feed with a chunk for each token; then the same with larger chunks.

    How many are too many is measured with a front that never pauses: a chunk is cheaper then than at a calm pace, where
    the loop is woken for each.
    """
    single = feed(lab, 16, 1, 0, 256).cpu_per_chunk
    streams = min(max(8, round(OVERLOAD / (single * FAST))), MOST_STREAMS)
    rate = OVERLOAD / (single * streams)
    span = 3.0 if lab.scale == 1 else 0.8
    return [feed(lab, streams, every, rate, round(span * rate)) for every in (1, 4, 16)]


OVERLOAD, FAST, MOST_STREAMS = 2.5, 100.0, 128
"""Times what one core can do; tokens a second of a fast stream; streams that are opened for a demonstration."""
FULL, CURED = 0.7, 4.0
"""An overloaded front takes at least that share of a core; with large chunks it is late by so many times less."""
NO_CORE = "The front end didn't get a core here, so it can't be judged."


def shows_overload(found: Sequence[Fed]) -> bool:
    """Whether the chunks themselves were too many. Else another process had the core: then larger chunks are late, too.

    Args:
        found: of `too_many`.
    """
    small, large = (percentile(each.lateness, 50) for each in (found[0], found[-1]))
    return found[0].busy >= FULL and large <= small / CURED


def too_many_table(found: Sequence[Fed]) -> Html:
    """What a front with too much to send had done; with a note where the machine did not let it."""
    shown = table_by_name(
        "tokens in a chunk",
        {str(each.every): each for each in found},
        {
            "streams": lambda fed: str(fed.streams),
            "chunks/s sent": lambda fed: number(fed.chunks / fed.wall_s),
            "of one core": lambda fed: f"{fed.busy:.0%}",
            "chunks late by, p50": lambda fed: seconds(percentile(fed.lateness, 50)),
            "p99": lambda fed: seconds(percentile(fed.lateness, 99)),
        },
    )
    if shows_overload(found):
        return shown
    return Html(f"{shown.html}<p>{NO_CORE}</p>", f"{shown.text}\n{NO_CORE}")
