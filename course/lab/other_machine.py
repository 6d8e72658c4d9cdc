"""What the cells that tell how a bet ends gave on an H100 with an 8B, measured or simulated: kept as data.

example_runs.py records it, a file for each lesson; build.py sets it beside the example run on 2 cores. A cell shows it
as long as its code, and that of all cells whose variables it uses, is among what was run: cells may move, and others
come and go. A changed cell, and what follows from it, shows nothing of it.
"""

import gzip
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from course.lab.frozen import freeze
from course.lab.outcomes import ExampleRun, as_html, set_beside, supporting

FOLDER = Path(__file__).parents[1] / "data" / "example_runs"
MACHINE = "h100-8b"
"""Its name in three_machines.py."""
IN_WORDS = "On an H100 with an 8B"
IMPORTS = re.compile(r"^(?:from \S+ import (?:\([^)]*\)|.*)|import .*)$\n?", re.MULTILINE)
CHECK = re.compile(r"^check(?: = checks)?[(.]", re.MULTILINE)
"""What a check's cells begin with: its questions may change, and what was run stays the lesson's."""
SMALL = "font-size:11px;opacity:.75;margin-top:6px"


@dataclass(frozen=True)
class OtherRun:
    """A lesson's cells on another machine."""

    device: str
    """As the driver calls it, or the simulator."""
    model: str
    is_simulated: bool
    date: str
    """The day of the run, UTC: 2026-11-27."""
    versions: Mapping[str, str | None]
    caveat: str
    """What has to stand beside its numbers, as HTML in a line: how far such simulations were off, that sentences are
    newer than the run, or nothing."""
    codes: Sequence[str]
    """A digest of each of the code cells that the lesson had, but the check's, in order."""
    outputs: Mapping[str, Sequence[Mapping[str, Any]]]
    """By place among these cells, what a cell that tells how a bet ends gave, as a notebook stores it."""

    @property
    def machine(self) -> str:
        """What the fold is called."""
        return f"{IN_WORDS} (simulated; not yet measured)." if self.is_simulated else f"{IN_WORDS}."

    @property
    def origin(self) -> str:
        """Where its numbers come from, in a line."""
        used = ("minillm",) if self.is_simulated else ("minillm", "torch", "cuda", "driver")
        versions = ", ".join(f"{name} {version}" for name in used if (version := self.versions.get(name)))
        told = f"{self.model} on {self.device}, {self.date}, {versions}."
        return f"{'Simulated' if self.is_simulated else 'Measured'}: {told}"

    def is_of(self, cells: Sequence[NotebookNode]) -> bool:
        """Whether all that it holds was run with the code that these cells have. Others may have come since."""
        return len(self.runs(cells)) == len(self.outputs)

    def runs(self, cells: Sequence[NotebookNode]) -> dict[int, ExampleRun]:
        """What to show, by index of the cell."""
        places = {code: str(i) for i, code in enumerate(self.codes)}
        found = {i: places.get(digest(cells[i].source), "") for i in run_cells(cells)}
        known = {i: self.outputs[place] for i, place in found.items() if place in self.outputs}
        return {i: self._run(outputs) for i, outputs in known.items() if self._ran(cells, i)}

    def _ran(self, cells: Sequence[NotebookNode], index: int) -> bool:
        """Whether a cell's code was run, and that of all cells above that it rests on."""
        return all(digest(cells[i].source) in self.codes for i in supporting(cells, [index]))

    def _run(self, outputs: Sequence[Mapping[str, Any]]) -> ExampleRun:
        shown = "".join(as_html(freeze(nbformat.from_dict(each))) for each in outputs)
        return ExampleRun(self.machine, shown, f'<div style="{SMALL}">{escape(self.origin)} {self.caveat}</div>')


def run_cells(cells: Sequence[NotebookNode]) -> list[int]:
    """The places of a lesson's code cells, without its check's."""
    return [i for i, cell in enumerate(cells) if cell.cell_type == "code" and not CHECK.search(cell.source)]


def digests(cells: Sequence[NotebookNode]) -> list[str]:
    """A digest of each of these cells."""
    return [digest(cells[place].source) for place in run_cells(cells)]


def digest(code: str) -> str:
    """A hash of a cell's code. Imports may differ, since a module that has moved gives the same outputs."""
    return hashlib.sha256(IMPORTS.sub("", code).encode()).hexdigest()[:16]


def with_other_run(notebook: NotebookNode, lesson: str) -> NotebookNode:
    """A copy of a lesson's notebook with what is recorded of another machine beside its own outcomes."""
    other = read_run(lesson)
    return set_beside(notebook, other.runs(notebook.cells) if other else {}, lesson)


def read_run(lesson: str) -> OtherRun | None:
    """What is recorded of a lesson; None = nothing.

    Args:
        lesson: the name of its source, without .py.
    """
    path = path_of(lesson)
    return OtherRun(**json.loads(gzip.decompress(path.read_bytes()))) if path.is_file() else None


def write_run(lesson: str, run: OtherRun) -> Path:
    """Keep it, in place of what was recorded before. The same run gives the same bytes."""
    path = path_of(lesson)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = json.dumps(asdict(run), ensure_ascii=False, sort_keys=True)
    path.write_bytes(gzip.compress(content.encode(), mtime=0))
    return path


def path_of(lesson: str) -> Path:
    """Where a lesson's record is."""
    return FOLDER / MACHINE / f"{lesson}.json.gz"
