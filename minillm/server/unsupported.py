"""What OpenAI's API has and this server does not: for each parameter and endpoint, what to use instead."""

import tomllib
from pathlib import Path
from typing import Any

PARAMETERS, ENDPOINTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).values()


def without_effect(name: str, value: Any) -> bool:
    """Null, or equal and of the same type as a value that asks for nothing: 1 is not False here."""
    neutral = PARAMETERS[name]["neutral"]
    return value is None or any(type(value) is type(one) and value == one for one in neutral)


def instead_of(path: str) -> str:
    """After the message that there is no such path."""
    root, _, rest = path.removeprefix("/").partition("/")
    return f": {ENDPOINTS.get(rest.partition('/')[0], ENDPOINTS[''])}" if root == "v1" else ""
