"""What lesson 10 plays: one stream seen from both ends, four ways of serving, what text and chunks cost."""

import asyncio
import contextlib
import selectors
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from course.lab.http_client import NAME, Heard, ask, together
from course.lab.lab import Lab
from course.lab.run import gaps_of, percentile
from course.lab.server import HOST, LabServer, in_background
from course.lab.server_tap import ServerTap
from course.lab.texts import CHAT_QUESTIONS
from minillm.core.brief import brief
from minillm.core.timeline import Timeline
from minillm.frontend.detokenizer import Detokenizer
from minillm.frontend.outputs import Completion
from minillm.server.answers import DONE, AnswerShape
from minillm.server.logprobs import TokenTexts
from minillm.server.protocol import CompletionBody
from minillm.server.server import make_room

PROMPT = CHAT_QUESTIONS[1]
HELD_BYTES = 4096


@dataclass(frozen=True)
class ProxiedStream:
    """One stream, from both ends. Clock seconds."""

    name: str
    heard: Heard
    server: tuple[float, ...]
    """When the engine handed over each token; of a server elsewhere, when it was read at this end of the way."""
    told: dict[str, float]
    """Means at the server's /metrics, of this request: seconds by name; only what the server has."""
    borders: tuple[float, ...]
    """The six of its five phases, as the server saw them."""

    __repr__ = brief

    @property
    def server_ttft(self) -> float:
        """From the client's sending on, so that both ends count alike."""
        return self.server[0] - self.heard.sent

    @property
    def server_itl(self) -> list[float]:
        return gaps_of(self.server)


def num_tokens(lab: Lab) -> int:
    """Tokens of an answer."""
    return 96 if lab.scale == 1 else 48


def through(server: LabServer | ServerTap, name: str = "", tokens: int | None = None, **spoiling: Any) -> ProxiedStream:
    """One answer, streamed through the teaching proxy, or straight if nothing is to be spoiled."""
    before = server.metrics()
    with server.way(**spoiling) as port:
        heard = ask(port, server.fresh(PROMPT), tokens or num_tokens(server.lab), **server.asked)
    end = server.end_of(heard, before)
    does = ", ".join(WAYS[key].format(value) for key, value in spoiling.items())
    return ProxiedStream(
        name or (f"a proxy that {does}" if does else "straight"), heard, end.tokens, end.told, end.borders
    )


WAYS = {"buffer_bytes": "buffers {:,g} bytes", "coalesce": "passes on {:g} events together", "hold_ms": "adds {:g} ms"}
"""What the proxy does, by its fields."""
FAULTS: dict[str, dict[str, float]] = {
    "a proxy that adds a constant delay": {"hold_ms": 250},
    "a proxy that passes on 8 events together": {"coalesce": 8},
}


def faults(server: LabServer | ServerTap) -> list[ProxiedStream]:
    """One answer through each."""
    return [through(server, name, **fault) for name, fault in FAULTS.items()]


# ---------------------------------------------------------------- streaming, batching, both, neither

LOADS = {"sent together": False, "sent one at a time": True}
"""And whether each waits for the one before."""


@dataclass(frozen=True)
class ServingWay:
    """The same questions, served in one way. Seconds."""

    streamed: bool
    batched: bool
    load: str
    first_words: tuple[float, ...]
    """Until each client had something to read."""
    e2e: tuple[float, ...]

    __repr__ = brief

    @property
    def p99(self) -> float:
        return percentile(self.e2e, 99)


def four_ways(lab: Lab) -> list[ServingWay]:
    """Each of the four ways under each load, on the real server."""
    found = []
    for batched in (False, True):
        with LabServer(lab, batching="continuous" if batched else "none") as server:
            for load in LOADS:
                found += [_serve_one_way(server, streamed, batched, load) for streamed in (False, True)]
    return found


def _serve_one_way(server: LabServer, streamed: bool, batched: bool, load: str) -> ServingWay:
    count, tokens = (8, 24) if server.lab.scale == 1 else (3, 6)
    questions = [f"{i}. {CHAT_QUESTIONS[i]}" for i in range(count)]
    clients = [partial(ask, server.port, question, tokens, stream=streamed) for question in questions]
    heard = [client() for client in clients] if LOADS[load] else together(clients)
    first = tuple((each.arrivals[0] if streamed else each.ended) - each.sent for each in heard)
    return ServingWay(streamed, batched, load, first, tuple(each.ended - each.sent for each in heard))


# ---------------------------------------------------------------- from token ids to text

SAMPLE = "Café 🦜 says: 日本!"
LENGTHS, SHORT_LENGTHS = (32, 128, 512, 2048), (32, 128, 512)


@dataclass(frozen=True)
class Letter:
    """One token on its way to a screen."""

    token_id: int
    raw: bytes
    alone: str
    """The token decoded by itself: U+FFFD where it is no whole character."""
    released: str
    """What minillm's detokenizer lets out at this token."""


def spell(tokenizer: Any, sample: str = SAMPLE) -> list[Letter]:
    """A text, token by token."""
    ids = tokenizer.encode(sample, add_special_tokens=False)
    texts, growing = TokenTexts(tokenizer), Detokenizer(tokenizer, [])
    return [Letter(i, texts.look_up(i)[1], texts.look_up(i)[0], growing.add(i)) for i in ids]


def decode_whole_text(tokenizer: Any, ids: Sequence[int]) -> None:
    """Decode all that there is, at each token, and show what is new."""
    decode = getattr(tokenizer, "backend_tokenizer", tokenizer).decode
    for i in range(len(ids)):
        decode(ids[: i + 1])


def decode_incrementally(tokenizer: Any, ids: Sequence[int]) -> None:
    """As the engine does."""
    growing = Detokenizer(tokenizer, [])
    for token_id in ids:
        growing.add(token_id)


def detokenizing_cost(tokenizer: Any, sample: str, short: bool) -> dict[int, tuple[float, float]]:
    """CPU seconds for a token of an answer, mean, by the answer's length: the whole text again, and as minillm does.

    Measured on this machine, in CPU time, so that neighbours do not count.
    """
    lengths = SHORT_LENGTHS if short else LENGTHS
    ids = (tokenizer.encode(sample, add_special_tokens=False) * lengths[-1])[: lengths[-1]]
    decode_incrementally(tokenizer, ids[:16])
    return {
        n: tuple(_per_token(way, tokenizer, ids[:n]) for way in (decode_whole_text, decode_incrementally))
        for n in lengths
    }


def _per_token(way: Callable[[Any, Sequence[int]], None], tokenizer: Any, ids: Sequence[int]) -> float:
    rounds, begun = max(1, 256 // len(ids)), time.thread_time()
    for _ in range(rounds):
        way(tokenizer, ids)
    return (time.thread_time() - begun) / rounds / len(ids)


# ---------------------------------------------------------------- what a chunk costs
# The server's front alone, its own shapes, SSE and HTTP, fed from a clock and not by an engine.

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
    """How late each chunk was: from when it was due to when the front had got round to it."""

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


FRONT_OVERLOAD, FAST, MOST_STREAMS = 2.5, 100.0, 128
"""Times what one core can do; tokens a second of a fast stream; streams that are opened for a demonstration."""


def too_many(lab: Lab) -> list[Fed]:
    """More streams than one core can feed with a chunk for each token; then the same with larger chunks.

    How many are too many is measured with a front that never pauses: a chunk is cheaper then than at a calm pace, where
    the loop is woken for each.
    """
    single = feed(lab, 16, 1, 0, 256).cpu_per_chunk
    streams = min(max(8, round(FRONT_OVERLOAD / (single * FAST))), MOST_STREAMS)
    rate = FRONT_OVERLOAD / (single * streams)
    span = 3.0 if lab.scale == 1 else 0.8
    return [feed(lab, streams, every, rate, round(span * rate)) for every in (1, 4, 16)]


FULL, CURED = 0.7, 4.0
"""An overloaded front takes at least that share of a core; with large chunks it is late by so many times less."""


def shows_overload(found: Sequence[Fed]) -> bool:
    """Whether the chunks themselves were too many. Else another process had the core: then larger chunks are late, too.

    Args:
        found: of `too_many`.
    """
    small, large = (percentile(each.lateness, 50) for each in (found[0], found[-1]))
    return found[0].busy >= FULL and large <= small / CURED
