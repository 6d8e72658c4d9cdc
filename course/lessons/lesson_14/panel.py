"""The ledger to work with: filters, the map, the rows in sight, and buttons that measure them."""

import threading
from collections.abc import Callable, Sequence
from html import escape

import ipywidgets as widgets

from course.lab.claims import REGISTRY, SHORT_NAMES
from course.lab.display import LivePanel
from course.lab.explorer import buttons
from course.lab.style import PHASE_LABELS
from course.lessons.lesson_14.claim_map import GROUPS, draw_map
from course.lessons.lesson_14.ledger import Ledger
from course.lessons.lesson_14.records import KINDS
from course.lessons.lesson_14.rows import Row, row_html, rows_table, table_of

ALL = "all"


class LedgerPanel(LivePanel):
    """Filters over the claims; one of those in sight can be measured, or all that have no result here yet.

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
        self.claim = widgets.Dropdown(description="claim", layout=widgets.Layout(width="160px"))
        self.one = _button("Measure it", self.measure)
        self.missing = _button("Measure what is missing here", self.measure_missing)
        self.stop_button = _button("Stop after this one", self.stop)
        self.stop_button.disabled = True
        self.map, self.message, self.count = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self.views = {claim: widgets.HTML(layout=widgets.Layout(width="100%")) for claim in REGISTRY}
        self._thread: threading.Thread | None = None
        self._stop_requested = threading.Event()
        for control in (*self.filters.values(), self.group):
            control.observe(lambda _: self.refresh(), names="value")
        wrap = widgets.Layout(flex_flow="row wrap", width="100%")
        choosing = widgets.Box(list(self.filters.values()), layout=wrap)
        measuring = widgets.Box([self.claim, self.one, self.missing, self.stop_button, self.message], layout=wrap)
        parts = [choosing, self.group, self.map, measuring, self.count, *self.views.values()]
        self.widget = widgets.VBox(parts, layout=widgets.Layout(width="100%"))
        self.refresh()

    @property
    def rows(self) -> list[Row]:
        """The claims that pass the filters."""
        return self.ledger.rows(**self._chosen())

    @property
    def in_sight(self) -> list[str]:
        """Their ids."""
        return [row.entry.id for row in self.rows]

    def refresh(self) -> None:
        """Draw the map and the rows that pass the filters; offer those that can be measured."""
        every, chosen = self.ledger.rows(), self._chosen()
        in_sight = [row.entry.id for row in every if row.passes(**chosen)]
        self.map.value = draw_map(every, self.group.value, in_sight).svg()
        self.count.value = f"Showing {len(in_sight)} of {len(self.ledger.rows())} claims."
        for row in every:
            # A view for each: only a value that has changed is drawn again, so evidence that is open stays open.
            view = self.views[row.entry.id]
            view.value = table_of([row_html(row)])
            view.layout.display = None if row.entry.id in in_sight else "none"
        kept = self.claim.value
        offered = [row.entry.id for row in every if row.has_experiment and row.entry.id in in_sight]
        self.claim.options = offered
        self.claim.value = kept if kept in offered else next(iter(offered), None)

    def measure(self) -> None:
        """The chosen claim, again if it has been."""
        if self.claim.value is not None:
            self._begin([self.claim.value])

    def measure_missing(self) -> None:
        """Every claim in sight that has no result of this machine yet."""
        self._begin([row.entry.id for row in self.rows if row.has_experiment and not row.is_done])

    def stop(self) -> None:
        """Begin no other claim; the one that is being measured is finished, and kept."""
        self._stop_requested.set()

    def wait(self) -> "LedgerPanel":
        """Until nothing is being measured."""
        if self._thread is not None:
            self._thread.join()
        return self

    def _begin(self, claims: Sequence[str]) -> None:
        """Measure these in the background, unless that is going on."""
        if self._thread is None or not self._thread.is_alive():
            self._stop_requested.clear()
            self._enable(measuring=True)
            self._thread = threading.Thread(target=self._work, args=(claims,), name="ledger", daemon=True)
            self._thread.start()

    def _work(self, claims: Sequence[str]) -> None:
        try:
            for place, claim in enumerate(claims, 1):
                if self._stop_requested.is_set():
                    break
                self.message.value = f"measuring {claim}, {place} of {len(claims)} …"
                self.ledger.run(claim)
                self.refresh()
            self.message.value = ""
        except Exception as error:  # the book cannot be read or written: no other claim could be kept either
            self.message.value = f"{claim} could not be kept, or shown: {escape(str(error))}"
        finally:
            self._enable(measuring=False)

    def _enable(self, measuring: bool) -> None:
        self.one.disabled = self.missing.disabled = measuring
        self.stop_button.disabled = not measuring

    def _chosen(self) -> dict[str, str | None]:
        """The filters of `Ledger.rows`, as they stand."""
        return {name: None if menu.value == ALL else menu.value for name, menu in self.filters.items()}

    def static_html(self) -> str:
        return self.map.value + rows_table(self.rows).html


def _button(words: str, action: Callable[[], None]) -> widgets.Button:
    button = widgets.Button(description=words, layout=widgets.Layout(width="auto"))
    button.on_click(lambda _: action())
    return button


def _dropdown(label: str, options: dict[str, str]) -> widgets.Dropdown:
    return widgets.Dropdown(
        options=[(ALL, ALL), *options.items()],
        description=label,
        style={"description_width": "52px"},
        layout=widgets.Layout(width="205px"),
    )
