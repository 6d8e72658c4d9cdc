"""Pictures and tables of lesson 04: blocks as beads, a radix tree, eviction policies, routers."""

from collections.abc import Mapping, Sequence

from course.lab import simulated_70b
from course.lab.display import Html, as_table, table_by_name
from course.lab.lab import Lab
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.prefix_cache import CacheRequest, Chain, model_hit_rate, tenants_trace, token_ids, users_trace
from course.lab.run import Run
from course.lab.snapshot import RequestView
from course.lab.style import ALARM, PHASE_COLOURS, WIDTH, seconds
from course.lab.svg import INK, PAPER, SOFT, Picture, line, rect, tag, text
from course.lessons.lesson_04.run import (
    LIMIT_S,
    busiest_share,
    hit_rate,
    later_ttft,
    policies,
    shared_tokens,
    smallest_cache,
    ttfts,
)
from course.simulator.cluster.run import FleetRun

# ---------------------------------------------------------------- blocks as beads

FOUND = "#F0E442"
"""Okabe-Ito yellow: a block that need not be computed."""
COMPUTED = PHASE_COLOURS["prefill"]
LEFT, BEADS, TIMES = 110, 370, 500
"""Where labels end, how wide a string is, where the times begin."""
PITCH = 21


def bead(x: float, y: float, r: float, kind: str) -> str:
    """One block: found, computed, or tail (partly filled: it can never be found)."""
    if kind == "found":
        return tag("circle", cx=x, cy=y, r=r, fill=FOUND, stroke="#3a3a00", stroke_width=1.0)
    if kind == "computed":
        return tag("circle", cx=x, cy=y, r=0.62 * r, fill=COMPUTED)
    return tag("circle", cx=x, cy=y, r=0.5 * r, fill="none", stroke=SOFT, stroke_width=1.0)


def legend(y: float, block_size: int) -> str:
    """What the three kinds of beads are."""
    body, x = "", LEFT + 6.0
    for kind, words in (
        ("found", "found in the cache"),
        ("computed", f"computed ({block_size} tokens)"),
        ("tail", "partly filled"),
    ):
        body += bead(x, y - 4, 6, kind) + text(x + 11, y, words, size=11, fill=SOFT)
        x += 34 + 6.0 * len(words)
    return body


def draw_finds(runs: Mapping[str, Run], title: str = "What did each request find in the cache?") -> Picture:
    """One row per request, one group per run: its blocks as beads, its TTFT as a bar on the right."""
    some = next(iter(runs.values()))
    size = max(some.snapshot.block_size, 1)
    longest = max([view.num_prompt_tokens for run in runs.values() for view in run.views] or [1])
    slowest = max([value for run in runs.values() for value in ttfts(run) if value is not None] or [1.0])
    body = legend(14, size) + text(TIMES, 14, "TTFT", size=11, fill=SOFT)
    y = 40.0
    for name, run in runs.items():
        body += text(4, y, name, size=13, font_weight="bold") + text(
            WIDTH - 4, y, _headline(run), size=12, text_anchor="end"
        )
        y += 20
        for row, ttft in zip(run.rows, ttfts(run)):
            body += text(LEFT - 14, y + 4, _label(row.view, row.index), size=11, fill=SOFT, text_anchor="end")
            body += _string(row.view, size, longest, y) + _time(ttft, slowest, y)
            y += PITCH
        y += 16
    return Picture(title, body, y - 16, description=_describe(runs))


def _headline(run: Run) -> str:
    done = [value for value in ttfts(run)[1:] if value is not None]
    found = f"found: {hit_rate(run):.0%} of all prompt tokens"
    return f"{found}; later TTFT {seconds(later_ttft(run))}" if done else found


def _label(view: RequestView | None, index: int) -> str:
    return f"#{index}" if view is None else f"#{index}  {view.num_prompt_tokens} tokens"


def _string(view: RequestView | None, size: int, longest: int, y: float) -> str:
    if view is None:
        return ""
    step = min(BEADS / -(-longest // size), 16.0)
    full, found = view.num_prompt_tokens // size, view.num_cached_tokens // size
    body = line(LEFT, y, LEFT + step * -(-view.num_prompt_tokens // size), y)
    for i in range(-(-view.num_prompt_tokens // size)):
        kind = "found" if i < found else "computed" if i < full else "tail"
        body += bead(LEFT + step * (i + 0.5), y, min(step * 0.48, 7.0), kind)
    return body


def _time(ttft: float | None, slowest: float, y: float) -> str:
    if ttft is None:
        return text(TIMES, y + 4, "…", size=11, fill=SOFT)
    width = max((WIDTH - 62 - TIMES) * ttft / slowest, 1.5)
    bar = rect(TIMES, y - 5, width, 10, fill=SOFT)
    return bar + text(TIMES + width + 5, y + 4, seconds(ttft), size=11)


def _describe(runs: Mapping[str, Run]) -> str:
    parts = []
    for name, run in runs.items():
        cached = ", ".join(f"{view.num_cached_tokens} of {view.num_prompt_tokens}" for view in run.views)
        times = ", ".join(seconds(value) for value in ttfts(run))
        parts.append(f"{name}: tokens found {cached}; TTFT {times}")
    return ". ".join(parts) + "."


# ---------------------------------------------------------------- two chains, block by block

COLUMNS, CELL, HIGH, NAMES = 8, 84, 112, 54
"""Blocks a row; a block's width; a row's height; room for the names on the left."""


def draw_chains(first: Chain, second: Chain, block_size: int) -> Picture:
    """Two prompts, block over block. The second one's beads light up as far as the first has been there."""
    found = second.found_after(first)
    count = max(len(first.blocks), len(second.blocks))
    body = legend(14, block_size)
    for i in range(count):
        x, y = NAMES + i % COLUMNS * CELL, 46.0 + HIGH * (i // COLUMNS)
        if i % COLUMNS == 0:
            body += text(4, y + 4, "first", fill=SOFT) + text(4, y + 54, "second", fill=SOFT)
        if i == found:
            body += line(x + 1, y - 16, x + 1, y + 76, stroke=ALARM, stroke_width=2, stroke_dasharray="4 3")
            body += text(x + 5, y - 14, "the chain breaks here", size=11, fill=ALARM)
        pair = (first.blocks[i : i + 1], second.blocks[i : i + 1])
        differs = _first_difference(*(block[0].text if block else "" for block in pair))
        for block, dy, lit in zip(pair, (0, 50), (False, i < found)):
            if block:
                body += _named_bead(block[0].text, block[0].name, x, y + dy, lit, differs)
    height = 46 + HIGH * -(-max(count, 1) // COLUMNS)
    words = _verdict(first, second, found, block_size)
    body += text(4, height, words, size=12)
    title = "How many of the first prompt's blocks does the second one find?"
    return Picture(title, body, height + 10, width=NAMES + COLUMNS * CELL, description=words)


def _first_difference(a: str, b: str) -> int | None:
    """Where two texts differ; None = they are the same."""
    if a == b:
        return None
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def _named_bead(words: str, name: bytes, x: float, y: float, lit: bool, differs: int | None) -> str:
    """A bead with the first digits of its hash beside it, and some of its text below: where it differs, that part."""
    start = 0 if differs is None else max(differs - 5, 0)
    excerpt = words.replace("\n", " ")[start : start + 12].strip()
    return (
        line(x + 4, y, x + CELL, y)
        + bead(x + 16, y, 9, "found" if lit else "computed")
        + text(
            x + 29,
            y + 4,
            name.hex()[:4],
            size=12,
            fill=INK,
            stroke=PAPER,
            stroke_width=4,
            paint_order="stroke",
            font_family="monospace",
            font_weight="bold" if lit else None,
        )
        + text(
            x + 6,
            y + 24,
            excerpt if differs is None else f"≠ {excerpt[:11]}",
            size=11,
            fill=SOFT if differs is None else ALARM,
        )
    )


def _verdict(first: Chain, second: Chain, found: int, block_size: int) -> str:
    same = sum(a.text == b.text for a, b in zip(first.blocks, second.blocks))
    return (
        f"{found} of {len(second.blocks)} full blocks are found: {found * block_size} of {second.num_tokens} tokens. "
        f"Blocks with the same words: {same}."
    )


# ---------------------------------------------------------------- tables


def ladder_table(found: Mapping[str, float]) -> Html:
    """The fixes, and what each one added."""
    rows, before = [], 0.0
    for name, rate in found.items():
        rows.append((name, f"{rate:.0%}", f"{100 * (rate - before):+.0f} points" if rows else ""))
        before = rate
    return as_table(("fix, one after the other", "a cache can find", "the last fix added"), rows)


def runs_table(runs: Mapping[str, Run]) -> Html:
    """Hit rate, tokens computed, and TTFT of each run."""
    return table_by_name(
        "run",
        runs,
        {
            "found": lambda run: f"{hit_rate(run):.0%}",
            "prompt tokens computed": lambda run: str(
                sum(view.num_prompt_tokens - view.num_cached_tokens for view in run.views)
            ),
            "median TTFT after the first": lambda run: seconds(later_ttft(run)),
        },
    )


def blocks_table(runs: Mapping[int, Run]) -> Html:
    """What was shared, and what was found, by block size."""
    rows = []
    for size, run in runs.items():
        alike = shared_tokens(run)
        rows.append((f"{size} tokens", str(alike), str(max(view.num_cached_tokens for view in run.views))))
    return as_table(("block size", "tokens shared", "found by the later requests"), rows)


# ---------------------------------------------------------------- a radix tree

TREE_LEFT, TREE_WIDE, TREE_HIGH = 70, 600, 22


def draw_tree(lab: Lab, first: str, second: str, block: int) -> Picture:
    """The radix tree of two prompts: its trunk is what a token-granular cache shares."""
    a, b = token_ids(lab, first), token_ids(lab, second)
    shared = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    whole = shared // block * block
    unit = TREE_WIDE / max(len(a), len(b))
    fork = TREE_LEFT + shared * unit
    body = rect(TREE_LEFT, 44, whole * unit, TREE_HIGH, fill=FOUND, rx=3)
    body += rect(TREE_LEFT + whole * unit, 44, (shared - whole) * unit, TREE_HIGH, fill=FOUND, fill_opacity=0.4, rx=3)
    for ids, y, name in ((a, 12, "first"), (b, 76, "second")):
        body += line(fork, 44 + TREE_HIGH / 2, fork + 8, y + TREE_HIGH / 2, stroke=SOFT, stroke_width=2)
        body += rect(fork + 8, y, (len(ids) - shared) * unit - 8, TREE_HIGH, fill=COMPUTED, rx=3)
        body += text(TREE_LEFT - 8, y + 15, name, text_anchor="end", fill=SOFT)
    words = (
        f"shared, token by token (a radix tree): {shared} of {len(b)}; in whole blocks of {block}: {whole}",
        "yellow: found by both kinds of cache; pale: only token by token; blue: computed again",
    )
    for row, each in enumerate(words):
        body += text(TREE_LEFT, 122 + 18 * row, each, fill=INK if row == 0 else SOFT)
    return Picture("What would a radix tree share?", body, 150, description=words[0])


# ---------------------------------------------------------------- eviction policies

CACHE_SIZES = (100, 150, 200, 300, 400, 600, 1000)
"""Sizes of the cache in the policies' picture, blocks."""


def draw_policies(trace: Sequence[CacheRequest], limit_s: float = LIMIT_S) -> Picture:
    """One curve per policy: how much of all prompts it finds, by the size of the cache."""
    sizes = [size for size in CACHE_SIZES if size >= smallest_cache(trace)]
    curves = [
        Curve(name, sizes, [100 * model_hit_rate(list(trace), size, policy) for size in sizes])
        for name, policy in policies(limit_s).items()
    ]
    return draw_chart(
        "How much is still cached when a user comes back?",
        curves,
        Axis("cache, blocks of 16 tokens", log=True),
        Axis("prompt tokens found, %", low=0, high=100),
        [Mark("an unlimited cache", y=100 * model_hit_rate(list(trace)))],
    )


def explore_policies(users: int, turns: int, gap_s: float, limit_s: float) -> Picture:
    """What the sliders of the policies' picture draw."""
    return draw_policies(users_trace(users, turns, gap_s), limit_s)


def draw_cliff(most: int = 12, room: int = 6) -> Picture:
    """Hit rate against the number of tenants, in a cache with room for `room` of them."""
    one = smallest_cache(tenants_trace(1, 1))
    counts = list(range(1, most + 1))
    curves = []
    for name, in_turns in (("strictly in turns", True), ("at random", False)):
        rates = [100 * model_hit_rate(tenants_trace(n, in_turns=in_turns), room * one) for n in counts]
        curves.append(Curve(name, counts, rates))
    ceiling = [100 * model_hit_rate(tenants_trace(n)) for n in counts]
    curves.append(Curve("unlimited cache", counts, ceiling, style="dashes"))
    return draw_chart(
        "What does one tenant too many do to the hit rate?",
        curves,
        Axis("tenants, each with a system prompt of 1000 tokens"),
        Axis("prompt tokens found, LRU, %", low=0, high=100),
        [Mark(f"room for {room}", x=room)],
    )


# ---------------------------------------------------------------- tenants at 70B


def routers_table(runs: Mapping[str, FleetRun]) -> Html:
    """One row per router: what its replicas found, what clients waited, and how evenly the work was spread."""
    return table_by_name(
        "router",
        runs,
        {
            "prompt tokens found": lambda run: f"{run.prefix_hit_rate:.0%}",
            "TTFT p50": lambda run: seconds(simulated_70b.ttft(run, 50)),
            "TTFT p99": lambda run: seconds(simulated_70b.ttft(run, 99)),
            "sent to the busiest replica": lambda run: f"{busiest_share(run):.0%}",
        },
    )


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
