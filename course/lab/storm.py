"""A retry storm: a few seconds of overload, then load as usual, and clients that retry in six ways.

storms = storm.live(lab)                    # on the lab's real server, 15 s a policy
storms = storm.live(lab, max_queue_len=8)   # one that refuses
storms = storm.at_70b()                     # 70B on four H100s, simulated
storms["retry at once"].per_second("offered")
storms["retry at once"].goodput_after       # share of the requests due after the spike that were answered
"""

import asyncio
import functools
import random
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from course.lab import simulated_70b
from course.lab.http_client import NAME, ask, together
from course.lab.lab import Lab
from course.lab.lesson_10c import retries as lesson
from course.lab.progress_bar import with_progress
from course.lab.server import LabServer
from minillm.bench.loadgen.client import Api, Client, Endpoint, Exchange, Failure, now
from minillm.bench.loadgen.planned_requests import PlannedRequest, planned_requests
from minillm.bench.loadgen.retrying import send_until_answered
from minillm.simulate.cluster.record import Outcome
from minillm.simulate.cluster.retries import BreakerPolicy, Retries, RetryPolicy
from minillm.simulate.cluster.run import FleetRun
from minillm.simulate.workload.arrivals import Spikes
from minillm.simulate.workload.kinds import Independent
from minillm.simulate.workload.lengths import Fixed
from minillm.simulate.workload.requests import make_workload

Series = Literal["due", "offered", "good", "refused"]


@dataclass(frozen=True)
class Storm:
    """What one policy made of it. Moments in seconds after the start."""

    spike: tuple[float, float]
    due: tuple[float, ...]
    """Of the users' requests."""
    offered: tuple[float, ...]
    """Attempts that were sent."""
    good: tuple[float, ...]
    """Answers that came before their client gave up."""
    refused: tuple[float, ...]
    """Attempts that the server refused, or an open breaker kept back."""
    goodput_after: float
    """Share of the requests due after the spike that were answered; those due in the last patience are left out."""

    def per_second(self, series: Series, bin_s: float = 1.0) -> dict[float, float]:
        """Events per second by start of a bin, from 0 to the last request."""
        counts = Counter(int(moment // bin_s) for moment in getattr(self, series))
        return {i * bin_s: counts[i] / bin_s for i in range(int(max(self.due) // bin_s) + 1)}

    @property
    def attempts_per_request(self) -> float:
        return len(self.offered) / len(self.due)


BUDGET, BREAKER = "backoff, jitter, budget of 10%", "backoff, jitter, breaker"


def policies(patience_s: float) -> dict[str, RetryPolicy]:
    """By name. Backoff and breaker are in terms of a client's patience, seconds."""
    naive = RetryPolicy(max_attempts=6)
    backoff = naive.replace(backoff_s=patience_s / 2, backoff_cap_s=4 * patience_s)
    jitter = backoff.replace(jitter=1.0)
    breaker = BreakerPolicy(window_s=patience_s, open_s=patience_s)
    return {
        "give up": RetryPolicy(),
        "retry at once": naive,
        "backoff": backoff,
        "backoff, jitter": jitter,
        BUDGET: jitter.replace(retry_budget=0.1),
        BREAKER: jitter.replace(breaker=breaker),
    }


# ---------------------------------------------------------------- the real server

SLOTS = 4
SERVICE_S = 0.25
"""Of a request in a full batch: answers are made so long that it takes about this."""
PATIENCE_S = 4 * SERVICE_S
"""For the whole answer."""
LOAD, OVERLOAD = 0.5, 4.0
"""Of what the server can do, before and after the spike, and in it."""
START_S, LENGTH_S, ENDS_S = 2.0, 2.0, 12.0
TRIAL_TOKENS, FEWEST, MOST = 8, 4, 96


def live(lab: Lab, *, ends_s: float = ENDS_S, **fields: Any) -> dict[str, Storm]:
    """Each policy against a server of its own. The load follows what this machine's server can do, measured first.

    Args:
        ends_s: when a storm is cut off, seconds.
        fields: of EngineConfig; max_queue_len is what the server does about it.
    """
    fields = {"max_num_seqs": SLOTS, **fields}
    with LabServer(lab, **fields) as server:
        tokens, capacity = _calibrate(server)
    found = {}
    for name, policy in with_progress(policies(PATIENCE_S).items(), "retry storms"):
        with LabServer(lab, **fields) as server:
            found[name] = _play(server, policy, tokens, capacity, ends_s)
    return found


def _calibrate(server: LabServer) -> tuple[int, float]:
    """Tokens of an answer that takes SERVICE_S, and such requests a second with all slots full."""

    def wave(tokens: int) -> float:
        start = now()
        together([functools.partial(ask, server.port, f"Request {i}", tokens) for i in range(SLOTS)])
        return now() - start

    trial = min(wave(TRIAL_TOKENS) for _ in range(3))
    tokens = min(max(round(TRIAL_TOKENS * SERVICE_S / trial), FEWEST), MOST)
    return tokens, SLOTS / min(wave(tokens) for _ in range(2))


def _play(server: LabServer, policy: RetryPolicy, tokens: int, capacity: float, ends_s: float) -> Storm:
    spikes = Spikes(rate=LOAD * capacity, spike_rate=OVERLOAD * capacity, start_s=START_S, length_s=LENGTH_S)
    traffic = Independent(prompt=Fixed(tokens=12), output=Fixed(tokens=tokens))
    requests = planned_requests(make_workload(traffic, spikes, duration_s=ends_s))
    endpoint = Endpoint(server.url, Api.COMPLETIONS, NAME, extra={"ignore_eos": True})
    with ThreadPoolExecutor(1) as thread:  # a notebook's own thread has an event loop already
        start, tried = thread.submit(asyncio.run, _send_all(endpoint, policy, requests, ends_s)).result()
    answered = {each.request.index for each in tried if _is_good(each)}
    after = [r.index for r in requests if START_S + LENGTH_S < _known(r.due) < ends_s - PATIENCE_S]
    return Storm(
        spike=(START_S, START_S + LENGTH_S),
        due=tuple(_known(r.due) for r in requests),
        offered=_moments(start, (each.sent for each in tried)),
        good=_moments(start, (each.ended for each in tried if _is_good(each))),
        refused=_moments(start, (each.ended for each in tried if _is_refused(each))),
        goodput_after=sum(index in answered for index in after) / max(len(after), 1),
    )


async def _send_all(
    endpoint: Endpoint, policy: RetryPolicy, requests: list[PlannedRequest], ends_s: float
) -> tuple[float, list[Exchange]]:
    """When it began, on the client's clock, and every attempt."""
    tried: list[Exchange] = []
    retries = Retries(policy, random.Random(0).random)
    async with Client(endpoint, PATIENCE_S) as client:
        start = now()

        async def send(request: PlannedRequest) -> None:
            await asyncio.sleep(start + _known(request.due) - now())
            await send_until_answered(client, request, retries, tried)

        tasks = [asyncio.create_task(send(request)) for request in requests]
        _, still_open = await asyncio.wait(tasks, timeout=ends_s)
        for task in still_open:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return start, tried


def _is_good(each: Exchange) -> bool:
    return each.is_over and each.failure is None


def _is_refused(each: Exchange) -> bool:
    return each.sent is None or each.failure in (Failure.RATE_LIMITED, Failure.SERVER_ERROR)


def _known(moment: float | None) -> float:
    assert moment is not None
    return moment


def _moments(start: float, moments: Iterable[float | None]) -> tuple[float, ...]:
    return tuple(sorted(moment - start for moment in moments if moment is not None))


# ---------------------------------------------------------------- 70B

COUNT_70B = 1200
"""Requests: five minutes, most of them after the spike."""


@functools.cache
def at_70b() -> dict[str, Storm]:
    """The traffic of lesson 10c, by the same policies; the server is not told when a client gives up."""
    arrivals = Spikes(rate=lesson.BASE, spike_rate=lesson.SPIKE, start_s=lesson.START_S, length_s=lesson.LONG_S)
    on = simulated_70b.deployment(max_num_seqs=64)
    found = {}
    for name, policy in policies(lesson.PATIENCE_S).items():
        clients = {"first_byte_timeout_s": lesson.PATIENCE_S, **lesson.KEEPS_ON, **policy.model_dump()}
        count = {"num_requests": COUNT_70B, "least": COUNT_70B}
        run = simulated_70b.serve(on, lesson.TRAFFIC, arrivals=arrivals, clients=clients, **count)
        found[name] = _of_run(run, (lesson.START_S, lesson.START_S + lesson.LONG_S))
    return found


def _of_run(run: FleetRun, spike: tuple[float, float]) -> Storm:
    after = [record.completed for record in run.records if _known(record.intended) > spike[1]]
    return Storm(
        spike=spike,
        due=_moments(0.0, (record.intended for record in run.records)),
        offered=_moments(0.0, (moment for record in run.records for moment in record.tries)),
        good=_moments(0.0, (record.last_byte for record in run.records if record.completed)),
        refused=_moments(0.0, (record.ended for record in run.records if record.outcome is Outcome.SHED)),
        goodput_after=sum(after) / len(after),
    )
