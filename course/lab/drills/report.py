"""All attempts on one page, to print or to show to a teacher: one HTML file without scripts."""

from collections.abc import Sequence
from html import escape

from course.lab.drills.attempts import Attempt, bias, practise_next, standing, trend
from course.lab.drills.drill import DIMENSIONS, LEVELS
from course.lab.drills.library import find_drill
from course.lab.drills.scoring import level_of
from course.lab.svg import INK, SOFT, Picture, line, rect, text

STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;max-width:800px;margin:24px auto;padding:0 16px;color:#1f2328;"
    "background:#fff}"
    "table{border-collapse:collapse}th,td{text-align:left;vertical-align:top;padding:3px 14px 3px 0}"
    "pre{white-space:pre-wrap;border-left:4px solid #d0d7de;padding-left:10px}@media print{section{break-inside:avoid}}"
)


def history_picture(done: Sequence[Attempt]) -> Picture:
    """Points of each attempt, oldest left, with the border of each level."""
    height, left, top, width = 130, 70, 10, 620
    body = ""
    for place, name in enumerate(LEVELS):
        y = top + height * (1 - place / len(LEVELS))
        body += line(left, y, left + width, y) + text(left - 8, y - 10, name, fill=SOFT, text_anchor="end")
    step = width / max(len(done), 1)
    for place, each in enumerate(done):
        tall = height * (LEVELS.index(each.level) + 0.5) / len(LEVELS)
        wide = min(step * 0.6, 40)
        x = left + step * place + (step - wide) / 2
        body += rect(x, top + height - tall, wide, tall, fill="#0072B2", rx=2)
        body += text(
            x + wide / 2, top + height - tall - 4, f"{each.points:.0%}", size=11, fill=INK, text_anchor="middle"
        )
    told = ", ".join(f"{each.drill}: {each.level}" for each in done) or "none yet"
    return Picture("How did the drills go, oldest first?", body, top + height + 10, description=told)


def summary(done: Sequence[Attempt]) -> list[tuple[str, str, str]]:
    """(dimension, level of late, change) for each dimension that was scored."""
    changes = trend(done)
    return [
        (DIMENSIONS[key], level_of(points), f"{changes[key]:+.0%}" if key in changes else "–")
        for key, points in standing(done).items()
    ]


def advice(done: Sequence[Attempt]) -> str:
    """What to practise next, in a sentence or two."""
    dimension, drill = practise_next(done)
    words = f"Practise next: {DIMENSIONS[dimension]}, with “{find_drill(drill).title}” ({drill})."
    gap = bias(done)
    if gap is not None and abs(gap) >= 0.5:
        words += f" You score yourself {abs(gap):.1f} levels {'higher' if gap > 0 else 'lower'} than the rules do."
    return words


def report(done: Sequence[Attempt]) -> str:
    """The whole page."""
    rows = "".join(f"<tr><td>{n}</td><td>{now}</td><td>{change}</td></tr>" for n, now, change in summary(done))
    table = f"<table><tr><th>dimension</th><th>of late</th><th>change</th></tr>{rows}</table>"
    parts = "".join(_section(each) for each in reversed(done))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Interview drills</title><style>{STYLE}</style>'
        f"<h1>Interview drills</h1><p>{escape(advice(done))}</p>{history_picture(done).svg()}{table}{parts}</html>"
    )


def _section(each: Attempt) -> str:
    clock = f", {each.seconds / 60:.1f} minutes" if each.seconds is not None else ""
    own = "".join(f"<td>{escape(each.self_score.get(key, '–'))}</td>" for key in each.dimensions)
    head = "".join(f"<th>{DIMENSIONS.get(key, escape(key))}</th>" for key in each.dimensions)
    rules = "".join(f"<td>{level_of(points)}</td>" for points in each.dimensions.values())
    return (
        f"<section><h2>{escape(each.drill)}: {escape(each.level)} "
        f"({each.points:.0%})</h2><p>{escape(each.when)}{clock}</p>"
        f"<table><tr><th></th>{head}</tr><tr><th>rules</th>{rules}</tr><tr><th>own</th>{own}</tr></table>"
        f"<pre>{escape(each.answer)}</pre></section>"
    )
