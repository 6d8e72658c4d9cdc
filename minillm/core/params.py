"""What callers may set, validated up front: unknown fields and bad values are typed errors, never ignored."""

import dataclasses
import difflib
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from minillm.core.errors import InvalidSamplingParamsError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

MAX_PROBLEMS = 3
"""Bad fields that one error message explains. A client of the server could send a hundred thousand."""
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
        return f"{'.'.join(outer) or model.__name__} has no field {name!r}: {hint}"
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


SEED_STRIDE = 1_000_003
"""A prime far above what people choose: seeds that are to be apart are so many apart, and never meet a neighbour's."""


class SamplingParams(StrictModel):
    """How the next token is chosen and when to stop. Every field works; unknown ones are refused."""

    _error: type[Exception] = InvalidSamplingParamsError

    max_tokens: int = Field(128, ge=1, description="most output tokens")
    temperature: float = Field(1.0, ge=0, description="0 = greedy")
    top_k: int = Field(0, ge=0, description="keep the k most likely tokens; 0 = all")
    top_p: float = Field(1.0, gt=0, le=1, description="keep the smallest set with this probability; 1 = all")
    min_p: float = Field(0.0, ge=0, le=1, description="drop tokens below min_p times the likeliest's probability")
    repetition_penalty: float = Field(1.0, gt=0, description="divides (or multiplies) logits of tokens seen; 1 = off")
    presence_penalty: float = Field(0.0, ge=-2, le=2, description="subtracted once from logits of tokens generated")
    frequency_penalty: float = Field(0.0, ge=-2, le=2, description="subtracted per occurrence in the output")
    logit_bias: tuple[tuple[int, float], ...] = Field((), description="token ids and what is added to their logits")
    seed: int | None = Field(None, description="same seed, same output, whatever else runs; but see docs/engine.md")
    stop: tuple[str, ...] = Field((), description="end when one of these appears; it is not part of the text")
    stop_token_ids: tuple[int, ...] = Field((), description="end when one of these is sampled")
    ignore_eos: bool = Field(False, description="go on past the model's end-of-sequence token")
    logprobs: int | None = Field(None, ge=0, le=20, description="report this many top log-probabilities per token")
    structured_outputs: Any = Field(None, description="a StructuredOutputsParams: what the output must be")
    n: int = Field(1, ge=1, le=64, description="independent outputs for one prompt")

    @cached_property
    def has_penalty(self) -> bool:
        """Whether what was said before changes the next token's logits."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @cached_property
    def takes_likeliest(self) -> bool:
        """Whether the next token is the model's most likely one."""
        return self.temperature == 0 and not self.has_penalty and not self.logit_bias

    @cached_property
    def has_filter(self) -> bool:
        """Whether unlikely tokens are left out: top-k, top-p or min-p."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @field_validator("stop", "stop_token_ids", "logit_bias", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        value = tuple(value.items()) if isinstance(value, dict) else value
        return () if value is None else (value,) if isinstance(value, (str, int)) else value

    @field_validator("stop")
    @classmethod
    def _no_empty_stop(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(not text for text in value):
            raise ValueError("a stop string must not be empty")
        return value
