"""Between client and service: distance, the ingress, and a proxy that does not pass everything on at once."""

import bisect
import math
from collections.abc import Callable

from pydantic import Field

from course.simulator.cluster.events import EventQueue
from course.simulator.cluster.jobs import Attempt, Reply
from course.simulator.workload.streams import Streams, WorkloadModel


class Network(WorkloadModel):
    """The way there and back. The defaults take no time."""

    rtt_s: float = Field(0.0, ge=0, description="round trip between a client and the service, seconds")
    far_share: float = Field(0.0, ge=0, le=1, description="share of requests from clients that live far away")
    far_rtt_s: float = Field(0.0, ge=0, description="their round trip, seconds")
    handshakes: int = Field(0, ge=0, description="round trips before each request (TCP 1, TLS 1); 0 = keep-alive")
    ingress_s: float = Field(0.0, ge=0, description="CPU seconds per request at the ingress, one after the other")
    ingress_s_per_token: float = Field(0.0, ge=0, description="further CPU seconds per prompt token (tokenizing)")
    hold_chunks: int = Field(1, ge=1, description="the proxy passes chunks on when it has so many; 1 = at once")
    hold_s: float | None = Field(None, gt=0, description="... or when the oldest has waited so long; None = for ever")


class Wire:
    """Carries attempts to the service and replies back.

    Args:
        accept: takes an attempt that has reached the service.
        receive: takes a reply whose last byte has reached its client.
    """

    def __init__(
        self,
        network: Network,
        events: EventQueue,
        streams: Streams,
        accept: Callable[[Attempt], None],
        receive: Callable[[Attempt, Reply], None],
    ) -> None:
        self.network, self.events, self.streams = network, events, streams
        self._accept, self._receive = accept, receive
        self._hold_s = math.inf if network.hold_s is None else network.hold_s
        self._ingress_free_at = 0.0

    def send(self, attempt: Attempt) -> None:
        """Carry an attempt to the service."""
        record, network = attempt.record, self.network
        if attempt.number == 1:
            record.is_far = self.streams.uniform("distance") < network.far_share
        there = self._rtt(attempt) * (network.handshakes + 0.5)
        self.events.after(there, self._enter, attempt)

    def _enter(self, attempt: Attempt) -> None:
        """The ingress works on one request at a time: TLS, parsing, the chat template, tokenizing, logging."""
        work = self.network.ingress_s + self.network.ingress_s_per_token * attempt.record.request.num_prompt_tokens
        self._ingress_free_at = max(self._ingress_free_at, self.events.now) + work
        self.events.at(self._ingress_free_at, self._accept, attempt)

    def cancel(self, attempt: Attempt) -> None:
        """The client has hung up, and says so."""
        self.events.after(self._rtt(attempt) / 2, self._hang_up, attempt)

    def _hang_up(self, attempt: Attempt) -> None:
        attempt.hung_up = True
        if attempt.cancel is not None:
            attempt.cancel()

    def reply(self, attempt: Attempt, reply: Reply) -> None:
        """Send back what the service says, now that it is complete."""
        back = self._rtt(attempt) / 2
        stamps = reply.timeline.deliveries if reply.timeline is not None else []
        passed_on = coalesce(stamps, self.network.hold_chunks, self._hold_s)
        reply.deliveries = [stamp + back for stamp in passed_on] if back else passed_on
        self.events.after(back, self._receive, attempt, reply)

    def first_byte(self, attempt: Attempt) -> float | None:
        """When the first byte reached, or will reach, the client, as far as that is known now."""
        stamps, hold = attempt.stamps, self.network.hold_chunks
        if not stamps or (len(stamps) < hold and self._hold_s == math.inf):
            return None
        full = stamps[hold - 1] if len(stamps) >= hold else math.inf
        return min(full, stamps[0] + self._hold_s) + self._rtt(attempt) / 2

    def _rtt(self, attempt: Attempt) -> float:
        return self.network.far_rtt_s if attempt.record.is_far else self.network.rtt_s


def coalesce(stamps: list[float], hold_chunks: int, hold_s: float) -> list[float]:
    """When a proxy passes each chunk on: with `hold_chunks` of them, after `hold_s`, or at the end of the stream.

    Args:
        stamps: when the chunks came, ascending, seconds.
    Returns:
        One moment per chunk, none before it came. hold_chunks = 1 returns the stamps as they are.
    """
    if hold_chunks == 1:
        return stamps
    passed_on: list[float] = []
    first = 0
    while first < len(stamps):
        last = min(first + hold_chunks, len(stamps)) - 1
        leaves = min(stamps[last], stamps[first] + hold_s)
        end = bisect.bisect_right(stamps, leaves, first, last + 1)
        passed_on += [leaves] * (end - first)
        first = end
    return passed_on
