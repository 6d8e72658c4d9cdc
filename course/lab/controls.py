"""A control per technique, made from one list: what EngineConfig calls it, how to show it, what it does."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from minillm import EngineConfig

OFF = "off"
"""What a widget shows for a field that is None: a slider cannot hold None."""


@dataclass(frozen=True)
class TechniqueControl:
    """One field of EngineConfig and the widget for it."""

    field: str
    label: str
    help: str
    """What it does to the five phases, shown on hover."""
    choices: tuple[Any, ...] = ()
    """Values to pick from; None is the widget's OFF. Empty = a checkbox."""

    def widget(self, value: Any) -> widgets.Widget:
        """The widget, set to `value`; a value that is not among the choices is added to them."""
        common = {"tooltip": self.help, "layout": widgets.Layout(width="auto")}
        if not self.choices:
            return widgets.Checkbox(value=bool(value), description=self.label, indent=False, **common)
        choices = self.choices if value in self.choices else _in_order((*self.choices, value))
        options = [OFF if choice is None else choice for choice in choices]
        start = OFF if value is None else value
        return widgets.Dropdown(options=options, value=start, description=self.label, **common)


def _in_order(choices: tuple[Any, ...]) -> tuple[Any, ...]:
    """Numbers ascending, None last."""
    return tuple(sorted(choices, key=lambda choice: (choice is None, choice if choice is not None else 0)))


def read_controls(file: Path) -> dict[str, tuple[TechniqueControl, ...]]:
    """The controls of a TOML file, by group."""
    rows = tomllib.loads(file.read_text(encoding="utf-8"))
    return {group: tuple(_control(**row) for row in members) for group, members in rows.items()}


def _control(choices: Sequence[Any] = (), **row: str) -> TechniqueControl:
    return TechniqueControl(**row, choices=tuple(None if choice == OFF else choice for choice in choices))


GROUPS = read_controls(Path(__file__).with_suffix(".toml"))
LABELS = {control.field: control.label for group in GROUPS.values() for control in group}
"""What a field is called on screen."""


class Controls:
    """The widgets of all controls, by field name.

    Args:
        config: where they start.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.start = config
        self.widgets: dict[str, widgets.Widget] = {
            control.field: control.widget(getattr(config, control.field))
            for group in GROUPS.values()
            for control in group
        }

    def __getitem__(self, field: str) -> widgets.Widget:
        return self.widgets[field]

    def config(self) -> EngineConfig:
        """The configuration that the widgets show. Fields without a widget stay as they were.

        Raises:
            ConfigError: the combination is not valid.
        """
        shown = {field: widget.value for field, widget in self.widgets.items()}
        return self.start.replace(**{field: None if value == OFF else value for field, value in shown.items()})

    def set(self, fields: Mapping[str, Any]) -> None:
        """Move widgets to these values."""
        for field, value in fields.items():
            self.widgets[field].value = OFF if value is None else value

    def reset(self) -> None:
        """Move all widgets back to where they started."""
        self.set({field: getattr(self.start, field) for field in self.widgets})

    @property
    def tips(self) -> list[str]:
        """What each does, in the strip's order."""
        return [control.help for group in GROUPS.values() for control in group]

    def hold(self, held: bool) -> None:
        """While a run goes on they stand still: what they show is what is running."""
        for widget in self.widgets.values():
            widget.disabled = held

    def panel(self) -> widgets.Widget:
        """All controls in one strip that wraps."""
        return widgets.GridBox(list(self.widgets.values()), layout=widgets.Layout(width="100%")).add_class("mm-strip")
