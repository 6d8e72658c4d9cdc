"""JSON schemas that others have published, as far as this environment's packages bring them along: those of JSON Schema
itself, of notebooks, of JupyterLab's settings, and whatever else lies there."""

import json
import sys
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

MAX_BYTES = 300_000
"""Larger files are data."""


@cache
def public_schemas() -> list[dict[str, Any]]:
    """Those that are found, smallest first, none twice; none at all is fine."""
    packages = Path(sysconfig.get_path("purelib"))
    files = {
        *packages.glob("jsonschema_specifications/schemas/**/*"),
        *packages.glob("*/**/*schema*.json"),
        *Path(sys.prefix).glob("share/jupyter/**/schemas/**/*.json"),
    }
    texts = {text for file in files if file.is_file() and (text := _read(file))}
    return [json.loads(text) for text in sorted(texts, key=lambda text: (len(text), text))]


def _read(file: Path) -> str:
    """A schema in canonical form; empty: it holds none."""
    if file.stat().st_size > MAX_BYTES or file.suffix not in ("", ".json"):
        return ""
    try:
        schema = json.loads(file.read_text())
    except (ValueError, RecursionError):
        return ""
    words = {"$schema", "$ref", "properties", "type", "anyOf", "allOf", "definitions", "$defs"}
    return json.dumps(schema) if isinstance(schema, dict) and schema.keys() & words else ""
