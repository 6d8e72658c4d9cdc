"""What has no value at first, and has one by the time it is asked for."""

from typing import TypeVar

Value = TypeVar("Value")


def known(value: Value | None) -> Value:
    """What is there by now, as the caller knows: a stamp of a finished request, a field that has been settled.

    Raises:
        ValueError: it is not.
    """
    if value is None:
        raise ValueError("this is not known yet")
    return value
