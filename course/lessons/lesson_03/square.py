"""How much is there to look at? The square of all pairs of tokens: what is needed, what is built, what is kept."""

from course.lab.style import ALARM, PHASE_COLOURS, WIDTH, size
from course.lab.svg import FAINT, INK, PAPER, SOFT, Picture, boxes, line, phase_fill, rect, tag, text
from course.lessons.lesson_03.costs import chunk_sizes, score_bytes, tile_bytes
from minillm.model.config import ModelConfig

TILE = 128
"""Rows and columns of the tile that is drawn. Each kernel chooses its own size, near this one."""
SIDE, TOP, GAP = 250.0, 44.0, 60.0
LEFT = (WIDTH - 2 * SIDE - GAP) / 2


def draw_square(config: ModelConfig, tokens: int, chunk: int, largest: int) -> Picture:
    """Textbook attention on the left, fused on the right, at the same scale.

    Args:
        tokens: of the prompt: rows (who looks) and columns (who is looked at).
        chunk: rows that are computed in one step.
        largest: the prompt length that fills the picture: area is comparable between pictures.
    """
    side = SIDE * tokens / largest
    chunk = min(chunk, tokens)
    steps = chunk_sizes(tokens, chunk)
    left, right = LEFT, LEFT + SIDE + GAP
    body = _heading(left, "textbook: every score, then the softmax") + _heading(
        right, "fused: a tile, used and forgotten"
    )
    body += _textbook(left, side, tokens, steps) + _fused(right, side, tokens, steps)
    rows = max(steps)
    built, tile = score_bytes(config, rows, tokens), tile_bytes(config, rows, tokens, TILE)
    base = TOP + SIDE
    words = "" if len(steps) == 1 else ", in the last step"
    body += text(left, base + 40, f"builds {size(built)} of scores per layer{words}", size=13, font_weight="bold")
    body += text(
        left, base + 57, f"{config.num_heads} heads × {rows} × {tokens} numbers of 4 bytes", size=11, fill=SOFT
    )
    body += text(right, base + 40, f"holds {size(tile)} of scores at a time, per worker", size=13, font_weight="bold")
    body += text(
        right, base + 57, f"a tile of {min(TILE, rows)} × {min(TILE, tokens)} numbers of 4 bytes", size=11, fill=SOFT
    )
    needed = tokens * (tokens + 1) // 2
    found = (
        f"{tokens} tokens: {needed} pairs are needed, {tokens * tokens} are in the square. Textbook attention builds "
        f"{size(built)} of scores per layer in its largest step, a fused worker holds {size(tile)} of them. "
        f"The prompt is computed in {len(steps)} step{'s' * (len(steps) != 1)} of at most {rows} rows."
    )
    return Picture("How many pairs of tokens does a prompt make?", body, base + 66, description=found)


def _heading(x: float, words: str) -> str:
    return text(x, 16, words, size=13) + text(x, 32, "across: the tokens looked at", size=11, fill=SOFT)


def _textbook(x: float, side: float, tokens: int, steps: list[int]) -> str:
    """What each step builds: its rows, as long as all tokens so far. Above the diagonal it is masked away."""
    body, done = _frame(x), 0
    for rows in steps:
        y, done = TOP + side * done / tokens, done + rows
        width, height = side * done / tokens, side * rows / tokens
        body += rect(x, y, width, height, fill=ALARM, fill_opacity=0.16, stroke=ALARM, stroke_dasharray="3 2")
    body += _triangle(x, side) + _bands(x, side, tokens, steps)
    if side > 90 and len(steps) == 1:
        body += text(x + side * 0.56, TOP + side * 0.26, "in the future:", size=11, fill=INK)
        body += text(x + side * 0.56, TOP + side * 0.26 + 14, "built, masked", size=11, fill=INK)
    if side > 90:
        body += _inside(x + side * 0.08, TOP + side * 0.8, "needed")
    return body + _ends(x, side, tokens)


def _fused(x: float, side: float, tokens: int, steps: list[int]) -> str:
    """The triangle in tiles; one of them is at work."""
    pitch = side * min(TILE / tokens, 1.0)
    count = max(1, round(side / pitch))
    body = _frame(x) + _triangle(x, side, 0.35) + _bands(x, side, tokens, steps)
    tiles = [(x + pitch * c, TOP + pitch * r, pitch, pitch) for r in range(count) for c in range(r + 1)]
    body += boxes(tiles, fill="none", stroke=PHASE_COLOURS["prefill"], stroke_width=0.6)
    row = count - 1
    column = row // 2
    body += rect(
        x + pitch * column, TOP + pitch * row, pitch, pitch, fill=phase_fill("prefill"), stroke=INK, stroke_width=1.6
    )
    return body + _ends(x, side, tokens)


def _triangle(x: float, side: float, opacity: float = 0.8) -> str:
    points = f"{x:.1f},{TOP:.1f} {x:.1f},{TOP + side:.1f} {x + side:.1f},{TOP + side:.1f}"
    return tag("polygon", points=points, fill=PHASE_COLOURS["prefill"], fill_opacity=opacity)


def _frame(x: float) -> str:
    """The largest square there is, for scale."""
    return rect(x, TOP, SIDE, SIDE, fill="none", stroke=FAINT)


def _bands(x: float, side: float, tokens: int, steps: list[int]) -> str:
    """A line under each step's rows, when there are few enough to see."""
    if len(steps) == 1 or side / len(steps) < 2.5:
        return ""
    body, done = "", 0
    for rows in steps[:-1]:
        done += rows
        y = TOP + side * done / tokens
        body += line(x, y, x + side * done / tokens, y, stroke=PAPER, stroke_width=1.6)
    return body


def _inside(x: float, y: float, words: str) -> str:
    return text(
        x, y, words, size=12, fill="#fff", stroke=PHASE_COLOURS["prefill"], stroke_width=3, paint_order="stroke"
    )


def _ends(x: float, side: float, tokens: int) -> str:
    under = text(x + side, TOP + side + 14, f"{tokens}", size=11, fill=SOFT, text_anchor="end")
    return under + text(x - 5, TOP + side, f"{tokens}", size=11, fill=SOFT, text_anchor="end")
