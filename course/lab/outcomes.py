"""Committed notebooks show what every cell gives, but for how a bet ends: nobody bets who can read the answer below.

A bet is a cell with `lab.predict(`; the next cell that scores decides it. Left out are the outputs of all cells from
the bet to the first heading after the score, since the pictures that follow a score are of the same runs. Further down,
those of a cell that is nothing but a name which was made there.
"""

import ast
import re
from collections.abc import Sequence
from copy import deepcopy

from nbformat import NotebookNode
from nbformat.v4 import new_output

BETS, SCORES = "lab.predict(", ".score("
HEADING = re.compile(r"^#{1,6} ", re.M)
INSTEAD = "Run this cell to see. Its outcome is left out here, so that you can bet first."


def telling(cells: Sequence[NotebookNode]) -> list[int]:
    """Which cells tell how a bet ends that is made above them."""
    found, made_here = [], set[str]()
    is_open, is_decided = False, False
    for index, cell in enumerate(cells):
        if cell.cell_type != "code":
            is_open = is_open and not (is_decided and HEADING.search(cell.source))
        elif BETS in cell.source:
            is_open, is_decided = True, False
        elif is_open:
            found.append(index)
            made_here |= names_made(cell.source)
            is_decided = is_decided or SCORES in cell.source
        elif cell.source.strip() in made_here:
            found.append(index)
    return found


def names_made(source: str) -> set[str]:
    """Every name that a cell gives a value."""
    names = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


def without_outcomes(notebook: NotebookNode) -> NotebookNode:
    """A copy in which one line stands for the outputs of each telling cell. What had none stays as it is.

    The line keeps the metadata of what it stands for (marks.py).
    """
    copy = deepcopy(notebook)
    for index in telling(copy.cells):
        cell = copy.cells[index]
        if cell.outputs:
            kept = {key: value for output in cell.outputs for key, value in output.get("metadata", {}).items()}
            told = {"text/markdown": f"*{INSTEAD}*", "text/plain": INSTEAD}
            cell.outputs = [new_output("display_data", told, metadata=kept)]
    return copy
