"""70B with tenants, in the simulator: which router keeps a tenant's system prompt where it is cached?"""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from course.lab import simulated_70b
from course.lab.display import Html, table_by_name
from course.lab.pictures.chart import Axis, Curve, draw_chart
from course.lab.scale import is_short
from course.lab.style import seconds
from course.lab.svg import Picture
from course.simulator.cluster.run import FleetRun
from course.simulator.deployment import Deployment
from course.simulator.workload.arrivals import Deterministic
from course.simulator.workload.kinds import Sessions, SharedPrefix
from course.simulator.workload.lengths import Fixed

ROUTERS = {"round robin": "round_robin", "least busy": "least_outstanding", "prefix-aware": "prefix_aware"}
PREFIX = 2000
REPLICAS = 4


def serve_tenants(
    on: Deployment, router: str, tenants: int = 60, skew: float = 0.0, qps: float = 10.0, count: int = 300, **kind: Any
) -> FleetRun:
    """Tenants with system prompts of 2000 tokens, on four replicas behind a router."""
    traffic = SharedPrefix(tenants=tenants, prefix=Fixed(tokens=PREFIX), output=Fixed(tokens=60), skew=skew, **kind)
    policy = {"policy": ROUTERS[router]}
    return simulated_70b.serve(on, traffic, qps=qps, num_requests=count, replicas=REPLICAS, router=policy)


def routers(on: Deployment, names: Sequence[str] = tuple(ROUTERS), **load: Any) -> dict[str, FleetRun]:
    """The same load behind each router."""
    return {name: serve_tenants(on, name, **load) for name in names}


def ttft(run: FleetRun, q: int) -> float:
    """A percentile of TTFT as clients saw it, seconds: 50, 95 or 99."""
    return getattr(run.summary().metrics["ttft"], f"p{q}")


def busiest_share(run: FleetRun) -> float:
    """Of all prompt tokens that were sent, the share that went to one replica: a quarter where all share alike."""
    sent: Counter[str] = Counter()
    for record in run.records:
        sent[record.replica] += record.request.num_prompt_tokens
    return max(sent.values()) / sum(sent.values())


def routers_table(runs: Mapping[str, FleetRun]) -> Html:
    """A row a router: what its replicas found, what clients waited, and how evenly the work was spread."""
    return table_by_name(
        "router",
        runs,
        {
            "prompt tokens found": lambda run: f"{run.prefix_hit_rate:.0%}",
            "TTFT p50": lambda run: seconds(ttft(run, 50)),
            "TTFT p99": lambda run: seconds(ttft(run, 99)),
            "sent to the busiest replica": lambda run: f"{busiest_share(run):.0%}",
        },
    )


def cold_and_warm(on: Deployment, lengths: Sequence[int], question: int = 60) -> dict[int, tuple[float, float]]:
    """Prefix length -> TTFT of the first request, and the median of the later ones, on an idle server."""
    found = {}
    for tokens in lengths:
        traffic = SharedPrefix(prefix=Fixed(tokens=tokens), question=Fixed(tokens=question), output=Fixed(tokens=2))
        run = simulated_70b.serve(on, traffic, arrivals=Deterministic(rate=0.2), num_requests=5)
        times = [record.ttft() for record in run.records]
        found[tokens] = (times[0], median(times[1:]))
    return found


def draw_cold_and_warm(found: Mapping[int, tuple[float, float]]) -> Picture:
    """TTFT against the length of the prefix, cold and warm."""
    lengths = list(found)
    curves = [
        Curve("cold: first request with this prefix", lengths, [1000 * cold for cold, _ in found.values()]),
        Curve("warm: its blocks are in the cache", lengths, [1000 * warm for _, warm in found.values()]),
    ]
    return draw_chart(
        "What does a cached prefix save at 70B, on an idle server?",
        curves,
        Axis("shared prefix, tokens; a question of 60 follows", low=0),
        Axis("TTFT, ms", low=0),
    )


def session_cuts(on: Deployment, count: int = 24) -> dict[int, float]:
    """Turn of a conversation -> share of mean TTFT that prefix caching saves. Light load; answers are remembered."""
    if is_short():
        count *= 2  # simulated_70b.serve takes a share of them
    traffic = Sessions(turns=Fixed(tokens=5), output=Fixed(tokens=120), think_s=20.0)
    times: list[dict[int, list[float]]] = []
    for caching in (True, False):
        with_it = on if caching else on.without_prefix_lookups()
        run, by_turn = simulated_70b.serve(with_it, traffic, qps=0.05, num_requests=count), {}
        for record in run.records:
            if record.completed:
                by_turn.setdefault(_turn_of(run, record.request.index), []).append(record.ttft())
        times.append(by_turn)
    return {
        turn: 1 - (sum(on_) / len(on_)) / (sum(times[1][turn]) / len(times[1][turn])) for turn, on_ in times[0].items()
    }


def _turn_of(run: FleetRun, index: int) -> int:
    turn, request = 1, run.records[index].request
    while request.after is not None:
        turn, request = turn + 1, run.records[request.after].request
    return turn
