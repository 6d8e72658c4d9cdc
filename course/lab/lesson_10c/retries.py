"""A retry storm at 70B: one short spike, and clients that give up, retry at once, or back off."""

import functools
from collections.abc import Mapping

from course.lab import simulated_70b
from course.lab.display import Html, table_by_name
from course.lab.finding import Finding, tell
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.predict import Outcome
from course.lab.svg import Picture
from minillm.simulate.cluster.run import FleetRun
from minillm.simulate.workload.arrivals import Spikes
from minillm.simulate.workload.kinds import Independent
from minillm.simulate.workload.lengths import LogNormal

TRAFFIC = Independent(
    prompt=LogNormal(median=1500, sigma=0.6, high=6000), output=LogNormal(median=150, sigma=0.5, high=600)
)
BASE, SPIKE, START_S, LONG_S, COUNT = 3.5, 17.5, 20.0, 20.0, 900
PATIENCE_S = 6.0
"""To the first byte; then a client counts the attempt as failed."""
RETRY = {"max_attempts": 3}
KEEPS_ON = {"cancel_on_timeout": False}
"""The server isn't told that a client has given up, and works on."""
GIVE_UP, AT_ONCE = "give up", "retry at once"
WAYS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    GIVE_UP: (KEEPS_ON, {}),
    AT_ONCE: ({**RETRY, **KEEPS_ON}, {}),
    "back off (8 s, doubling, jitter)": ({**RETRY, **KEEPS_ON, "backoff_s": 8.0, "jitter": 1.0}, {}),
    "retry at once; server drops abandoned work": (RETRY, {}),
    "retry at once; server refuses beyond 16 queued": ({**RETRY, **KEEPS_ON}, {"max_queue_len": 16}),
}
"""Fields of clients, and of the engine."""
BIN_S = 10.0


def expected_attempts(failing: float, most: int) -> float:
    """Attempts per request when each fails with this probability, whatever the others do: 1 + p + p^2 + ..."""
    return sum(failing**i for i in range(most))


@functools.cache
def runs() -> dict[str, FleetRun]:
    """The same users, with different clients and servers."""
    arrivals = Spikes(rate=BASE, spike_rate=SPIKE, start_s=START_S, length_s=LONG_S)
    found = {}
    for name, (clients, fields) in WAYS.items():
        on = simulated_70b.deployment(max_num_seqs=64, **fields)
        patient = {"first_byte_timeout_s": PATIENCE_S, **clients}
        found[name] = simulated_70b.serve(
            on, TRAFFIC, arrivals=arrivals, num_requests=COUNT, least=COUNT, clients=patient
        )
    return found


def attempts(run: FleetRun) -> float:
    """Per user request."""
    return run.num_attempts / len(run.records)


def amplification(found: Mapping[str, FleetRun]) -> Outcome:
    """Attempts per request with immediate retries: the answer to a prediction."""
    value = attempts(found[AT_ONCE])
    return Outcome(value, f"{value:.2f} attempts per user request; {attempts(found[GIVE_UP]):.0f} without retries")


def answered_over_time(run: FleetRun) -> dict[float, float]:
    """By start of a bin, share of the requests that were due in it and got their answer."""
    due: dict[float, list[bool]] = {}
    for record in run.records:
        due.setdefault(record.intended // BIN_S * BIN_S, []).append(record.completed)
    return {start: sum(each) / len(each) for start, each in sorted(due.items()) if len(each) >= 10}


def retries_table(found: Mapping[str, FleetRun]) -> Html:
    return table_by_name(
        "clients, and server",
        found,
        {
            "attempts per request": lambda run: f"{attempts(run):.2f}",
            "answered": lambda run: f"{sum(r.completed for r in run.records) / len(run.records):.0%}",
            "answered, due after the spike": lambda run: f"{after_the_spike(run):.0%}",
        },
    )


def after_the_spike(run: FleetRun) -> float:
    """Share answered of the requests due once load was normal again."""
    late = [record.completed for record in run.records if record.intended > START_S + LONG_S]
    return sum(late) / len(late)


def draw_load(found: Mapping[str, FleetRun]) -> Picture:
    """Who is answered, over time."""
    curves = []
    for name, run in found.items():
        shares = answered_over_time(run)
        curves.append(Curve(name, list(shares), [100 * share for share in shares.values()]))
    marks = [Mark("spike begins", x=START_S), Mark("ends", x=START_S + LONG_S)]
    axes = Axis("when the request was due, s", low=0), Axis("answered, %", low=0, high=105)
    return draw_chart("When is the service itself again?", curves, *axes, marks)


def told(found: Mapping[str, FleetRun]) -> Finding:
    """Whether the service came back after the spike, by kind of client and server."""
    give_up, at_once, backed, dropped, bounded = map(after_the_spike, found.values())
    shares = {"give_up": give_up, "at_once": at_once, "backed": backed, "dropped": dropped, "bounded": bounded}
    return tell("10", "storm", "stuck" if at_once < 0.5 else "drained", **shares)
