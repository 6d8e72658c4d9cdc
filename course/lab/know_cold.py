"""Three numbers of a lesson that an engineer has at hand in an interview: what each is, and where it comes from."""

from course.lab.display import Html, as_table


def know_cold(*numbers: tuple[str, str, str]) -> Html:
    """A row for each: the number with its unit, what it's of, and how it is derived or where it was measured."""
    return as_table(("number", "what it is", "where it comes from"), numbers)
