"""What OpenAI's API has and this server does not: for each parameter and endpoint, what to use instead."""

import tomllib
from collections.abc import Collection
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


def instead_of(path: str, routes: Collection[str] = ()) -> str:
    """After the message that there is no such path: the one that was meant, or what to do without.

    Args:
        routes: paths that there are.
    """
    words = path.strip("/").split("/")
    meant = "/v1/" + "/".join(word for word in words if word not in ("", "v1"))
    if meant in routes:
        return f": {meant} is meant (a client's base URL ends in /v1, once)"
    return f": {ENDPOINTS.get(words[1] if words[1:] else '', ENDPOINTS[''])}" if words[0] == "v1" else ""
