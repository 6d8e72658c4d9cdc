"""Who holds the KV cache? A cell a block, in the tint and with the number of the request that holds it."""

import string
from collections import Counter

from course.lab.run import Run, blocks_held
from course.lab.snapshot import CACHED, FREE, SHARED, EngineSnapshot
from course.lab.style import TINT_INK, tint
from course.lab.svg import FAINT, INK, PAPER, SOFT, Picture, boxes, short, tag, text

TOP, LEFT, WIDTH = 34, 4, 500
MANY = "s"
"""On a block that several requests share."""
GLYPHS = (string.digits + string.ascii_letters).replace(MANY, "")
"""The character of each request, by its number."""


def draw_blocks(run: Run) -> Picture:
    """The KV block pool now or, when the run is over, at its fullest. In reading order of block numbers."""
    snapshot = run.fullest if run.done else run.snapshot
    owners = snapshot.block_owners
    columns = 32 if len(owners) <= 480 else 64
    cell = (WIDTH - 2 * LEFT) / columns
    numbers = {row.view.arrival_index: row.index for row in run.rows if row.view}
    groups: dict[int, list[tuple[float, float, float, float]]] = {}
    labels: dict[str, list[tuple[float, float, str]]] = {PAPER: [], TINT_INK: []}
    for block, owner in enumerate(owners):
        x, y = LEFT + block % columns * cell, TOP + block // columns * cell
        whose = numbers.get(owner, owner)
        groups.setdefault(whose, []).append((x + 0.6, y + 0.6, cell - 1.2, cell - 1.2))
        if whose == SHARED or whose >= 0:
            glyph = MANY if whose == SHARED else GLYPHS[whose % len(GLYPHS)]
            labels[PAPER if whose == SHARED else TINT_INK].append((x + cell / 2, y + cell / 2 + 3.6, glyph))
    bottom = TOP + -(-max(len(owners), 1) // columns) * cell
    body = _legend(owners)
    for whose, cells in groups.items():  # the mouse on a request finds its blocks
        body += boxes(cells, **_look(whose), data_request=whose if whose >= 0 else None)
    if cell > 9:
        body += "".join(_labels(placed, ink) for ink, placed in labels.items())
    when = "Who held the KV cache at its fullest?" if run.done else "Who holds the KV cache, block by block?"
    return Picture(when, body, bottom + 6, WIDTH, description=_describe(snapshot))


def _look(whose: int) -> dict[str, object]:
    if whose == FREE:
        return {"fill": "none", "stroke": FAINT, "stroke_width": 0.8}
    if whose == CACHED:
        return {"fill": FAINT, "fill_opacity": 0.6, "stroke": SOFT, "stroke_width": 0.8, "stroke_dasharray": "2 1.5"}
    return {"fill": INK if whose == SHARED else tint(whose), "stroke": SOFT, "stroke_width": 0.8}


def _labels(labels: list[tuple[float, float, str]], ink: str) -> str:
    """One text element a row of cells, with one x a character: a tenth of the bytes."""
    rows: dict[float, list[tuple[float, str]]] = {}
    for x, y, glyph in labels:
        rows.setdefault(y, []).append((x, glyph))
    look = {"font_size": 10, "fill": ink, "text_anchor": "middle"}
    return "".join(
        tag("text", "".join(glyph for _, glyph in cells), x=" ".join(short(x) for x, _ in cells), y=y, **look)
        for y, cells in rows.items()
    )


def _legend(owners: tuple[int, ...]) -> str:
    count = Counter(min(owner, 0) for owner in owners)
    body, x = "", float(LEFT)
    for kind, words in (
        (0, "held, by request"),
        (SHARED, f"shared ({MANY})"),
        (CACHED, "free, cached"),
        (FREE, "free"),
    ):
        words = f"{count[kind]} {words}"
        body += boxes([(x, 6, 12, 12)], **_look(kind)) + text(x + 17, 16, words, fill=SOFT)
        x += 26 + 6.2 * len(words)
    return body


def _describe(snapshot: EngineSnapshot) -> str:
    owners = snapshot.block_owners
    return (
        f"{len(owners)} blocks of {snapshot.block_size} tokens; {blocks_held(snapshot)} held, "
        f"{owners.count(CACHED)} free but with a reusable prefix."
    )
