"""`make gpu-check`: everything that only a GPU can show, without a network, in two calls of under nine minutes.

First the parity tests, then benchmarks on random weights of well-known shapes, those first that answer most in a
second. Each section runs in its own process and leaves its own file, so that one that fails harms no other. Called
again, it goes on with those that left none. One record, written after every section, has all of it: it goes to
course/data/measured/.

It needs PyTorch with CUDA, Triton, and the packages minillm itself imports; it runs from a bare checkout.
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from minillm.bench.writing import without_folder
from minillm.observe.tables import text_table

ROOT = Path(__file__).parents[2]
TIME_LIMIT_S = 520
NEEDED = (
    *("torch", "triton", "transformers", "pydantic", "numpy", "safetensors", "psutil", "filelock"),
    *("typer", "rich", "tqdm", "setuptools", "pytest"),
)
"""What the sections import (but for the server's packages, which one section wants). Images with PyTorch and
transformers lack pydantic: 2.8 MB with what comes with it."""
PARITY = "tests/engine/gpu -m gpu -q --maxfail=20 -p no:cacheprovider -o addopts=--import-mode=importlib"
"""Without --strict-config, which would want the project's pytest plugins."""
RANDOM = "--load-format dummy --dtype bfloat16 --device cuda"
"""Random weights in a published shape."""


@dataclass(frozen=True, slots=True)
class Section:
    """One process. A benchmark writes JSON to the file named last."""

    name: str
    arguments: str
    limit_s: int

    def command(self, out: Path) -> list[str]:
        if self.name == "parity":
            # Side by side where that can be: most of its time is Python's, and the CPU's that it is compared with.
            beside = ["-n", "8"] if importlib.util.find_spec("xdist") else []
            return ["env", "OMP_NUM_THREADS=2", sys.executable, "-m", "pytest", *self.arguments.split(), *beside]
        return [sys.executable, "-m", "minillm", "bench", *self.arguments.split(), "--out", str(out)]


def sections() -> list[Section]:
    """Those first that answer most in a second: goals, then what has none. Their limits fill two calls."""
    from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available

    small, middle, large, long = (
        f"--model {name} {RANDOM}" for name in ("qwen3-0.6b", "llama-3.2-1b", "llama-3-8b", "llama-3.1-8b")
    )
    # Without a flash kernel, transformers' cache wants a dense mask of all its tokens: a quarter of the requests. It
    # sees no FlashAttention-3 in a wheel that isn't called flash-attn-3.
    requests = 256 if is_flash_attn_2_available() or is_flash_attn_3_available() else 64
    # Random logits spread out so little that a nucleus is most of the vocabulary: a wide one. At temperature 0.1 it is
    # a few tokens.
    narrow, wide = (f"--sample temperature={t} --sample top_p=0.9" for t in (0.1, 1.0))
    batches = "--batch 1 --batch 8 --batch 32 --batch 128"
    cached = "--batch 32 --batch 128 --context 2048"  # contexts whose KV is most of what a step reads
    return [
        Section("parity", PARITY, 120),
        Section("decode_8b", f"decode {large} {batches}", 40),
        Section("prefill_8b", f"prefill {long} --tokens 512 --tokens 2048 --tokens 4096 --tokens 16384", 35),
        Section("throughput_0.6b", f"throughput {small} --repeats 2", 40),
        Section("decode_0.6b", f"decode {small} --batch 1 --batch 8 --batch 64 --batch 256 --idle", 40),
        Section("decode_8b_kv_int8", f"decode {large} {cached} --set kv_cache_dtype=int8", 35),
        Section("decode_8b_kv_fp8", f"decode {large} {cached} --set kv_cache_dtype=fp8", 50),
        Section("decode_8b_2k", f"decode {large} {cached}", 30),
        Section("moe_30b", f"decode --model qwen3-30b-a3b {RANDOM} --batch 1 --batch 8 --batch 64", 60),
        Section("decode_8b_int4", f"decode {large} {batches} --set quantization=int4", 25),
        Section("decode_1b", f"decode {middle} --batch 1 --batch 8 --batch 64", 30),
        Section("attention_8b", f"attention {large}", 40),
        Section("decode_8b_int8", f"decode {large} {batches} --set quantization=int8", 25),
        Section("decode_8b_fp8", f"decode {large} {batches} --set quantization=fp8", 25),
        Section("prefill_8b_int4", f"prefill {long} --tokens 2048 --tokens 4096 --set quantization=int4", 20),
        Section("decode_8b_top_p", f"decode {large} --batch 1 --batch 128 {narrow}", 30),
        Section("decode_8b_wide_top_p", f"decode {large} --batch 1 --batch 128 {wide}", 30),
        # Few requests, of which one or another is always at its prompt: many mixed steps.
        Section("few_0.6b", f"throughput {small} --requests 16 --repeats 2", 25),
        Section("breakdown_0.6b", f"step-breakdown {small} --repeats 3", 45),
        # These two want text, so the default model, and the network (or `minillm pull` beforehand).
        Section("speculation", "speculation --device cuda --job chat --job copy --repeats 2", 45),
        Section("serve_overhead", "serve-overhead --device cuda --streams 64 --repeats 2", 45),
        Section("nano_vllm_0.6b", f"throughput {small} --repeats 1 --compare nano-vllm", 80),
        Section("hf_0.6b", f"throughput {small} --requests {requests} --repeats 1 --compare hf", 100),
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


def long_prefill(report: dict[str, Any]) -> float:
    """The smallest share of peak FLOP/s among prompts of 2000 tokens and more."""
    return min(row["mfu"] for row in report["results"] if row["prompt_len"] >= 2000)


def triton_over_fa3(report: dict[str, Any]) -> float:
    """The smallest ratio of speeds over the decode shapes. KeyError where FA3 is not installed."""
    times: dict[str, dict[str, float]] = {}
    for row in report["results"]:
        if row["shape"]["kind"] == "decode":
            times.setdefault(str(row["shape"]), {})[row["backend"]] = row["call_s"]["median"]
    return min(by_backend["fa3"] / by_backend["triton"] for by_backend in times.values())


def busy(report: dict[str, Any]) -> float:
    """The smallest share of time in which the GPU worked, over the batch sizes."""
    return 1 - max(report["idle"].values())


def speedup_over(baseline: str) -> Callable[[dict[str, Any]], float]:
    """A reader of reports: the median speedup over a baseline."""
    return lambda report: report["results"][0]["peers"][0]["speedups"][baseline]["median"]


GOALS = [
    Goal("8B shape, batch 1: share of copy bandwidth", "decode_8b", 0.80, mbu_of_one),
    Goal("1B shape, batch 1: share of copy bandwidth", "decode_1b", 0.55, mbu_of_one),
    Goal("8B shape, 2k+ prompts: share of matmul rate", "prefill_8b", 0.65, long_prefill),
    Goal("Triton decode attention over FlashAttention-3", "attention_8b", 0.85, triton_over_fa3),
    Goal("0.6B shape, decode: GPU busy (idle under 3%)", "decode_0.6b", 0.97, busy),
    Goal("0.6B shape, 256 requests over nano-vllm", "nano_vllm_0.6b", 1.1, speedup_over("nano_vllm")),
    Goal("0.6B shape, 256 requests (64 without flash-attn) over HF", "hf_0.6b", 3.0, speedup_over("hf_continuous")),
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Parity of every backend and graph with the CPU, then all benchmarks.

    Returns the exit status: 1 if a section failed, or was not reached in time: run it again to go on.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser("gpu-check", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        parser.error(f"this Python lacks {', '.join(missing)}: docs/gpu-box.md says how to bring packages along")
    names = [section.name for section in sections()]
    parser.add_argument("--out", type=Path, default=Path("gpu-check"), help="Where sections leave their files.")
    parser.add_argument("--only", action="append", choices=names, help="Only this section; may be repeated.")
    parser.add_argument("--redo", action="store_true", help="Run sections again that have a file already.")
    parser.add_argument("--time-limit", type=int, default=TIME_LIMIT_S, help="Seconds; run it again to go on.")
    given = parser.parse_args(arguments)
    import torch

    if not torch.cuda.is_available():
        parser.error("PyTorch sees no CUDA device here: there is nothing to check")
    out = given.out.resolve()  # sections run in the project's folder, wherever this was called
    out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + given.time_limit
    outcomes: dict[str, str] = {}
    for section in sections():
        if given.only and section.name not in given.only:
            continue
        outcomes[section.name] = run(section, out, given.redo, deadline)
        record = make_record(out, outcomes, arguments)
        slug = "".join(letter if letter.isalnum() else "_" for letter in record["device"].lower())
        file = out / f"gpu_check_{slug}.json"
        file.write_text(json.dumps(record, indent=1) + "\n")  # each time: this, too, may be cut short
    print(format_summary(record))
    print(f"record: {file}. Copy it to course/data/measured/ to publish it.")
    return int(not {"failed", "not run"}.isdisjoint(outcomes.values()))


def run(section: Section, out: Path, redo: bool, deadline: float) -> str:
    """What became of it: `done`; `kept` (from an earlier run); `refused`, for a reason that its log ends with, such as
    a package that is not there; `failed`; `not run`, since less than its limit was left."""
    file, log, scratch = (out / f"{section.name}.{ending}" for ending in ("json", "log", "part"))
    if file.exists() and not redo:
        return "kept"
    start = time.monotonic()
    if deadline - start < section.limit_s:
        return "not run"
    print(f"gpu-check: {section.name} (at most {section.limit_s} s)", file=sys.stderr, flush=True)
    with log.open("w") as stream:
        status = exit_status(section.command(scratch), stream, section.limit_s)
    if status != 0:
        outcome = "refused" if status == 2 and section.name != "parity" else "failed"
        print(f"gpu-check: {section.name} {outcome}; the end of {log}:\n{tail(log)}", file=sys.stderr)
        return outcome
    report = {"summary": tail(log, 1)} if section.name == "parity" else json.loads(scratch.read_text())
    scratch.write_text(json.dumps({**report, "seconds": time.monotonic() - start, "commit": git_commit()}))
    scratch.replace(file)  # in one step: a file that is there is whole
    return "done"


def exit_status(command: list[str], log: IO[str], limit_s: float) -> int | None:
    """A process's exit status, or None if time ran out. What it started ends, too: a server would hold the GPU."""
    with subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True) as process:
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            print(f"gpu-check: ended after {limit_s} s", file=log)
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log."""
    text = log.read_text(errors="replace").replace(str(ROOT), ".")  # a record names no folder
    return "\n".join(text.strip().splitlines()[-lines:])


def git_commit() -> str | None:
    """The commit of this checkout, with `-dirty` if it was changed since. None if git cannot tell."""
    command = f"git -C {shlex.quote(str(ROOT))} describe --always --dirty --abbrev=40 --exclude='*'"
    status, said = subprocess.getstatusoutput(command)
    return None if status else said


def make_record(out: Path, outcomes: dict[str, str], arguments: Sequence[str]) -> dict[str, Any]:
    """What was run on what, each goal beside what was reached, and all that was measured, now or before."""
    import torch

    from minillm.bench.report import describe_machine, describe_versions

    files = {section.name: out / f"{section.name}.json" for section in sections()}
    reports = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python3", "-m", "course.measure.gpu_check", *map(without_folder, arguments)]),
        "commit": git_commit(),
        "device": torch.cuda.get_device_name(),
        "versions": {**describe_versions(), "triton": importlib.metadata.version("triton")},
        "machine": describe_machine(),
        "outcomes": outcomes,
        "reasons": {name: tail(out / f"{name}.log") for name, o in outcomes.items() if o in ("refused", "failed")},
        "goals": [{"what": g.what, "at_least": g.at_least, "reached": reached(g, reports)} for g in GOALS],
        "sections": reports,
    }


def reached(goal: Goal, reports: dict[str, Any]) -> float | None:
    """None where the section did not run, or lacks the baseline."""
    try:
        return goal.read(reports[goal.section])
    except (KeyError, StopIteration, ValueError):
        return None


def format_summary(record: dict[str, Any]) -> str:
    """What ran, and each goal beside what was reached."""
    ran = text_table(("section", "outcome"), record["outcomes"].items())
    rows = []
    for goal in record["goals"]:
        reached = "not yet measured" if goal["reached"] is None else f"{goal['reached']:.2f}"
        rows.append([goal["what"], reached, f"{goal['at_least']:.2f}"])
    return f"{ran}\n\n{text_table(('', 'reached', 'goal'), rows)}"


if __name__ == "__main__":
    raise SystemExit(main())
