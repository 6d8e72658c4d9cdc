"""One request of a trace as a Gantt: what it did step by step, and what became of its KV."""

from course.lab.style import WIDTH
from course.lab.svg import INK, SOFT, Picture, Scale, boxes, line, swatches, tag, text
from course.lessons.lesson_07.block_map import LANE_LOOK, PATTERNS
from course.lessons.lesson_07.trace import Trace

LEFT = 92


def draw_life(trace: Trace) -> Picture:
    """The request that was evicted most often: what it did in each step, and how much of its KV it had."""
    who = max(range(len(trace.outcomes)), key=lambda i: trace.outcomes[i].evictions)
    scale = Scale(0, len(trace.frames), LEFT, WIDTH - 20)
    kept = [frame.computed.get(who, 0) for frame in trace.frames]
    height = Scale(0, max([*kept, 1]), 130, 60)
    body = PATTERNS + swatches(
        LEFT, 10, {name: look["fill"] for name, look in LANE_LOOK.items() if look["fill"] != "none"}
    )
    for state, look in LANE_LOOK.items():
        cells = [
            (scale(i), 22, scale(i + 1) - scale(i), 18) for i, f in enumerate(trace.frames) if f.states[who] == state
        ]
        body += boxes(cells, **look)
    points = " ".join(f"{scale(i + 0.5):.1f},{height(tokens):.1f}" for i, tokens in enumerate(kept))
    body += tag("polyline", points=points, fill="none", stroke=INK, stroke_width=1.5)
    body += line(LEFT, 130, WIDTH - 20, 130)
    body += text(LEFT - 8, 34, f"request {who}", text_anchor="end")
    for y, words in ((66, f"{max(kept)} tokens"), (134, "0")):
        body += text(LEFT - 8, y, words, size=11, fill=SOFT, text_anchor="end")
    body += text(LEFT, 152, "its KV, in tokens, step by step: each drop is a preemption", size=11, fill=SOFT)
    told = f"Request {who} was preempted {trace.outcomes[who].evictions} times in {len(trace.frames)} steps."
    return Picture("What does thrashing do to one request?", body, 160, description=told)
