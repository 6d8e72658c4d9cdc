"""Runs committed notebooks, each in a Jupyter kernel of its own, and fails if a cell does.

python -m course.lab.run_notebooks course/*.ipynb
python -m course.lab.run_notebooks --jobs 2 --layers 10 solutions/*.ipynb

MINILLM_SHORT=1 gives small workloads, MINILLM_STRICT=1 makes a check that isn't passed an error. A kernel takes two
seconds to import what lessons need, and another to read the model's weights: where processes can be forked, that's
done once for all. With --layers, the labs' model ends after so many layers: its tokenizer, shapes and kernels are the
whole model's, its steps are cheaper, and what it writes makes no sense.
"""

import argparse
import ast
import gc
import importlib
import json
import multiprocessing
import os
import queue
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import TYPE_CHECKING, Any

import nbformat

if TYPE_CHECKING:
    from minillm.model.loader import LoadedModel
    from minillm.policies.config import EngineConfig

CELL_TIMEOUT_S = 600
LAYER = re.compile(r"\.layers\.(\d+)\.")
"""In a weight's name: whose it is."""
PROCESSES: BaseContext = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m course.lab.run_notebooks", description=__doc__.partition("\n")[0])
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--jobs", type=int, default=1, help="notebooks that run at the same time; default 1")
    parser.add_argument("--layers", type=int, help="of the labs' model, play with these first ones; default all")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        if options.layers:
            from course.lab.lab import Lab
            from minillm.model.checkpoints import resolve

            shallow = with_first_layers(resolve(Lab().config().model), options.layers, Path(folder))
            os.environ["MINILLM_LAB_MODEL"] = str(shallow)
        if PROCESSES.get_start_method() == "fork":
            import_once(options.notebooks)
            if any("open_lab()" in code for path in options.notebooks for code in code_cells(path)):
                load_once()
            gc.freeze()  # a search for garbage, as each lab that closes makes one, need not walk what was imported
        failed = run_all(options.notebooks, options.jobs)
    if failed:
        print(f"failed: {', '.join(failed)}", flush=True)
    return int(bool(failed))


def with_first_layers(model: Path, count: int, folder: Path) -> Path:
    """A copy of a model's folder, of the same name, that ends after so many layers.

    Raises:
        FileNotFoundError: its weights aren't one safetensors file.
    """
    from safetensors.torch import load_file, save_file

    copy = folder / model.name
    shutil.copytree(model, copy, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (copy / "config.json").write_text(json.dumps({**config, "num_hidden_layers": count}), encoding="utf-8")
    weights = load_file(model / "model.safetensors")
    layers = {name: LAYER.search(name) for name in weights}
    kept = {name: weights[name] for name, layer in layers.items() if layer is None or int(layer[1]) < count}
    save_file(kept, copy / "model.safetensors", metadata={"format": "pt"})
    return copy


def import_once(notebooks: Iterable[Path]) -> None:
    """Import what the notebooks' cells import from the course, the library of kernels, and all that those import.

    What can't be imported is left for the cell that does.
    """
    for name in ("ipykernel.kernelapp", "jupyter_client.blocking"):
        importlib.import_module(name)
    for path in notebooks:
        for code in code_cells(path):
            with suppress(SyntaxError):  # a magic command
                for node in ast.walk(ast.parse(code)):
                    if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("course."):
                        import_parts(node)


def import_parts(statement: ast.ImportFrom) -> None:
    """Import a statement's module, and what it takes from there."""
    with suppress(ImportError):
        module = importlib.import_module(str(statement.module))
        for alias in statement.names:
            if not hasattr(module, alias.name):
                importlib.import_module(f"{statement.module}.{alias.name}")


def load_once() -> None:
    """Load the weights that a lab begins with, and have `loading.load_model` give them to every engine that wants the
    same: a process that is forked has them. Engines may share a LoadedModel.

    Not where a forked process couldn't go on with what this one has: OpenMP's threads, or a GPU's context. What can't
    be loaded is left for the cell that does.
    """
    import torch

    from course.lab.lab import Lab
    from minillm.core.errors import MinillmError
    from minillm.frontend import loading

    if torch.get_num_threads() > 1 or torch.cuda.device_count() > 0:  # device_count asks NVML: nothing is set up
        return
    with suppress(MinillmError):
        lab = Lab()
        if lab.simulated is None:
            usual = lab.config()
            loading.load_model = shared(usual, loading.load_model(usual), loading.load_model)


def shared(
    usual: "EngineConfig", model: "LoadedModel", load: "Callable[[EngineConfig], LoadedModel]"
) -> "Callable[[EngineConfig], LoadedModel]":
    """What loads a model: the given one, where its weights are those of the usual configuration."""
    from minillm.frontend.engine_thread import WEIGHT_FIELDS

    def load_model(config: "EngineConfig") -> "LoadedModel":
        is_usual = all(getattr(config, name) == getattr(usual, name) for name in WEIGHT_FIELDS)
        return model if is_usual else load(config)

    return load_model


def run_all(notebooks: Sequence[Path], jobs: int) -> list[str]:
    """Run so many notebooks at a time, each in processes of its own. Returns the names of those that failed.

    Those of many cells come first: with a long one in the end, all but one core would have nothing to do.
    """
    missing = sorted(notebooks, key=lambda path: -len(code_cells(path)))
    running, failed = dict[int, tuple[Path, BaseProcess]](), []
    while missing or running:
        while missing and len(running) < jobs:
            path = missing.pop(0)
            process = PROCESSES.Process(target=run_notebook, args=(path,), name=path.stem)
            process.start()
            running[process.sentinel] = path, process
        for ended in wait(list(running)):
            path, process = running.pop(int(ended))
            process.join()
            if process.exitcode:
                failed.append(path.stem)
    return failed


def run_notebook(path: Path) -> None:
    """Run a notebook's cells in its folder, print how many and what they took, and exit with 1 if one failed."""
    began, cells = time.monotonic(), code_cells(path)
    with tempfile.TemporaryDirectory() as folder:
        connection = write_connection(Path(folder) / "kernel.json")
        kernel = PROCESSES.Process(target=serve_cells, args=(connection, path.parent))
        kernel.start()
        told = first_failure(connection, kernel, cells)
        kernel.join(10)
        kernel.kill()
        kernel.join()
    taken = getrusage(RUSAGE_CHILDREN)
    cpu = taken.ru_utime + taken.ru_stime
    print(f"{path.stem}: {len(cells)} cells, {time.monotonic() - began:.0f} s, {cpu:.0f} s of CPU {told}", flush=True)
    sys.exit(bool(told))


def code_cells(path: Path) -> list[str]:
    return [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def write_connection(path: Path) -> str:
    """Choose ports for a kernel, and write them to a file. Returns its name."""
    from jupyter_client.connect import write_connection_file

    return write_connection_file(str(path), key=b"")[0]


def serve_cells(connection: str, folder: Path) -> None:
    """Be a notebook's kernel, until it's told to shut down."""
    from ipykernel.kernelapp import IPKernelApp

    os.chdir(folder)
    until = f"--IPKernelApp.parent_handle={os.getppid()}"  # it ends with whoever started it
    IPKernelApp.launch_instance(argv=["-f", connection, "--log-level=ERROR", until])


def first_failure(connection: str, kernel: BaseProcess, cells: Sequence[str]) -> str:
    """Send the cells to a kernel one by one, then have it shut down. What the first one that failed says, or ""."""
    from jupyter_client.blocking import BlockingKernelClient

    client = BlockingKernelClient(connection_file=connection)
    client.load_connection_file()
    client.start_channels(shell=True, iopub=False, stdin=False, hb=False)
    try:
        for number, code in enumerate(cells):
            answer = ask(client, kernel, code)
            if answer["status"] != "ok":
                told = "\n".join(answer.get("traceback", ()))
                return f"\ncell {number} failed:\n{code}\n{told}\n{answer.get('ename')}: {answer.get('evalue')}"
        return ""
    finally:
        client.shutdown()
        client.stop_channels()


def ask(client: Any, kernel: BaseProcess, code: str) -> dict[str, Any]:
    """Run a cell. Returns the kernel's reply; of a kernel that has died or takes too long, one in its place."""
    sent, deadline = client.execute(code, allow_stdin=False), time.monotonic() + CELL_TIMEOUT_S
    while kernel.is_alive() and time.monotonic() < deadline:
        with suppress(queue.Empty):
            reply = client.get_shell_msg(timeout=1)
            if reply["parent_header"].get("msg_id") == sent:
                return dict(reply["content"])
    why = f"no answer in {CELL_TIMEOUT_S} s" if kernel.is_alive() else f"the kernel ended with {kernel.exitcode}"
    kernel.kill()
    return {"status": "error", "ename": "NoAnswer", "evalue": why}


if __name__ == "__main__":
    raise SystemExit(main())
