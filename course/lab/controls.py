"""A control per technique, made from one list: what EngineConfig calls it, how to show it, what it does."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from minillm import EngineConfig

OFF = "off"
"""What the file, and the screen, say of a field that is None."""


@dataclass(frozen=True)
class TechniqueControl:
    """One field of EngineConfig, and how it's set."""

    field: str
    label: str
    help: str
    """What it does to the five phases, shown on hover."""
    phase: str
    """The one that it acts on first."""
    first: bool = False
    """Shown at once; the others are behind "more"."""
    choices: tuple[Any, ...] = ()
    """Values to step through. Empty = a switch."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Labels of choices that aren't their own words."""

    def offering(self, value: Any) -> "TechniqueControl":
        """The same with `value` among its choices."""
        if not self.choices or value in self.choices:
            return self
        return replace(self, choices=_in_order((*self.choices, value)))


def _in_order(choices: tuple[Any, ...]) -> tuple[Any, ...]:
    """Numbers ascending, None last."""
    return tuple(sorted(choices, key=lambda choice: (choice is None, choice if choice is not None else 0)))


def _control(choices: Sequence[Any] = (), **row: Any) -> TechniqueControl:
    return TechniqueControl(**row, choices=tuple(None if choice == OFF else choice for choice in choices))


CONTROLS = tuple(
    _control(**row) for row in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["control"]
)
FIELDS = tuple(control.field for control in CONTROLS)
LABELS = {control.field: control.label for control in CONTROLS}
"""What a field is called on screen."""


def shown_by(config: EngineConfig) -> dict[str, Any]:
    """What the controls say of a configuration, by field."""
    return {name: getattr(config, name) for name in FIELDS}
