"""The ledger to work with: filters, the map, and a button for every row."""

import queue
import threading
from collections.abc import Callable
from html import escape

import ipywidgets as widgets

from course.lab.claims import REGISTRY, SHORT_NAMES
from course.lab.display import LivePanel
from course.lab.explorer import buttons
from course.lab.lesson_14.claim_map import GROUPS, draw_map
from course.lab.lesson_14.ledger import Ledger
from course.lab.lesson_14.records import KINDS
from course.lab.lesson_14.rows import Row, row_html, table_of
from course.lab.style import PHASE_LABELS

ALL = "all"


class RowView:
    """One row with its button."""

    def __init__(self, row: Row, on_press: Callable[[str], None]) -> None:
        self.button = widgets.Button(layout=widgets.Layout(width="92px", margin="6px 10px 0 0", flex="0 0 auto"))
        self.button.on_click(lambda _: on_press(row.entry.id))
        self.view = widgets.HTML(layout=widgets.Layout(width="100%", flex="1 1 auto"))
        self.widget = widgets.HBox([self.button, self.view], layout=widgets.Layout(width="100%", max_width="1020px"))
        self.show(row)

    def show(self, row: Row, busy: str = "") -> None:
        """Draw the row, and remember it: to be drawn again without reading the book.

        Args:
            busy: what the button says while nobody can press it.
        """
        self.row = row
        self.view.value = table_of([row_html(row)])
        self.button.disabled = bool(busy) or not row.has_experiment
        self.button.description = busy or ("again" if row.record else "measure")
        self.button.tooltip = f"run the experiment of {row.entry.id}" if row.has_experiment else "no experiment yet"


class LedgerPanel(LivePanel):
    """Filters over the claims; each can be measured, or measured again, by its button.

    Experiments run one after the other in a thread of their own, so that no cell waits and Stop works.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.filters: dict[str, widgets.Dropdown] = {
            "source": _dropdown("source", {name: name for name in SHORT_NAMES.values()}),
            "phase": _dropdown("phase", {label: phase for phase, label in PHASE_LABELS.items()}),
            "verdict": _dropdown("verdict", {kind: kind for kind in KINDS}),
            "lesson": _dropdown("lesson", {e: e for e in sorted({n for x in REGISTRY.values() for n in x.lessons})}),
        }
        self.group = buttons("a line for each", list(GROUPS))
        self.map = widgets.HTML(layout=widgets.Layout(width="100%"))
        self.missing = widgets.Button(description="Measure what is missing here", icon="play", button_style="primary")
        self.stop_button = widgets.Button(description="Stop after this one", icon="stop", disabled=True)
        self.message = widgets.HTML("")
        for button in (self.missing, self.stop_button):
            button.layout.width = "auto"
        self.missing.on_click(lambda _: self.measure_missing())
        self.stop_button.on_click(lambda _: self.stop())
        self.views = {row.entry.id: RowView(row, self.measure) for row in ledger.rows()}
        self._waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._queued: set[str] = set()
        self._thread: threading.Thread | None = None
        self._change = threading.Lock()
        for handle in (*self.filters.values(), self.group):
            handle.observe(lambda _: self.refresh(), names="value")
        wrap = widgets.Layout(flex_flow="row wrap", width="100%")
        actions = widgets.HBox([self.missing, self.stop_button, self.message], layout=wrap)
        self.widget = widgets.VBox(
            [
                widgets.Box(list(self.filters.values()), layout=wrap),
                self.group,
                self.map,
                actions,
                widgets.VBox([view.widget for view in self.views.values()], layout=widgets.Layout(width="100%")),
            ],
            layout=widgets.Layout(width="100%"),
        )
        self.refresh()

    @property
    def in_sight(self) -> list[str]:
        """Ids of the claims that pass the filters."""
        return [row.entry.id for row in self.ledger.rows(**self._chosen())]

    def refresh(self) -> None:
        """Draw the map, and show the rows that pass the filters."""
        in_sight = self.in_sight
        self.map.value = draw_map(self.ledger.rows(), self.group.value, in_sight).svg()
        for claim, view in self.views.items():
            view.widget.layout.display = None if claim in in_sight else "none"
        if not self._queued:
            self.message.value = f"{len(in_sight)} claims in sight."

    def measure(self, claim: str) -> None:
        """Put a claim in line to be measured, unless it is there."""
        with self._change:
            if claim in self._queued:
                return
            self._queued.add(claim)
            self._waiting.put(claim)
            self.views[claim].show(self.views[claim].row, "in line …")
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="ledger", daemon=True)
                self._thread.start()

    def measure_missing(self) -> None:
        """Every claim in sight that has no result of this machine yet."""
        for row in self.ledger.rows(**self._chosen()):
            if row.has_experiment and not row.is_done:
                self.measure(row.entry.id)

    def stop(self) -> None:
        """Whatever is in line leaves it; the one that is being measured is finished, and kept."""
        with self._change:
            while not self._waiting.empty():
                self._leave(self._waiting.get())

    def wait(self) -> "LedgerPanel":
        """Until nothing is in line."""
        if self._thread is not None:
            self._thread.join()
        return self

    def _work(self) -> None:
        while (claim := self._next()) is not None:
            self.message.value = f"measuring {claim}; {self._waiting.qsize()} more in line"
            trouble = self._measured(claim) or self._redrawn()
            if trouble:
                self.message.value = escape(trouble)

    def _next(self) -> str | None:
        """Who is first in line; None = nobody, and this thread ends: whoever presses now begins another."""
        with self._change:
            claim = None if self._waiting.empty() else self._waiting.get()
            self.stop_button.disabled = claim is None
            if claim is None:
                self._thread = None
            return claim

    def _measured(self, claim: str) -> str:
        """Measure it, and show what was found. Returns why it could not be kept, or nothing."""
        view = self.views[claim]
        try:
            view.show(view.row, "running …")
            view.row = self.ledger.run(claim)
        except Exception as error:  # the book cannot be written: no other claim could be kept either
            self.stop()
            return f"{claim} could not be kept: {error}. Nothing is in line any more."
        finally:
            with self._change:
                self._leave(claim)
        return ""

    def _redrawn(self) -> str:
        """Draw all again. Returns why it could not be done, or nothing."""
        try:
            self.refresh()
        except Exception as error:  # in a thread of its own nobody would hear of it
            return f"the ledger cannot be shown: {error}"
        return ""

    def _leave(self, claim: str) -> None:
        self._queued.discard(claim)
        self.views[claim].show(self.views[claim].row)

    def _chosen(self) -> dict[str, str | None]:
        return {name: None if menu.value == ALL else menu.value for name, menu in self.filters.items()}

    def static_html(self) -> str:
        rows = self.ledger.rows(**self._chosen())
        return self.map.value + table_of([row_html(row) for row in rows])


def _dropdown(label: str, options: dict[str, str]) -> widgets.Dropdown:
    return widgets.Dropdown(
        options=[(ALL, ALL), *options.items()],
        description=label,
        style={"description_width": "52px"},
        layout=widgets.Layout(width="205px"),
    )
