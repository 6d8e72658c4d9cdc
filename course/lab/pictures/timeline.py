"""Where did each request's time go? A row a request, five phases left to right on one time axis."""

from course.lab.pictures.outside import draw_bar_from_outside, first_token_flag
from course.lab.run import Row, Run, phases_of
from course.lab.snapshot import RequestView
from course.lab.style import ALARM, PHASE_COLOURS, WIDTH, seconds, tint
from course.lab.svg import (
    HALO,
    INK,
    PAPER,
    SOFT,
    Picture,
    Scale,
    boxes,
    legend,
    line,
    nice,
    phase_fill,
    rect,
    tag,
    text,
    time_axis,
)
from minillm.core.timeline import PHASES

LEFT, RIGHT, TOP = 104, 76, 30


def span(run: Run, ghost: Run | None) -> float:
    """Seconds the time axis covers: grows in round steps, so that the picture does not tremble."""
    longest = max(run.duration, ghost.duration if ghost else 0.0, 0.1)
    return nice(longest / 8) * -(-longest // nice(longest / 8))


def time_scale(run: Run, ghost: Run | None, width: float = WIDTH) -> Scale:
    """The one time axis that the timeline and the steps under it share."""
    return Scale(0.0, span(run, ghost), LEFT, width - RIGHT)


def draw_timeline(
    run: Run,
    ghost: Run | None = None,
    title: str = "Where did each request's time go?",
    whole: Run | None = None,
    size: tuple[float, float] = (WIDTH, 330),
    ghost_name: str = "previous",
) -> Picture:
    """The requests of a run.

    Args:
        ghost: an earlier run of the same workload, drawn as thin outlines.
        whole: a run whose length the time axis has, when `run` is only a part of it.
        size: width of the picture, and height of all rows at most; a narrow one stands beside the KV blocks: no legend,
            and each request wears the tint of its blocks.
    """
    ghost = ghost if run.same_workload(ghost) else None
    width, tall = size
    scale = time_scale(run, whole or ghost, width)
    pitch = max(9.0, min(30.0, tall / max(len(run.rows), 1)))
    bottom = TOP + pitch * len(run.rows)
    body = (legend(LEFT, 14) if width >= WIDTH else "") + time_axis(scale, TOP - 4, bottom + 2)
    notes = [(f"thin outline: {ghost_name} run", SOFT)] if ghost else []
    notes += [("dotted: held back by the client", ALARM)] if any(map(is_held_back, run.rows)) else []
    notes += [("dashed: inferred, not seen", ALARM)] if run.remote and run.remote.inferred else []
    for i, (words, fill) in enumerate(notes):
        body += text(width - 4, 7 + 10 * i, words, size=11, fill=fill, text_anchor="end")
    for row in run.rows:
        y = TOP + pitch * row.index
        drawn = _row(run, row, scale, y, pitch, with_ghost=ghost is not None)
        if width < WIDTH and run.snapshot.block_owners:
            drawn += rect(LEFT - 6, y, 4, pitch * 0.64, fill=tint(row.index), stroke=SOFT, stroke_width=0.8)
        if ghost and ghost.rows[row.index].view:
            drawn += _ghost(ghost, ghost.rows[row.index].view, scale, y + pitch * 0.74, pitch * 0.18)
        body += tag("g", drawn, data_request=row.index)
    if not run.done and run.views:
        x = scale(run.snapshot.now - run.start)
        body += line(x, TOP - 6, x, bottom + 2, stroke=INK, stroke_width=1, stroke_dasharray="2 2")
    return Picture(title, body, bottom + 36, width, description=_describe(run))


def is_held_back(row: Row) -> bool:
    """The client wanted to send but limited itself: time that no server can see."""
    return row.sent is not None and row.sent - row.due > 0.05


def _row(run: Run, row: Row, scale: Scale, y: float, pitch: float, with_ghost: bool) -> str:
    """Label, bar and total of one request."""
    height = pitch * (0.64 if with_ghost else 0.8)
    middle = y + height / 2 + 4
    small = min(12.0, pitch * 0.95)
    body = text(LEFT - 9, middle, _label(row), size=small, fill=SOFT, text_anchor="end")
    if row.refused:
        return body + text(scale(row.due) + 4, middle, f"refused: {row.refused}", size=small, fill=ALARM)
    if row.view is None:
        return body + line(scale(row.due), y, scale(row.due), y + height, stroke=SOFT, stroke_dasharray="2 2")
    view = row.view
    if is_held_back(row):
        y0 = y + height / 2
        body += line(scale(row.due), y0, scale(row.sent), y0, stroke=ALARM, stroke_dasharray="1 3", stroke_width=2)
    body += _bar(run, view, scale, y, height)
    total = view.borders[-1] - view.borders[0]
    ending = "" if view.finish_reason in (None, "stop", "length") else f" {view.finish_reason}"
    end = scale(view.borders[-1] - run.start) + 5
    words = seconds(total) + ending
    return body + text(end, middle, words, size=small, fill=ALARM if ending else INK)


def _label(row: Row) -> str:
    if row.view is None:
        return f"#{row.index}"
    return f"#{row.index}  {row.view.num_prompt_tokens} → {row.view.num_output_tokens}"


def _bar(run: Run, view: RequestView, scale: Scale, y: float, height: float) -> str:
    """The phases as tinted spans; inside them, solid, the steps that really worked for this request."""
    borders = [scale(border - run.start) for border in view.borders]
    if run.remote is not None:
        return draw_bar_from_outside(view, borders, run.remote.inferred, y, height)
    spans = [(borders[i], end - borders[i]) for i, end in enumerate(borders[1:])]
    body = rect(spans[0][0], y + height * 0.3, spans[0][1], height * 0.4, fill=phase_fill("queue"))
    for phase, (x, width) in (("prefill", spans[1]), ("decode", spans[3])):
        body += rect(x, y, width, height, fill=PHASE_COLOURS[phase], fill_opacity=0.22)
    body += _steps(run, view, scale, y, height)
    for i, phase in ((2, "first_token"), (4, "stream")):  # milliseconds at most: drawn at least 2 units wide
        if borders[-1] > borders[i] and (phase == "first_token" or view.finish_reason):
            body += rect(borders[i], y, max(borders[i + 1] - borders[i], 2), height, fill=PHASE_COLOURS[phase])
    return body + (first_token_flag(scale(view.deliveries[0] - run.start), y) if view.deliveries else "")


def _steps(run: Run, view: RequestView, scale: Scale, y: float, height: float) -> str:
    """Chunks of prefill with their token counts, decode steps, and the gaps a preemption tore."""
    chunks, decodes, labels, lost_from = [], [], "", None
    body = ""
    for step in run.steps:
        if view.request_id in step.preempted:
            lost_from = step.start
        share = next((share for share in step.shares if share.request_id == view.request_id), None)
        if share is None:
            continue
        x, end = scale(step.start - run.start), scale(step.end - run.start)
        if lost_from is not None:
            body += _gap(scale(lost_from - run.start), x, y, height)
            lost_from = None
        (chunks if share.is_prefill else decodes).append((x, y, max(end - x - 0.7, 0.5), height))
        if share.is_prefill and end - x > 26 and height > 11:
            look = {**HALO, "fill": "#fff", "stroke": PHASE_COLOURS["prefill"], "text_anchor": "middle"}
            labels += text((x + end) / 2, y + height / 2 + 4, str(share.num_tokens), size=11, **look)
    if lost_from is not None:
        body += _gap(scale(lost_from - run.start), scale(view.borders[-1] - run.start), y, height)
    return boxes(chunks, fill=phase_fill("prefill")) + boxes(decodes, fill=phase_fill("decode")) + body + labels


def _gap(x: float, end: float, y: float, height: float) -> str:
    """A box from the loss of its KV blocks until it runs again."""
    body = rect(x, y, end - x, height, fill=PAPER, stroke=ALARM, stroke_dasharray="3 2")
    if end - x > 60 and height > 11:
        return body + text((x + end) / 2, y + height / 2 + 4, "preempted", size=11, fill=ALARM, text_anchor="middle")
    return body + text((x + end) / 2, y + height / 2 + 4, "✕", size=11, fill=ALARM, text_anchor="middle")


def _ghost(ghost: Run, view: RequestView, scale: Scale, y: float, height: float) -> str:
    """The same request in the previous run: outlines only."""
    borders, look = [scale(border - ghost.start) for border in view.borders], {"fill_opacity": 0.4, "stroke_width": 0.8}
    return "".join(
        rect(start, y, end - start, height, fill=PHASE_COLOURS[phase], stroke=PHASE_COLOURS[phase], **look)
        for phase, start, end in zip(PHASES, borders, borders[1:])
        if end - start > 0.3
    )


def _describe(run: Run) -> str:
    """The text alternative: what a reader who cannot see the picture needs."""
    if not run.views:
        return "No request has arrived yet."
    mean = ", ".join(f"{phase.replace('_', ' ')} {seconds(value)}" for phase, value in run.mean_phases().items())
    slowest = max(run.views, key=lambda view: view.borders[-1] - view.borders[0])
    worst = max(phases_of(slowest).items(), key=lambda item: item[1])
    return (
        f"{len(run.views)} requests. Mean per phase: {mean}. Slowest: {slowest.request_id}, "
        f"{seconds(slowest.borders[-1] - slowest.borders[0])}, mostly {worst[0].replace('_', ' ')}."
    )
