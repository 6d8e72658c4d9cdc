"""Charts and tables of lesson 07: reservations, slots, windows, needles."""

from collections.abc import Mapping

from course.lab.display import Html, table_by_name
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.style import number, seconds
from course.lab.svg import Picture
from course.lessons.lesson_07.needle import FIRST_TIME, Found
from course.lessons.lesson_07.trace import GONE, Trace


def traces_table(traces: Mapping[str, Trace]) -> Html:
    """Runs of the same requests, side by side."""
    return table_by_name(
        "run",
        traces,
        {
            "running: most / mean": lambda trace: f"{trace.most_running} / {trace.mean_running:.1f}",
            "held positions with a token in them": lambda trace: f"{trace.filled_share:.0%}",
            "steps until all are done": lambda trace: str(len(trace.frames)),
            "evictions": lambda trace: str(trace.evictions),
            "tokens computed again": lambda trace: f"{trace.again} of {trace.tokens}",
            "blocks copied out and in": lambda trace: str(trace.swapped_blocks),
            "time of all steps": lambda trace: seconds(trace.seconds),
        },
    )


def crowd_table(traces: Mapping[int, Trace]) -> Html:
    """Slots and throughput by what each request sets aside; 0 = block by block."""
    return table_by_name(
        "KV set aside for each",
        {f"{size} tokens" if size else "on demand": trace for size, trace in traces.items()},
        {
            "requests running, mean": lambda trace: f"{trace.mean_running:.1f}",
            "tokens/s": lambda trace: number(trace.tokens_per_s),
        },
    )


def draw_window(traces: Mapping[str, Trace]) -> Picture:
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
        curves, Axis("tokens in its text"), Axis("blocks held", low=0),
        height=240, description=told,
    )  # fmt: skip


def given_back(trace: Trace) -> int:
    """Blocks that left the window and went back to the pool, while the request still ran."""
    tables = [frame.tables[0] for frame in trace.frames if 0 in frame.tables]
    return tables[-1].count(GONE)


def draw_needle(found: Mapping[str, Mapping[int, Found]], reach: int) -> Picture:
    """Tokens of the needle foreseen, against how far back it was said.

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
        Axis("tokens between the first time and the second"),
        Axis("tokens of the needle predicted (%)", low=0, high=105),
        [Mark("out of the window", x=reach)],
        height=260,
    )
