"""Who holds the KV cache? A cell a block: coloured by its owner's phase, labelled with its owner's number."""

import string
from collections import Counter

from course.lab.run import Run, blocks_held
from course.lab.style import PHASE_COLOURS
from course.lab.svg import FAINT, INK, SOFT, Picture, boxes, phase_fill, short, tag, text
from minillm.frontend.snapshot import CACHED, FREE, SHARED, EngineSnapshot

TOP, LEFT, WIDTH = 34, 4, 500
MANY = "s"
"""On a block that several requests share."""
GLYPHS = (string.digits + string.ascii_letters).replace(MANY, "")
"""Of requests, by their number."""


def draw_blocks(run: Run) -> Picture:
    """The KV block pool now or, when the run is over, at its fullest. In reading order of block numbers."""
    snapshot = run.fullest if run.done else run.snapshot
    owners = snapshot.block_owners
    columns = 32 if len(owners) <= 480 else 64
    cell = (WIDTH - 2 * LEFT) / columns
    phases = {view.arrival_index: view.phase or "decode" for view in snapshot.requests}
    numbers = {row.view.arrival_index: row.index for row in run.rows if row.view}
    groups: dict[tuple[str, int | None], list[tuple[float, float, float, float]]] = {}
    labels: list[tuple[float, float, str]] = []
    for block, owner in enumerate(owners):
        x, y = LEFT + block % columns * cell, TOP + block // columns * cell
        kind = {FREE: "free", CACHED: "cached", SHARED: "shared"}.get(owner) or phases.get(owner, "decode")
        whose = (kind, numbers.get(owner))  # the mouse on a request finds its blocks
        groups.setdefault(whose, []).append((x + 0.6, y + 0.6, cell - 1.2, cell - 1.2))
        if kind == "shared" or owner >= 0:
            glyph = MANY if owner == SHARED else GLYPHS[numbers.get(owner, owner) % len(GLYPHS)]
            labels.append((x + cell / 2, y + cell / 2 + 3.6, glyph))
    bottom = TOP + -(-max(len(owners), 1) // columns) * cell
    body = _legend(owners)
    body += "".join(boxes(cells, **_look(kind), data_request=number) for (kind, number), cells in groups.items())
    if cell > 9:
        body += _labels(labels)
    when = "Who held the KV cache at its fullest?" if run.done else "Who holds the KV cache, block by block?"
    return Picture(when, body, bottom + 6, WIDTH, description=_describe(snapshot))


def _look(kind: str) -> dict[str, object]:
    if kind == "free":
        return {"fill": "none", "stroke": FAINT, "stroke_width": 0.8}
    if kind == "cached":
        return {"fill": FAINT, "fill_opacity": 0.6, "stroke": SOFT, "stroke_width": 0.8, "stroke_dasharray": "2 1.5"}
    if kind == "shared":
        return {"fill": INK, "fill_opacity": 0.85}
    return {"fill": PHASE_COLOURS[kind]}


def _labels(labels: list[tuple[float, float, str]]) -> str:
    """One text element a row of cells, with one x a character: a tenth of the bytes."""
    rows: dict[float, list[tuple[float, str]]] = {}
    for x, y, glyph in labels:
        rows.setdefault(y, []).append((x, glyph))
    return "".join(
        tag(
            "text",
            "".join(glyph for _, glyph in cells),
            x=" ".join(short(x) for x, _ in cells),
            y=y,
            font_size=10,
            fill="var(--jp-layout-color0, #fff)",
            text_anchor="middle",
        )
        for y, cells in rows.items()
    )


def _legend(owners: tuple[int, ...]) -> str:
    count = Counter(
        "free" if o == FREE else "cached" if o == CACHED else "shared" if o == SHARED else "held" for o in owners
    )
    body, x = "", float(LEFT)
    for kind, look, words in (
        ("held", {"fill": phase_fill("prefill")}, "held (phase colour)"),
        ("shared", _look("shared"), f"shared ({MANY})"),
        ("cached", _look("cached"), "free, prefix kept"),
        ("free", _look("free"), "free"),
    ):
        words = f"{count[kind]} {words}"
        body += boxes([(x, 6, 12, 12)], **look) + text(x + 17, 16, words, fill=SOFT)
        x += 26 + 5.9 * len(words)
    return body


def _describe(snapshot: EngineSnapshot) -> str:
    owners = snapshot.block_owners
    return (
        f"{len(owners)} blocks of {snapshot.block_size} tokens; {blocks_held(snapshot)} held, "
        f"{owners.count(CACHED)} free but with a reusable prefix."
    )
