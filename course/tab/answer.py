"""What a page may ask of the Python in its tab: a name and arguments as JSON, an answer as JSON."""

import importlib
import json
from typing import Any

from minillm.core.errors import MinillmError

ASKED = {
    "dashboard.spec": "course.tab.dashboard:spec",
    "dashboard.run": "course.tab.dashboard:run",
    "dashboard.recipe": "course.tab.dashboard:recipe",
}
"""By name: the function that answers, imported when it's first asked."""


def answer(request: str) -> str:
    """The answer to one request.

    Args:
        request: `{"name": ..., "given": {...}}`, JSON.
    Returns:
        `{"value": ...}`, or `{"refused": words}` where the course says no; JSON.
    Raises:
        KeyError: nothing of that name can be asked.
    """
    asked = json.loads(request)
    module, _, name = ASKED[asked["name"]].partition(":")
    answering = getattr(importlib.import_module(module), name)
    try:
        told: dict[str, Any] = {"value": answering(**asked["given"])}
    except (MinillmError, LookupError) as error:
        told = {"refused": str(error)}
    return json.dumps(told, separators=(",", ":"))
