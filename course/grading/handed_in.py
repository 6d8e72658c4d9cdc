"""What is handed in to be graded, a Python file or a notebook with its answers, as the text of one answer."""

import ast
import codecs
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course.grading.exercise import Exercise
from minillm.core.errors import MinillmError

UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""How PowerShell's `>` begins a file."""
LABS = ("course", "minillm")
"""What a notebook imports to play with. No answer needs it."""
LARGEST = 20_000_000
"""Bytes of a file; a notebook may have its pictures in it."""
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
IMPORTS = (ast.Import, ast.ImportFrom)


class HandedInError(MinillmError):
    """It can't be read, or doesn't answer this exercise."""


def answer_text(path: Path, exercise: Exercise) -> str:
    """The learner's code.

    Raises:
        HandedInError: no such file, a folder, one that is too large, no notebook under a notebook's name, or one
            without this exercise.
    """
    if path.is_dir():
        raise HandedInError(f"{path} is a folder: name the file with your answer")
    if not path.is_file():
        raise HandedInError(f"there is no file {path}: `stub {exercise.id} > {path}` makes one")
    if (size := path.stat().st_size) > LARGEST:
        raise HandedInError(f"{path} has {size / 1e6:,.0f} MB, and {LARGEST / 1e6:.0f} are the most that's read")
    content = path.read_bytes()
    text = content.decode("utf-16" if content.startswith(UTF_16) else "utf-8-sig", "replace")
    return _of_notebook(path, text, exercise) if path.suffix == ".ipynb" else text


def _of_notebook(path: Path, text: str, exercise: Exercise) -> str:
    """What is defined between the exercise's statement and its check, under the imports that stand above. Neither
    scratch work nor the lab's runs, which need the notebook's kernel."""
    try:
        cells = nbformat.reads(text, as_version=4).cells
    except Exception as error:  # nbformat raises whatever it stumbles over
        raise HandedInError(f"{path} isn't a notebook: {type(error).__name__}: {error}") from None
    checks = tuple(f"check({quote}{exercise.id}{quote}" for quote in "'\"")
    end = next((i for i, cell in enumerate(cells) if any(check in cell.source for check in checks)), None)
    if end is None:
        raise HandedInError(f'{path} has no cell with check("{exercise.id}", ...)')
    begin = max((i for i in range(end) if f"*{exercise.id} " in cells[i].source), default=0)
    above = (part for cell in cells[:begin] for part in _parts(cell, exercise, is_own=False))
    own = (part for cell in cells[begin:end] for part in _parts(cell, exercise, is_own=True))
    return "\n\n".join([*above, *own]) + "\n"


def _parts(cell: NotebookNode, exercise: Exercise, is_own: bool) -> Iterator[str]:
    """The text of each statement of a cell that an answer may need.

    Args:
        is_own: the cell is the exercise's; of others only imports are taken.
    """
    if cell.cell_type != "code":
        return
    try:
        statements = ast.parse(cell.source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # half a character; nested beyond what Python reads
        if is_own and any(name in cell.source for name in exercise.entry_points):
            yield cell.source  # its error is the learner's to see
        return
    if is_own and any(_is_of_the_lab(each) for each in statements):
        return
    defines = any(isinstance(each, DEFINITIONS) for each in statements)
    for each in statements:
        is_constant = isinstance(each, ast.Assign | ast.AnnAssign) and (defines or not _calls(each))
        is_defined = is_own and (isinstance(each, DEFINITIONS) or is_constant)
        if is_defined or (isinstance(each, IMPORTS) and not _is_of_the_lab(each)):
            yield _written(cell.source, each)


def _is_of_the_lab(statement: ast.stmt) -> bool:
    names = [statement.module or ""] if isinstance(statement, ast.ImportFrom) else []
    names += [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else []
    return any(name.partition(".")[0] in LABS for name in names)


def _calls(statement: ast.stmt) -> bool:
    return any(isinstance(each, ast.Call) for each in ast.walk(statement))


def _written(source: str, statement: ast.stmt) -> str:
    """As the learner wrote it, with its comments and decorators: feedback quotes a line."""
    decorators = statement.decorator_list if isinstance(statement, DEFINITIONS) else []
    first = min([statement.lineno, *(each.lineno for each in decorators)])
    return "\n".join(source.splitlines()[first - 1 : statement.end_lineno])
