"""Bounds what a client sent, before native code reads it.

llguidance takes the numbers of a JSON schema for 64-bit ones, and its own reader and Python's follow nesting by
recursion. Beyond these limits a request is refused by name, in microseconds. What they let through is tried in a child
process first (grammar_trials.py), since no list of limits is complete.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from minillm.frontend.errors import InvalidGrammarError
from minillm.text_files import half_character

MAX_BYTES = 1_000_000
"""The largest grammar of any kind, in UTF-8: what a request's body has room for."""
MAX_REGEX = 32_768
"""Characters of a regular expression."""
MAX_NESTING = 100
"""Levels of a JSON schema. llguidance's own JSON reader stops at 128."""
MAX_PARTS = 200_000
"""Objects and lists in a JSON schema."""
MAX_COUNT = 1_000_000
"""The largest minLength, maxItems and so on: no answer is as long."""

EDGE = 2**63 - 1024
"""The largest double below 2^63: llguidance makes automata of bounds within ±EDGE only."""
NO_BOUND = 1e300
"""A bound as far away as this means "any number": it rules out almost nothing that a double can hold."""
TINY = 1e-60
"""Bounds closer to 0 would need an automaton of hundreds of digits."""
FAR = 10**18
"""Bounds beyond this need one on the other side, too: llguidance wants it."""

BOUNDS = {"minimum": -1, "exclusiveMinimum": -1, "maximum": 1, "exclusiveMaximum": 1}
"""Keywords that bound a number, and the sign of the direction in which they leave everything."""
COUNTS = [f"{end}{what}" for end in ("min", "max") for what in ("Length", "Items", "Properties", "Contains")]
DATA = ("enum", "const", "default", "examples", "example")
"""Keywords whose values are data: nothing in them is a schema."""
MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose values are schemas by name."""
OTHER_REGEX = re.compile(r"\\[1-9]|\\k[<{]|\(\?(?:[=!]|<[=!]|P[=>])")
"""Look-around and back references: no automaton has them, and so neither has Rust's `regex`."""

ANY_REGEX = re.compile("")

Place = tuple[Any, ...]
"""The keys that lead to a place in a schema."""


def check_size(text: str, most: int = MAX_BYTES) -> str:
    """The text. Raises InvalidGrammarError: it is longer than `most` bytes, or has half a surrogate pair in it."""
    if problem := half_character(text):
        raise InvalidGrammarError(f"it is no Unicode text: {problem}")
    size = len(text.encode())
    if size > most:
        raise InvalidGrammarError(f"{size:,} bytes, and at most {most:,} are read: make it smaller")
    return text


def write_json(value: Any) -> str:
    """The value as JSON, in ASCII. Raises InvalidGrammarError: a text in it has half a surrogate pair; ValueError and
    TypeError: it is no JSON."""
    text = json.dumps(value, allow_nan=False)
    if "\\ud" in text:  # whole pairs are fine, and llguidance reads no half
        check_size(json.dumps(value, ensure_ascii=False))
    return text


def prepare_schema(schema: dict[str, Any], *, relaxed: bool = False, has_patterns: bool = True) -> dict[str, Any]:
    """A copy of a JSON schema that says the same within what llguidance can count.

    Bounds beyond 64-bit integers are moved to ±EDGE, or left out where they mean "any number"; a maxLength and the like
    beyond every answer is left out. `$anchor`s become pointers, which llguidance reads right.

    Args:
        relaxed: what cannot be expressed is left out, not refused: regular expressions with look-around or back
            references, and bounds that only numbers beyond 64 bits satisfy.
        has_patterns: False leaves out every `pattern` and `patternProperties`, whatever is in them.
    Raises:
        InvalidGrammarError: it is nested too deeply, has too many parts, or a number that cannot be honoured: the
            message has its place.
    """
    anchors: dict[str, str] = {}
    referring: list[dict[str, Any]] = []
    has_inner_id = False
    num_parts = 0

    def copied(value: Any, kind: str, place: Place) -> Any:
        """An object or a list, with what is in it. It is a `schema`, a `map` of schemas by name, or `data`."""
        nonlocal num_parts, has_inner_id
        num_parts += 1
        if len(place) >= MAX_NESTING:
            raise InvalidGrammarError(f"nested more than {MAX_NESTING} deep: move inner parts to $defs")
        if num_parts > MAX_PARTS:
            raise InvalidGrammarError(f"more than {MAX_PARTS:,} objects and lists: make it smaller")
        value = dict(value) if isinstance(value, dict) else list(value)
        if kind == "schema" and isinstance(value, dict):
            _bound_numbers(value, place, relaxed)
            if relaxed or not has_patterns:
                _leave_out_patterns(value, OTHER_REGEX if has_patterns else ANY_REGEX)
            if isinstance(value.get("$anchor"), str):
                anchors[value["$anchor"]] = pointer(place)
            if isinstance(value.get("$ref"), str):
                referring.append(value)
            has_inner_id |= bool(place) and "$id" in value
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(inner, (dict, list, tuple)):
                value[key] = copied(inner, _kind(kind, key), (*place, key))
        return value

    prepared = copied(schema, "schema", ())
    if not has_inner_id:  # each has anchors of its own
        _resolve_anchors(referring, anchors, prepared.get("$id"))
    return prepared


def pointer(place: Place) -> str:
    """How a place is written in a reference: `#/properties/n`."""
    return "/".join(["#", *(str(key).replace("~", "~0").replace("/", "~1") for key in place)])


def _kind(outer: str, key: Any) -> str:
    if outer == "data" or outer == "map":
        return "data" if outer == "data" else "schema"
    return "data" if key in DATA else "map" if key in MAPS else "schema"


def _bound_numbers(schema: dict[str, Any], place: Place, relaxed: bool) -> None:
    """Bring its numbers into what llguidance can count, in place."""

    def refuse(key: str, why: str) -> None:
        if not relaxed:
            value = str(schema[key])[:40]
            raise InvalidGrammarError(f"{key} at {pointer(place)} is {value}: {why}")
        del schema[key]

    for key in COUNTS:
        number = _as_number(schema.get(key))
        if number is None:
            continue
        if number > MAX_COUNT and key.startswith("max"):
            del schema[key]
        elif not 0 <= number <= MAX_COUNT or number != int(number):
            refuse(key, f"give a whole number from 0 to {MAX_COUNT:,}")
        else:
            schema[key] = int(number)
    for key, outward in BOUNDS.items():
        number = _as_number(schema.get(key))
        if number is None:
            continue
        if number * outward >= NO_BOUND:
            del schema[key]
        elif number * outward > EDGE:
            schema[key] = outward * EDGE
        elif number * outward < -EDGE:
            refuse(key, "it leaves numbers beyond 64 bits only: give one within ±2^63, or leave it out")
        elif 0 < abs(number) < TINY:
            schema[key] = TINY * -outward if number * outward < 0 else 0
        elif number.is_integer():
            schema[key] = int(number)  # 1e18 is read less exactly than its digits
    lower = max((schema[key] for key in ("minimum", "exclusiveMinimum") if _is_number(schema.get(key))), default=0)
    upper = min((schema[key] for key in ("maximum", "exclusiveMaximum") if _is_number(schema.get(key))), default=0)
    if lower >= FAR and not any(key in schema for key in ("maximum", "exclusiveMaximum")):
        schema["maximum"] = EDGE
    if upper <= -FAR and not any(key in schema for key in ("minimum", "exclusiveMinimum")):
        schema["minimum"] = -EDGE
    if relaxed and _is_number(schema.get("multipleOf")) and len(f"{schema['multipleOf']:g}") > 6:
        del schema["multipleOf"]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _as_number(value: Any) -> float | None:
    """The number as a double; infinite if it is too large for one. None: it is no number."""
    if not _is_number(value) or value != value:
        return None
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def _leave_out_patterns(schema: dict[str, Any], which: re.Pattern[str]) -> None:
    """Take patterns out of a schema, in place. Properties that only a pattern named are then any others, and may be
    there."""
    if which.search(str(schema.get("pattern", ""))):
        schema.pop("pattern", None)
    named = schema.get("patternProperties", {})
    kept = {key: one for key, one in named.items() if not which.search(str(key))} if isinstance(named, dict) else {}
    if kept != named:
        schema["patternProperties"] = kept
        schema.pop("additionalProperties", None)


def _resolve_anchors(referring: list[dict[str, Any]], anchors: Mapping[str, str], own_id: Any) -> None:
    own = own_id.rstrip("#") if isinstance(own_id, str) else ""
    for one in referring:
        base, mark, name = one["$ref"].partition("#")
        if mark and base in ("", own) and name in anchors:
            one["$ref"] = anchors[name]
