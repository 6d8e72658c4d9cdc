"""A repr of one line for records that hold thousands of stamps: a notebook shows it when a cell ends with one."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

FEW, LONGEST = 3, 60
"""Items of a container that are shown, and characters of a value."""


def brief(self: Any) -> str:
    """`Name(field=value, ...)` with long values cut and large containers counted.

    For dataclasses and named tuples: `__repr__ = brief` in the body of the class.
    """
    names = [field.name for field in fields(self) if field.repr] if is_dataclass(self) else self._fields
    return f"{type(self).__name__}({', '.join(f'{name}={_shown(getattr(self, name))}' for name in names)})"


def _shown(value: object) -> str:
    if isinstance(value, (list, tuple, set, frozenset, Mapping)) and len(value) > FEW:
        return f"<{len(value)} items>"
    if hasattr(value, "shape"):  # an array, or a tensor
        return f"<{type(value).__name__} {tuple(value.shape)}>"
    return cut(repr(value))


def cut(text: str) -> str:
    """The text, at most LONGEST characters of it."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
