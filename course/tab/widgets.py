"""ipywidgets' controls for a browser tab: they keep what they are told, and show nothing. The page shows them."""

from collections.abc import Sequence
from typing import Any


class Widget:
    """Takes what ipywidgets' would, by name; a box its children."""

    def __init__(self, children: Sequence["Widget"] = (), **given: Any) -> None:
        self.children = tuple(children)
        for name, value in given.items():
            setattr(self, name, value)

    def observe(self, *_: object, **__: object) -> None: ...

    def has_trait(self, _: str) -> bool:
        return False


class ValueWidget(Widget):
    """One with a value."""

    value: Any = None
    description = ""


class IntSlider(ValueWidget):
    """Whole numbers between two ends."""


class FloatSlider(ValueWidget):
    """Numbers between two ends."""


class SelectionSlider(ValueWidget):
    """One of a few values that have an order."""


class Dropdown(ValueWidget):
    """One of many names."""


class ToggleButtons(ValueWidget):
    """One of a few names."""


class Checkbox(ValueWidget):
    """On or off."""


class Layout(Widget):
    """Widths and the like, which a page has its own of."""


class HTML(ValueWidget):
    """A piece of HTML."""

    def __init__(self, value: str = "", **given: Any) -> None:
        super().__init__(value=value, **given)


class VBox(Widget):
    """Widgets under each other."""
