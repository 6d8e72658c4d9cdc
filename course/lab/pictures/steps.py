"""What was the engine busy with? One bar a step, as wide as the step took, on the timeline's own time axis."""

from course.lab.pictures.timeline import time_scale
from course.lab.run import Run
from course.lab.style import PHASE_COLOURS, WIDTH
from course.lab.svg import INK, SOFT, Picture, Scale, boxes, line, nice, phase_fill, text, time_axis

TOKENS_TOP, TOKENS_BOTTOM = 18, 86
SLOTS_TOP, SLOTS_BOTTOM = 106, 148


def draw_steps(run: Run, ghost: Run | None = None, width: float = WIDTH) -> Picture:
    """Tokens of each step against the token budget; requests running and waiting against the slots."""
    scale = time_scale(run, ghost if run.same_workload(ghost) else None, width)
    body = time_axis(scale, TOKENS_TOP - 6, SLOTS_BOTTOM + 2) + _tokens(run, scale) + _slots(run, scale)
    title = "What was the engine busy with, step by step?"
    return Picture(title, body, SLOTS_BOTTOM + 36, width, description=_describe(run))


def _tokens(run: Run, scale: Scale) -> str:
    budget = run.config.max_num_batched_tokens
    most = max([step.num_tokens for step in run.steps], default=budget)
    off_scale = budget > 4 * most  # the steps would be too low to see
    height = Scale(0, nice(most) if off_scale else max(budget, most), TOKENS_BOTTOM, TOKENS_TOP)
    prefill, decode = [], []
    for step in run.steps:
        x, width = _extent(step.start - run.start, step.end - run.start, scale)
        decoding = step.num_tokens - step.num_prefill_tokens
        floor = TOKENS_BOTTOM
        if decoding:  # at least 2 units high: eight tokens beside a budget of a thousand would vanish
            tall = max(TOKENS_BOTTOM - height(decoding), 2.0)
            floor -= tall
            decode.append((x, floor, width, tall))
        if step.num_prefill_tokens:
            tall = TOKENS_BOTTOM - height(step.num_prefill_tokens)
            prefill.append((x, floor - tall, width, tall))
    limit = TOKENS_TOP if off_scale else height(budget)
    name = f"≤ {height.high:g} of" if off_scale else "budget"
    return (
        boxes(decode, fill=PHASE_COLOURS["decode"])
        + boxes(prefill, fill=phase_fill("prefill"))
        + line(scale.start, limit, scale.end, limit, stroke=INK, stroke_width=1, stroke_dasharray="4 3")
        + text(scale.end + 4, limit + 4, name, size=11, fill=SOFT)
        + text(scale.end + 4, limit + 17, str(budget), size=11, fill=SOFT)
        + text(scale.start - 8, TOKENS_TOP + 10, "tokens", fill=INK, text_anchor="end")
        + text(scale.start - 8, TOKENS_TOP + 25, "in each step:", size=11, fill=SOFT, text_anchor="end")
        + text(scale.start - 8, TOKENS_TOP + 45, "■ prefill", size=11, fill=PHASE_COLOURS["prefill"], text_anchor="end")
        + text(scale.start - 8, TOKENS_TOP + 60, "■ decode", size=11, fill=PHASE_COLOURS["decode"], text_anchor="end")
    )


def _slots(run: Run, scale: Scale) -> str:
    slots = run.config.max_num_seqs
    most = max([step.num_running + step.num_waiting for step in run.steps], default=1)
    show_limit = slots <= 2 * most
    height = Scale(0, max(most, slots if show_limit else 1), SLOTS_BOTTOM, SLOTS_TOP)
    running, waiting = [], []
    for step in run.steps:
        x, width = _extent(step.start - run.start, step.end - run.start, scale)
        top = height(step.num_running)
        running.append((x, top, width, SLOTS_BOTTOM - top))
        if step.num_waiting:
            above = height(step.num_running + step.num_waiting)
            waiting.append((x, above, width, top - above))
    body = boxes(running, fill=INK, fill_opacity=0.75) + boxes(waiting, fill=phase_fill("queue"))
    if show_limit:
        limit = height(slots)
        body += line(scale.start, limit, scale.end, limit, stroke=INK, stroke_width=1, stroke_dasharray="4 3")
        body += text(scale.end + 4, limit + 4, f"{slots} slots", size=11, fill=SOFT)
    return (
        body
        + text(scale.start - 8, SLOTS_TOP + 10, "requests", fill=INK, text_anchor="end")
        + text(scale.start - 8, SLOTS_TOP + 28, "■ waiting", size=11, fill=PHASE_COLOURS["queue"], text_anchor="end")
        + text(scale.start - 8, SLOTS_TOP + 43, "■ running", size=11, fill=INK, text_anchor="end")
    )


def _extent(start: float, end: float, scale: Scale) -> tuple[float, float]:
    """Left edge and width of a step, with a hair of space to tell it from the next."""
    width = scale(end) - scale(start)
    return scale(start), max(width - (0.5 if width > 2 else 0), 0.4)


def _describe(run: Run) -> str:
    if not run.steps:
        return "No step has run yet."
    mixed = sum(1 for step in run.steps if 0 < step.num_prefill_tokens < step.num_tokens)
    running = max(step.num_running for step in run.steps)
    waiting = max(step.num_waiting for step in run.steps)
    prefill = sum(step.num_prefill_tokens for step in run.steps)
    total = sum(step.num_tokens for step in run.steps)
    return (
        f"{len(run.steps)} steps, {prefill} prefill tokens, {total - prefill} decode tokens, {mixed} steps mix both. "
        f"At most {running} requests ran and {waiting} waited."
    )
