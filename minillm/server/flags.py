"""A command-line flag for each field of a config model, so that no field can be forgotten. Imports no torch."""

import inspect
import json
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from minillm.strict_model import StrictModel, default_of

KEYWORD = inspect.Parameter.KEYWORD_ONLY
SIMPLE = (bool, int, float, str)
REPEATED = tuple[str, ...]
"""The flag may be given several times."""
ALIASES = {"max_queue_len": "--max-queue"}


def flags_of(
    model: type[StrictModel], panel: str, defaults: Mapping[str, Any] | None = None
) -> list[inspect.Parameter]:
    """One keyword parameter for each field, to be read by typer. Absent on the command line = None.

    Args:
        defaults: what the command takes for a field that is absent, where that is not the model's own default.
    """
    parameters = []
    for name, field in model.model_fields.items():
        option = _option(name, field, (defaults or {}).get(name, default_of(model, name)), panel)
        parameters.append(inspect.Parameter(name, KEYWORD, default=option, annotation=_flag_type(field)))
    return parameters


def given(model: type[StrictModel], values: dict[str, Any]) -> dict[str, Any]:
    """The fields of `model` that were on the command line."""
    fields = model.model_fields.items()
    return {name: _as_value(field, values[name]) for name, field in fields if values[name] not in (None, [])}


def _option(name: str, field: FieldInfo, default: Any, panel: str) -> Any:
    flag = "--" + name.replace("_", "-")
    names = [flag]
    if _flag_type(field) == (bool | None):
        names = [f"{flag}/--no-{flag[2:]}"]
    elif name in ALIASES:
        names.append(ALIASES[name])
    elif name.endswith("_s"):
        names.append(flag.removesuffix("-s"))
    more = "; may be repeated" if _type_of(field) == REPEATED else ""
    help_text = f"{field.description or ''}{more}{'' if default in (None, ()) else f' (default: {default})'}"
    metavar = "TEXT" if _type_of(field) == REPEATED else None
    return typer.Option(None, *names, metavar=metavar, help=help_text, show_default=False, rich_help_panel=panel)


def _type_of(field: FieldInfo) -> Any:
    """The field's type, without None."""
    if get_origin(field.annotation) not in (Union, types.UnionType):
        return field.annotation
    (member,) = (member for member in get_args(field.annotation) if member is not type(None))
    return member


def _flag_type(field: FieldInfo) -> Any:
    """What typer should read: a nested config comes as JSON."""
    kind = _type_of(field)
    if kind == REPEATED:
        return list[str] | None
    if get_origin(kind) is Literal:
        return Literal[tuple(map(str, get_args(kind)))] | None
    return kind | None if kind in SIMPLE else str | None


def _as_value(field: FieldInfo, value: Any) -> Any:
    """What typer has read, as the field wants it. What should be JSON and is not stays as it is, to be refused."""
    kind = _type_of(field)
    if get_origin(kind) is Literal:
        return next(word for word in get_args(kind) if str(word) == value)
    if kind in (*SIMPLE, REPEATED):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value
