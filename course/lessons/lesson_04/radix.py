"""Two prompts as a tree: the trunk they share token by token, and what of it whole blocks can reuse."""

from course.lab.lab import Lab
from course.lab.svg import INK, SOFT, Picture, line, rect, text
from course.lessons.lesson_04.beads import COMPUTED, FOUND
from course.lessons.lesson_04.chain import token_ids

LEFT, WIDE, HIGH = 70, 600, 22


def draw_tree(lab: Lab, first: str, second: str, block: int) -> Picture:
    """The radix tree of two prompts: its trunk is what a token-granular cache shares."""
    a, b = token_ids(lab, first), token_ids(lab, second)
    shared = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    whole = shared // block * block
    unit = WIDE / max(len(a), len(b))
    fork = LEFT + shared * unit
    body = rect(LEFT, 44, whole * unit, HIGH, fill=FOUND, rx=3)
    body += rect(LEFT + whole * unit, 44, (shared - whole) * unit, HIGH, fill=FOUND, fill_opacity=0.4, rx=3)
    for ids, y, name in ((a, 12, "first"), (b, 76, "second")):
        body += line(fork, 44 + HIGH / 2, fork + 8, y + HIGH / 2, stroke=SOFT, stroke_width=2)
        body += rect(fork + 8, y, (len(ids) - shared) * unit - 8, HIGH, fill=COMPUTED, rx=3)
        body += text(LEFT - 8, y + 15, name, text_anchor="end", fill=SOFT)
    words = (
        f"shared, token by token (a radix tree): {shared} of {len(b)}; in whole blocks of {block}: {whole}",
        "yellow: found by both kinds of cache; pale: only token by token; blue: computed again",
    )
    for row, each in enumerate(words):
        body += text(LEFT, 122 + 18 * row, each, fill=INK if row == 0 else SOFT)
    return Picture("What would a radix tree share?", body, 150, description=words[0])
