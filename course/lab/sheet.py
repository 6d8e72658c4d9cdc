"""The capacity worksheet in a notebook: how many replicas, GPUs and dollars. It's answered on paper (paper.py) while a
slider moves (view/sheet.js); once it rests, a simulation answers in its place.
"""

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass

import anywidget
import traitlets

from course.lab.display import LivePanel, words_of
from course.lab.paper import SheetSpec, Values
from course.lab.replay import packed
from course.lab.view import bundle

PACKED = "data-sheet"
"""On a page without a kernel: the worksheet, for the site to show."""


@dataclass(frozen=True)
class Refined:
    """What a simulation found."""

    replicas: int
    low: int
    """The fewest, and the most, that its error leaves open."""
    high: int
    html: str
    """Where the numbers come from."""


class SheetView(anywidget.AnyWidget):
    """What the browser knows, and what it asks."""

    _esm = bundle.widget_script("renderSheet", bundle.SHEET)
    _css = bundle.STYLE
    spec = traitlets.Dict().tag(sync=True)
    asked = traitlets.Dict().tag(sync=True)
    """Now, while a slider moves."""
    paper = traitlets.Dict({"asked": None}).tag(sync=True)
    rested = traitlets.Dict().tag(sync=True)
    """What is asked since a while: worth a simulation."""
    refined = traitlets.Dict({"asked": None}).tag(sync=True)


class Sheet(LivePanel):
    """The worksheet in a notebook.

    Args:
        simulate: fills it in. It may raise a ValueError or a MinillmError, whose words are shown.
    """

    def __init__(self, spec: SheetSpec, simulate: Callable[[Values], Refined]) -> None:
        self.spec, self._simulate = spec, simulate
        self.widget = SheetView(spec=spec.told(is_simulated=True))
        self.widget.observe(lambda change: self._estimate(change["new"]), names="asked")
        self.widget.observe(lambda change: self.ask(change["new"]), names="rested")
        self._waiting: Values | None = None
        """The last question, if nothing is at it yet: those before it are of no use any more."""
        self._turn = threading.Lock()
        self._worker: threading.Thread | None = None

    def _estimate(self, values: Values) -> None:
        """On paper."""
        self.widget.paper = {"asked": dict(values), **asdict(self.spec.answer(values))}

    def ask(self, values: Values) -> None:
        """Simulate this, as soon as what is being simulated has ended."""
        with self._turn:
            self._waiting = values
            if self._worker is None:
                self._worker = threading.Thread(target=self._work, name="worksheet", daemon=True)
                self._worker.start()

    def wait(self) -> None:
        """For scripts and tests: until nothing is being simulated."""
        if (worker := self._worker) is not None:
            worker.join()

    def _next(self) -> Values | None:
        with self._turn:
            values, self._waiting = self._waiting, None
            if values is None:
                self._worker = None
            return values

    def _work(self) -> None:
        while (values := self._next()) is not None:
            try:
                found = {**asdict(self._simulate(values)), "trouble": ""}
            except Exception as error:  # or a question would end in a thread and stay unseen
                found = {"replicas": 0, "low": 0, "high": 0, "html": "", "trouble": words_of(error)}
            self.widget.refined = {"asked": dict(values), **found}

    def static_html(self) -> str:
        start = ", ".join(f"{field.label}: {field.value}" for field in self.spec.fields)
        told = f"<p><em>A worksheet, at first with {start}. Run this cell to use it.</em></p>"
        return f'<div {PACKED}="{packed(self.spec.told(is_simulated=False))}">{told}</div>'
