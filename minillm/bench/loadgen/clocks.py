"""Two clocks, side by side: what the client saw, and what the server says, on one axis.

The clocks have nothing to do with each other. As NTP does (Cristian 1989), the client asks what the server's clock
shows: the answer was given at some moment between asking and hearing, so half the round trip is the most by which
the middle can be wrong. Every answer that was streamed narrows it further: a request cannot arrive before it was
sent, and a token cannot be read before it was handed over.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from minillm.bench.loadgen.client import Client, now
from minillm.bench.loadgen.observation import Observation
from minillm.core.errors import EndpointError
from minillm.core.known import known
from minillm.server.server_times import SERVER_PHASES, SERVER_STAMPS, read_server_times

PROBES = 8


@dataclass(frozen=True, slots=True)
class Offset:
    """Server's clock minus client's clock, seconds: surely between `low` and `high`."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2

    @property
    def error(self) -> float:
        """The most by which `middle` can be wrong."""
        return (self.high - self.low) / 2

    def within(self, other: "Offset") -> "Offset":
        """What both allow. Where they contradict each other (a clock was set meanwhile), the first is kept."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Offset(low, high) if low <= high else self


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time in one request, seconds after the test's start, on the client's clock."""

    side: str
    """client, server or wire."""
    name: str
    start: float
    end: float
    error: float = 0.0
    """The most by which both ends can be off together: the clocks' share."""

    @property
    def seconds(self) -> float:
        return self.end - self.start


def offset_of(asked: float, server_clock: float, heard: float) -> Offset:
    """From one round trip: the server read its clock after `asked` and before `heard`."""
    return Offset(server_clock - heard, server_clock - asked)


async def measure_offset(client: Client, probes: int = PROBES) -> Offset:
    """Ask /health for its clock a few times.

    Raises:
        EndpointError: it has no clock there. (vLLM and SGLang do not: their times cannot be laid beside ours.)
    """
    best: Offset | None = None
    for _ in range(probes + 1):
        asked = now()
        _, text = await client.get("/health")
        heard = now()
        try:
            found = offset_of(asked, float(json.loads(text)["clock"]), heard)
        except (ValueError, KeyError, TypeError):
            raise EndpointError(f"{client.endpoint.url}/health shows no clock: {text[:100]!r}") from None
        best = best.within(found) if best else found
    return known(best)


def narrowed(offset: Offset, observations: Iterable[Observation], start: float) -> Offset:
    """The offset, with what every answer adds to it.

    Args:
        start: of the test, on the client's clock.
    """
    for o in observations:
        times = read_server_times(o.server_times)
        if times is None or not times.stamps or not o.completed:
            continue
        at_most = times.stamps["arrival"] - (start + known(o.sent))
        at_least = times.stamps["first_token"] - (start + o.deliveries[0])
        offset = offset.within(Offset(at_least, at_most))
    return offset


def side_by_side(observation: Observation, offset: Offset, start: float) -> list[Span]:
    """A request's spans: the client's own, the server's phases moved to the client's clock, and the wire's.

    Args:
        start: of the test, on the client's clock.
    Raises:
        EndpointError: the answer has no server stamps, or there is no answer.
    """
    times = read_server_times(observation.server_times)
    if not observation.completed or times is None or not times.stamps:
        raise EndpointError(f"request {observation.index} came back without the server's stamps: nothing to compare")
    first, last = observation.deliveries[0], observation.deliveries[-1]
    sent, ended = known(observation.sent), known(observation.ended)
    spans = [
        Span("client", "time to first token", sent, first),
        Span("client", "receiving tokens", first, last),
        Span("client", "end of stream", last, ended),
    ]
    stamps = [times.stamps[name] - offset.middle - start for name in SERVER_STAMPS]
    spans += [
        Span("server", phase, begin, end, offset.error) for phase, begin, end in zip(SERVER_PHASES, stamps, stamps[1:])
    ]
    arrival, first_token, last_token = stamps[0], stamps[3], stamps[4]
    spans += [
        Span("wire", "request out", sent, arrival, offset.error),
        Span("wire", "first token back", first_token, first, offset.error),
        Span("wire", "last token back", last_token, last, offset.error),
    ]
    return spans


def wire_cost(spans: Sequence[Span]) -> float:
    """Seconds of a request's time to first token that the server did not see: out and back.

    The clocks' offset cancels out, so this is exact however far apart they are.
    """
    return sum(span.seconds for span in spans if span.name in ("request out", "first token back"))
