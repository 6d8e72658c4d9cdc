"""The usual mistakes of an exercise, `wrong/ID.diff`: each is a change of the model answer, written like a diff.

    == name_of_the_mistake: words of the feedback that it must get
     a line that stays, where it takes one to say which place is meant
    -a line of the model answer that goes
    +a line that comes instead
    @@
    -a line of the next place

Of each place, the lines with " " and "-" stand in the model answer exactly once. `+` lines alone are a whole answer.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course.grading.exercises import find
from course.grading.source import Variant, answer_file


@dataclass(frozen=True)
class WrongAnswer:
    exercise_id: str
    name: str
    words: str
    patch: str

    def text(self) -> str:
        return patched(answer_file(find(self.exercise_id), "solution"), self.patch)


def names_of(exercise_id: str, variant: Variant = "solution") -> dict[str, Any]:
    """What a model answer, or a stub, defines, as in a notebook."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(answer_file(find(exercise_id), variant), "<cell>", "exec"), names)
    return names


def wrong_answers(path: Path) -> list[WrongAnswer]:
    """All mistakes of one exercise."""
    _, *entries = re.split(r"^== ", path.read_text(encoding="utf-8"), flags=re.M)
    found = []
    for entry in entries:
        header, _, patch = entry.partition("\n")
        name, _, words = header.partition(": ")
        if not words:
            raise ValueError(f"{path.name}: expected `== name: words of the feedback`, not `== {header}`")
        found.append(WrongAnswer(path.stem, name, words, patch.strip("\n")))
    return found


def patched(text: str, patch: str) -> str:
    """The text with the patch carried out.

    Raises:
        ValueError: a line begins with none of the signs, or the lines of a place do not stand in the text exactly once.
    """
    if all(line.startswith("+") for line in patch.splitlines()):
        return re.sub(r"^\+", "", patch, flags=re.M) + "\n"
    for place in re.split(r"^@@.*\n", patch, flags=re.M):
        lines = [(line[:1] or " ", line[1:]) for line in place.splitlines()]
        if strays := [sign + rest for sign, rest in lines if sign not in " -+"]:
            raise ValueError(f"neither ' ', '-' nor '+' begins {strays[0]!r}")
        old = "\n".join(rest for sign, rest in lines if sign != "+")
        new = "\n".join(rest for sign, rest in lines if sign != "-")
        text, found = re.subn(rf"^{re.escape(old)}$", lambda _, new=new: new, text, flags=re.M)
        if found != 1:
            raise ValueError(f"the model answer has these lines {found} times, not once:\n{old}")
    return text
