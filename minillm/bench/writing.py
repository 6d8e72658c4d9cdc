"""How a report is written: as JSON, and without the folders of the machine it was made on. Imports no torch."""

import json
import math
import os
import shlex
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any


def as_json(report: dict[str, Any]) -> str:
    """One JSON object; dataclasses become objects. JSON has no NaN and no infinity: they become null."""
    return json.dumps(without_nan(report), indent=2, allow_nan=False)


def without_nan(value: Any) -> Any:
    """The same of plain dicts and lists, with None for what is no finite number."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return {name: without_nan(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def describe_command(arguments: list[str]) -> str:
    """The command line as one would type it elsewhere: `minillm`, and no absolute path in any argument."""
    return shlex.join(["minillm", *map(without_folder, arguments[1:])])


def without_folder(argument: str) -> str:
    """`/home/me/llama` to `llama`, also behind a `=`; all else as it is."""
    if os.path.isabs(argument):
        return Path(argument).name
    name, equals, value = argument.partition("=")
    return f"{name}{equals}{Path(value).name if os.path.isabs(value) else value}"
