"""A command-line flag for each field of a config model, so that no field can be forgotten. Imports no torch."""

import inspect
import json
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from minillm.core.params import StrictModel

KEYWORD = inspect.Parameter.KEYWORD_ONLY
SIMPLE = (bool, int, float, str)
ALIASES = {"max_queue_len": "--max-queue"}


def flags_of(
    model: type[StrictModel], panel: str, defaults: Mapping[str, Any] | None = None
) -> list[inspect.Parameter]:
    """One keyword parameter for each field, to be read by typer. Absent on the command line = None.

    Args:
        defaults: what the command takes for a field that is absent, where that is not the model's own default.
    """
    told = {name: field.default for name, field in model.model_fields.items()} | dict(defaults or {})
    return [
        inspect.Parameter(name, KEYWORD, default=_option(name, field, told[name], panel), annotation=_flag_type(field))
        for name, field in model.model_fields.items()
    ]


def given(model: type[StrictModel], values: dict[str, Any]) -> dict[str, Any]:
    """The fields of `model` that were on the command line."""
    return {
        name: _as_value(field, values[name]) for name, field in model.model_fields.items() if values[name] is not None
    }


def as_flags(config: StrictModel) -> list[str]:
    """The command line that makes this config: of its fields, those that were set."""
    flags = []
    for name, value in config.model_dump(mode="json", exclude_unset=True).items():
        words = name.replace("_", "-")
        if value is None:
            continue  # which no flag can say, and which is what such a field is without one
        if _flag_type(type(config).model_fields[name]) == (bool | None):
            flags.append(f"--{words}" if value else f"--no-{words}")
        else:
            flags += [f"--{words}", value if isinstance(value, str) else json.dumps(value)]
    return flags


def _option(name: str, field: FieldInfo, default: Any, panel: str) -> Any:
    flag = "--" + name.replace("_", "-")
    names = [flag]
    if name in ALIASES:
        names.append(ALIASES[name])
    elif name.endswith("_s"):
        names.append(flag.removesuffix("-s"))
    if _flag_type(field) == (bool | None):
        names = [f"{flag}/--no-{name.replace('_', '-')}"]
    help_text = f"{field.description or ''}{'' if default is None else f' (default: {default})'}"
    return typer.Option(None, *names, help=help_text, show_default=False, rich_help_panel=panel)


def _members(field: FieldInfo) -> list[Any]:
    """The types of a union, without None; the one type otherwise."""
    annotation = field.annotation
    union = get_origin(annotation) in (Union, types.UnionType)
    return [member for member in get_args(annotation) if member is not type(None)] if union else [annotation]


def _flag_type(field: FieldInfo) -> Any:
    """What typer should read. `bool | Literal["max"]` is a choice between true, false and max."""
    members = _members(field)
    words = [str(word) for member in members if get_origin(member) is Literal for word in get_args(member)]
    if words:
        words = ["true", "false", *words] if bool in members else words
        return Literal[tuple(words)] | None
    return members[0] | None if members[0] in SIMPLE else str | None  # a nested config comes as JSON


def _as_value(field: FieldInfo, value: Any) -> Any:
    """Values are JSON where the field is no plain number, word or switch; what is not JSON is a string."""
    members = _members(field)
    if not isinstance(value, str) or (len(members) == 1 and (members[0] is str or get_origin(members[0]) is Literal)):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value
