"""70B with tenants, in the simulator: which router keeps a tenant's system prompt where it is cached?"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from course.lab import simulated_70b
from course.lab.lesson_04.beads import COMPUTED, FOUND
from course.lab.pictures.chart import Axis, Curve, draw_chart
from course.lab.scale import is_short
from course.lab.style import PHASE_COLOURS, WIDTH, seconds
from course.lab.svg import SOFT, Picture, rect, text
from minillm.simulate.cluster.run import FleetRun
from minillm.simulate.deployment import Deployment
from minillm.simulate.workload.arrivals import Deterministic
from minillm.simulate.workload.kinds import Sessions, SharedPrefix
from minillm.simulate.workload.lengths import Fixed

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


def explore(on: Deployment, tenants: int, skew: float, qps: float) -> Iterator[Picture]:
    """What the button of the routers' picture draws: one fleet after the other."""
    runs: dict[str, FleetRun] = {}
    for name in ROUTERS:
        runs[name] = serve_tenants(on, name, tenants, skew, qps)
        yield draw_routers(runs)


def ttft(run: FleetRun, q: int) -> float:
    """A percentile of TTFT as clients saw it, seconds: 50, 95 or 99."""
    return getattr(run.summary().metrics["ttft"], f"p{q}")


def loads(run: FleetRun) -> dict[str, tuple[int, int]]:
    """Per replica: prompt tokens found in its cache, and prompt tokens computed."""
    found: dict[str, tuple[int, int]] = {report.replica: (0, 0) for report in run.reports}
    for record in run.records:
        if record.replica in found:
            cached, computed = found[record.replica]
            prompt = record.request.num_prompt_tokens
            found[record.replica] = (cached + record.num_cached_tokens, computed + prompt - record.num_cached_tokens)
    return found


LEFT, BARS, TIMES = 150, 330, 520


def draw_routers(runs: Mapping[str, FleetRun]) -> Picture:
    """A group a router, a bar a replica: prompt tokens found and computed there; TTFT on the right."""
    longest = max(sum(each) for run in runs.values() for each in loads(run).values())
    slowest = max(ttft(run, 99) for run in runs.values())
    body = rect(LEFT, 4, 12, 11, fill=FOUND, stroke="#3a3a00") + text(LEFT + 17, 14, "prompt tokens found", size=11)
    body += rect(LEFT + 150, 4, 12, 11, fill=COMPUTED) + text(LEFT + 167, 14, "computed", size=11)
    body += text(TIMES, 14, "TTFT", size=11, fill=SOFT)
    said, y = [], 26.0
    for name, run in runs.items():
        body += text(4, y + 12, name, size=13, font_weight="bold")
        body += text(4, y + 29, f"found {run.prefix_hit_rate:.0%}", size=12)
        for i, (replica, (cached, computed)) in enumerate(loads(run).items()):
            top, wide = y + 16 * i, BARS * cached / longest
            body += text(LEFT - 6, top + 11, replica.removeprefix("main-"), size=11, fill=SOFT, text_anchor="end")
            body += rect(LEFT, top + 1, wide, 12, fill=FOUND, stroke="#3a3a00", stroke_width=0.6)
            body += rect(LEFT + wide, top + 1, BARS * computed / longest, 12, fill=COMPUTED)
        for i, q in enumerate((50, 99)):
            wide = (WIDTH - 110 - TIMES) * ttft(run, q) / slowest
            body += rect(TIMES, y + 6 + 24 * i, wide, 13, fill=PHASE_COLOURS["first_token"])
            body += text(TIMES + wide + 5, y + 17 + 24 * i, f"p{q} {seconds(ttft(run, q))}", size=11)
        most = max(loads(run).values(), key=sum)
        share = sum(most) / sum(sum(each) for each in loads(run).values())
        said.append(f"{name}: found {run.prefix_hit_rate:.0%}, TTFT p50 {seconds(ttft(run, 50))}, "
                    f"p99 {seconds(ttft(run, 99))}, busiest replica {share:.0%} of the tokens")  # fmt: skip
        y += 16 * REPLICAS + 22
    return Picture("Which replica knows which tenant?", body, y - 8, description="; ".join(said) + ".")


def cold_and_warm(on: Deployment, lengths: Sequence[int], question: int = 60) -> dict[int, tuple[float, float]]:
    """Prefix length -> TTFT of the first request, and the median of the later ones, when nobody else is there."""
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
        Curve("cold: nobody has sent this prefix yet", lengths, [1000 * cold for cold, _ in found.values()]),
        Curve("warm: its blocks are in the cache", lengths, [1000 * warm for _, warm in found.values()]),
    ]
    return draw_chart(
        "What does a cached prefix save at 70B, with nobody else there?",
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
