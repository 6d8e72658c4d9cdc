"""The block map: a cell a block, with its owner's number, filled as far as tokens are kept in it; below it, the run."""

from collections.abc import Sequence
from dataclasses import dataclass

from course.lab.pool_trace import (
    AGAIN,
    DECODE,
    DONE,
    GONE,
    NOT_HERE,
    PREEMPTED,
    PREFILL,
    QUEUE,
    SWAPPED,
    PoolFrame,
    PoolTrace,
)
from course.lab.style import ALARM, PHASE_COLOURS, TINT_INK, WIDTH, tint
from course.lab.svg import FAINT, INK, PAPER, SOFT, Picture, Scale, boxes, line, phase_fill, rect, short, tag, text

LEFT, RIGHT = 112, 12
TOP = 26.0
LANE = 15.0
STRIP = 56.0
EVICTION = "url(#@block-evicted)"
READING = "url(#@block-again)"
CROSSED = tag("path", d="M0 0L6 6M6 0L0 6", stroke=ALARM, stroke_width=1)
STRIPED = rect(0, 0, 6, 6, fill=PHASE_COLOURS["prefill"]) + rect(0, 0, 3, 6, fill=ALARM)
_TILE = {"width": 6, "height": 6, "patternUnits": "userSpaceOnUse"}
PATTERNS = tag(
    "defs",
    tag("pattern", CROSSED, id="@block-evicted", **_TILE) + tag("pattern", STRIPED, id="@block-again", **_TILE),
)
LANE_LOOK = {
    QUEUE: {"fill": phase_fill("queue")},
    PREFILL: {"fill": phase_fill("prefill")},
    AGAIN: {"fill": READING},
    DECODE: {"fill": phase_fill("decode")},
    PREEMPTED: {"fill": EVICTION, "stroke": ALARM, "stroke_width": 0.8},
    SWAPPED: {"fill": "none", "stroke": ALARM, "stroke_width": 1.2, "stroke_dasharray": "3 2"},
}
"""How each state of a request is drawn in its row."""
NO_REQUEST = "none"
WIDEST = 6.9
"""Units that a letter of the legend takes in a wide font."""
MANY = 128
"""Blocks: more than that are drawn small."""


@dataclass(frozen=True)
class Grid:
    """Where each block's cell is."""

    num_blocks: int

    @property
    def columns(self) -> int:
        return 16 if self.num_blocks <= MANY else 48

    @property
    def cell(self) -> float:
        return (WIDTH - 8) / self.columns

    @property
    def row(self) -> float:
        return 30.0 if self.num_blocks <= MANY else 15.0

    @property
    def bottom(self) -> float:
        return TOP + self.row * -(-self.num_blocks // self.columns)

    def box(self, block: int) -> tuple[float, float, float, float]:
        """x, y, width, height."""
        x, y = 4 + block % self.columns * self.cell, TOP + block // self.columns * self.row
        gap = self.row / 20
        return x + gap, y + gap, self.cell - 2 * gap, self.row - 2.5 * gap


def draw_frame(trace: PoolTrace, step: int | None = None, follow: int | None = None, title: str = "") -> Picture:
    """The pool after one step; under it each request's row, and how full the pool was over the whole run.

    Args:
        step: None = the fullest one.
        follow: a request whose blocks are joined, in the order of its text: its block table.
    """
    step = min(trace.fullest if step is None else step, len(trace.frames) - 1)
    frame = trace.frames[step]
    body = PATTERNS + _legend(trace, frame) + _grid(trace, frame)
    if follow is not None and follow in frame.tables:
        body += _joined(Grid(trace.num_blocks), frame.tables[follow])
    lanes = Grid(trace.num_blocks).bottom + 26
    scale = Scale(0, max(len(trace.frames), 1), LEFT, WIDTH - RIGHT)
    body += _lanes(trace, scale, lanes, follow)
    strip = lanes + LANE * len(frame.states) + 10
    body += _strip(trace, scale, strip)
    body += line(scale(step + 0.5), lanes - 4, scale(step + 0.5), strip + STRIP, stroke=INK, stroke_width=1.5)
    body += text(
        min(max(scale(step + 0.5), LEFT + 26), WIDTH - 30), lanes - 8, f"step {step}", size=11, text_anchor="middle"
    )
    body += text(WIDTH - RIGHT, strip + STRIP + 14, "steps of the engine →", size=11, fill=SOFT, text_anchor="end")
    told = f"Step {step} of {len(trace.frames)}: {told_of(trace, frame)}"
    name = trace.name and f"{trace.name}: "
    return Picture(title or f"{name}which request holds which block?", body, strip + STRIP + 20, description=told)


def told_of(trace: PoolTrace, frame: PoolFrame) -> str:
    """The frame in words."""
    held, filled = frame.holders(), sum(frame.filled(trace.block_size).values())
    owners = "; ".join(
        f"request {i}: {sum(block != GONE for block in table)} blocks, {state}"
        for i, (table, state) in enumerate((frame.tables.get(i, ()), s) for i, s in enumerate(frame.states))
        if state not in (NOT_HERE, DONE)
    )
    return (
        f"{len(held)} of {trace.num_blocks} blocks held, {sum(len(who) > 1 for who in held.values())} of them shared, "
        f"{len(frame.cached)} free but cached; {filled} of {len(held) * trace.block_size} positions "
        f"hold a token. {owners}."
    )


def _grid(trace: PoolTrace, frame: PoolFrame) -> str:
    grid, held, filled = Grid(trace.num_blocks), frame.holders(), frame.filled(trace.block_size)
    free, cached, taken, labels = [], [], [], []
    full: dict[int, list[tuple[float, float, float, float]]] = {}
    for block in range(trace.num_blocks):
        box = x, y, wide, tall = grid.box(block)
        if block not in held:
            (cached if block in frame.cached else free).append(box)
            continue
        who = held[block]
        part = wide * filled[block] / trace.block_size / len(who)
        for i, each in enumerate(who):  # what several share has the tints of all
            full.setdefault(each, []).append((x + i * part, y, part, tall))
        taken.append(box)
        words = "+".join(map(str, who)) if len(who) < 3 else f"×{len(who)}"
        labels.append((x + wide / 2, y + tall / 2 + 3.8, words))
    body = boxes(free, fill="none", stroke=FAINT, stroke_width=1)
    body += boxes(cached, fill=FAINT, fill_opacity=0.5, stroke=SOFT, stroke_width=1, stroke_dasharray="3 2")
    body += "".join(boxes(cells, fill=tint(each)) for each, cells in full.items())
    body += boxes(taken, fill="none", stroke=SOFT, stroke_width=1)
    halo = {"fill": TINT_INK, "stroke": "#fff", "stroke_width": 2.5, "paint_order": "stroke", "text_anchor": "middle"}
    return body + "".join(text(*label, size=min(12, 0.75 * grid.row), font_weight="bold", **halo) for label in labels)


def _joined(grid: Grid, table: Sequence[int]) -> str:
    """A line through the blocks of a table, with the place of each in the text."""
    places = [(i, grid.box(block)) for i, block in enumerate(table) if block != GONE]
    points = [(x + wide - 6, y + 7) for _, (x, y, wide, _) in places]
    path = "M" + "L".join(f"{short(x)} {short(y)}" for x, y in points)
    body = boxes([box for _, box in places], fill="none", stroke=INK, stroke_width=2.5)
    body += tag("path", d=path, fill="none", stroke=INK, stroke_width=1.2, stroke_dasharray="1 2.5")
    for (i, _), (x, y) in zip(places, points):
        body += tag("circle", cx=x, cy=y, r=7.5, fill=INK) + text(
            x, y + 3.9, str(i), size=11, fill=PAPER, text_anchor="middle"
        )
    return body


def _lanes(trace: PoolTrace, scale: Scale, top: float, follow: int | None) -> str:
    """A row a request: what it was doing at each step."""
    body, cells = "", {}
    for i in range(len(trace.frames[0].states)):
        y = top + LANE * i
        weight = "bold" if i == follow else "normal"
        body += text(LEFT - 10, y + 11, f"request {i}", size=11, text_anchor="end", font_weight=weight)
        body += rect(LEFT - 7, y + 1, 5, LANE - 3, fill=tint(i), stroke=SOFT, stroke_width=0.8)
        start = 0
        for step in range(1, len(trace.frames) + 1):
            state = trace.frames[start].states[i]
            if step < len(trace.frames) and trace.frames[step].states[i] == state:
                continue
            if state in LANE_LOOK:
                wide = max(scale(step) - scale(start), 1)
                cells.setdefault(state, []).append((scale(start), y + 1, wide, LANE - 3))
            start = step
    return body + "".join(boxes(cells[state], **look) for state, look in LANE_LOOK.items() if state in cells)


def _strip(trace: PoolTrace, scale: Scale, top: float) -> str:
    """Blocks held, step by step, and how much of them is filled."""
    rise = Scale(0, trace.num_blocks, top + STRIP, top)
    held = [len(frame.holders()) for frame in trace.frames]
    filled = [sum(frame.filled(trace.block_size).values()) / trace.block_size for frame in trace.frames]
    body = line(LEFT, top, WIDTH - RIGHT, top, stroke=ALARM, stroke_dasharray="4 3")
    body += line(LEFT, top + STRIP, WIDTH - RIGHT, top + STRIP, stroke=FAINT)
    for values, fill in ((held, FAINT), (filled, SOFT)):
        bars = [
            (scale(i), rise(value), scale(i + 1) - scale(i), rise(0) - rise(value)) for i, value in enumerate(values)
        ]
        body += boxes(bars, fill=fill)
    for y, words, fill in (
        (top + 8, f"{trace.num_blocks} blocks", ALARM),
        (top + 26, "held (faint)", SOFT),
        (top + 42, "filled (strong)", SOFT),
    ):
        body += text(LEFT - 8, y, words, size=11, fill=fill, text_anchor="end")
    return body


def _legend(trace: PoolTrace, frame: PoolFrame) -> str:
    held = frame.holders()
    shared = sum(len(who) > 1 for who in held.values())
    entries = (
        (tint(0), {"stroke": SOFT}, f"{len(held)} held, by request"),
        (tint(0), {"stroke": SOFT}, f"{shared} of them shared"),
        (FAINT, {"stroke": SOFT, "stroke_dasharray": "3 2"}, f"{len(frame.cached)} free, cached"),
        ("none", {"stroke": FAINT}, f"{trace.num_blocks - len(held) - len(frame.cached)} free"),
        (EVICTION, {"stroke": ALARM, "stroke_width": 0.8}, "preempted"),
        (READING, {}, "recompute"),
    )
    body, x = "", 4.0
    for fill, look, words in entries:
        body += rect(x, 3, 14, 12, fill=fill, **look) + text(x + 19, 13, words, size=11, fill=SOFT)
        body += rect(x + 7, 4, 6, 10, fill=tint(1)) if words.endswith(" shared") else ""
        x += 28 + WIDEST * len(words)
    return body
