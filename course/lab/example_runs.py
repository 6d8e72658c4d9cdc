"""Records a second set of example runs: what lessons 00 to 10c show on an H100 with an 8B, in full.

python -m course.lab.example_runs            all of them, minutes on 2 cores: the device is simulated
python -m course.lab.example_runs 06 08      some lessons
python -m course.lab.build --prose           then puts them into the notebooks, beside the runs on 2 cores

On a machine with an H100 the same command runs the engine there. What was measured then stays when the command is given
on a machine without one, as long as the lesson's code is the same; `--redo` replaces it. A lesson of which a cell fails
keeps the record it had.
"""

import argparse
import datetime
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from html import escape
from typing import Any

from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from course.lab import card_model, other_machine
from course.lab.build import COURSE, lesson_sources, read_source, run_cells
from course.lab.frozen import WIDGET_VIEW
from course.lab.marks import CONTROL_MOVED, DISTURBED, LABEL, QUIET, TRANSIENT, UNAVAILABLE
from course.lab.other_machine import MACHINE, OtherRun, digests, read_run, write_run
from course.lab.outcomes import telling
from course.lab.simulated_device import VARIABLE, SimulatedDevice
from course.lab.three_machines import LESSONS, MACHINES
from minillm import EngineConfig
from minillm.bench.report import describe_versions
from minillm.bench.writing import without_folder

MODEL = "MINILLM_LAB_MODEL"
PROGRESS = re.compile(r"\d+(?:it|size) \[|\| *\d+/\d+ \[")
"""As a bar of tqdm is written."""
OURS = "Text is a placeholder, and Python's own time is that of the CPU that simulated this."


class NoSuchMachineError(ValueError):
    """This machine's GPU, or the model that lessons would run on, isn't what the record is called after."""


@dataclass(frozen=True)
class Bench:
    """What lessons are recorded on."""

    device: str
    """As the driver calls it, or the simulator."""
    environment: Mapping[str, str]
    """What a kernel is started with."""
    is_simulated: bool
    caveat: str
    """What has to stand beside its numbers, as HTML in a line."""
    band: str = ""
    """The error band that a label beneath a cell ends with, where it's simulated."""

    @classmethod
    def simulated(cls) -> "Bench":
        environment = MACHINES[MACHINE]
        device = SimulatedDevice.of(environment[VARIABLE])
        band = device.error_band(EngineConfig(model=environment[MODEL]))
        caveat = f"{escape(OURS)} {band.html.removeprefix('<p>').removesuffix('</p>')}"
        return cls(str(device), environment, True, caveat, band.text)

    @classmethod
    def real(cls, box: card_model.Box, note: str) -> "Bench":
        """This machine's GPU, and the model that MINILLM_LAB_MODEL names or `make lab` would choose.

        Raises:
            NoSuchMachineError: it's no H100, or lessons would run on the small model.
        """
        if box.gpu is None or "H100" not in box.gpu:
            raise NoSuchMachineError(f"{MACHINE} is an H100, and this machine's GPU is {box.gpu}: add --simulated")
        chosen, why = card_model.choose(box)
        model = os.environ.get(MODEL) or chosen
        if model is None or "8b" not in model.lower():
            raise NoSuchMachineError(
                f"{MACHINE} has an 8B, and lessons would run on {model or 'the small model'}. {why}"
            )
        return cls(box.gpu, {VARIABLE: "", MODEL: model}, False, escape(note))


def record(lesson: str, bench: Bench, run: Callable[..., None] = run_cells) -> OtherRun:
    """Play a lesson in full, and keep what the cells gave that tell how a bet ends.

    Args:
        lesson: the name of its source, without .py.
        run: executes a notebook in a folder, with an environment.
    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    notebook = read_source(COURSE / f"{lesson}.py")
    run(notebook, COURSE, {**bench.environment, "MINILLM_SHORT": "0", "MINILLM_LAB_SERVER": ""})
    codes = other_machine.run_cells(notebook.cells)
    shown = [i for i in telling(notebook.cells) if i in codes]
    told = {str(codes.index(i)): lasting(notebook.cells[i], bench.band) for i in shown}
    return OtherRun(
        bench.device,
        without_folder(bench.environment[MODEL]),
        bench.is_simulated,
        datetime.datetime.now(datetime.UTC).date().isoformat(),
        describe_versions(),
        bench.caveat,
        digests(notebook.cells),
        {place: outputs for place, outputs in told.items() if outputs},
    )


def lasting(cell: NotebookNode, band: str) -> list[dict[str, Any]]:
    """Its outputs for readers without a kernel; none where all it says is that a simulated device can't have it.

    Args:
        band: a label that ends so says what the record says once.
    """
    printed = [each for each in cell.outputs if each.get("name") != "stderr" and not is_progress(each)]
    outputs = [deepcopy(each) for each in printed if TRANSIENT not in each.get("metadata", {})]
    if any(UNAVAILABLE in each.get("metadata", {}) for each in outputs):
        return []
    for output in outputs:
        output.get("data", {}).pop(WIDGET_VIEW, None)
        output.pop("execution_count", None)
    return [each for each in outputs if not (LABEL in each.get("metadata", {}) and _says(each, band))]


def is_progress(output: NotebookNode) -> bool:
    """Whether it's a progress bar of tqdm, which is over."""
    return bool(PROGRESS.search(output.get("data", {}).get("text/plain", "")))


def _says(output: NotebookNode, band: str) -> bool:
    return bool(band) and output.data["text/plain"].endswith(band)


def must_stay(lesson: str, bench: Bench) -> bool:
    """Whether what is recorded was measured, is of the lesson's code as it stands, and this would be a simulation."""
    before = read_run(lesson)
    is_measured = before is not None and not before.is_simulated
    return bench.is_simulated and is_measured and before.is_of(read_source(COURSE / f"{lesson}.py").cells)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m course.lab.example_runs", description=__doc__.partition("\n")[0])
    parser.add_argument("lessons", nargs="*", help="such as 06; none = all, 00 to 10c")
    parser.add_argument("--simulated", action="store_true", help="simulate the H100, whatever GPU this machine has")
    parser.add_argument("--redo", action="store_true", help="replace what was measured by a simulation")
    parser.add_argument("--jobs", type=int, default=1, help="lessons at the same time; default 1, and 1 on a GPU")
    parser.add_argument("--note", default="", help="on a GPU: what stands beside its numbers, such as 'random weights'")
    options = parser.parse_args(arguments)
    if unknown := set(options.lessons) - set(LESSONS):
        parser.error(f"no lesson on the lab's device: {', '.join(sorted(unknown))}")
    box = card_model.Box(None) if options.simulated else card_model.look()
    try:
        bench = Bench.simulated() if box.gpu is None else Bench.real(box, options.note)
    except NoSuchMachineError as error:
        parser.error(str(error))
    if options.jobs < 1 or (options.jobs > 1 and not bench.is_simulated):
        parser.error("--jobs: at least one, and lessons that share a GPU measure each other")
    os.environ.pop("JPY_SESSION_NAME", None)  # of a learner's notebook: nothing here is kept as theirs
    wanted = [path.stem for path in lesson_sources() if path.stem.partition("_")[0] in (options.lessons or LESSONS)]
    chosen = [lesson for lesson in wanted if options.redo or not must_stay(lesson, bench)]
    for lesson in sorted(set(wanted) - set(chosen)):
        print(f"{lesson}: measured, stays (--redo replaces it)")
    with ThreadPoolExecutor(options.jobs) as pool:  # the last lesson takes longest: its clients wait in real time
        is_right = list(pool.map(lambda lesson: rewrite(lesson, bench), reversed(chosen)))
    print("python -m course.lab.build --prose puts them into the notebooks")
    return int(not all(is_right))


def rewrite(lesson: str, bench: Bench) -> bool:
    """Record a lesson in place of what was there, and say so. Whether no cell failed, and none says that the machine
    was busy."""
    try:
        found = record(lesson, bench)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        print(f"{lesson}: a cell failed, nothing is written\n{error}", flush=True)
        return False
    size = write_run(lesson, found).stat().st_size / 1000
    print(f"{lesson}: {len(found.outputs)} cells on {bench.device}, {size:.0f} kB", flush=True)
    marks = [output.get("metadata", {}) for outputs in found.outputs.values() for output in outputs]
    was_busy = any(each.get(DISTURBED) or each.get(CONTROL_MOVED, 0.0) > QUIET for each in marks)
    if was_busy:
        print(f"{lesson}: it says that the machine was busy, record it again while it does nothing else", flush=True)
    return not was_busy


if __name__ == "__main__":
    raise SystemExit(main())
