"""Builds the notebooks from their sources (jupytext, percent format).

course/NN_topic.py becomes course/NN_topic.ipynb, executed. solutions/NN_topic.py becomes two: solutions/NN_topic.ipynb,
executed, and exercises/NN_topic.ipynb, with stubs and not executed; see grading/source.py.

python -m course.lab.build                  build and execute everything
python -m course.lab.build 01               only lessons whose name begins so
python -m course.lab.build --exercises      only exercises and solutions
python -m course.lab.build --short          with small workloads
python -m course.lab.build --prose          execute nothing: put changed prose into the notebooks as they stand
python -m course.lab.build --check          fail if a notebook is missing, stale, unexecuted or has errors

It fails as well where a notebook itself says that the machine was busy when it was executed: none such is committed.
"""

import argparse
import copy
import functools
import json
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from course.grading import source
from course.grading.attempt import STRICT
from course.lab import recording
from course.lab.frozen import freeze
from course.lab.glossary import with_links
from course.lab.marks import CONTROL_MOVED, DISTURBED, EXAMPLE, QUIET, TRANSIENT
from course.lab.other_machine import MACHINE, digests, read_run, with_other_run
from course.lab.outcomes import folded_outcomes
from minillm.host.storage import cache_home

COURSE = Path(__file__).resolve().parents[1]
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
CELL_TIMEOUT_S = 3600
"""The ledger measures all claims in one."""
EXERCISES = COURSE.parent / "exercises"
RECORDED = COURSE / "data" / "site"
"""Pictures of explorers at many settings, by lesson: see recording.py."""

BET = "lab.predict("
ONLY_IMPORTS = re.compile(r"((from|import) [^\n]+\n?)+")
PAGES = ("start.py",)
"""Notebooks that are not lessons."""


def sources(prefix: str = "", folder: Path = COURSE) -> list[Path]:
    """The sources of all notebooks: lessons in reading order, then the other pages."""
    pages = [folder / name for name in PAGES if (folder / name).exists()]
    return [path for path in (*lesson_sources(folder), *pages) if path.name.startswith(prefix)]


def lesson_sources(folder: Path = COURSE) -> list[Path]:
    """The lessons' sources, in reading order."""
    return sorted(folder.glob("[0-9][0-9]*_*.py"))


def read_source(path: Path) -> NotebookNode:
    """The notebook that a source describes, not executed, the same every time. A lesson ends with where to go next."""
    notebook, lessons = notebook_of(path.read_text(encoding="utf-8")), lesson_sources(path.parent)
    codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in codes:  # imports, and code that only repeats what a bet's panel shows: a click opens it
        if cell is codes[0] or BET in cell.source or ONLY_IMPORTS.fullmatch(cell.source):
            cell.metadata["jupyter"] = {"source_hidden": True}
    if path in lessons and notebook.cells[-1].cell_type == "markdown":
        notebook.cells[-1].source += f"\n\n---\n\n{signpost(path, lessons)}"
    return notebook


def read_lesson(path: Path) -> NotebookNode:
    """The same as readers get it: terms lead to the glossary, phases have their colours."""
    return with_links(read_source(path))


def signpost(path: Path, lessons: list[Path]) -> str:
    """Links to the next lesson, to exercises on this one, and to the map."""
    found = []
    if following := lessons[lessons.index(path) + 1 :]:
        title = following[0].read_text(encoding="utf-8").partition("# # ")[2].partition("\n")[0]
        found.append(f"**Next: [{title}]({following[0].stem}.ipynb)**")
    found += [f"[exercises](../exercises/{each.name})" for each in EXERCISES.glob(f"{path.name[:2]}_*.ipynb")]
    return " · ".join([*found, "[the map, and how far you are](start.ipynb)"])


def read_exercises(path: Path, variant: source.Variant) -> NotebookNode:
    """One of the two notebooks that a source in solutions/ describes, not executed."""
    notebook = notebook_of(source.resolve(path.read_text(encoding="utf-8"), variant))
    notebook.cells = [cell for cell in notebook.cells if cell.source.strip()]
    return notebook


def notebook_of(text: str) -> NotebookNode:
    """The notebook that a source's text describes: the caller's own."""
    return copy.deepcopy(_parsed(text))


@functools.lru_cache(maxsize=64)
def _parsed(text: str) -> NotebookNode:
    """Kept, since jupytext takes a tenth of a second for each, and several pages ask for the same lessons."""
    notebook = jupytext.reads(text, fmt="py:percent")
    notebook.metadata = NotebookNode(kernelspec=KERNEL, language_info={"name": "python"})
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for i, cell in enumerate(notebook.cells):
        cell.id = f"cell-{i:02d}"
        cell.metadata = NotebookNode(cell.metadata)
    return notebook


def build(path: Path) -> Path:
    """Execute a lesson and write its notebook beside it.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed; nothing is written.
    """
    pictures = RECORDED / path.stem
    shutil.rmtree(pictures, ignore_errors=True)
    os.environ[recording.FOLDER] = str(pictures)
    try:
        return execute(read_lesson(path), path.with_suffix(".ipynb"))
    finally:
        del os.environ[recording.FOLDER]


def build_exercises(path: Path) -> list[Path]:
    """Write both notebooks of a source in solutions/.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell of the solution failed, or a check was not passed.
    """
    os.environ[STRICT] = "1"
    solution = execute(read_exercises(path, "solution"), path.with_suffix(".ipynb"))
    target = stubs_of(path)
    target.parent.mkdir(exist_ok=True)
    nbformat.write(read_exercises(path, "stub"), target)
    return [solution, target]


def stubs_of(path: Path) -> Path:
    """Where the stubs of a source go."""
    return path.parent.parent / EXERCISES.name / path.with_suffix(".ipynb").name


def execute(notebook: NotebookNode, target: Path) -> Path:
    """Execute a notebook where it will lie, and write it."""
    run_cells(notebook, target.parent)
    notebook.metadata = NotebookNode(kernelspec=KERNEL, language_info={"name": "python"})
    for cell in notebook.cells:
        if cell.cell_type == "code":
            lasting = (output for output in cell.outputs if TRANSIENT not in output.get("metadata", {}))
            cell.outputs = [without_folders(freeze(output)) for output in lasting]
    nbformat.write(with_other_run(folded_outcomes(notebook), target.stem), target)
    return target


def without_folders(output: NotebookNode) -> NotebookNode:
    """The output, with no folder of the machine that it was made on."""
    text = json.dumps(output)
    for folder, name in ((str(cache_home()), "~/.cache/minillm"), (sysconfig.get_path("purelib"), "site-packages")):
        text = text.replace(json.dumps(folder)[1:-1], name)
    return nbformat.from_dict(json.loads(text))


def run_cells(notebook: NotebookNode, folder: Path, environment: Mapping[str, str] | None = None) -> None:
    """Execute a notebook in a kernel of its own, as an example for readers. Its cells get their outputs.

    Args:
        folder: where the kernel runs.
        environment: variables that it has besides.
    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name=KERNEL["name"],
        record_timing=False,
        store_widget_state=False,
        resources={"metadata": {"path": str(folder)}},
    ).execute(env={**os.environ, **(environment or {}), EXAMPLE: "1"})


def refresh_prose(path: Path) -> None:
    """Put a lesson's prose into its notebook as it stands, fold away what tells how a bet ends, and set beside it what
    was recorded on another machine.

    A module that has moved is imported from elsewhere, and gives the same outputs: imports may differ.

    Raises:
        ValueError: code has changed, so that the outputs are of other cells.
    """
    target, notebook = path.with_suffix(".ipynb"), read_lesson(path)
    run = [cell for cell in nbformat.read(target, as_version=4).cells if cell.cell_type == "code"]
    codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if digests(run) != digests(codes) or len(run) != len(codes):
        raise ValueError(f"{target.name}: its code has changed: python -m course.lab.build {path.stem}")
    for cell, before in zip(codes, run, strict=True):
        cell.execution_count, cell.outputs = before.execution_count, before.outputs
    nbformat.write(with_other_run(folded_outcomes(notebook), path.stem), target)


def problems(path: Path) -> list[str]:
    """What is wrong with the notebook of a source; empty when it is up to date and was executed without errors."""
    target = path.with_suffix(".ipynb")
    found = drift(target, read_lesson(path), path)
    return found or unexecuted(target) + giveaways(target) + other_machine_problems(path) + restless(target)


def exercise_problems(path: Path) -> list[str]:
    """The same for a source in solutions/ and its two notebooks; the stubs must hold no outputs."""
    target, stubs = path.with_suffix(".ipynb"), stubs_of(path)
    found = drift(target, read_exercises(path, "solution"), path) or unexecuted(target)
    found += drift(stubs, read_exercises(path, "stub"), path)
    if stubs.exists() and any(cell.get("outputs") for cell in nbformat.read(stubs, as_version=4).cells):
        found.append(f"exercises/{stubs.name} has outputs")
    return found


def drift(target: Path, wanted: NotebookNode, path: Path) -> list[str]:
    if not target.exists():
        return [f"{target.name} is missing"]
    if _text(nbformat.read(target, as_version=4)) != _text(wanted):
        return [f"{target.name} differs from {path.name}"]
    return []


def unexecuted(target: Path) -> list[str]:
    found = []
    notebook = nbformat.read(target, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code" and cell.execution_count is None:
            found.append(f"{target.name}: {cell.id} was not executed")
        if any(output.output_type == "error" for output in cell.get("outputs", ())):
            found.append(f"{target.name}: {cell.id} ended in an error")
    return found


def giveaways(target: Path) -> list[str]:
    """Whether it tells how a bet ends before the bet."""
    notebook = nbformat.read(target, as_version=4)
    told = zip(notebook.cells, folded_outcomes(notebook).cells, strict=True)
    return [f"{target.name}: {cell.id} tells how a bet above it ends" for cell, bare in told if cell != bare]


def other_machine_problems(path: Path) -> list[str]:
    """Whether the run on another machine (other_machine.py) is of the lesson's code, and is what the notebook shows."""
    target, other = path.with_suffix(".ipynb"), read_run(path.stem)
    notebook, number = nbformat.read(target, as_version=4), path.stem.partition("_")[0]
    if other is not None and not other.is_of(notebook.cells):
        command = f"python -m course.lab.example_runs {number}"
        return [f"{target.name}: its example run on {MACHINE} is of other code (`{command}` records it)"]
    if with_other_run(notebook, path.stem) != notebook:
        command = f"python -m course.lab.build {number} --prose"
        return [f"{target.name}: shows another run on {MACHINE} than the one recorded (`{command}` puts it in)"]
    return []


def restless(target: Path) -> list[str]:
    """Where it shows that the machine was busy when this was measured: a control moved far, or a finding says so."""
    cells = nbformat.read(target, as_version=4).cells
    outputs = [(cell.id, output) for cell in cells for output in cell.get("outputs", ())]
    found = []
    for name, output in outputs:
        marks = output.get("metadata", {})
        if (by := marks.get(CONTROL_MOVED, 0.0)) > QUIET:
            told = f"is a run in which nothing was changed, and it moved by {by:.0%}: the machine was busy"
            found.append(f"{target.name}: {name} {told}")
        if marks.get(DISTURBED):
            found.append(f"{target.name}: {name} says that the machine was busy")
    return found


def _text(notebook: NotebookNode) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m course.lab.build", description="Build the lessons' notebooks.")
    parser.add_argument("prefix", nargs="?", default="", help="only lessons whose file name begins so")
    parser.add_argument("--check", action="store_true", help="build nothing; fail if a notebook is not up to date")
    parser.add_argument("--exercises", action="store_true", help="only exercises and solutions")
    parser.add_argument("--short", action="store_true", help="small workloads")
    parser.add_argument("--prose", action="store_true", help="execute nothing; put in prose that has changed")
    chosen = parser.parse_args(arguments)
    lessons = [] if chosen.exercises else sources(chosen.prefix)
    if chosen.check:
        found = [problem for path in lessons for problem in problems(path)]
        found += [problem for path in source.sources(chosen.prefix) for problem in exercise_problems(path)]
        for problem in found:
            print(f"{problem}: run `make notebooks`", file=sys.stderr)
        return bool(found)
    if chosen.prose:
        for path in lessons:
            refresh_prose(path)
        return 0
    if chosen.short:
        os.environ["MINILLM_SHORT"] = "1"
    os.environ.pop("JPY_SESSION_NAME", None)  # of a learner's notebook that this was started from: kept.py goes by it
    disturbed = []
    for path in lessons:
        print(f"executing {path.name} ...", flush=True)
        target = build(path)
        print(f"wrote {target.name}", flush=True)
        disturbed += restless(target)
    for path in source.sources(chosen.prefix):
        print(f"executing solutions/{path.name} ...", flush=True)
        for target in build_exercises(path):
            print(f"wrote {target.parent.name}/{target.name}", flush=True)
    for problem in disturbed:
        print(f"{problem}: not to be committed, build it again while the machine does nothing else", file=sys.stderr)
    return bool(disturbed)


if __name__ == "__main__":
    raise SystemExit(main())
