"""Pictures and tables of lesson 07b."""

from collections.abc import Mapping

from course.lab.display import Html, as_table, table_by_name
from course.lab.explorer import Explorer, choices
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.pool_trace import GONE, PoolTrace
from course.lab.style import seconds, size, with_minus
from course.lab.svg import Picture
from course.lessons.lesson_07b.run import FIRST_TIME, Found, Loss, Pause, compute_s, fetch_s, later_ttft
from course.measure.quality import REQUEST_TOKENS, QualityLimits
from course.simulator.cluster.run import FleetRun

# ---------------------------------------------------------------- windows and needles


def draw_window(traces: Mapping[str, PoolTrace]) -> Picture:
    """Blocks held against tokens read: with a window they come back to the pool."""
    curves = [
        Curve(name, [tokens for tokens, _ in trace.blocks_of(0)], [held for _, held in trace.blocks_of(0)])
        for name, trace in traces.items()
    ]
    told = "; ".join(
        f"{name}: {trace.blocks_of(0)[-1][1]} blocks held at the end, {given_back(trace)} given back"
        for name, trace in traces.items()
    )
    return draw_chart(
        "One request grows: how many blocks does it hold?",
        curves,
        Axis("tokens in its text"),
        Axis("blocks held", low=0),
        height=240,
        description=told,
    )


def given_back(trace: PoolTrace) -> int:
    """Blocks that left the window and went back to the pool, while the request still ran."""
    tables = [frame.tables[0] for frame in trace.frames if 0 in frame.tables]
    return tables[-1].count(GONE)


def draw_needle(found: Mapping[str, Mapping[int, Found]], reach: int) -> Picture:
    """Tokens of the needle predicted, against how far back it was given.

    Args:
        found: by name of a configuration, by distance.
        reach: distance beyond which the whole needle is out of the window.
    """
    back = [distance for distance in next(iter(found.values())) if distance != FIRST_TIME]
    curves = [Curve(name, back, [100 * of[distance].share for distance in back]) for name, of in found.items()]
    guess = 100 * max(of[FIRST_TIME].share for of in found.values())
    curves.append(Curve("never seen before", [back[0], back[-1]], [guess, guess], "dashes"))
    return draw_chart(
        "Given once, given again: how much of it does the model predict?",
        curves,
        Axis("tokens between the first copy and the second"),
        Axis("tokens of the needle predicted (%)", low=0, high=105),
        [Mark("out of the window", x=reach)],
        height=260,
    )


# ---------------------------------------------------------------- tables


def losses_table(found: Mapping[str, Loss]) -> Html:
    """What each saves beside what it loses, and whether it keeps the limits."""
    limits = QualityLimits()
    rows = [("as the model is", "100%", "", "", "", "the reference")]
    for loss in found.values():
        broken = loss.broken(limits)
        rows.append(
            (
                loss.name,
                f"{loss.kv_share:.0%}",
                with_minus(f"{loss.rise:+.1%}"),
                f"{loss.kl:.4f}",
                f"{loss.agreement:.1%}",
                f"breaks: {', '.join(broken)}" if broken else "keeps all three",
            )
        )
    header = (
        "",
        f"KV of {REQUEST_TOKENS:,} tokens",
        f"perplexity (at most {limits.perplexity_rise:+.0%})",
        f"KL, nats (at most {limits.kl})",
        f"same most likely token (at least {limits.agreement:.0%})",
        "limits",
    )
    return as_table(header, rows)


def tiers_table(found: Mapping[str, FleetRun]) -> Html:
    """What each found, and what later turns waited."""
    return table_by_name(
        "KV is kept in",
        found,
        {
            "prompt tokens found": lambda run: f"{run.prefix_hit_rate:.0%}",
            "TTFT p50, later turns": lambda run: seconds(later_ttft(run)),
        },
    )


# ---------------------------------------------------------------- fetch it, or compute it again

PREFIXES = (256, 512, 1024, 2048, 4096, 8192, 16384)


def draw_fetch(gb_per_s: float, latency_ms: float) -> Picture:
    """Both ways, by the length of the prefix."""
    fetch = [1e3 * fetch_s(n, gb_per_s, latency_ms) for n in PREFIXES]
    compute = [1e3 * compute_s(n) for n in PREFIXES]
    cheaper = [n for n, a, b in zip(PREFIXES, fetch, compute) if a < b]
    if len(cheaper) in (0, len(PREFIXES)):
        told = f"{'fetching' if cheaper else 'computing'} is faster at every length"
    else:
        told = f"fetching wins from {min(cheaper):,} tokens"
    curves = [Curve("compute it again (70B, 4 H100s)", PREFIXES, compute), Curve("fetch it", PREFIXES, fetch)]
    marks = [Mark(f"from {min(cheaper):,}", x=min(cheaper))] if 0 < len(cheaper) < len(PREFIXES) else []
    axes = Axis("prefix, tokens", log=True), Axis("ms until it's there", log=True)
    return draw_chart(f"Fetch the KV, or compute it again? Here {told}", curves, *axes, marks)


def pause_table(turns_per_s: float, tool_s: float, context: int, gb_per_s: float) -> Html:
    """Three things to do with the KV of an agent whose tool is running."""
    pause = Pause(turns_per_s, tool_s, context, gb_per_s)
    held = {"keep it": pause.pool_share, "fetch it": 0.0, "drop it": 0.0}
    rows = []
    for way, resume in pause.resume_s().items():
        room = f"{held[way]:.0%}" + (": it doesn't fit" if held[way] > 1 else "")
        rows.append((WAYS[way], room, seconds(resume), f"{pause.gpu_share()[way]:.0%}"))
    head = f"{pause.paused:.0f} agents waiting, {size(pause.bytes_each)} each"
    return as_table((head, "of the GPUs' KV room", "added to the next TTFT", "of the GPUs' time"), rows)


WAYS = {
    "keep it": "keep it in the pool",
    "fetch it": "move it to host memory and back",
    "drop it": "drop it, prefill again",
}


def pause_explorer() -> Explorer:
    """How long may a tool take before its agent's KV should go?"""
    return Explorer(
        pause_table,
        turns_per_s=choices("tool calls per second", [0.1, 0.25, 0.5, 1.0, 2.0], 0.5),
        tool_s=choices("a tool takes, s", [1.0, 3.0, 10.0, 30.0, 120.0, 600.0], 10.0),
        context=choices("context by then, tokens", [4000, 10_000, 20_000, 40_000, 80_000], 20_000),
        gb_per_s=choices("link, GB/s (all GPUs together)", [5.0, 25.0, 50.0, 200.0], 50.0),
    )


def tier_explorer() -> Explorer:
    """Bandwidth and latency of a tier."""
    return Explorer(
        draw_fetch,
        gb_per_s=choices("link, GB/s (all GPUs together)", [0.5, 1.0, 2.0, 5.0, 12.5, 25.0, 50.0, 100.0, 200.0], 50.0),
        latency_ms=choices("latency, ms", [0.0, 0.1, 1.0, 5.0, 20.0], 0.1),
    )
