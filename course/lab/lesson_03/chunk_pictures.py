"""Who pays when a long prompt is read in chunks? Its own TTFT against the longest gap of everybody else."""

from collections.abc import Sequence

from course.lab.lesson_03.chunks import Trade
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.style import seconds
from course.lab.svg import Picture


def draw_trade(
    trades: Sequence[Trade], chosen: int | None = None, floor: Sequence[float] = (), where: str = ""
) -> Picture:
    """Both waits against the chunk size.

    Args:
        trades: in ascending order of chunk size.
        chosen: the chunk size that the handle is at; it is ringed.
        floor: for each trade, seconds that reading the weights so often takes at least.
        where: which machine, as a part of the title.
    """
    xs = [trade.chunk for trade in trades]
    curves = [
        Curve("the long prompt's TTFT", xs, [1e3 * trade.ttft for trade in trades]),
        Curve("longest gap of the others", xs, [1e3 * trade.worst_gap for trade in trades]),
    ]
    if floor:
        curves.append(Curve("only reading the weights", xs, [1e3 * value for value in floor], style="dashes"))
    marks = [
        Mark(f"{'whole' if trade.whole else trade.chunk}: {seconds(value)}", x=trade.chunk, y=1e3 * value)
        for trade in trades
        if trade.chunk == chosen
        for value in (trade.ttft, trade.worst_gap)
    ]
    told = "; ".join(
        f"{'whole' if t.whole else f'chunks of {t.chunk}'} ({t.steps} steps): TTFT {seconds(t.ttft)}, longest gap "
        f"{seconds(t.worst_gap)}"
        for t in trades
    )
    title = f"{where}{trades[0].tokens} tokens in chunks: who waits?"
    x = Axis("chunk, prompt tokens a step", log=True)
    return draw_chart(title, curves, x, Axis("ms", log=True), marks, height=300, description=told)
