"""Where does speculation pay? Speedup over acceptance and batch, with the line where it breaks even, at 70B."""

import functools

from course.lab.explorer import Explorer, buttons, choices, slider
from course.lab.simulated_70b import OLD, TODAY
from course.lab.style import ALARM, COLOURS, number
from course.lab.svg import INK, PAPER, SOFT, Picture, rect, tag, text
from course.lessons.lesson_08.formulas import break_even
from course.lessons.lesson_08.sim_70b import BATCHES, CONTEXTS, DRAFTERS, Round, price_round, stack

ALPHAS = tuple(i / 20 for i in range(21))
LEFT, TOP, WIDE, HIGH = 70, 20, 28, 24
STRONGEST = 1.0
"""Speedup is drawn in full colour from this far above or below 1."""


@functools.cache
def rounds(k: int, context: int, drafts: str, under: str) -> dict[int, Round]:
    on = stack(under)
    room = on.num_kv_blocks * on.block_size // (context + k + 1)
    return {b: price_round(on, b, context, k, DRAFTERS[drafts]) for b in BATCHES if b <= room}


def draw_map(k: int, context: int, drafts: str, under: str) -> Picture:
    """A cell for each acceptance and batch; violet gains, red loses."""
    found = rounds(k, context, drafts, under)
    body, numbers, line = "", "", []
    halo = {"stroke": PAPER, "stroke_width": 3, "paint_order": "stroke"}
    for row, (batch, each) in enumerate(found.items()):
        y = TOP + HIGH * row
        body += text(LEFT - 8, y + 16, str(batch), text_anchor="end")
        for i, alpha in enumerate(ALPHAS):
            gain = each.gain(alpha, k)
            strength = min(abs(gain - 1) / STRONGEST, 1.0)
            fill = COLOURS[0] if gain >= 1 else ALARM
            body += rect(LEFT + WIDE * i, y, WIDE - 1, HIGH - 1, fill=fill, fill_opacity=0.12 + 0.6 * strength)
            if i % 4 == 0:
                numbers += text(LEFT + WIDE * (i + 0.5), y + 16, number(gain), size=11, text_anchor="middle", **halo)
        border = break_even(k, each.c, each.verify / each.plain)
        line.append((LEFT + WIDE * (20.5 if border is None else 20 * border + 0.5), y + HIGH / 2, border))
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in line)
    bottom = TOP + HIGH * len(found)
    body += tag("polyline", points=points, fill="none", stroke=INK, stroke_width=2.5) + numbers
    for i in range(0, 21, 4):
        body += text(LEFT + WIDE * (i + 0.5), bottom + 14, f"{ALPHAS[i]:.1f}", size=11, fill=SOFT, text_anchor="middle")
    body += text(LEFT + WIDE * 10.5, bottom + 32, "α, acceptance", fill=SOFT, text_anchor="middle")
    body += text(4, TOP - 6, "batch", fill=SOFT)
    told = ", ".join(
        f"batch {b}: above {e:.2f}" if e is not None else f"batch {b}: never" for b, (*_, e) in zip(found, line)
    )
    return Picture("Where does speculation pay? (black line: breaks even)", body, bottom + 40, description=told)


def explorer() -> Explorer:
    return Explorer(
        draw_map,
        k=slider("k, guesses per draft", 1, 8, 4),
        context=choices("context of each, tokens", CONTEXTS, 1024),
        drafts=buttons("drafts by", list(DRAFTERS)),
        under=buttons("serving stack", [TODAY, OLD], TODAY),
    )
