"""Models whose fields are validated up front: unknown fields and bad values are typed errors, never ignored."""

import dataclasses
import difflib
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, cast, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

MAX_PROBLEMS = 3
"""Bad fields that one error message explains. A client of the server could send a hundred thousand."""
NOT_CALLED = "default_factory_not_called"
"""pydantic's problem with a default that follows from other fields, of which one is wrong: that one is named."""
MAX_NAME = 100
"""Characters of a field's name that are quoted."""
SHORT = reprlib.Repr()
SHORT.maxstring = SHORT.maxother = 200
"""Quotes what was given, but not a megabyte of it."""


class StrictModel(BaseModel):
    """Frozen, no unknown fields, no NaN; `_error` is the typed error that a bad field raises."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    _error: type[Exception] = ValueError

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise type(self)._error_type()(explain(type(self), error)) from None

    @classmethod
    def _error_type(cls) -> type[Exception]:
        return cast(type[Exception], cls.__private_attributes__["_error"].default)

    def replace(self, **changes: Any) -> Self:
        """A validated copy with some fields changed."""
        return type(self)(**{name: getattr(self, name) for name in self.model_fields_set} | changes)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """What differs from the defaults."""
        return [(name, value) for name, value in super().__repr_args__() if value != default_of(type(self), str(name))]

    def _only_with(self, switch: bool, needs: str, name: str) -> None:
        """For validators: without the switch nothing reads the field, so a value but the default is refused."""
        if not switch and getattr(self, name) != default_of(type(self), name):
            raise ValueError(f"{name} is read only with {needs}: set that, too, or leave {name} out")


def default_of(model: type[BaseModel], name: str) -> Any:
    """A field's default, with all other fields left out."""
    return model.model_fields[name].get_default(call_default_factory=True, validated_data={})


def explain(model: type[BaseModel], error: ValidationError) -> str:
    """A line for each of the first bad fields: its name, what is wrong, and the field that was probably meant."""
    return explain_problems(model, error.errors(include_url=False, include_context=False))


def explain_problems(model: type[BaseModel], problems: Sequence["ErrorDetails"]) -> str:
    """The same, of pydantic's list of errors."""
    problems = [problem for problem in problems if problem["type"] != NOT_CALLED] or problems
    lines = [_explain(model, problem) for problem in problems[:MAX_PROBLEMS]]
    if len(problems) > MAX_PROBLEMS:
        lines.append(f"and {len(problems) - MAX_PROBLEMS} more")
    return "\n".join(lines)


def _explain(model: type[BaseModel], problem: "ErrorDetails") -> str:
    place = [str(part)[:MAX_NAME] for part in problem["loc"]]
    if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):  # the second, of a dataclass
        *outer, name = place
        fields = field_names(kind_at(model, problem["loc"]))
        close = difflib.get_close_matches(name, fields, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"fields: {', '.join(fields)}"
        owner = ".".join(outer) or model.model_config.get("title") or model.__name__
        return f"{owner} has no field {name!r}: {hint}"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] in ("model_type", "dataclass_type"):
        message = "Input should be an object"
    # A dict is a model inside this one, which has told its own value.
    shown = "" if isinstance(given := problem.get("input"), dict) else f" (got {SHORT.repr(given)})"
    return f"{'.'.join(place)}: {message}{shown}" if place else message


def field_names(kind: Any) -> list[str]:
    """Those of a model or a dataclass, as they are sent."""
    if issubclass(kind, BaseModel):
        return [field.alias or name for name, field in kind.model_fields.items()]
    return [field.name for field in dataclasses.fields(kind)]


def kind_at(model: type[BaseModel], place: Sequence[str | int]) -> type:
    """The model, or dataclass, that has the field at `place`: the outermost one, or one in its fields."""
    kind: type = model
    for part in place[:-1]:
        fields = kind.model_fields if issubclass(kind, BaseModel) else {}
        field = next((field for name, field in fields.items() if part in (name, field.alias)), None)
        if field is not None:  # and no index of a list
            kind = next(kinds_in(field.annotation), kind)
    return kind


def kinds_in(annotation: Any) -> Iterator[type]:
    """The models and dataclasses of a type such as `str | list[Message]`."""
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or dataclasses.is_dataclass(annotation)):
        yield annotation
    for inner in get_args(annotation):
        yield from kinds_in(inner)
