"""Streaming, batching, both, neither: which of them shortens what?"""

from dataclasses import dataclass
from functools import partial

from course.lab.http_client import ask, together
from course.lab.lab import Lab
from course.lab.run import percentile
from course.lab.server import LabServer
from course.lab.texts import CHAT_QUESTIONS
from minillm.core.brief import brief

LOADS = {"all at once": False, "one after the other": True}
"""And whether each waits for the one before."""


@dataclass(frozen=True)
class Served:
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


def four_ways(lab: Lab) -> list[Served]:
    """Each of the four ways under each load, on the real server."""
    found = []
    for batched in (False, True):
        with LabServer(lab, batching="continuous" if batched else "none") as server:
            for load in LOADS:
                found += [_serve(server, streamed, batched, load) for streamed in (False, True)]
    return found


def _serve(server: LabServer, streamed: bool, batched: bool, load: str) -> Served:
    count, tokens = (8, 24) if server.lab.scale == 1 else (4, 8)
    questions = [f"{i}. {CHAT_QUESTIONS[i]}" for i in range(count)]
    clients = [partial(ask, server.port, question, tokens, stream=streamed) for question in questions]
    heard = [client() for client in clients] if LOADS[load] else together(clients)
    first = tuple((each.arrivals[0] if streamed else each.ended) - each.sent for each in heard)
    return Served(streamed, batched, load, first, tuple(each.ended - each.sent for each in heard))
