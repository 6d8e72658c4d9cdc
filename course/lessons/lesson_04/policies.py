"""What gets evicted? The same visits under several policies: the hit rate against the cache's size."""

from collections.abc import Mapping, Sequence

from course.lab.lab import Lab
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.run import Run
from course.lab.style import seconds
from course.lab.svg import Picture
from course.lessons.lesson_04 import traces, traffic
from course.lessons.lesson_04.cache_model import FIFO, LRU, UNLIMITED, Policy, hit_rate, replay
from course.lessons.lesson_04.traces import Visit

SIZES = (100, 150, 200, 300, 400, 600, 1000)
"""Of the cache in the policies' picture, blocks."""
LIMIT_S = 300.0
"""The time limit of the article behind claim D13: five minutes."""


def policies(limit_s: float = LIMIT_S) -> dict[str, Policy]:
    """The engine's policy and three others."""
    return {
        "LRU": LRU,
        "FIFO": FIFO,
        f"limit {limit_s:g} s since use": Policy(renews=True, limit_s=limit_s),
        f"limit {limit_s:g} s since creation": Policy(renews=False, limit_s=limit_s),
    }


def draw_policies(trace: Sequence[Visit], limit_s: float = LIMIT_S) -> Picture:
    """A curve a policy: how much of all prompts it finds, by the size of the cache."""
    sizes = [size for size in SIZES if size >= smallest(trace)]
    curves = [
        Curve(name, sizes, [100 * hit_rate(list(trace), size, policy) for size in sizes])
        for name, policy in policies(limit_s).items()
    ]
    return draw_chart(
        "How much is still cached when a user comes back?",
        curves,
        Axis("cache, blocks of 16 tokens", log=True),
        Axis("prompt tokens found, %", low=0, high=100),
        [Mark("an unlimited cache", y=100 * hit_rate(list(trace)))],
    )


def explore(users: int, turns: int, gap_s: float, limit_s: float) -> Picture:
    """What the sliders of the policies' picture draw."""
    return draw_policies(traces.users(users, turns, gap_s), limit_s)


def draw_cliff(most: int = 12, room: int = 6) -> Picture:
    """Hit rate against the number of tenants, in a cache with room for `room` of them."""
    one = smallest(traces.tenants(1, 1))
    counts = list(range(1, most + 1))
    curves = []
    for name, in_turns in (("strictly in turns", True), ("at random", False)):
        rates = [100 * hit_rate(traces.tenants(n, in_turns=in_turns), room * one) for n in counts]
        curves.append(Curve(name, counts, rates))
    ceiling = [100 * hit_rate(traces.tenants(n)) for n in counts]
    curves.append(Curve("unlimited cache", counts, ceiling, style="dashes"))
    return draw_chart(
        "What does one tenant too many do to the hit rate?",
        curves,
        Axis("tenants, each with a system prompt of 1000 tokens"),
        Axis("prompt tokens found, LRU, %", low=0, high=100),
        [Mark(f"room for {room}", x=room)],
    )


def smallest(trace: Sequence[Visit]) -> int:
    """Blocks of the largest single request."""
    return max(visit.num_blocks for visit in trace)


def working_set(trace: Sequence[Visit]) -> int:
    """Blocks with different contents in the whole trace: a cache of this size never forgets."""
    return len({name for visit in trace for name in visit.names}) + len({visit.who for visit in trace})


def by_gap(gaps_s: Sequence[float], limit_s: float = LIMIT_S, users: int = 10) -> dict[float, dict[str, float]]:
    """Mean gap between a user's turns -> policy -> hit rate, in a cache with room for all users; and LRU with a
    quarter of that room, and with no limit at all."""
    found: dict[float, dict[str, float]] = {}
    for gap in gaps_s:
        trace = traces.users(users, 6, gap)
        room = working_set(trace)
        rates = {name: hit_rate(trace, room, policy) for name, policy in policies(limit_s).items()}
        tight = max(room // 4, smallest(trace))
        found[gap] = {
            **rates,
            "LRU, a quarter of the room": hit_rate(trace, tight),
            "ceiling": hit_rate(trace, UNLIMITED),
        }
    return found


def live(lab: Lab) -> dict[str, Run]:
    """The engine's own policies on the same visits: one tenant asks every other time, and two fit into the cache."""
    visits = traffic.favourite(lab)
    room = traffic.room_for(lab.run(visits), 2)
    runs = {name: lab.run(visits, num_kv_blocks=room, prefix_eviction=name.lower()) for name in ("LRU", "FIFO")}
    limit_s = min(min(run.e2e) for run in runs.values()) / 2  # between two visits of A lies a whole request
    aged = lab.run(visits, num_kv_blocks=room, prefix_eviction="ttl", prefix_ttl_s=limit_s)
    return runs | {f"TTL of {seconds(limit_s)}": aged}


def agreement(run: Run, policy: Policy = LRU) -> tuple[int, int]:
    """Requests for which the model found exactly what the engine found, and how many there were.

    The run must have had one request open at a time: the model serves them one after the other.
    """
    predicted = replay(traces.trace_of(run), len(run.snapshot.block_owners), policy)
    views = sorted(run.finished, key=lambda view: view.borders[0])
    size = run.snapshot.block_size
    return sum(view.num_cached_tokens == blocks * size for view, blocks in zip(views, predicted)), len(views)


def rates_of(runs: Mapping[str, Run]) -> dict[str, float]:
    """The engine's own hit rate of each run, from its counters."""
    return {name: run.snapshot.prefix_hits / max(run.snapshot.prefix_queries, 1) for name, run in runs.items()}
