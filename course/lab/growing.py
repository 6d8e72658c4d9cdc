"""The run that a cell plays, growing under it: the browser draws it (view/growing.js) from events and moments."""

from collections.abc import Callable
from typing import Protocol

import anywidget
import traitlets

from course.lab import waiting
from course.lab.controls import FIELDS
from course.lab.pictures.timeline import draw_timeline
from course.lab.run import Run
from course.lab.view import bundle
from course.lab.view.trace import TraceFeed, trace_of
from course.lab.workloads import LabWorkload

LOOK_S = 1 / 6
"""Between two pieces of news, and before the first. All of them take 0.21% of a core, and a step of the engine 0.23%
less CPU time than without a picture, give or take 0.37%: together at most 0.7% with 95% confidence (20 pairs on a busy
machine, 2 cores of an AMD EPYC, Zen 5, 2026-11-27; `tests/course/lab/growing_cost.py`)."""
MOST_ROWS = 60
"""A longer run is no picture to keep."""


class GrowingView(anywidget.AnyWidget):
    """What the browser knows of it."""

    _esm = bundle.widget_script("renderGrowing")
    _css = bundle.STYLE
    shown = traitlets.Dict({"id": 0, "run": None}).tag(sync=True)


class RunInProgress(Protocol):
    """What is needed of a run in progress."""

    def wait(self, timeout: float | None = None) -> bool: ...
    def run(self) -> Run: ...


class GrowingPicture:
    """All runs that one cell plays, one after the other in the same place.

    Args:
        put: shows something in that place, instead of what it showed before.
    """

    def __init__(self, put: waiting.Put) -> None:
        self._put = put
        self._view: GrowingView | None = None
        self._feed: TraceFeed | None = None
        self._run: Run | None = None
        self._traffic: LabWorkload | None = None

    def grow(self, run: Run, traffic: LabWorkload) -> None:
        """What is new of the run that goes on."""
        if self._view is None:
            self._view = GrowingView()
            self._view.on_msg(lambda _widget, content, _buffers: content == {"do": "whole"} and self._tell_whole())
            self._put(self._view)
        number = self._view.shown["id"]
        if self._feed is None:
            self._feed, self._traffic = TraceFeed(run, traffic, FIELDS), traffic
            number += 1
            self._view.shown = {"id": number, "run": self._feed.head}
        self._run = run
        self._view.send({"id": number, "more": self._feed.more(run)})

    def finish(self, run: Run) -> None:
        """The run has ended."""
        if self._feed is not None:
            self.grow(run, self._traffic)
            self._feed = None

    def _tell_whole(self) -> None:
        """For a page that was opened in mid-run."""
        self._view.shown = {**self._view.shown, "run": trace_of(self._run, self._traffic, FIELDS)}

    def end(self, shows_nothing: bool) -> None:
        """The cell is over.

        Args:
            shows_nothing: the cell has no result of its own; then the last run stays in sight.
        """
        if self._view is None:
            return
        keeps = shows_nothing and self._run.done and len(self._run.rows) <= MOST_ROWS
        self._put(draw_timeline(self._run) if keeps else None)
        self._view.close()


def play_out(
    session: RunInProgress, traffic: LabWorkload, tell: Callable[[], None], look: Callable[[], Run] | None = None
) -> None:
    """Wait for a run's end. In a cell it grows in sight meanwhile.

    Args:
        tell: says how far it is.
        look: at the run so far; None = the session's own.
    """
    picture, look = _picture_here(), look or session.run
    try:
        while not session.wait(waiting.REFRESH_S if picture is None else LOOK_S):
            tell()
            if picture is not None:
                picture.grow(look(), traffic)
    finally:  # whatever ended it: the cell's next run is another picture
        if picture is not None:
            picture.finish(look())


def _picture_here() -> GrowingPicture | None:
    """The cell's, or the button's; None where nothing can be shown."""
    line = waiting.line_here()
    if line is None or line.put is None:
        return None
    if line.picture is None:
        line.picture = GrowingPicture(line.put)
    return line.picture
