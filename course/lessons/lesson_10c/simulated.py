"""A retry storm: a few seconds of overload, then load as usual, and clients that retry in six ways. At 70B, simulated.

storms = storms_at_70b()
storms["retry immediately"].per_second("offered")
storms["retry immediately"].goodput_after       # share of the requests due after the spike that were answered

The same on the lab's real server: `run.live_storms`.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from course.lab import simulated_70b
from course.lab.scale import is_short
from course.lab.waiting import with_progress
from course.simulator.cluster.record import Outcome
from course.simulator.cluster.retries import BreakerPolicy, RetryPolicy
from course.simulator.cluster.run import FleetRun
from course.simulator.workload.arrivals import Spikes
from course.simulator.workload.kinds import Independent
from course.simulator.workload.lengths import LogNormal
from minillm.core.brief import brief

Series = Literal["due", "offered", "good", "refused"]


@dataclass(frozen=True)
class Storm:
    """What one policy made of it. Moments in seconds after the start."""

    spike: tuple[float, float]
    due: tuple[float, ...]
    """When the users' requests were due."""
    offered: tuple[float, ...]
    """Attempts that were sent."""
    good: tuple[float, ...]
    """Answers that came before their client gave up."""
    refused: tuple[float, ...]
    """Attempts that the server refused, or an open breaker kept back."""
    goodput_after: float
    """Share of the requests due after the spike that were answered; those due in the last patience are left out."""

    __repr__ = brief

    def per_second(self, series: Series, bin_s: float = 1.0) -> dict[float, float]:
        """Events per second by start of a bin, from 0 to the last request."""
        counts = Counter(int(moment // bin_s) for moment in getattr(self, series))
        return {i * bin_s: counts[i] / bin_s for i in range(int(max(self.due) // bin_s) + 1)}

    @property
    def attempts_per_request(self) -> float:
        return len(self.offered) / len(self.due)


GIVE_UP, IMMEDIATELY, JITTER = "give up", "retry immediately", "backoff, jitter"
BUDGET, BREAKER = "retry budget of 10%", "circuit breaker"
"""On top of backoff and jitter."""
MOST_ATTEMPTS = 6


def expected_attempts(failing: float, most: int) -> float:
    """Attempts per request when each fails with this probability, whatever the others do: 1 + p + p^2 + ..."""
    return sum(failing**i for i in range(most))


def policies(patience_s: float) -> dict[str, RetryPolicy]:
    """By name. Backoff and breaker are in terms of a client's patience, seconds."""
    naive = RetryPolicy(max_attempts=MOST_ATTEMPTS)
    backoff = naive.replace(backoff_s=patience_s / 2, backoff_cap_s=4 * patience_s)
    jitter = backoff.replace(jitter=1.0)
    breaker = BreakerPolicy(window_s=patience_s, open_s=patience_s)
    return {
        GIVE_UP: RetryPolicy(),
        IMMEDIATELY: naive,
        "backoff": backoff,
        JITTER: jitter,
        BUDGET: jitter.replace(retry_budget=0.1),
        BREAKER: jitter.replace(breaker=breaker),
    }


def moment_of(moment: float | None) -> float:
    assert moment is not None
    return moment


def moments_since(start: float, moments: Iterable[float | None]) -> tuple[float, ...]:
    return tuple(sorted(moment - start for moment in moments if moment is not None))


# ---------------------------------------------------------------- 70B

COUNT_70B = 1200
"""Requests: five minutes, most of them after the spike. With fewer the queue has no time to drain."""
COUNT_70B_SHORT = 250
"""In the short form: its spike, and forty seconds after it."""
TRAFFIC = Independent(
    prompt=LogNormal(median=1500, sigma=0.6, high=6000), output=LogNormal(median=150, sigma=0.5, high=600)
)
SPIKES = Spikes(rate=3.5, spike_rate=17.5, start_s=20.0, length_s=20.0)
SHORT_SPIKES = Spikes(rate=2.5, spike_rate=17.5, start_s=3.0, length_s=8.0)
PATIENCE_70B_S = 6.0
"""To the first byte; then a client counts the attempt as failed."""
WORKS_ON = "works on"
SERVERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    WORKS_ON: ({"cancel_on_timeout": False}, {}),
    "drops abandoned requests": ({}, {}),
    "refuses beyond 16 queued": ({"cancel_on_timeout": False}, {"max_queue_len": 16}),
}
"""What a server does about attempts whose client has given up: fields of clients, and of the engine."""


def storms_at_70b(only: Sequence[str] = ()) -> dict[str, Storm]:
    """Each policy, or only these, in front of a server that isn't told when a client gives up."""
    return {name: played(name) for name in with_progress(only or policies(1.0), "simulating clients")}


def servers_at_70b() -> dict[str, Storm]:
    """Clients that retry immediately, in front of each kind of server."""
    return {name: played(IMMEDIATELY, name) for name in with_progress(SERVERS, "simulating servers")}


@functools.cache
def played(policy: str, server: str = WORKS_ON) -> Storm:
    clients, fields = SERVERS[server]
    clients = {"first_byte_timeout_s": PATIENCE_70B_S, **clients, **policies(PATIENCE_70B_S)[policy].model_dump()}
    on = simulated_70b.deployment(max_num_seqs=64, **fields)
    spikes, count = (SHORT_SPIKES, COUNT_70B_SHORT) if is_short() else (SPIKES, COUNT_70B)
    run = simulated_70b.serve(on, TRAFFIC, arrivals=spikes, num_requests=count, least=count, clients=clients)
    return _of_run(run, spikes)


def _of_run(run: FleetRun, spikes: Spikes) -> Storm:
    spike = (spikes.start_s, spikes.start_s + spikes.length_s)
    after = [record.completed for record in run.records if moment_of(record.intended) > spike[1]]
    return Storm(
        spike=spike,
        due=moments_since(0.0, (record.intended for record in run.records)),
        offered=moments_since(0.0, (moment for record in run.records for moment in record.tries)),
        good=moments_since(0.0, (record.last_byte for record in run.records if record.completed)),
        refused=moments_since(0.0, (record.ended for record in run.records if record.outcome is Outcome.SHED)),
        goodput_after=sum(after) / len(after),
    )
