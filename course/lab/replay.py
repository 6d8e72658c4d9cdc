"""A run played again, slower, with every moment to look at: drawn by the browser (view/player.js)."""

import gzip
import json
from base64 import b64encode
from html import escape

import anywidget
import traitlets

from course.lab.controls import FIELDS
from course.lab.display import LivePanel
from course.lab.pictures.timeline import draw_timeline
from course.lab.run import Run
from course.lab.style import seconds
from course.lab.view import bundle
from course.lab.view.trace import Told, trace_of

PACKED = "data-replay"
"""On a page without a kernel: the run, for the site to play."""


def packed(played: Told) -> str:
    """JSON for a page's script: `unpack` in recorded.js reads it."""
    return b64encode(gzip.compress(json.dumps(played).encode(), mtime=0)).decode()


class PlayerView(anywidget.AnyWidget):
    """What the browser plays."""

    _esm = bundle.widget_script("renderPlayer")
    _css = bundle.STYLE
    played = traitlets.Dict().tag(sync=True)


class Replay(LivePanel):
    """A finished run. It plays once, when it comes into sight, and ends full; a slider goes to any moment.

    Args:
        run: what to play.
        row: the request to follow.
    """

    def __init__(self, run: Run, row: int = 0) -> None:
        self.run, self.row = run, run.rows[row]
        self.played = {"run": trace_of(run, None, FIELDS), "row": row}
        self.widget = PlayerView(played=self.played)

    def static_html(self) -> str:
        """Where there is no kernel: how it ended."""
        view = self.run.row_of(self.row.index)
        told = f"request #{self.row.index} finished, after {seconds(view.borders[-1] - view.borders[0])}"
        picture = draw_timeline(self.run, title=f"Where did request #{self.row.index}'s time go?")
        text = escape("".join(self.row.texts))
        look = "white-space:pre-wrap;word-break:normal;margin:0 0 0 10px"
        return (
            f'<div {PACKED}="{packed(self.played)}"><p>{told}</p>{picture.svg()}<pre style="{look}">{text}</pre></div>'
        )
