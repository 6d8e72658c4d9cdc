"""A client with a plain socket: it notes when which bytes came, may leave early, and keeps a connection if told so."""

import http.client
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from course.lab.run import gaps_of
from minillm.core.brief import brief

NAME = "lab"
"""The model's name in the API of the lab's server."""
TIMEOUT_S = 600
"""For the next bytes. The first come with the first token, and a large model on a CPU takes its time."""
EVENT_END = b"\n\n"
READ_BYTES = 65_536

T = TypeVar("T")


@dataclass(frozen=True)
class Read:
    """What one read from the socket brought."""

    moment: float
    """Clock seconds."""
    size: int
    """Bytes of the answer."""
    tokens: int
    """Events that were complete with it; one event is one token here."""


@dataclass(frozen=True)
class Heard:
    """One request as its client saw it. Clock seconds."""

    sent: float
    """When it wanted to send: a new connection is made after that."""
    reads: tuple[Read, ...]
    ended: float
    """When the client was done, or left."""
    status: int
    call_id: str
    body: bytes
    asked: int
    """Tokens that it asked for."""

    __repr__ = brief

    @cached_property
    def arrivals(self) -> tuple[float, ...]:
        """When each token could be read."""
        return tuple(read.moment for read in self.reads for _ in range(read.tokens))

    @property
    def ttft(self) -> float:
        return self.arrivals[0] - self.sent

    @property
    def itl(self) -> list[float]:
        """Gaps between tokens; of those that came in one read, 0."""
        return gaps_of(self.arrivals)

    @property
    def event_bytes(self) -> float:
        """Bytes of an event, mean."""
        return sum(read.size for read in self.reads) / max(len(self.arrivals), 1)

    @property
    def text(self) -> str:
        events = [json.loads(line[6:]) for line in self.body.split(EVENT_END) if line.startswith(b"data: {")]
        return "".join(event["choices"][0].get("text", "") for event in events if event.get("choices"))


def connect(port: int) -> http.client.HTTPConnection:
    """A connection that opens when it is first used."""
    return http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)


def ask(
    port: int,
    prompt: str,
    max_tokens: int,
    *,
    leave_after: int | None = None,
    connection: http.client.HTTPConnection | None = None,
    **fields: Any,
) -> Heard:
    """One completion, read to its end.

    Args:
        leave_after: hang up when so many tokens have come.
        connection: use this one, and keep it; None = a new one.
        fields: more of the request's body; it streams unless they say otherwise.
    """
    body = {
        "model": NAME,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        **fields,
    }
    line = connection or connect(port)
    sent = time.perf_counter()  # minillm's clock
    line.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = line.getresponse()
    reads, whole, pending, tokens = [], b"", b"", 0
    while piece := answer.read1(READ_BYTES):
        moment = time.perf_counter()
        whole += piece
        *events, pending = (pending + piece).split(EVENT_END)
        new = sum(event.startswith(b"data: {") for event in events)
        reads.append(Read(moment, len(piece), new))
        tokens += new
        if leave_after is not None and tokens >= leave_after:
            break
    ended = time.perf_counter()
    if connection is None or leave_after is not None:
        answer.close()
        line.close()
    return Heard(sent, tuple(reads), ended, answer.status, answer.headers["x-request-id"] or "", whole, max_tokens)


def together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """All at once, each in a thread of its own; what they gave, in order. When all are over, raises what one raised."""
    with ThreadPoolExecutor(len(calls)) as clients:
        answers = [clients.submit(call) for call in calls]
    return [answer.result() for answer in answers]
