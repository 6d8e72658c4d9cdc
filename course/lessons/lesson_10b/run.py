"""What lesson 10b plays: answers over a distance, and one answer in both forms, for a reader with a pace."""

from collections.abc import Sequence
from dataclasses import dataclass

from course.lab.http_client import Heard, ask, connect
from course.lab.relay import HANDSHAKES, RelayPath, relay
from course.lab.run import percentile
from course.lab.server import LabServer
from course.lessons.lesson_10.run import PROMPT, num_tokens
from minillm.core.brief import brief

FAR_S = 0.12
"""A round trip from one continent to another, about."""


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
    with relay(server.port, RelayPath(rtt_s, HANDSHAKES[connection])) as port:
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


def network_share(each: Trip) -> float:
    """The network's share of a TTFT. On a slow machine it is small, however far away the client is."""
    return min(each.network / each.ttft, 1.0) if each.ttft else 0.0


# ---------------------------------------------------------------- a reader at their own pace


@dataclass(frozen=True)
class ReceivedAnswer:
    """One answer as it came, streamed or whole. Seconds since it was asked for."""

    arrivals: tuple[float, ...]
    """By token; of a whole answer, all the same."""
    words: int

    __repr__ = brief

    @property
    def engine_pace(self) -> float:
        """Words a minute at which a streamed answer was written."""
        return 60 * self.words / max(self.arrivals[-1] - self.arrivals[0], 1e-3)

    def read(self, words_per_minute: float) -> list[float]:
        """When a reader has read each token: not before it is there, and not faster than they read."""
        pace, done, moments = 60 / words_per_minute * self.words / len(self.arrivals), 0.0, []
        for there in self.arrivals:
            done = max(done, there) + pace
            moments.append(done)
        return moments


def both_forms(server: LabServer) -> dict[str, ReceivedAnswer]:
    """The same answer from the same server, by turns streamed and whole; of each, the one of median length."""
    tokens, heard = num_tokens(server.lab), {True: [], False: []}
    for stream in (True, False) * (ROUNDS if server.lab.scale == 1 else 1):
        heard[stream].append(ask(server.port, PROMPT, tokens, stream=stream))
    streamed, whole = (_middle(heard[stream]) for stream in (True, False))
    words = max(len(streamed.text.split()), 1)
    arrivals = tuple(moment - streamed.sent for moment in streamed.arrivals)
    return {
        "streamed": ReceivedAnswer(arrivals, words),
        "whole": ReceivedAnswer((whole.ended - whole.sent,) * len(arrivals), words),
    }


ROUNDS = 5
"""An odd number: one of them is in the middle."""


def _middle(heard: list[Heard]) -> Heard:
    """The one whose time is the median: hiccups of the machine are at the ends."""
    return sorted(heard, key=lambda each: each.ended - each.sent)[len(heard) // 2]
