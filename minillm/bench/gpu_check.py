"""`make gpu-check`: everything that only a GPU can show, in one command of a few minutes, without a network.

First the parity tests, then the benchmarks on random weights of well-known shapes. Each section runs in
its own process and leaves its own file, so that a section that fails harms no other, and a run that was
cut short goes on where it stopped. At the end one record is written, for course/data/measured/.

It needs PyTorch with CUDA, Triton, and the packages minillm itself imports; it runs from a bare checkout.
"""

import datetime
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from minillm.observe.tables import text_table

ROOT = Path(__file__).parents[2]
TIME_LIMIT_S = 520
NEEDED = ("torch", "triton", "transformers", "pydantic", "safetensors", "psutil", "filelock", "setuptools", "pytest")
PARITY = "tests/gpu -m gpu -q -x -p no:cacheprovider -o addopts=--import-mode=importlib"
"""Without --strict-config, which would want the project's pytest plugins."""
RANDOM = "--load-format dummy --dtype bfloat16 --device cuda"
"""Random weights in a published shape."""


@dataclass(frozen=True, slots=True)
class Section:
    """One process. Its command writes JSON to the file named last."""

    name: str
    arguments: str
    limit_s: int

    def command(self, out: Path) -> list[str]:
        if self.name == "parity":
            return [sys.executable, "-m", "pytest", *self.arguments.split()]
        return [sys.executable, "-m", "minillm", "bench", *self.arguments.split(), "--out", str(out)]


def sections() -> list[Section]:
    """In order of importance: what is cut off by the time limit is what can best be missed."""
    small, middle, large = (f"--model {name} {RANDOM}" for name in ("qwen3-0.6b", "llama-3.2-1b", "llama-3-8b"))
    nano = " --compare nano-vllm" if importlib.util.find_spec("nanovllm") else ""
    return [
        Section("parity", PARITY, 200),
        Section("decode_8b", f"decode {large} --batch 1 --batch 8 --batch 32 --batch 128", 120),
        Section("attention_8b", f"attention {large}", 60),
        Section("prefill_8b", f"prefill {large} --tokens 128 --tokens 512 --tokens 2048 --tokens 4096", 60),
        Section("decode_1b", f"decode {middle} --batch 1 --batch 8 --batch 64", 60),
        Section("decode_0.6b", f"decode {small} --batch 1 --batch 8 --batch 64 --batch 256", 60),
        Section("throughput_0.6b", f"throughput {small} --repeats 2", 90),
        Section("breakdown_0.6b", f"step-breakdown {small} --repeats 3", 120),
        Section("compare_0.6b", f"throughput {small} --repeats 1 --compare hf{nano}", 240),
    ]


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure that the project aims at, and how it is read off a section's results."""

    what: str
    section: str
    at_least: float
    read: Callable[[dict[str, Any]], float]


def mbu_of_one(report: dict[str, Any]) -> float:
    """The share of memory bandwidth at batch 1."""
    return next(row["mbu"] for row in report["results"] if row["batch"] == 1)


def best_long_prefill(report: dict[str, Any]) -> float:
    """The best share of peak FLOP/s among prompts of 2000 tokens and more."""
    return max(row["mfu"] for row in report["results"] if row["prompt_len"] >= 2000)


def triton_over_fa3(report: dict[str, Any]) -> float:
    """The smallest ratio of speeds over the decode shapes. KeyError where FA3 is not installed."""
    times: dict[str, dict[str, float]] = {}
    for row in report["results"]:
        if row["shape"]["kind"] == "decode":
            times.setdefault(str(row["shape"]), {})[row["backend"]] = row["call_s"]["median"]
    return min(by_backend["fa3"] / by_backend["triton"] for by_backend in times.values())


def speedup_over(baseline: str) -> Callable[[dict[str, Any]], float]:
    """A reader of reports: the median speedup over a baseline."""
    return lambda report: report["results"]["peers"][0]["speedups"][baseline]["median"]


GOALS = [
    Goal("8B shape, batch 1: share of copy bandwidth", "decode_8b", 0.80, mbu_of_one),
    Goal("1B shape, batch 1: share of copy bandwidth", "decode_1b", 0.55, mbu_of_one),
    Goal("0.6B shape, batch 1: share of copy bandwidth", "decode_0.6b", 0.35, mbu_of_one),
    Goal("8B shape, 2k+ prompts: share of matmul rate", "prefill_8b", 0.65, best_long_prefill),
    Goal("Triton decode attention over FlashAttention-3", "attention_8b", 0.85, triton_over_fa3),
    Goal("256 requests over Hugging Face continuous batching", "compare_0.6b", 3.0, speedup_over("hf_continuous")),
    Goal("256 requests over nano-vllm", "compare_0.6b", 1.1, speedup_over("nano_vllm")),
]


def check(
    out: Annotated[Path, typer.Option(help="Where sections leave their files.")] = Path("gpu-check"),
    only: Annotated[list[str] | None, typer.Option(help="Only this section; may be repeated.")] = None,
    redo: Annotated[bool, typer.Option("--redo", help="Run sections again that have a file already.")] = False,
    time_limit: Annotated[
        int, typer.Option(min=1, help="Seconds for all of it; run it again to go on.")
    ] = TIME_LIMIT_S,
) -> None:
    """Parity of every backend and graph with the CPU, then all benchmarks.

    Exit status 1 if a section failed, or was not reached in time: run it again to go on.
    """
    require_gpu()
    out = out.resolve()  # sections run in the project's folder, wherever this was called
    out.mkdir(parents=True, exist_ok=True)
    chosen = [section for section in sections() if not only or section.name in only]
    if only and len(chosen) < len(set(only)):
        fail(f"sections are {', '.join(section.name for section in sections())}")
    deadline = time.monotonic() + time_limit
    outcomes = {section.name: run(section, out, redo, deadline) for section in chosen}
    record = make_record(out, outcomes)
    slug = "".join(letter if letter.isalnum() else "_" for letter in record["device"].lower())
    file = out / f"gpu_check_{slug}.json"
    file.write_text(json.dumps(record, indent=1) + "\n")
    print(format_summary(record))
    print(f"record: {file}. Copy it to course/data/measured/ to publish it.")
    raise typer.Exit(0 if set(outcomes.values()) <= {"done", "kept"} else 1)


def require_gpu() -> None:
    """Say what is missing, before anything runs."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        fail(f"this Python lacks {', '.join(missing)}: python3 -m pip install {' '.join(missing)}")
    import torch

    if not torch.cuda.is_available():
        fail("PyTorch sees no CUDA device here: there is nothing to check")


def fail(message: str) -> None:
    """One message on standard error, and the end, with exit status 2."""
    print(f"gpu-check: {message}", file=sys.stderr)
    raise typer.Exit(2)


def run(section: Section, out: Path, redo: bool, deadline: float) -> str:
    """`done`, `kept` (from an earlier run), `failed`, or `not run` when time is out."""
    file, log = out / f"{section.name}.json", out / f"{section.name}.log"
    if file.exists() and not redo:
        return "kept"
    left = deadline - time.monotonic()
    if left < 15:
        return "not run"
    print(f"gpu-check: {section.name} (at most {min(section.limit_s, left):.0f} s)", file=sys.stderr, flush=True)
    scratch = out / f"{section.name}.part"
    start = time.monotonic()
    with log.open("w") as stream:
        try:
            command = section.command(scratch)
            done = subprocess.run(
                command, cwd=ROOT, stdout=stream, stderr=stream, timeout=min(section.limit_s, left), check=False
            )
        except subprocess.TimeoutExpired:
            print(f"gpu-check: {section.name} ran out of time, see {log}", file=sys.stderr)
            return "not run" if left < section.limit_s else "failed"
    if done.returncode != 0:
        print(f"gpu-check: {section.name} failed; the end of {log}:\n{tail(log)}", file=sys.stderr)
        return "failed"
    if section.name == "parity":
        passed = {"passed": True, "seconds": time.monotonic() - start, "summary": tail(log, 1)}
        scratch.write_text(json.dumps(passed))
    scratch.replace(file)  # at once: a file that is there is whole
    return "done"


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text(errors="replace").strip().splitlines()[-lines:])


def make_record(out: Path, outcomes: dict[str, str]) -> dict[str, Any]:
    """What ran, each target beside what was reached, and all that was measured, now or before."""
    import torch

    files = {name: out / f"{name}.json" for name in outcomes}
    reports = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": "make gpu-check",
        "device": torch.cuda.get_device_name(),
        "versions": {"python": sys.version.split()[0], "torch": torch.__version__, "cuda": torch.version.cuda},
        "outcomes": outcomes,
        "targets": [{"what": t.what, "at_least": t.at_least, "reached": reached(t, reports)} for t in GOALS],
        "sections": reports,
    }


def reached(goal: Goal, reports: dict[str, Any]) -> float | None:
    """None where the section did not run, or lacks the baseline."""
    try:
        return goal.read(reports[goal.section])
    except (KeyError, StopIteration, ValueError):
        return None


def format_summary(record: dict[str, Any]) -> str:
    """What ran, and each target beside what was reached."""
    ran = text_table(("section", "outcome"), record["outcomes"].items())
    rows = []
    for goal in record["targets"]:
        reached = "not yet measured" if goal["reached"] is None else f"{goal['reached']:.2f}"
        rows.append([goal["what"], reached, f"{goal['at_least']:.2f}"])
    return f"{ran}\n\n{text_table(('', 'reached', 'target'), rows)}"


if __name__ == "__main__":
    typer.run(check)
