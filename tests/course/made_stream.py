"""Streams, trips and fed fronts made by hand for the tests of lesson 10."""

from course.lab.http_client import Heard, Read
from course.lessons.lesson_10 import run
from course.lessons.lesson_10.run import Fed, ProxiedStream
from course.lessons.lesson_10b.run import Trip

START = 100.0


def passed(
    name: str = "straight", bunch: int = 1, tokens: int = 40, extra: float = 0.0, told: float = 0.1
) -> ProxiedStream:
    """A token each 10 ms from 100 ms on; `bunch` of them arrive together, when the last of them was written."""
    server = tuple(START + 0.1 + 0.01 * i for i in range(tokens))
    reads = tuple(
        Read(server[min(i + bunch, tokens) - 1] + extra, 200 * bunch, min(bunch, tokens - i))
        for i in range(0, tokens, bunch)
    )
    heard = Heard(START, reads, reads[-1].moment, 200, "made", b"", tokens)
    return ProxiedStream(
        name,
        heard,
        server,
        {"ttft": told, "itl": 0.01, "stream": 0.001},
        (START, START, START + 0.09, *server[:1], *server[-1:], server[-1] + 0.001),
    )


TRIPS = [
    Trip(0.0, "kept open", 0.05, 0.01),
    Trip(0.1, "kept open", 0.15, 0.01),
    Trip(0.1, "new, TCP + TLS 1.3", 0.35, 0.01),
]


def fed(every: int, cpu: float = 1e-4, late: float = 0.001, chunks: int = 1000) -> Fed:
    return Fed(10, every, chunks, cpu * chunks, 2.0, (late,) * chunks)


COSTS = [fed(every) for every in run.EVERY]


def busy(cpu: float = 1.8, cured: float = 0.01) -> list[Fed]:
    """A chunk for each token, half of them late by 1 s; then larger chunks."""
    return [Fed(10, 1, 1000, cpu, 2.0, (1.0,) * 1000), Fed(10, 16, 60, 0.1, 2.0, (cured,) * 60)]
