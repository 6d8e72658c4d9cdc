"""All attempts on one page, to print or to show to a teacher: one HTML file without scripts."""

from collections.abc import Sequence
from html import escape

from course.drills.attempts import RECENT, DrillAttempt, practise_next, standing
from course.drills.drill import DIMENSIONS
from course.drills.library import find_drill, number_of
from course.lab.style import COLOURS
from course.lab.svg import INK, SOFT, Picture, line, rect, text

STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;max-width:800px;margin:24px auto;padding:0 16px;color:#1f2328;"
    "background:#fff}"
    "table{border-collapse:collapse}th,td{text-align:left;vertical-align:top;padding:3px 14px 3px 0}"
    "pre{white-space:pre-wrap;border-left:4px solid #d0d7de;padding-left:10px}@media print{section{break-inside:avoid}}"
)


def history_picture(done: Sequence[DrillAttempt]) -> Picture:
    """Where each attempt stands, oldest left: commitments, as far as the statements bear them out."""
    height, left, top, width = 130, 70, 10, 620
    body = ""
    for mark in (0, 0.5, 1):
        y = top + height * (1 - mark)
        body += line(left, y, left + width, y) + text(left - 8, y + 4, f"{mark:.0%}", fill=SOFT, text_anchor="end")
    step = width / max(len(done), 1)
    for place, each in enumerate(done):
        tall, wide = max(height * min(each.points, 1), 1), min(step * 0.6, 40)
        x, y = left + step * (place + 0.5), top + height * (1 - min(each.points, 1))
        body += rect(x - wide / 2, y, wide, tall, fill=COLOURS[0], rx=2)
        body += text(x, y - 4, f"{each.points:.0%}", size=11, fill=INK, text_anchor="middle")
    told = ", ".join(f"{each.drill}: {each.points:.0%}" for each in done) or "none yet"
    return Picture(
        "Commitments, as far as the statements bear them out: where does each attempt stand, oldest first?",
        body,
        top + height + 10,
        description=told,
    )


def summary(done: Sequence[DrillAttempt]) -> list[tuple[str, str, str]]:
    """(criterion, own grade of late, change since as many attempts before) for each criterion that was graded."""
    now, before = standing(done), standing(done[:-RECENT])
    return [
        (DIMENSIONS[key], f"{points:.0%}", f"{points - before[key]:+.0%}" if key in before else "–")
        for key, points in now.items()
    ]


def advice(done: Sequence[DrillAttempt]) -> str:
    """What to practise next, in a sentence or two."""
    dimension, drill = practise_next(done)
    words = f"Practise next: {DIMENSIONS[dimension]}, with drill {number_of(find_drill(drill))}."
    off = [each.bias for each in done[-RECENT:] if each.bias is not None]
    if off and abs(gap := sum(off) / len(off)) >= 0.5:
        words += f" You grade samples {abs(gap):.1f} levels too {'high' if gap > 0 else 'low'}."
    return words


def report(done: Sequence[DrillAttempt]) -> str:
    """The whole page."""
    rows = "".join(f"<tr><td>{n}</td><td>{now}</td><td>{change}</td></tr>" for n, now, change in summary(done))
    table = f"<table><tr><th>criterion</th><th>own grade, weighted</th><th>change</th></tr>{rows}</table>"
    parts = "".join(_section(each) for each in reversed(done))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Interview drills</title><style>{STYLE}</style>'
        f"<h1>Interview drills</h1><p>{escape(advice(done))}</p>{history_picture(done).svg()}{table}{parts}</html>"
    )


def _section(each: DrillAttempt) -> str:
    clock = f", {each.seconds / 60:.1f} minutes" if each.seconds is not None else ""
    told = each.headline or f"{each.points:.0%}"
    head = (
        f"{each.drill}: {told}; {each.level or 'no level'}",
        f"{each.when}{clock}; own grades weigh {each.weight:.0%}",
    )
    own = [f"{DIMENSIONS.get(key, key)}: {level} {each.quotes.get(key, '')}" for key, level in each.self_score.items()]
    again = [f"Written again: {each.rewritten}"] if each.rewritten else []
    lines = "".join(f"<p>{escape(text)}</p>" for text in (*own, *map(" ".join, each.replies.items()), *again))
    return (
        f"<section><h2>{escape(head[0])}</h2><p>{escape(head[1])}</p>{lines}<pre>{escape(each.answer)}</pre></section>"
    )
