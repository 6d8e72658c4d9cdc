"""Numbers to know cold in an interview: computed where the course can compute them, each with where it comes from."""

from dataclasses import dataclass

from course.lab.display import Html, as_table


@dataclass(frozen=True)
class ColdNumber:
    """One of a lesson's three."""

    value: str
    """As one says it: "about 210 tokens"."""
    what: str
    source: str
    """How it follows, or where it was measured."""


def cold_numbers(*numbers: ColdNumber) -> Html:
    """The numbers under each other."""
    return as_table(("know it cold", "what it is", "where it comes from"), [(n.value, n.what, n.source) for n in numbers])
