"""Committed notebooks show what every cell gives, but how a bet ends is folded away below the question.

A bet is a cell with `lab.predict(`; the next cell that scores decides it. Folded are the outputs of all cells from
the bet to the first heading after the score, since what follows a score in its section is about the same runs. And from
there to the interview, or to the deep dive, those of a cell that uses something which the deciding cells made.

Beside such an example run can stand one of another machine (other_machine.py): two folds, of which one is open.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from html import escape, unescape

from nbformat import NotebookNode
from nbformat.v4 import new_output

from course.lab.display import fold
from course.lab.marks import FOLDED

BETS, SCORES = "lab.predict(", ".score("
HEADING = re.compile(r"^#{1,6} ", re.M)
ASIDE = re.compile(r"^## (?:In the interview|Going deeper|Deep dive)$", re.M)
"""Sections that are read when the bets are decided."""
SCOPES = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
"""Their variables do not stay."""
INSTEAD = "Run this cell to see. An example run is folded away, so that you can bet first."
SUMMARY = "Example run, on 2 cores."
SECOND_AT = "21em"
"""Where the second fold's summary begins: the first one, in the largest of usual fonts, is shorter."""
FOLD = re.compile(r"\A<details><summary>.*?</summary>(.*)</details>\Z", re.S)
TWO_FOLDS = re.compile(
    r"\A<div style=[^>]*><details name=[^>]*><summary>[^<]*</summary>(.*)</details>"
    r"<details name=[^>]*><summary style=[^>]*>([^<]*)</summary>(.*)</details></div>\Z",
    re.S,
)


@dataclass(frozen=True)
class ExampleRun:
    """What one cell gave on one machine."""

    machine: str
    """As the fold's summary says it."""
    html: str
    note: str = ""
    """What stands beneath, as HTML: where its numbers come from."""


def telling(cells: Sequence[NotebookNode]) -> list[int]:
    """Which cells tell how a bet ends that is made above them. A section that is read afterwards begins anew."""
    found, decisive = [], set[str]()
    is_open, is_decided = False, False
    for index, cell in enumerate(cells):
        if cell.cell_type != "code":
            is_open = is_open and not (is_decided and HEADING.search(cell.source))
            decisive = set() if ASIDE.search(cell.source) else decisive
        elif BETS in cell.source:
            is_open, is_decided = True, False
        elif is_open:
            found.append(index)
            decisive |= set() if is_decided else names_made(cell.source)
            is_decided = is_decided or SCORES in cell.source
        elif decisive & {node.id for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Name)}:
            found.append(index)
    return found


def supporting(cells: Sequence[NotebookNode], wanted: Sequence[int]) -> set[int]:
    """These code cells, and all above them whose variables they use, by way of other cells as well. What was imported
    is no variable: `words.tail(many)` changes nothing."""
    trees = [ast.parse(cell.source) for cell in cells if cell.cell_type == "code"]
    imports = (node for tree in trees for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom)))
    imported = {alias.asname or alias.name for node in imports for alias in node.names}
    made = {i: names_made(cell.source) - imported for i, cell in enumerate(cells) if cell.cell_type == "code"}
    found, open_ends = set[int](), list(wanted)
    while open_ends:
        index = open_ends.pop()
        found.add(index)
        used = {node.id for node in ast.walk(ast.parse(cells[index].source)) if isinstance(node, ast.Name)}
        open_ends += [i for i in made if i < index and i not in found and used & made[i]]
    return found


def names_made(source: str) -> set[str]:
    """The variables that a cell makes, or changes: a part of them, or by a call such as `ledger.measure_all()`."""
    found = set[str]()
    for node in _of_the_cell(ast.parse(source)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Attribute(value=owner, ctx=ast.Store()) | ast.Subscript(value=owner, ctx=ast.Store()):
                found |= {each.id for each in ast.walk(owner) if isinstance(each, ast.Name)}
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method))):
                found |= {name} if f".{method}(" != SCORES else set()
    return found


def _of_the_cell(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it, but for what has variables of its own."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, SCOPES):
            yield from _of_the_cell(child)


def folded_outcomes(notebook: NotebookNode) -> NotebookNode:
    """A copy in which the outputs of each telling cell are folded away as an example run.

    What stands for them keeps their metadata (marks.py), and is folded no further.
    """
    copy = deepcopy(notebook)
    for index in telling(copy.cells):
        cell = copy.cells[index]
        if cell.outputs and not all(FOLDED in output.get("metadata", {}) for output in cell.outputs):
            kept = {key: value for output in cell.outputs for key, value in output.get("metadata", {}).items()}
            shown = _one_fold("".join(map(as_html, cell.outputs)))
            data = {"text/html": shown, "text/plain": INSTEAD}
            cell.outputs = [new_output("display_data", data, metadata={**kept, FOLDED: True})]
    return copy


def set_beside(notebook: NotebookNode, others: Mapping[int, ExampleRun], lesson: str) -> NotebookNode:
    """A copy in which each folded outcome has the example run of another machine beside it, in place of one that was.
    Where both gave the same, it wasn't about the machine, and the one is enough.

    Args:
        others: by index of the cell.
        lesson: its name, which tells its folds from those of other notebooks on the same screen.
    """
    copy = deepcopy(notebook)
    for index, cell in enumerate(copy.cells):
        for output in cell.get("outputs", ()):
            if FOLDED in output.get("metadata", {}):
                own, _ = runs_of(output.data["text/html"])
                other = others.get(index)
                is_alone = other is None or other.html == own
                output.data["text/html"] = _one_fold(own) if is_alone else _two_folds(own, other, f"{lesson}-{cell.id}")
    return copy


def runs_of(html: str) -> tuple[str, ExampleRun | None]:
    """What a folded outcome holds: the run on 2 cores, and the one beside it."""
    if two := TWO_FOLDS.match(html):
        own, machine, other = two.groups()
        return own, ExampleRun(unescape(machine), other)
    return FOLD.sub(r"\1", html), None


def _one_fold(own: str) -> str:
    return fold(f"{SUMMARY} Bet first.", own)


def _two_folds(own: str, other: ExampleRun, name: str) -> str:
    """A switch without a script or a style sheet, which an untrusted notebook would lose: folds of one name close each
    other, and both summaries stand on one line. Where names or styles are taken away, it's two folds, one below the
    other."""
    return (
        f'<div style="position:relative"><details name="{name}"><summary>{escape(SUMMARY)} Bet first.</summary>{own}'
        f'</details><details name="{name}"><summary style="position:absolute;top:0;left:{SECOND_AT}">'
        f"{escape(other.machine)}</summary>{other.html}{other.note}</details></div>"
    )


def as_html(output: NotebookNode) -> str:
    """Any output of a cell, as HTML."""
    data = output.get("data", {})
    if "text/html" in data:
        return data["text/html"]
    if "image/png" in data:
        return f'<img src="data:image/png;base64,{data["image/png"].strip()}">'
    return f"<pre>{escape(data.get('text/plain') or output.get('text', ''))}</pre>"
