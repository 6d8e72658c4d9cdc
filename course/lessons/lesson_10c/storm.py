"""A retry storm: a few seconds of overload, then load as usual, and clients that retry in six ways.

storms = storm.live(lab)                    # on the lab's real server, 13 s a policy
storms = storm.live(lab, max_queue_len=8)   # one that refuses
storms = storm.at_70b()                     # 70B on four H100s, simulated
storms["retry at once"].per_second("offered")
storms["retry at once"].goodput_after       # share of the requests due after the spike that were answered
"""

import asyncio
import functools
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from course.lab import simulated_70b
from course.lab.display import Html, table_by_name
from course.lab.finding import Finding, tell
from course.lab.http_client import NAME, ask, together
from course.lab.lab import Lab
from course.lab.pictures.chart import Axis, Curve, Mark, Panel, draw_panels
from course.lab.predict import Outcome as Answer
from course.lab.scale import is_short
from course.lab.server import LabServer
from course.lab.svg import Picture
from course.lab.waiting import with_progress
from course.loadgen.client import Api, Client, Endpoint, Exchange, Failure, now
from course.loadgen.planned_requests import PlannedRequest, planned_requests
from course.loadgen.retrying import send_until_answered
from course.simulator.cluster.record import Outcome
from course.simulator.cluster.retries import BreakerPolicy, Retries, RetryPolicy
from course.simulator.cluster.run import FleetRun
from course.simulator.workload.arrivals import Spikes
from course.simulator.workload.kinds import Independent
from course.simulator.workload.lengths import Fixed, LogNormal
from course.simulator.workload.requests import make_workload
from minillm.core.brief import brief

Series = Literal["due", "offered", "good", "refused"]
REFUSALS = (Failure.RATE_LIMITED, Failure.SERVER_ERROR)


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

    __repr__ = brief

    def per_second(self, series: Series, bin_s: float = 1.0) -> dict[float, float]:
        """Events per second by start of a bin, from 0 to the last request."""
        counts = Counter(int(moment // bin_s) for moment in getattr(self, series))
        return {i * bin_s: counts[i] / bin_s for i in range(int(max(self.due) // bin_s) + 1)}

    @property
    def attempts_per_request(self) -> float:
        return len(self.offered) / len(self.due)


GIVE_UP, AT_ONCE, JITTER = "give up", "retry at once", "backoff, jitter"
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
        AT_ONCE: naive,
        "backoff": backoff,
        JITTER: jitter,
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
START_S, LENGTH_S, ENDS_S, SHORT_ENDS_S = 2.0, 2.0, 12.0, 7.0
TRIAL_TOKENS, FEWEST, MOST = 8, 4, 96


def live(
    lab: Lab, *, only: Sequence[str] = (GIVE_UP, AT_ONCE, JITTER, BUDGET), ends_s: float = ENDS_S, **fields: Any
) -> dict[str, Storm]:
    """Each policy against a server of its own. The load follows what this machine's server can do, measured first.

    Args:
        only: these policies. In the lab's short form, the first two, cut off at SHORT_ENDS_S.
        ends_s: when a storm is cut off, seconds.
        fields: of EngineConfig; max_queue_len is what the server does about it.
    """
    fields = {"max_num_seqs": SLOTS, **fields}
    with LabServer(lab, **fields) as server:
        tokens, capacity = _calibrate(server)
    found = {}
    only, ends_s = (only[:2], SHORT_ENDS_S) if is_short() else (only, ends_s)
    for name in with_progress(only, "retry storms"):
        with LabServer(lab, **fields) as server:
            found[name] = _play(server, policies(PATIENCE_S)[name], tokens, capacity, ends_s)
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
        refused=_moments(start, (e.ended for e in tried if e.sent is None or e.failure in REFUSALS)),
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


def _known(moment: float | None) -> float:
    assert moment is not None
    return moment


def _moments(start: float, moments: Iterable[float | None]) -> tuple[float, ...]:
    return tuple(sorted(moment - start for moment in moments if moment is not None))


# ---------------------------------------------------------------- 70B

COUNT_70B = 1200
"""Requests: five minutes, most of them after the spike. With fewer the queue has no time to drain."""
LEAST_70B = 500
"""In the short form: the spike, and a minute after it."""
TRAFFIC = Independent(
    prompt=LogNormal(median=1500, sigma=0.6, high=6000), output=LogNormal(median=150, sigma=0.5, high=600)
)
SPIKES = Spikes(rate=3.5, spike_rate=17.5, start_s=20.0, length_s=20.0)
PATIENCE_70B_S = 6.0
"""To the first byte; then a client counts the attempt as failed."""
WORKS_ON = "works on"
SERVERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    WORKS_ON: ({"cancel_on_timeout": False}, {}),
    "drops abandoned requests": ({}, {}),
    "refuses beyond 16 queued": ({"cancel_on_timeout": False}, {"max_queue_len": 16}),
}
"""What a server does about attempts whose client has given up: fields of clients, and of the engine."""


def at_70b(only: Sequence[str] = ()) -> dict[str, Storm]:
    """Each policy, or only these, in front of a server that isn't told when a client gives up."""
    return {name: played(name) for name in with_progress(only or policies(1.0), "simulating clients")}


def servers_70b() -> dict[str, Storm]:
    """Clients that retry at once, in front of each kind of server."""
    return {name: played(AT_ONCE, name) for name in with_progress(SERVERS, "simulating servers")}


@functools.cache
def played(policy: str, server: str = WORKS_ON) -> Storm:
    clients, fields = SERVERS[server]
    clients = {"first_byte_timeout_s": PATIENCE_70B_S, **clients, **policies(PATIENCE_70B_S)[policy].model_dump()}
    on = simulated_70b.deployment(max_num_seqs=64, **fields)
    count = {"num_requests": COUNT_70B, "least": LEAST_70B}
    return _of_run(simulated_70b.serve(on, TRAFFIC, arrivals=SPIKES, clients=clients, **count))


def _of_run(run: FleetRun) -> Storm:
    spike = (SPIKES.start_s, SPIKES.start_s + SPIKES.length_s)
    after = [record.completed for record in run.records if _known(record.intended) > spike[1]]
    return Storm(
        spike=spike,
        due=_moments(0.0, (record.intended for record in run.records)),
        offered=_moments(0.0, (moment for record in run.records for moment in record.tries)),
        good=_moments(0.0, (record.last_byte for record in run.records if record.completed)),
        refused=_moments(0.0, (record.ended for record in run.records if record.outcome is Outcome.SHED)),
        goodput_after=sum(after) / len(after),
    )


# ---------------------------------------------------------------- what they showed


def table(storms: Mapping[str, Storm], head: str = "clients") -> Html:
    return table_by_name(
        head,
        storms,
        {
            "attempts per request": lambda each: f"{each.attempts_per_request:.2f}",
            "answered, of the requests due after the spike": lambda each: f"{each.goodput_after:.0%}",
        },
    )


def draw(storms: Mapping[str, Storm], title: str, bin_s: float = 1.0) -> Picture:
    """For each policy, over time: requests that users made, attempts that were sent, good answers."""
    ends = next(iter(storms.values())).spike
    highest = 1.1 * max(max(each.per_second("offered", bin_s).values()) for each in storms.values())
    panels = []
    for name, storm in storms.items():
        rates = {series: storm.per_second(series, bin_s) for series in ("offered", "due", "good")}
        curves = [
            Curve(words, [moment + bin_s / 2 for moment in rates[series]], list(rates[series].values()))
            for series, words in WORDS.items()
        ]
        axis = Axis(name, low=0, high=highest)
        panels.append(Panel(curves, axis, [Mark("", x=moment) for moment in ends], height=150))
    return draw_panels(title, panels, Axis(f"time, seconds; per second, in bins of {bin_s:g} s", low=0))


WORDS: dict[Series, str] = {"offered": "attempts", "due": "users' requests", "good": "good answers"}


def amplification(storms: Mapping[str, Storm]) -> Answer:
    """Attempts per request with immediate retries: the answer to a prediction."""
    value = storms[AT_ONCE].attempts_per_request
    return Answer(value, f"{value:.2f} attempts per user request; {storms[GIVE_UP].attempts_per_request:.2f} without")


def told(storms: Mapping[str, Storm]) -> Finding:
    """Whether the server came back after the spike, by kind of client."""
    give_up, at_once = storms[GIVE_UP].goodput_after, storms[AT_ONCE].goodput_after
    shares = {"give_up": give_up, "at_once": at_once, "attempts": storms[AT_ONCE].attempts_per_request}
    return tell("10c", "storm", "stuck" if at_once < give_up / 2 else "drained", **shares)


def told_70b(clients: Mapping[str, Storm], servers: Mapping[str, Storm]) -> Finding:
    """What clients and servers can each do about it."""
    after = [each.goodput_after for each in (*clients.values(), *list(servers.values())[1:])]
    names = ("give_up", "at_once", "backoff", "jitter", "budget", "breaker", "drops", "refuses")
    shares = dict(zip(names, after))
    limited = min(shares["budget"], shares["breaker"]) > shares["jitter"] + 0.2
    return tell("10c", "clients", "limited" if limited else "alike", **shares)
