"""The same arrivals, step by step: whole prompts, chunks, and two pools. Prefill tokens blue, decodes green."""

from dataclasses import dataclass

from course.lab.explorer import Explorer, slider
from course.lab.style import PHASE_COLOURS, WIDTH
from course.lab.svg import INK, SOFT, Picture, Scale, boxes, line, text

DECODES, PROMPTS, TOKENS = 4, (2.0, 9.0), 24
"""Requests that decode all along; when prompts arrive (in decode steps), and how long they are."""
PER_TOKEN = 0.12
"""What a prompt token adds to a step, in decode steps."""
LEFT, ROW, HORIZON = 130, 56, 22.0


@dataclass(frozen=True)
class Step:
    start: float
    seconds: float
    prefill: int
    decodes: int


def steps_of(chunk: int, decodes: int = DECODES) -> list[Step]:
    """What an engine does that computes at most `chunk` prompt tokens per step."""
    waiting, now, found, arrivals = 0, 0.0, [], list(PROMPTS)
    while now < HORIZON:
        while arrivals and arrivals[0] <= now:
            waiting += TOKENS
            arrivals.pop(0)
        prefill = min(waiting, chunk)
        if not prefill and not decodes:
            now = arrivals[0] if arrivals else HORIZON
            continue
        seconds = (1.0 if decodes or prefill else 0.0) + PER_TOKEN * prefill
        found.append(Step(now, seconds, prefill, decodes))
        waiting, now = waiting - prefill, now + seconds
    return found


def longest_gap(found: list[Step]) -> float:
    return max((step.seconds for step in found if step.decodes), default=0.0)


def draw(chunk: int) -> Picture:
    """Four rows of steps; a step is as wide as it takes, and as high as its tokens."""
    lanes = {
        "whole prompts": steps_of(TOKENS),
        f"chunks of {chunk}": steps_of(chunk),
        "split: prefill GPU": steps_of(TOKENS, 0),
        "split: decode GPU": [Step(float(i), 1.0, 0, DECODES) for i in range(int(HORIZON))],
    }
    scale = Scale(0, HORIZON, LEFT, WIDTH - 90)
    body, told = "", []
    for i, (name, found) in enumerate(lanes.items()):
        base = 30 + ROW * (i + 1)
        body += text(LEFT - 8, base - 8, name, text_anchor="end")
        for kind, low in (("decode", 0), ("prefill", 1)):
            cells = []
            for step in found:
                x, wide = scale(step.start), scale(min(step.start + step.seconds, HORIZON)) - scale(step.start) - 1
                tall = 2.5 * step.decodes if kind == "decode" else 1.2 * step.prefill
                floor = base - (2.5 * step.decodes if low else 0)
                if tall and wide > 0:
                    cells.append((x, floor - tall, wide, tall))
            body += boxes(cells, fill=PHASE_COLOURS[kind])
        body += line(LEFT, base, WIDTH - 90, base)
        if longest_gap(found):
            body += text(WIDTH - 84, base - 8, f"gap {longest_gap(found):.1f}", size=11, fill=SOFT)
            told.append(f"{name}: longest gap {longest_gap(found):.1f} decode steps")
    for arrival in PROMPTS:
        x = scale(arrival)
        body += line(x, 18, x, 30 + 4 * ROW, stroke=INK, stroke_dasharray="3 3")
        body += text(x + 3, 26, "a prompt arrives", size=11, fill=SOFT)
    return Picture(
        "What is in each step? (blue: prompt tokens, green: decodes)", body, 46 + 4 * ROW, description="; ".join(told)
    )


def explorer() -> Explorer:
    return Explorer(draw, chunk=slider("tokens per chunk", 4, TOKENS, 6))
