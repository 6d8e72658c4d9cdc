"""What every change would have done, as a picture; and where the marks come from."""

from collections.abc import Mapping

from course.lab.incidents.incident import Reveal
from course.lab.incidents.interventions import BY_ID
from course.lab.style import ALARM, PHASE_LABELS, WIDTH
from course.lab.svg import FAINT, INK, SOFT, Picture, Scale, legend, line, phase_fill, rect, tag, text

ROW, LEFT, RIGHT = 17, 292, 60
FLAT = 0.005
"""A change of less than this share of the requests is none."""


def every_change(reveal: Reveal, target: float = 0.9) -> Picture:
    """A bar a change: the share of requests within the SLO, before (the line) and after; the best on top."""
    effects = reveal.effects
    scale = Scale(0, 1, LEFT, WIDTH - RIGHT)
    bottom = 26 + ROW * len(effects)
    before = float(effects["before"].iloc[0])
    body = legend(LEFT, 12, ("queue", "prefill", "decode", "stream"))
    for place, (name, row) in enumerate(effects.iterrows()):
        body += _bar(str(name), row, 26 + ROW * place, scale)
    for share, label, stroke in ((before, "before", INK), (target, "target", ALARM)):
        x = scale(share)
        body += line(x, 22, x, bottom, stroke=stroke, stroke_width=1.4, stroke_dasharray="4 3")
        body += text(x, bottom + 13, label, size=11, fill=stroke, text_anchor="middle")
    for share in (0.25, 0.5, 0.75):
        body += text(scale(share), bottom + 13, f"{share:.0%}", size=11, fill=SOFT, text_anchor="middle")
    body += text(LEFT, bottom + 28, "requests within the SLO; right: dollars an hour", size=11, fill=SOFT)
    told = "; ".join(f"{BY_ID[name].text} {row.after:.0%}" for name, row in effects.iterrows())
    return Picture("What would each change have done, alone?", body, bottom + 34, description=f"{told}.")


def _bar(name: str, row: Mapping, y: float, scale: Scale) -> str:
    one, after = BY_ID[name], float(row["after"])
    flat = abs(after - float(row["before"])) < FLAT
    words = one.text if len(one.text) <= 44 else one.text[:43].rstrip(" ,:") + "…"
    drawn = text(LEFT - 8, y + 11, words, size=11, fill=SOFT if flat else INK, text_anchor="end")
    width = max(scale(after) - LEFT, 1.5)
    fill = {"fill": FAINT} if flat else {"fill": phase_fill(one.phase)}
    drawn += rect(LEFT, y + 2, width, ROW - 5, rx=2, **fill)
    drawn += text(WIDTH - 6, y + 11, f"{row['$ an hour']:.2f}", size=11, fill=SOFT, text_anchor="end")
    return tag("g", tag("title", f"{one.text} ({PHASE_LABELS[one.phase]}): {after:.0%}") + drawn)
