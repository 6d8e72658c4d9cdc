"""What OpenAI's API has and this server does not: for each parameter and endpoint, what to use instead."""

import tomllib
from pathlib import Path
from typing import Any, TypedDict


class Unsupported(TypedDict):
    """A field that we do not have."""

    neutral: list[Any]
    """Values for which doing nothing is the right thing to do; so are null, and whatever is empty."""
    instead: str
    """What to use instead."""


PARAMETERS: dict[str, Unsupported]
"""Parameters of a request's body that we don't have, by name."""
PARTS: dict[str, Unsupported]
"""Fields, likewise, of what is in a body: messages, their parts, tools, options."""
ENDPOINTS: dict[str, str]
PARAMETERS, PARTS, ENDPOINTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).values()


def without_effect(value: Any, field: Unsupported | None) -> bool:
    """Null, empty, or equal and of the same type as a value that asks for nothing: 1 is not False here."""
    if value is None or (isinstance(value, str | list | dict) and not value):
        return True
    return field is not None and any(type(value) is type(one) and value == one for one in field["neutral"])


def instead_of(path: str) -> str:
    """After the message that there is no such path."""
    root, _, rest = path.removeprefix("/").partition("/")
    return f": {ENDPOINTS.get(rest.partition('/')[0], ENDPOINTS[''])}" if root == "v1" else ""
