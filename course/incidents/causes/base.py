"""What a cause is: a function that draws a healthy service and what became of it, and what convicts it."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from course.incidents.numbers import latencies
from course.incidents.service import Flow, ServicePlay, SimulatedService, capacity
from course.lab.run import percentile
from course.simulator.cluster.fleet import ClusterConfig
from course.simulator.speculation import SimulatedConfig
from course.simulator.workload.arrivals import Poisson
from course.simulator.workload.kinds import Independent, TrafficModel
from course.simulator.workload.lengths import LogNormal
from course.summary import SLO

Regime = Literal["steady", "spike"]


class Draw(random.Random):
    """All random choices of one incident, from whatever names it."""

    def __init__(self, name: str | int) -> None:
        super().__init__(f"incident {name}")


@dataclass(frozen=True)
class Case:
    """A service before, healthy, and now, ill. The SLO is set to fit the first."""

    before: SimulatedService
    now: SimulatedService
    change: str
    """What was really changed, or happened, as a log of changes would say it."""
    target: float = 0.95
    """Share of requests that must meet the SLO."""
    story: str = ""
    """What the page adds, where there is a story to it."""


@dataclass(frozen=True)
class Cause:
    """What can be wrong."""

    name: str
    title: str
    make: Callable[[Draw], Case]
    phase: str
    """The phase that is to blame: the seconds are lost there, or it is what must change."""
    convicting: tuple[str, ...]
    """Ids of the questions whose answers convict it, the most telling first."""
    fixes: tuple[str, ...]
    """Interventions that restore the SLO, the best first."""
    tempting: str
    """The one that is often tried, and does not."""
    why_not: str
    """The number that rules the tempting one out."""
    mitigation: str
    """The id of what helps most within half an hour, before anything is known for sure."""
    looks_like: str
    """Another cause."""
    told_apart_by: str
    """The id of the question that tells the two apart."""
    ours: bool = False
    """Whether it went out with this morning's release, so that a rollback takes it back."""
    regime: Regime = "steady"
    also: tuple[str, ...] = ()
    """Other phases that may fairly be named as the dominant one."""
    together: bool = False
    """Whether it takes all of the fixes: there are two causes, and each alone breaks the SLO."""
    names: tuple[str, ...] = ()
    """Other causes that may fairly be named as the one."""
    source: str = ""
    """Where something like it was reported, with numbers: an address; "" = nowhere in particular."""
    reported: str = ""
    """What was reported there."""


# ---------------------------------------------------------------- healthy services

MACHINES = (
    ("llama-3.1-8b", "l40s", 1),
    ("llama-3.1-8b", "a100-80gb", 1),
    ("qwen3-14b", "a100-80gb", 1),
    ("qwen3-14b", "h100-sxm", 1),
    ("qwen3-32b", "a100-80gb", 2),
    ("qwen3-32b", "h100-sxm", 2),
    ("llama-3.1-70b", "a100-80gb", 4),
    ("llama-3.1-70b", "h100-sxm", 4),
)
"""Model, hardware, accelerators per replica. A page tells model and hardware, so every cause draws from these pairs."""
MORE_MACHINES = (
    *MACHINES,
    ("qwen3-14b", "h100-sxm", 4),
    ("llama-3.1-70b", "h100-sxm", 8),
    ("llama-3.1-8b", "l40s", 4),
    ("qwen3-14b", "a100-80gb", 4),
)
"""With some that only launch-bound decoding and slow links would have else: the configuration would name the cause."""
REQUESTS = 260
"""In one run."""


def lengths(median: float, sigma: float = 0.5, most: float = 4.0) -> LogNormal:
    """Tokens; no request has more than `most` times the median."""
    return LogNormal(median=round(median), sigma=sigma, low=8, high=round(most * median))


def chat(draw: Draw, prompt: tuple[float, float], output: tuple[float, float]) -> Independent:
    """Requests that share nothing; medians between the given tokens."""
    return Independent(prompt=lengths(draw.uniform(*prompt)), output=lengths(draw.uniform(*output), 0.45, 3.0))


def service(
    draw: Draw,
    kind: TrafficModel,
    *,
    machines: Sequence[tuple[str, str, int]] = MACHINES,
    replicas: int = 1,
    requests: int = REQUESTS,
    **engine: Any,
) -> SimulatedService:
    """A service of one flow, a request a second, with a configuration that suits most traffic."""
    model, hardware, tp = draw.choice(machines)
    fields = {
        "max_num_seqs": draw.choice((48, 64, 96, 128)),
        "max_num_batched_tokens": draw.choice((768, 1024, 1280)),
        "max_model_len": None,
        **engine,
    }
    flow = Flow("chat", kind, Poisson(rate=1.0))
    fleet = ClusterConfig(replicas=replicas, sample_every_s=None)
    return SimulatedService(model, hardware, SimulatedConfig(**fields), (flow,), float(requests), tp=tp, fleet=fleet)


def loaded(service: SimulatedService, load: float, of: SimulatedService | None = None) -> SimulatedService:
    """The same, at this share of its capacity, or of another service's."""
    of = of or service
    return service.with_load(load * capacity(of) * service.duration_s / len(service.workload(1)))


def in_flight(played: ServicePlay) -> float:
    """Requests in flight, on average (Little's law)."""
    spent = sum(record.ended - record.intended for record in played.run.records)
    return spent / played.service.duration_s


# ---------------------------------------------------------------- the SLO

TARGETS = (0.95, 0.95, 0.99)
"""Shares of requests that must meet an SLO: an incident draws one of them."""
SLACK = 1.5
"""Limits are at least so many times what the healthy service does, a little beyond the SLO's percentile."""
LEAST = {"ttft": 0.5, "itl": 0.1, "tpot": 0.0, "e2e": 2.0}
"""Limits that nobody would tighten, seconds: a chat whose first token comes sooner isn't noticed to be better."""
LONGEST_TTFT = 5.0
"""Seconds. Who chats doesn't wait longer, so a service whose healthy TTFT needs a longer limit is drawn anew."""
ROUND = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
"""Digits of limits that people agree on, times a power of ten."""
LEAST_BREACH = 1.5
"""How far over its limit the worst latency is when you are paged, at the SLO's percentile. There's no most: a queue
that has grown for half an hour is far over any limit that users would put up with."""


def slo_for(healthy: ServicePlay, target: float) -> SLO:
    """Limits as a product would state them: round, and a little above what the healthy service does."""
    beyond = 100 * (1 + 2 * target) / 3
    return SLO(
        **{
            name: rounded_up(max(SLACK * (percentile(values, beyond) or 0.0), LEAST[name]))
            for name, values in latencies(healthy).items()
        }
    )


def breach_of(play: ServicePlay) -> tuple[str, float]:
    """The limit that answered requests break by most, at the SLO's percentile, and by which factor."""
    slo, percent = play.service.slo, 100 * play.service.target
    worst = {
        name: (percentile(values, percent) or 0.0) / getattr(slo, name) for name, values in latencies(play).items()
    }
    return max(worst.items(), key=lambda each: each[1])


def rounded_up(seconds: float) -> float:
    """To the next of the digits that people agree on: 0.347 is 0.4, 12.1 is 15."""
    if seconds <= 0:
        return 0.01
    unit = 10.0 ** math.floor(math.log10(seconds))
    return round(unit * next(digit for digit in ROUND if seconds <= digit * unit * (1 + 1e-9)), 9)


def with_slo(case: Case, slo: SLO) -> Case:
    """Both services with these limits."""
    before, now = (replace(s, slo=slo, target=case.target) for s in (case.before, case.now))
    return replace(case, before=before, now=now)
