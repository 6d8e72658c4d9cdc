"""Small helpers that write SVG as text.

A picture is one string: 0.2 ms to show, a few KB, no JavaScript, readable by a screen reader, testable
as text. Colours of text and lines come from JupyterLab's theme where there is one, else from fall-backs.
"""

import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape

from course.lab.style import PHASE_COLOURS, PHASE_LABELS, WIDTH
from minillm.core.brief import brief

INK = "var(--jp-ui-font-color1, #1f2328)"
SOFT = "var(--jp-ui-font-color2, #57606a)"
FAINT = "var(--jp-border-color2, #d0d7de)"
PAPER = "var(--jp-layout-color0, #ffffff)"
HALO = {"stroke": PAPER, "stroke_width": 3, "paint_order": "stroke"}
"""A rim of paper around words: they stay readable across a line."""
FONT = "var(--jp-ui-font-family, system-ui, -apple-system, 'Segoe UI', sans-serif)"

TITLE_HEIGHT = 24

STROKES = {
    "queue": '<path d="M-1 7L7 -1" stroke-width="1.6"/>',
    "prefill": '<path d="M-1 -1L7 7" stroke-width="0.9"/>',
    "first_token": '<path d="M1.5 0V6" stroke-width="1.2"/>',
    "decode": "",
    "stream": '<path d="M-1 7L7 -1M-1 -1L7 7" stroke-width="1"/>',
}
"""The pattern of each phase, drawn in white over its colour on a 6 x 6 tile. Decode, the largest area, is plain."""
PATTERNS = "MINILLM_PATTERNS"
"""Environment variable: 1 = phases have patterns, too, for readers who can't tell the colours apart."""


def tag(name: str, content: str = "", **attributes: object) -> str:
    """One element. `stroke_width=2` becomes stroke-width="2"; None is left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return escape(str(value), quote=True)


def short(value: float) -> str:
    """A coordinate in as few characters as it needs."""
    return f"{value:.1f}".removesuffix(".0")


def text(x: float, y: float, content: str, *, size: float = 12, fill: str = INK, **attributes: object) -> str:
    content = escape(content).replace("  ", "\u00a0 ")  # SVG makes one space of two
    return tag("text", content, x=float(x), y=float(y), font_size=size, fill=fill, **attributes)


def rect(x: float, y: float, width: float, height: float, **attributes: object) -> str:
    return tag("rect", x=float(x), y=float(y), width=float(max(width, 0)), height=float(height), **attributes)


def line(x1: float, y1: float, x2: float, y2: float, *, stroke: str = FAINT, **attributes: object) -> str:
    return tag("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), stroke=stroke, **attributes)


def boxes(rectangles: Iterable[tuple[float, float, float, float]], **attributes: object) -> str:
    """Many rectangles (x, y, width, height) as one path: a tenth of the bytes of as many elements."""
    drawn = "".join(f"M{short(x)} {short(y)}h{short(w)}v{short(h)}h{short(-w)}z" for x, y, w, h in rectangles)
    return tag("path", d=drawn, **attributes) if drawn else ""


def phase_fill(phase: str) -> str:
    """The fill of a phase: its colour, with PATTERNS under its pattern. Only means something inside a Picture."""
    return f"url(#@{phase})"


@dataclass(frozen=True)
class Picture:
    """One SVG picture that answers one question.

    In a notebook it shows itself as inline SVG, which follows the theme. Where there's less room than its width it
    scrolls: type of 11 units is never less than 11 px. `python -m course.lab.build`
    turns it into an image for static views, which strip inline SVG.

    A pattern in the body is called id="@name" and used as "url(#@name)". Ids hold for a whole page, where a name is
    looked up in the picture that comes first, though that be folded away; so each picture's get a prefix of its own.
    """

    title: str
    """The question it answers, or the finding: written above it, and read aloud by a screen reader."""
    body: str
    height: float
    """The body's height; the title stands above it."""
    width: float = WIDTH
    description: str = ""
    """What the picture shows, in words and numbers: its text alternative."""

    __repr__ = brief

    @property
    def alternative(self) -> str:
        """Title and description as one text."""
        return f"{self.title} {self.description}".strip()

    def svg(self) -> str:
        """The whole element, valid XML."""
        prefix = f"p{zlib.crc32(self.body.encode()):08x}"
        body, used = self.body, [phase for phase in PHASE_COLOURS if f"url(#@{phase})" in self.body]
        if os.environ.get(PATTERNS) != "1":
            for phase in used:
                body = body.replace(f"url(#@{phase})", PHASE_COLOURS[phase])
            used = []
        body = body.replace("url(#@", f"url(#{prefix}").replace('id="@', f'id="{prefix}')
        patterns = "".join(_pattern(f"{prefix}{phase}", phase) for phase in used)
        title_size = min(14, (self.width - 8) / (0.64 * max(len(self.title), 1)))  # a long one isn't clipped
        return tag(
            "svg",
            tag("title", escape(self.title))
            + (tag("desc", escape(self.description)) if self.description else "")
            + (tag("defs", patterns) if patterns else "")
            + text(4, 15, self.title, size=title_size, font_weight="bold")
            + tag("g", body, transform=f"translate(0 {TITLE_HEIGHT})"),
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {short(self.width)} {short(self.height + TITLE_HEIGHT)}",
            width="100%",
            role="img",
            aria_label=self.alternative,
            style=f"min-width:{short(self.width)}px;max-width:{short(1.15 * self.width)}px;display:block;"
            f"font-family:{FONT}",
        )

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": self.svg(), "text/plain": self.alternative}


def _pattern(identity: str, phase: str) -> str:
    tile = rect(0, 0, 6, 6, fill=PHASE_COLOURS[phase]) + tag("g", STROKES[phase], stroke="#fff", stroke_opacity=0.4)
    return tag("pattern", tile, id=identity, width=6, height=6, patternUnits="userSpaceOnUse")


def legend(x: float, y: float, phases: Iterable[str] = tuple(PHASE_COLOURS)) -> str:
    """Swatches with the names of the phases, left to right in the order they happen."""
    return swatches(x, y, {PHASE_LABELS[phase]: phase_fill(phase) for phase in phases}, size=12)


def swatches(x: float, y: float, fills: Mapping[str, str], size: float = 11) -> str:
    """A legend: words, each behind a box of its fill, left to right; `y` is the words' baseline."""
    drawn = ""
    for words, fill in fills.items():
        drawn += rect(x, y - 10, 14, 11, fill=fill, rx=2) + text(x + 18, y, words, size=size, fill=SOFT)
        x += 34 + (0.3 + 0.5 * size) * len(words)
    return drawn


@dataclass(frozen=True)
class Scale:
    """Maps a quantity (seconds, tokens) onto a picture's units, linearly."""

    low: float
    high: float
    start: float
    """Position of `low`."""
    end: float
    """Position of `high`."""

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, target: int = 6) -> list[float]:
        """About `target` round values inside the range."""
        step = nice((self.high - self.low) / target)
        first = -(-self.low // step)
        return [step * (first + i) for i in range(int((self.high - first * step) / step + 1e-9) + 1)]


def nice(value: float) -> float:
    """The smallest of 1, 2, 5 x 10^n that is at least `value`: axes grow in steps instead of trembling."""
    if value <= 0:
        return 1.0
    power = 10.0 ** int(f"{value:e}".split("e")[1])
    return next((m * power for m in (1, 2, 5, 10) if m * power >= value * (1 - 1e-9)), 10 * power)


def time_axis(scale: Scale, top: float, bottom: float, label: str = "", num_ticks: int = 6) -> str:
    """Vertical grid lines with their times under them; seconds, or milliseconds when the range is short."""
    in_ms = scale.high - scale.low < 0.5
    drawn = ""
    for tick in scale.ticks(num_ticks):
        x = scale(tick)
        written = f"{tick * 1000:g}" if in_ms else f"{tick:g}"
        drawn += line(x, top, x, bottom, stroke_width=1)
        drawn += text(x, bottom + 14, written, size=11, fill=SOFT, text_anchor="middle")
    unit = "milliseconds" if in_ms else "seconds"
    return drawn + text(
        scale.start, bottom + 28, f"{label or 'time since the first request'}, {unit}", size=11, fill=SOFT
    )
