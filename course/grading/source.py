"""Reads `solutions/NN_topic.py`, the one source of exercise notebooks, solution notebooks, stubs and model answers.

It is a jupytext file (percent format) that runs as it is. A cell whose header says `exercise="id"` begins an
exercise: its text is the statement. The cell whose header says `answer="id"` is the model answer, whole: what it
imports stands in it. Inside, marks on lines of their own say what differs between the two notebooks:

    # [solution]
    return counts[block]
    # [stub]
    # raise NotImplementedError("how many hold this block?")
    # [end]

Between [stub] and [end] stands the stub's code behind "# ". Without [stub], the stub gets a line that raises
NotImplementedError, in a code cell; in text it gets nothing.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from course.grading.exercise import Exercise

SOLUTIONS = Path(__file__).resolve().parents[2] / "solutions"
Variant = Literal["solution", "stub"]
MARK = re.compile(r"^(\s*)# \[(solution|stub|end)\]\s*$")
HEADER = re.compile(r"^# %%(?P<text> \[markdown\])?.*?(?:(?P<role>exercise|answer)=\"(?P<id>[\w-]+)\")?\s*$")
RULE = "Unless it says otherwise, change nothing that you are given, and keep nothing from one call for the next."
TO_DO = 'raise NotImplementedError("your turn")'


class SourceError(ValueError):
    """The source of the exercises is not as it should be; for authors."""


@dataclass(frozen=True)
class SourceCell:
    """One cell of a source."""

    is_text: bool
    role: str | None
    """ "exercise", "answer" or None"""
    exercise_id: str | None
    body: str


def sources(prefix: str = "", folder: Path = SOLUTIONS) -> list[Path]:
    """The sources, in the order of the lessons."""
    return sorted(path for path in folder.glob("[0-9][0-9]_*.py") if path.name.startswith(prefix))


def resolve(text: str, variant: Variant) -> str:
    """The source with its marks carried out.

    Raises:
        SourceError: marks are not in the order solution, (stub,) end.
    """
    kept: list[str] = []
    inside: str | None = None
    is_text = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("# %%"):
            is_text = "[markdown]" in line
        mark = MARK.match(line)
        if mark is None:
            if inside is None or (inside == "solution" and variant == "solution"):
                kept.append(line)
            elif inside == "stub" and variant == "stub":
                kept.append(_uncommented(line, is_text, number))
            continue
        indent, name = mark.groups()
        allowed = {None: ("solution",), "solution": ("stub", "end"), "stub": ("end",)}[inside]
        if name not in allowed:
            raise SourceError(f"line {number}: [{name}] where {' or '.join(allowed)} is expected")
        if name == "end" and inside == "solution" and variant == "stub" and not is_text:
            kept.append(f"{indent}{TO_DO}")
        inside = None if name == "end" else name
    if inside is not None:
        raise SourceError(f"[{inside}] is never ended")
    return "\n".join(kept) + "\n"


def _uncommented(line: str, is_text: bool, number: int) -> str:
    if is_text or not line.strip():
        return line
    indent, sign, rest = line.partition("#")
    if indent.strip() or not sign:
        raise SourceError(f"line {number}: the stub's code stands behind '# '")
    return (indent + rest.removeprefix(" ")).rstrip()


def cells(text: str) -> Iterator[SourceCell]:
    """The cells of a source, or of a resolved one."""
    header, body = None, []
    for line in [*text.splitlines(), "# %%"]:
        if line.startswith("# %%"):
            if header is not None:
                is_text = header["text"] is not None
                lines = [re.sub(r"^# ?", "", each) for each in body] if is_text else body
                yield SourceCell(is_text, header["role"], header["id"], "\n".join(lines).strip() + "\n")
            header, body = HEADER.match(line), []
        else:
            body.append(line)


def path_of(exercise: Exercise) -> Path:
    """The source that holds an exercise.

    Raises:
        SourceError: there is none.
    """
    for path in sources(f"{exercise.lesson:02d}_"):
        if f'answer="{exercise.id}"' in path.read_text(encoding="utf-8"):
            return path
    raise SourceError(f"no solutions/{exercise.lesson:02d}_*.py has a cell with answer={exercise.id!r}")


def answer_file(exercise: Exercise, variant: Variant) -> str:
    """The starter or the model answer, as a file that can be checked; the starter begins with the statement."""
    found = _cell(exercise, variant, "answer").body
    if variant == "solution":
        return found
    about = f"{exercise.id}: {exercise.title} (lesson {exercise.lesson:02d}, {exercise.minutes} minutes)"
    lines = ["# " + line for line in f"{about}\n\n{statement(exercise)}\n{RULE}".splitlines()]
    return "\n".join(line.rstrip() for line in lines) + "\n\n" + found


def statement(exercise: Exercise) -> str:
    """What is asked, Markdown."""
    return _cell(exercise, "stub", "exercise").body


def _cell(exercise: Exercise, variant: Variant, role: str) -> SourceCell:
    path = path_of(exercise)
    text = resolve(path.read_text(encoding="utf-8"), variant)
    found = [cell for cell in cells(text) if cell.role == role and cell.exercise_id == exercise.id]
    if len(found) != 1:
        raise SourceError(f"{path.name} has {len(found)} cells with {role}={exercise.id!r}: it takes one")
    return found[0]
