"""The base of all that clients send: a JSON object in which nothing that asks for something is ignored."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator

from minillm.server.errors import ApiError
from minillm.server.unsupported import PARTS, Unsupported, without_effect
from minillm.strict_model import MAX_NAME, explain_problems, kind_at

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

T = TypeVar("T")
List = Annotated[list[T], Field(fail_fast=True)]
"""The first bad item is enough: a body has room for half a million, and the event loop waits meanwhile."""

TEXT, LIST, OBJECT, TEXTS, LISTS = (Tag(f"({name})") for name in ("text", "list", "object", "texts", "lists"))
"""Names of the types that a field may have, in a union with `one_of`: only the one that was sent is checked, and errors
are about that one."""
NO_NAMES = {"[key]", *(tag.tag for tag in (TEXT, LIST, OBJECT, TEXTS, LISTS))}
"""What pydantic adds to a place: the branches of unions, and that a key is wrong."""
MAX_MESSAGE = 1000
"""Characters of an error message: it quotes what it got, which may be long."""


def tag_of_type(value: Any) -> Tag | None:
    """The tag of a value from JSON; also of one that is a model already."""
    if isinstance(value, BaseModel):
        return OBJECT
    tags: dict[type, Tag] = {str: TEXT, list: LIST, dict: OBJECT}
    return tags.get(type(value))


def one_of(wanted: str, tag_of: Callable[[Any], Tag | None] = tag_of_type) -> Discriminator:
    """Chooses among the types of a union, each with a Tag.

    Args:
        wanted: what they are, in words.
        tag_of: the tag of the type that a value should have; None = of none.
    """

    def choose(value: Any) -> str | None:
        tag = tag_of(value)
        return None if tag is None else tag.tag

    return Discriminator(choose, "wrong_type", f"Input should be {wanted}")


class StrictJson(BaseModel):
    """A JSON object in which unknown fields and wrong types are errors. But null is as good as absent, and an unknown
    field that asks for nothing is left out: clients send back all of an answer that they got."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, title="the body")
    unsupported: ClassVar[Mapping[str, Unsupported]] = PARTS
    """Fields that others know here."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out(cls, fields: Any) -> Any:
        """Leave out unknown fields but the first, which is refused: one is enough, and there may be very many."""
        if not isinstance(fields, dict):
            return fields
        known = {field.alias or name for name, field in cls.model_fields.items()}
        kept = {name: value for name, value in fields.items() if name in known and value is not None}
        for name, value in fields.items():
            if name not in known and not without_effect(value, cls.unsupported.get(name)):
                return {**kept, name: value}
        return kept


def refusal(kind: type[StrictJson], error: ValidationError) -> ApiError:
    """What is wrong with a body of this kind, and which field is to blame. 400."""
    problems = error.errors(include_url=False, include_context=False)
    for problem in problems:
        problem["loc"] = place_of(problem)
    place = problems[0]["loc"]
    param = ".".join(str(part)[:MAX_NAME] for part in place) or None
    code = "invalid_value"
    if problems[0]["type"] == "extra_forbidden":
        owner = kind_at(kind, place)
        known = owner.unsupported.get(str(place[-1])) if issubclass(owner, StrictJson) else None
        if known is not None:
            message = f"{param} is not supported by this server: {known['instead']}"
            return ApiError(400, message, "unsupported_parameter", param)
        code = "unknown_parameter"
    try:
        message = explain_problems(kind, problems)
    except RecursionError:  # it quotes what it got
        message = "a value is nested too deeply"
    return ApiError(400, message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + " ...", code, param)


def place_of(problem: "ErrorDetails") -> tuple[str | int, ...]:
    """The place of a problem in the JSON, as the client knows it."""
    place = problem["loc"]
    name = place[-1:] if problem["type"] == "extra_forbidden" else ()  # the client's own: it may be anything
    return (*(part for part in place[: len(place) - len(name)] if part not in NO_NAMES), *name)
