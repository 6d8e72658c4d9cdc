"""What the lesson sends over the wire, and what its predictions are scored by."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from course.lab.http_client import Heard, ask, connect
from course.lab.lab import Lab
from course.lab.predict import Outcome
from course.lab.run import gaps_of, percentile
from course.lab.server import LabServer, proxy
from course.lab.style import seconds
from course.lab.texts import CHAT_QUESTIONS
from course.lessons.lesson_10.relay import HANDSHAKES, Way, relay
from minillm.core.brief import brief

PROMPT = CHAT_QUESTIONS[1]
HELD_BYTES = 4096
HALF = 0.5
FLAT, WORSE = 0.5, 2.0
"""A percentile that halves has fallen, one that doubles has risen."""
RHYTHM = {
    ("same", "same"): "both stay",
    ("up", "up"): "both rise",
    ("same", "up"): "p50 stays, p99 rises",
    ("down", "up"): "p50 falls, p99 rises",
}
FAR_S = 0.12
"""A round trip from one continent to another, about."""


@dataclass(frozen=True)
class Passed:
    """One stream, from both ends. Clock seconds."""

    name: str
    heard: Heard
    server: tuple[float, ...]
    """When the engine handed over each token."""
    told: dict[str, float]
    """Means at the server's /metrics, of this request: seconds by name; empty if not looked up."""
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
    """Of an answer."""
    return 96 if lab.scale == 1 else 48


def through(server: LabServer, name: str = "", tokens: int | None = None, **spoiling: Any) -> Passed:
    """One answer, streamed through the teaching proxy, or straight if nothing is to be spoiled."""
    before = server.metrics()
    with proxy(server.port, **spoiling) as port:
        heard = ask(port, PROMPT, tokens or num_tokens(server.lab))
    line = server.timeline(heard.call_id)
    told = {name: histogram.mean for name, histogram in server.metrics().since(before).items()}
    words = ", ".join(f"{key.replace('_', ' ')} {value:g}" for key, value in spoiling.items())
    return Passed(name or words or "straight", heard, tuple(line.deliveries), told, tuple(line.borders()))


FAULTS: dict[str, dict[str, float]] = {
    "a proxy that adds a constant delay": {"hold_ms": 250},
    "a proxy that passes on 8 events together": {"coalesce": 8},
}


def faults(server: LabServer) -> list[Passed]:
    """One answer through each."""
    return [through(server, name, **fault) for name, fault in FAULTS.items()]


def rhythm(held: Passed) -> Outcome:
    """What became of ITL's p50 and p99 on the way. Both ends of one answer: two answers differ on a busy machine."""
    was, now = ([percentile(gaps, q) for q in (50, 99)] for gaps in (held.server_itl, held.heard.itl))
    moved = tuple("down" if b < FLAT * a else "up" if b > WORSE * a else "same" for a, b in zip(was, now))
    told = ", ".join(f"p{q} {seconds(a)} to {seconds(b)}" for q, a, b in zip((50, 99), was, now))
    bunch = max(read.tokens for read in held.heard.reads)
    return Outcome(
        RHYTHM.get(moved, f"p50 {moved[0]}, p99 {moved[1]}"),
        f"ITL as it left the server, and as it arrived: {told}; up to {bunch} tokens came at once; TTFT "
        f"{seconds(held.server_ttft)} to {seconds(held.heard.ttft)}",
    )


# ---------------------------------------------------------------- far away


@dataclass(frozen=True)
class Trip:
    """Answers over one distance and one kind of connection."""

    rtt_s: float
    connection: str
    """One of HANDSHAKES."""
    ttft: float
    """The quickest, seconds: what no hiccup of this machine has lengthened."""
    itl: float
    """Median."""

    @property
    def round_trips(self) -> int:
        """Before the first token can be there: the handshakes, and one for question and answer."""
        return HANDSHAKES[self.connection] + 1

    @property
    def network(self) -> float:
        """What the round trips take, seconds."""
        return self.round_trips * self.rtt_s


def trip(server: LabServer, rtt_s: float, connection: str, times: int = 3) -> Trip:
    """Short answers over a distance, one after the other. On a kept connection, the first one opens it."""
    kept = HANDSHAKES[connection] == 0
    with relay(server.port, Way(rtt_s, HANDSHAKES[connection])) as port:
        line = connect(port) if kept else None
        heard = [ask(port, PROMPT, 8, connection=line) for _ in range(times)]
        if line is not None:
            line.close()
    gaps = [gap for each in heard for gap in each.itl]
    return Trip(rtt_s, connection, min(each.ttft for each in heard), percentile(gaps, 50))


def trips(server: LabServer, rtts: Sequence[float] = (0.0, 0.03, FAR_S)) -> list[Trip]:
    """Near and far, on a connection that is kept open and on new ones."""
    kinds = ("kept open", "new, TCP + TLS 1.3")
    return [trip(server, rtt, kind, 3 if server.lab.scale == 1 else 2) for rtt in rtts for kind in kinds]
