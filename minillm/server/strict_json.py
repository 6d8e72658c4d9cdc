"""The base of all that clients send: a JSON object in which nothing is ignored."""

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

T = TypeVar("T")
List = Annotated[list[T], Field(fail_fast=True)]
"""The first bad item is enough: a body has room for half a million, and the event loop waits meanwhile."""


class StrictJson(BaseModel):
    """A JSON object in which unknown fields and wrong types are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, fields: Any) -> Any:
        """Of unknown fields only the first stays, to be refused: one is enough, and there may be very many."""
        if not isinstance(fields, dict):
            return fields
        given = {name: value for name, value in fields.items() if value is not None}
        known = {field.alias or name for name, field in cls.model_fields.items()}
        unknown = next((name for name in given if name not in known), None)
        return {name: value for name, value in given.items() if name in known or name == unknown}
