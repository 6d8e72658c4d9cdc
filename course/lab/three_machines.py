"""Every lesson under the machines that it is read on: does each cell run, and what does it then say?

python -m course.lab.three_machines                       the simulated machines, in the short form
python -m course.lab.three_machines h100-8b 02 06         one of them, some lessons
python -m course.lab.three_machines --all --full          this machine's own engine as well, and full workloads

Writes build/three_machines/MACHINE.json, a row for each cell that failed, or that said something of its run: findings,
claims, how bets ended. And table.md, which has what each machine was told side by side, for editors: a sentence that's
true on one machine may be false on another. What 2 cores were told is in the committed notebooks; unless they're asked
for, nothing runs on them. Cells that use nothing of the lab are left out: they say the same on every machine, and the
notebooks run them. Fails if a cell did.
"""

import argparse
import ast
import gc
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from course.lab.build import COURSE, lesson_sources, read_source
from course.lab.outcomes import names_made, supporting

LESSONS = (
    "00",
    "01",
    "02",
    "02b",
    "03",
    "04",
    "05",
    "05b",
    "06",
    "06b",
    "06c",
    "07",
    "07b",
    "08",
    "09",
    "10",
    "10b",
    "10c",
)
"""Those that run on the lab's device. The rest are about fleets, which are simulated anyway."""
OWN = "2-cores"
MACHINES: dict[str, dict[str, str]] = {
    OWN: {},
    "h100-8b": {"MINILLM_LAB_DEVICE": "h100-sxm", "MINILLM_LAB_MODEL": "llama-3.1-8b"},
    "4h100-70b": {"MINILLM_LAB_DEVICE": "4 x h100-sxm", "MINILLM_LAB_MODEL": "llama-3-70b"},
}
"""By name: the environment that a notebook is started with. OWN is the engine on this machine, whatever it is."""
FOLDER = Path("build") / "three_machines"
LONGEST = 1200
"""Characters of a cell's words that are kept."""


@dataclass(frozen=True)
class CellReport:
    """One cell of a lesson that failed, or whose last line says something of the run."""

    lesson: str
    cell: int
    """Its place among the notebook's code cells, from 0."""
    kind: str
    """`error`; `note`: it can't be had on this device, and says so; else the type of what it shows, as in `Finding`."""
    source: str
    """Its last line."""
    words: str


def resting_on_the_lab(cells: Sequence[NotebookNode]) -> set[int]:
    """The places of the code cells that use the lab or what was made with it, and of those whose variables they use."""
    opening = {i for i, cell in enumerate(cells) if "lab" in names_made(cell.source)}
    return supporting(cells, [i for i in range(len(cells)) if supporting(cells, [i]) & opening])


def imports_of(code: str) -> str:
    """A cell's imports: a later cell may use them, though it uses no variable of this one."""
    return "\n".join(
        ast.unparse(node) for node in ast.parse(code).body if isinstance(node, ast.Import | ast.ImportFrom)
    )


def play(lesson: str) -> tuple[list[CellReport], int]:
    """Run a lesson's cells in this process, as a notebook does, but for those that use nothing of the lab. Returns the
    reports, and how many cells were run."""
    from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
    from IPython.utils.capture import capture_output

    from course.lab.errors import NotInThisLabError

    source = next(path for path in lesson_sources() if path.name.startswith(f"{lesson}_"))
    cells = [cell for cell in read_source(source).cells if cell.cell_type == "code"]
    played = resting_on_the_lab(cells)
    shell = InteractiveShell.instance()
    shell.reset()  # looks for garbage, as each lab that closes does
    gc.freeze()  # none of them need walk the libraries, which lessons before this one have imported
    errors: list[BaseException | None] = []

    def note_error(result: ExecutionResult) -> None:
        """As it was raised: the notebook then shows some as notes."""
        errors.append(result.error_before_exec or result.error_in_exec)

    shell.events.register("post_run_cell", note_error)
    reports = []
    for i, code in enumerate(cell.source for cell in cells):
        with capture_output():
            result = shell.run_cell(code if i in played else imports_of(code))
        lock_bets(shell.user_ns.values())
        last = code.strip().splitlines()[-1]
        error = errors[-1]
        if isinstance(error, NotInThisLabError):
            reports.append(CellReport(lesson, i, "note", last, str(error)))
        elif error is not None:
            reports.append(CellReport(lesson, i, "error", last, f"{type(error).__name__}: {error} ({place_of(error)})"))
        elif words := words_of(result.result):
            reports.append(CellReport(lesson, i, type(result.result).__name__, last, words[:LONGEST]))
    lab = shell.user_ns.get("lab")
    if lab is not None:
        lab.close()
    return reports, len(played)


def lock_bets(values: Iterable[Any]) -> None:
    """Bet on anything, so that the cell that scores it says what came out."""
    from course.lab.predict import Prediction

    for bet in values:
        if isinstance(bet, Prediction) and not bet.locked:
            bet.choose(bet.options[0] if bet.options else bet.between[0] if bet.between else 1).lock()


def place_of(error: BaseException) -> str:
    """Where it was raised: file and line."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"


def words_of(shown: Any) -> str:
    """What a cell's result says in sentences; empty for pictures, panels and tables."""
    from course.lab.claims import Claim
    from course.lab.display import Html
    from course.lab.finding import Finding

    return str(shown) if isinstance(shown, (Finding, Claim, Html, str)) else ""


def play_all(lessons: Sequence[str], target: Path) -> int:
    """Run lessons one after the other, and write what they reported. Returns how many cells failed."""
    os.chdir(COURSE)  # where notebooks run
    reports, began = [], time.process_time()
    for lesson in lessons:
        since = time.process_time()
        found, num_cells = play(lesson)
        reports += found
        failed = [each for each in found if each.kind == "error"]
        taken = time.process_time() - since
        notes = sum(each.kind == "note" for each in found)
        print(f"{lesson}: {num_cells} cells, {len(failed)} failed, {notes} notes, {taken:.0f} s", flush=True)
        for each in failed:
            print(f"  cell {each.cell}: {each.source}\n    {each.words}", flush=True)
    print(f"{time.process_time() - began:.0f} s of CPU", flush=True)
    kept = [each for each in read_reports(target) if each.lesson not in lessons]
    rows = sorted((asdict(each) for each in (*kept, *reports)), key=lambda row: (row["lesson"], row["cell"]))
    target.write_text(json.dumps(rows, indent=1, ensure_ascii=False), encoding="utf-8")
    return sum(each.kind == "error" for each in reports)


def read_reports(path: Path) -> list[CellReport]:
    """What an earlier run wrote; nothing if there was none."""
    if not path.is_file():
        return []
    return [CellReport(**row) for row in json.loads(path.read_text(encoding="utf-8"))]


def committed(lessons: Sequence[str]) -> list[CellReport]:
    """What the committed notebooks say, which were run on 2 cores with full workloads: the same rows."""
    reports = []
    for path in lesson_sources():
        lesson = path.name.partition("_")[0]
        if lesson not in lessons:
            continue
        cells = nbformat.read(path.with_suffix(".ipynb"), as_version=4).cells
        for i, cell in enumerate(each for each in cells if each.cell_type == "code"):
            results = [each.data for each in cell.outputs if each.output_type == "execute_result"]
            words = "\n".join(data.get("text/plain", "") for data in results)
            if words and not words.startswith("<"):  # a panel's stand-in
                reports.append(CellReport(lesson, i, "committed", cell.source.splitlines()[-1], words[:LONGEST]))
    return reports


def as_markdown(reports: dict[str, list[CellReport]]) -> str:
    """What each machine was told, cell by cell; but for what only 2 cores were told, pictures mostly."""
    by_cell = defaultdict[tuple[str, int, str], dict[str, CellReport]](dict)
    for machine, found in reports.items():
        for each in found:
            by_cell[each.lesson, each.cell, each.source][machine] = each
    lines = ["# What the lessons say on each machine", ""]
    for (lesson, cell, source), told in sorted(by_cell.items()):
        if set(told) == {OWN}:
            continue
        lines += [f"## {lesson}, cell {cell}: `{source}`", ""]
        for machine, each in told.items():
            words = " ".join(each.words.split())
            lines += [f"- **{machine}** ({each.kind}): {words}"]
        lines += [""]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m course.lab.three_machines", description=__doc__.partition("\n")[0])
    parser.add_argument("chosen", nargs="*", help=f"machines ({', '.join(MACHINES)}) and lessons; none = all")
    parser.add_argument("--all", action="store_true", help=f"also {OWN}: this machine's own engine")
    parser.add_argument("--full", action="store_true", help="full workloads")
    parser.add_argument("--out", type=Path, default=FOLDER, help=f"folder to write to; default {FOLDER}")
    parser.add_argument("--jobs", type=int, default=1, help="machines that are played at the same time; default 1")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # in this process
    options = parser.parse_args(arguments)
    if unknown := set(options.chosen) - {*MACHINES, *LESSONS}:
        parser.error(f"neither a machine nor a lesson: {', '.join(sorted(unknown))}")
    machines = [each for each in MACHINES if each in options.chosen]
    machines = machines or [each for each in MACHINES if options.all or each != OWN]
    lessons = [each for each in LESSONS if each in options.chosen] or list(LESSONS)
    folder = options.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if options.here:
        return bool(play_all(lessons, folder / f"{machines[0]}.json"))
    with ThreadPoolExecutor(options.jobs) as pool:
        played = list(pool.map(lambda machine: play_apart(machine, lessons, folder, options.full), machines))
    reports = {machine: found for machine in MACHINES if (found := read_reports(folder / f"{machine}.json"))}
    reports = {OWN: reports.pop(OWN, committed(lessons)), **reports}
    (folder / "table.md").write_text(as_markdown(reports), encoding="utf-8")
    print(f"wrote {folder / 'table.md'}")
    return int(not all(played))


def play_apart(machine: str, lessons: Sequence[str], folder: Path, is_full: bool) -> bool:
    """Play lessons in a process of their own, in the machine's environment, and print what it says. Whether no cell
    failed."""
    command = [sys.executable, "-m", "course.lab.three_machines", machine, *lessons, "--here", "--out", str(folder)]
    environment = {**os.environ, "MINILLM_SHORT": str(int(not is_full)), **MACHINES[machine]}
    environment.pop("JPY_SESSION_NAME", None)  # of a learner's notebook: nothing here is kept as theirs
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    print(f"== {machine}\n{done.stdout.decode()}", end="", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    raise SystemExit(main())
