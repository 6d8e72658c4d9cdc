"""The capacity worksheet: how many replicas, GPUs and dollars. The browser answers on paper while a slider moves
(view/sheet.js); once it rests, a simulation answers in its place.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import anywidget
import traitlets

from course.lab.display import LivePanel, words_of
from course.lab.replay import packed
from course.lab.view import bundle
from course.lab.view.prices import Prices
from course.simulator.cost.hardware import find_hardware

PACKED = "data-sheet"
"""On a page without a kernel: the worksheet, for the site to show."""
Values = Mapping[str, Any]
"""What is asked, by the fields' names."""


@dataclass(frozen=True)
class Choice:
    """One of a few."""

    name: str
    label: str
    group: str
    options: Sequence[str]
    value: str


@dataclass(frozen=True)
class Number:
    """A number between two ends."""

    name: str
    label: str
    group: str
    unit: str
    low: float
    high: float
    value: float
    whole: bool = False


@dataclass(frozen=True)
class SheetSpec:
    """What a worksheet is told once; view/sheet.js describes it. Fields that it wants: card, gpus, qps, prompt, output,
    ttft (seconds), itl (milliseconds), headroom (percent), price."""

    fields: Sequence[Choice | Number]
    key: Sequence[str]
    """Names of the choices by which prices are found."""
    prices: Mapping[str, Prices]
    """By deployment, its choices' values with spaces between; what isn't there doesn't fit."""
    dollars: Mapping[str, float | None]
    """List price of a GPU and hour, by card."""

    def told(self, is_simulated: bool) -> dict[str, Any]:
        """JSON-able."""
        plain = {"key": list(self.key), "prices": dict(self.prices), "dollars": dict(self.dollars)}
        return {**plain, "fields": [asdict(field) for field in self.fields], "isSimulated": is_simulated}


def price_of_card(card: str) -> float | None:
    """Dollars of a GPU and hour in the catalogue; None = it has none."""
    return find_hardware(card).price_per_hour


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

    _esm = bundle.widget_script("renderSheet")
    _css = bundle.STYLE
    spec = traitlets.Dict().tag(sync=True)
    asked = traitlets.Dict().tag(sync=True)
    refined = traitlets.Dict({"asked": None}).tag(sync=True)


class Sheet(LivePanel):
    """The worksheet in a notebook.

    Args:
        simulate: fills it in. It may raise a ValueError or a MinillmError, whose words are shown.
    """

    def __init__(self, spec: SheetSpec, simulate: Callable[[Values], Refined]) -> None:
        self.spec, self._simulate = spec, simulate
        self.widget = SheetView(spec=spec.told(is_simulated=True))
        self.widget.observe(lambda change: self.ask(change["new"]), names="asked")
        self._waiting: Values | None = None
        """The last question, if nothing is at it yet: those before it are of no use any more."""
        self._turn = threading.Lock()
        self._worker: threading.Thread | None = None

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
