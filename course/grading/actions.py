"""Actions, JSON, that a page or a notebook asks of a session: a name, and fields of known kinds."""

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from minillm.core.errors import MinillmError

Fields = Mapping[str, Mapping[str, type]]
"""By action, what it may bring along; what is left out is empty."""
KINDS = {str: "a text", bool: "true or false", list: "a list of texts", dict: "texts by field"}


def checked(action: object, known: Fields, error: type[MinillmError]) -> tuple[str, dict[str, Any]]:
    """An action's name and all its fields.

    Raises:
        MinillmError: of the given type: it's no action, or a field is unknown or of another kind.
    """
    if not isinstance(action, Mapping):
        raise error(f"an action is an object such as {{'do': 'look'}}, not {action!r}")
    do = action.get("do")
    if not isinstance(do, str) or do not in known:
        raise error(f"no action {do!r}{_hint(do, known)}")
    wanted, given = known[do], {name: value for name, value in action.items() if name != "do"}
    for name, value in given.items():
        if name not in wanted:
            raise error(f"{do} has no field {name!r}{_hint(name, wanted)}")
        if not _is(value, wanted[name]):
            raise error(f"{name} of {do} is {KINDS[wanted[name]]}, not {value!r}")
    return do, {name: given.get(name, kind()) for name, kind in wanted.items()}


def _is(value: object, kind: type) -> bool:
    """Whether it is of a kind, and what it holds are texts."""
    held = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, kind) and all(isinstance(each, str) for each in held)


def _hint(name: object, among: Collection[str]) -> str:
    """What may have been meant."""
    close = difflib.get_close_matches(str(name), among, n=1)
    return f": did you mean {close[0]!r}?" if close else f": choose from {', '.join(among)}" if among else ""
