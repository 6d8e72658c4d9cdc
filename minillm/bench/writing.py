"""How a report is written: as JSON, and without the folders of the machine it was made on. Imports no torch."""

import json
import os
import shlex
from pathlib import Path
from typing import Any


def as_json(report: dict[str, Any]) -> str:
    """One JSON object; dataclasses become objects. JSON has no NaN and no infinity: they become null."""
    from pydantic import TypeAdapter  # gpu_check says it if there is none

    return json.dumps(TypeAdapter(Any).dump_python(report, mode="json"), indent=2)


def describe_command(arguments: list[str]) -> str:
    """The command line as one would type it elsewhere: `minillm`, and no absolute path in any argument."""
    return shlex.join(["minillm", *map(without_folder, arguments[1:])])


def without_folder(argument: str) -> str:
    """`/home/me/llama` to `llama`, also behind a `=`; all else as it is."""
    if os.path.isabs(argument):
        return Path(argument).name
    name, equals, value = argument.partition("=")
    return f"{name}{equals}{Path(value).name if os.path.isabs(value) else value}"
