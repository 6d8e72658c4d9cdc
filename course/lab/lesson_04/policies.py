"""Who is remembered? The same visits under several policies, drawn; and the hit rate against the cache's size."""

from collections.abc import Mapping, Sequence

from course.lab.lesson_04 import traces
from course.lab.lesson_04.beads import COMPUTED, FOUND
from course.lab.lesson_04.cache_model import FIFO, LRU, UNLIMITED, Policy, hit_rate, replay
from course.lab.lesson_04.traces import Visit
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.run import Run
from course.lab.style import WIDTH
from course.lab.svg import Picture, Scale, line, rect, text, time_axis

LEFT, RIGHT, ROW = 172, 12, 13
LIMIT_S = 300.0
"""The time limit of the article behind claim D13: five minutes."""


def policies(limit_s: float = LIMIT_S) -> dict[str, Policy]:
    """The engine's policy and three others."""
    return {
        "LRU": LRU,
        "FIFO": FIFO,
        f"limit {limit_s:g} s since use": Policy(renews=True, limit_s=limit_s),
        f"limit {limit_s:g} s since birth": Policy(renews=False, limit_s=limit_s),
    }


def draw_memory(trace: Sequence[Visit], num_blocks: int, limit_s: float = LIMIT_S) -> Picture:
    """A panel a policy, a row a user, a bar a visit: how much of its prompt was found, and how much computed."""
    names = sorted({visit.who for visit in trace}, key=lambda who: (len(who), who))
    scale = Scale(0.0, max(trace[-1].when, 1.0) * 1.02, LEFT, WIDTH - RIGHT)
    high = ROW * len(names) + 16
    ceiling = hit_rate(list(trace))
    body = rect(LEFT, 3, 9, 11, fill=FOUND, stroke="#3a3a00", stroke_width=0.8) + text(LEFT + 14, 13, "found", size=11)
    body += rect(LEFT + 70, 3, 9, 11, fill=COMPUTED) + text(LEFT + 84, 13, "computed, each bar one prompt", size=11)
    said, y = [], 26.0
    for name, policy in policies(limit_s).items():
        rate = hit_rate(list(trace), num_blocks, policy)
        said.append(f"{name} {rate:.0%}")
        body += text(4, y + 14, name, size=12, font_weight="bold")
        body += text(4, y + 31, f"found {rate:.0%}", size=12)
        for visit, found in zip(trace, replay(trace, num_blocks, policy)):
            body += _bar(scale(visit.when), y + ROW * names.index(visit.who), visit, found)
        for i in range(len(names)):
            body += line(LEFT, y + ROW * (i + 1), WIDTH - RIGHT, y + ROW * (i + 1), stroke_width=0.6)
        y += high
    body += time_axis(scale, 22, y - 8, "time; a row is a user")
    words = f"Prompt tokens found: {', '.join(said)}. A cache that never forgets: {ceiling:.0%}."
    body += text(4, y + 36, f"A cache that never forgets would find {ceiling:.0%}.", size=12)
    return Picture("Who is remembered when a user comes back?", body, y + 44, description=words)


def _bar(x: float, y: float, visit: Visit, found: int) -> str:
    """Found from the bottom, computed above it."""
    tall = ROW - 2.0
    share = found * visit.block_size / visit.num_prompt_tokens
    low = tall * share
    body = rect(x, y + 1, 6, tall - low, fill=COMPUTED)
    return body + (rect(x, y + 1 + tall - low, 6, low, fill=FOUND, stroke="#3a3a00", stroke_width=0.6) if found else "")


def explore(users: int, turns: int, gap_s: float, size: int, limit_s: float) -> Picture:
    """What the sliders of the policies' picture draw."""
    return draw_memory(traces.users(users, turns, gap_s), size, limit_s)


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
        "What happens when one tenant too many comes?",
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


def agreement(run: Run) -> tuple[int, int]:
    """Requests for which the model's LRU found exactly what the engine found, and how many there were.

    The run must have had one request open at a time: the model serves them one after the other.
    """
    predicted = replay(traces.trace_of(run), len(run.snapshot.block_owners))
    views = sorted(run.finished, key=lambda view: view.borders[0])
    size = run.snapshot.block_size
    return sum(view.num_cached_tokens == blocks * size for view, blocks in zip(views, predicted)), len(views)


def rates_of(runs: Mapping[str, Run]) -> dict[str, float]:
    """The engine's own hit rate of each run, from its counters."""
    return {name: run.snapshot.prefix_hits / max(run.snapshot.prefix_queries, 1) for name, run in runs.items()}
