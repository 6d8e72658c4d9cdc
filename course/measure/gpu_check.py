"""`make gpu-check`: everything that only a GPU can show, without a network, in two calls of under nine minutes.

First the parity tests, then benchmarks on random weights of well-known shapes, in the order of what they are worth.
Each section runs in its own process and leaves its own file, so that one that fails harms no other. Called again, it
goes on with those that left none. One record, written after every section, has all of it: it goes to
course/data/measured/.

It needs PyTorch with CUDA, Triton, and the packages minillm itself imports; it runs from a bare checkout. On a machine
without a GPU, `--rehearse MODEL` runs the same plan in small.
"""

import argparse
import contextlib
import datetime
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from course.measure.gpu_goals import as_record, goals_table
from minillm.bench.writing import without_folder
from minillm.observe.tables import text_table

ROOT = Path(__file__).parents[2]
TIME_LIMIT_S = 520
SLACK = 1.5
"""How many times its usual seconds a section may take, if so much is left of the call: then it hangs."""
NEEDED = (
    *("torch", "triton", "transformers", "pydantic", "numpy", "safetensors", "psutil", "filelock"),
    *("typer", "rich", "tqdm", "setuptools", "pytest"),
)
"""What the sections import (but for the server's packages, which some want). Images with PyTorch and transformers lack
pydantic: 2.8 MB with what comes with it."""
PARITY = "tests/engine/gpu -m gpu -q --maxfail=20 -p no:cacheprovider -o addopts=--import-mode=importlib"
PARITY += " -o timeout=75 -o timeout_method=thread"
"""Without --strict-config, which would want the project's pytest plugins. A kernel that hangs ends its own test, where
pytest-timeout is there, by ending the process: nothing else interrupts a wait for a GPU."""
RANDOM = "--load-format dummy --dtype bfloat16 --device cuda"
"""Random weights in a published shape."""
SPECULATION = "speculation --device cuda --repeats 1 --method ngram --method draft_head"
SPECULATION += "".join(f" --job {job}" for job in ("chat", "copy", "few", "crowd"))  # one, one, 4 and 16 requests
LESSONS = "07b 08 10c 02b"
"""Lessons of which some cells have never run on a GPU."""
PDL = "MINILLM_PDL=1"
"""Kernels start early: see minillm/kernels/triton/dependent_launch.py."""
FLASH_ATTENTION = ("flash-attn", "flash-attn-3", "tokenspeed-fa3")
"""Distributions of FlashAttention."""
FLASH_MODULES = ("flash_attn", "flash_attn_interface")
"""What they are imported as. The build of docs/flash_attention_2 is a module without a distribution."""


@dataclass(frozen=True, slots=True)
class Section:
    """One process: `minillm bench`, which writes JSON to the file named last, or a module of Python's."""

    name: str
    arguments: str
    usual_s: int
    """Seconds that it takes on an H100, or should: with fewer left of the call it isn't started."""
    module: str = "minillm"
    needs: str = ""
    """A package that a machine for GPUs may lack."""
    variables: str = ""
    """What is set in its environment, as in NAME=VALUE."""

    def command(self, out: Path) -> list[str]:
        run = [sys.executable, "-m", self.module]
        if self.module == "minillm":
            return ["env", *self.variables.split(), *run, "bench", *self.arguments.split(), "--out", str(out)]
        # Tests side by side where that can be: most of their time is Python's, and the CPU's that they compare with.
        beside = ["-n", "8"] if self.module == "pytest" and importlib.util.find_spec("xdist") else []
        return ["env", "OMP_NUM_THREADS=2", *run, *self.arguments.split(), *beside]


def sections() -> list[Section]:
    """Those that two calls reach, by what they are worth; then the others."""
    return [*_first(), *_others()]


def _first() -> list[Section]:
    """Beside vLLM, and what has a goal or was never measured."""
    small, large, long = (f"--model {name} {RANDOM}" for name in ("qwen3-0.6b", "llama-3-8b", "llama-3.1-8b"))
    batches, ends = "--batch 1 --batch 8 --batch 32 --batch 128", "--batch 1 --batch 32"
    cached = "--batch 32 --batch 128 --context 2048"  # contexts whose KV is most of what a step reads
    prompts = "--tokens 2048 --tokens 4096"
    # A pool that leaves room for vLLM's: both are on the card.
    both = "--set kv_cache_memory_gb=8 --set max_num_seqs=128 --set max_model_len=20000"
    beside = " ".join(f"--workload {name}" for name in ("one", "eight", "batch_32", "batch_128"))
    beside += " ".join(f" --workload prefill_{tokens}" for tokens in (2048, 4096, 8192, 16384))
    load = "--num-requests 160 --prompt-tokens 512 --output-tokens 128 --body ignore_eos=true --concurrency 64"
    shares = "--share 0.5 --share 0.7 --share 0.9 --slo-ttft 0.5 --slo-itl 0.1"
    served = "--set max_num_seqs=64 --set dtype=bfloat16 --set device=cuda"
    few = f"throughput {small} --requests 16 --repeats 2"  # one or another is always at its prompt: many mixed steps
    decodes = {form: f"decode {large} {batches} --set quantization={form}" for form in ("int4", "int8", "fp8")}
    prefills = {form: f"prefill {long} {prompts} --set quantization={form}" for form in ("int4", "int8", "fp8")}
    return [
        Section("parity", PARITY, 85, "pytest"),
        Section("decode_8b", f"decode {large} {batches}", 20),
        # vLLM took 63 to 85 seconds to start, cold.
        Section("vllm_throughput_0.6b", f"throughput {small} --repeats 2 --compare vllm", 135),
        Section("vllm_8b", f"{long} {both} --compare vllm {beside} --repeats 3", 125),
        Section("vllm_served_8b", f"serve --compare vllm --model llama-3-8b {load} {shares} {served}", 180),
        Section("decode_8b_int4", decodes["int4"], 18),
        Section("decode_8b_int4_pdl", f"decode {large} {ends} --set quantization=int4", 15, variables=PDL),
        Section("prefill_8b", f"prefill {long} --tokens 512 {prompts} --tokens 16384", 25),
        Section("prefill_8b_int4", prefills["int4"], 14),
        Section("decode_8b_kv_int8", f"decode {large} {cached} --set kv_cache_dtype=int8", 33),
        Section("decode_8b_kv_fp8", f"decode {large} {cached} --set kv_cache_dtype=fp8", 33),
        Section("moe_30b", f"decode --model qwen3-30b-a3b {RANDOM} --batch 1 --batch 8 --batch 64", 27),
        *(Section(f"decode_8b_{form}", decodes[form], 18) for form in ("int8", "fp8")),
        *(Section(f"prefill_8b_{form}", prefills[form], 14) for form in ("int8", "fp8")),
        Section("start_up_8b", f"start-up {large}", 50),
        Section("few_0.6b", few, 18),
        Section("few_0.6b_no_pieces", f"{few} --set piecewise_graphs=false", 18),
        Section("decode_8b_2k", f"decode {large} {cached}", 24),
    ]


def _others() -> list[Section]:
    """Real drafts, two GPUs, lessons, what earlier records have, and what has no goal."""
    from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available

    small, middle, large = (f"--model {name} {RANDOM}" for name in ("qwen3-0.6b", "llama-3.2-1b", "llama-3-8b"))
    # Without a flash kernel, transformers' cache wants a dense mask of all its tokens: a quarter of the requests. It
    # sees no FlashAttention-3 in a wheel that isn't called flash-attn-3.
    requests = 256 if is_flash_attn_2_available() or is_flash_attn_3_available() else 64
    # Random logits spread out so little that a nucleus is most of the vocabulary: a wide one. At temperature 0.1 it is
    # a few tokens.
    narrow, wide = (f"--sample temperature={t} --sample top_p=0.9" for t in (0.1, 1.0))
    ends = "--batch 1 --batch 32"
    pdl = {
        "8b_int8": f"{large} {ends} --set quantization=int8",
        "8b_fp8": f"{large} {ends} --set quantization=fp8",
        "8b_kv_int8": f"{large} --batch 32 --context 2048 --set kv_cache_dtype=int8",
        "8b": f"{large} {ends}",
        "30b": f"--model qwen3-30b-a3b {RANDOM} --batch 1 --batch 64",
    }
    return [
        *(Section(f"decode_{name}_pdl", f"decode {given}", 20, variables=PDL) for name, given in pdl.items()),
        Section("verify_costs_8b", f"verify-costs {large}", 28),
        # It wants text, so the default model, and the network (or `minillm pull` beforehand).
        Section("speculation", SPECULATION, 60),
        Section("decode_8b_two_gpus", f"decode {large} {ends} --set tensor_parallel_size=2", 60),
        Section("throughput_0.6b", f"throughput {small} --repeats 2", 40),
        Section("decode_0.6b", f"decode {small} --batch 1 --batch 8 --batch 64 --batch 256 --idle", 40),
        Section("kernels_30b", f"decode --model qwen3-30b-a3b {RANDOM} --batch 1 --batch 128 --idle", 40),
        Section("decode_1b", f"decode {middle} --batch 1 --batch 8 --batch 64", 30),
        Section("attention_8b", f"attention {large}", 40),
        Section("decode_8b_top_p", f"decode {large} --batch 1 --batch 128 {narrow}", 30),
        Section("decode_8b_wide_top_p", f"decode {large} --batch 1 --batch 128 {wide}", 30),
        Section("breakdown_0.6b", f"step-breakdown {small} --repeats 3", 45),
        Section("serve_overhead", "serve-overhead --device cuda --streams 64 --repeats 2", 45),
        Section("nano_vllm_0.6b", f"throughput {small} --repeats 1 --compare nano-vllm", 80),
        Section("hf_0.6b", f"throughput {small} --requests {requests} --repeats 1 --compare hf", 100),
        Section("lessons", LESSONS, 500, "course.lab.example_runs", "nbclient"),
    ]


SMALLER = {"--batch": 2, "--context": 16, "--tokens": 32, "--requests": 4, "--streams": 2, "--num-requests": 4}
SMALLER |= {"--prompt-tokens": 8, "--output-tokens": 4, "--concurrency": 2, "--slo-ttft": 60, "--slo-itl": 60}
"""What a rehearsal makes of an option's number."""


@dataclass(frozen=True, slots=True)
class Rehearsed(Section):
    """The same command on the CPU, with a tiny model: whether it starts, and what its report looks like."""

    model: str = ""

    def command(self, out: Path) -> list[str]:
        if self.module == "pytest":
            return [sys.executable, "-m", "pytest", *self.arguments.split(), "--collect-only"]
        if self.module != "minillm":
            return [sys.executable, "-m", self.module, "--help"]
        return [sys.executable, "-m", "minillm", "bench", *self.words(), "--out", str(out)]

    def words(self) -> list[str]:
        """The arguments, made small."""
        left_out = [r"--model \S+", "--load-format dummy", "--job (few|crowd)", "--method draft_head", "--idle"]
        left_out += [r"--workload (?!one\b)\S+", r"--set (kv_cache_memory_gb|max_num_seqs|max_model_len)=\S+"]
        text = re.sub("|".join(left_out), "", self.arguments).replace("cuda", "cpu").replace("bfloat16", "float32")
        text = re.sub(r"(--[a-z-]+) (\d[\d.]*)", lambda found: f"{found[1]} {SMALLER.get(found[1], found[2])}", text)
        words = [*text.split(), "--model", self.model]
        if words[0] == "serve":  # it has no --quick
            return [*words, "--set", "num_kv_blocks=64"]
        return [*words, "--quick"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Parity of every backend and graph with the CPU, then all benchmarks.

    Returns the exit status: 1 if a section failed, or was not reached in time: run it again to go on.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser("gpu-check", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        parser.error(f"this Python lacks {', '.join(missing)}: docs/gpu-box.md says how to bring packages along")
    plan = sections()
    names = [section.name for section in plan]
    parser.add_argument("--out", type=Path, default=Path("gpu-check"), help="Where sections leave their files.")
    parser.add_argument("--only", action="append", choices=names, help="Only this section; may be repeated.")
    parser.add_argument("--redo", action="store_true", help="Run sections again that have a file already.")
    parser.add_argument("--time-limit", type=int, default=TIME_LIMIT_S, help="Seconds; run it again to go on.")
    parser.add_argument("--tree", help="What the record calls this tree, where git isn't there to say it.")
    parser.add_argument("--rehearse", metavar="MODEL", help="The plan in small, on the CPU: measures nothing.")
    given = parser.parse_args(arguments)
    if given.time_limit <= 0:
        parser.error(f"--time-limit is a number of seconds above 0, not {given.time_limit}")
    import torch

    if given.rehearse is None and not torch.cuda.is_available():
        parser.error("PyTorch sees no CUDA device here: there is nothing to check (--rehearse MODEL tries the plan)")
    out = given.out.resolve()  # sections run in the project's folder, wherever this was called
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out {given.out}: {error.strerror}")
    chosen = [section for section in plan if not given.only or section.name in given.only]
    if given.rehearse is not None:
        chosen = [Rehearsed(**{**asdict(section), "usual_s": 60}, model=given.rehearse) for section in chosen]
    deadline = time.monotonic() + given.time_limit
    outcomes: dict[str, str] = {}
    about = describe(given.tree, arguments)
    slug = "".join(letter if letter.isalnum() else "_" for letter in about["device"].lower())
    file = out / (f"gpu_check_{slug}.json" if given.rehearse is None else "rehearsal.json")
    if given.rehearse is None and (others := {*out.glob("gpu_check_*.json")} - {file}):
        parser.error(f"{out} has what another device measured, {others.pop().name}: name another folder with --out")
    # What failed in an earlier call is tried again last: it may take as long, and fail again.
    before = json.loads(file.read_text())["outcomes"] if file.exists() else {}
    chosen.sort(key=lambda section: before.get(section.name) == "failed")
    for section in chosen:
        outcomes[section.name] = run(section, out, given.redo, deadline, about["tree"])
        record = {**about, **found(out, outcomes)}
        file.write_text(json.dumps(record, indent=1) + "\n")  # each time: this, too, may be cut short
    print(text_table(("section", "outcome"), outcomes.items()))
    if given.rehearse is not None:
        print("a rehearsal: nothing was measured")
    else:
        print(f"\n{goals_table(record['sections'])}\nrecord: {file}. Copy it to course/data/measured/ to publish it.")
    return int(not {"failed", "not run"}.isdisjoint(outcomes.values()))


def run(section: Section, out: Path, redo: bool, deadline: float, tree: str | None = None) -> str:
    """What became of it: `done`; `kept` (from an earlier run); `refused`, for a reason that its log ends with, such as
    a package that is not there; `failed`; `not run`, since too little time was left to start or to end it."""
    file, log, scratch = (out / f"{section.name}.{ending}" for ending in ("json", "log", "part"))
    if file.exists() and not redo:
        return "kept"
    start = time.monotonic()
    if (left := deadline - start) < section.usual_s:
        return "not run"
    if section.needs and importlib.util.find_spec(section.needs) is None:
        log.write_text(f"this Python lacks {section.needs}")
        return "refused"
    limit_s = min(SLACK * section.usual_s, left)
    print(f"gpu-check: {section.name} (at most {limit_s:.0f} s)", file=sys.stderr, flush=True)
    with log.open("w") as stream:
        status = exit_status(section.command(scratch), stream, limit_s)
    if status is None and limit_s == left:
        return "not run"  # the call ended, not its patience
    if status != 0:
        outcome = "refused" if status == 2 and section.module == "minillm" else "failed"
        print(f"gpu-check: {section.name} {outcome}; the end of {log}:\n{tail(log)}", file=sys.stderr)
        return outcome
    report = json.loads(scratch.read_text()) if scratch.exists() else {"summary": tail(log, 1)}
    about = {"seconds": time.monotonic() - start, "commit": tree, "variables": section.variables}
    scratch.write_text(json.dumps({**report, **about}))
    scratch.replace(file)  # in one step: a file that is there is whole
    return "done"


def exit_status(command: list[str], log: IO[str], limit_s: float) -> int | None:
    """A process's exit status, or None if time ran out. What it started ends, too: a server would hold the GPU."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that it ends with us
    with subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True) as process:
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            print(f"gpu-check: ended after {limit_s:.0f} s", file=log)
            return None
        finally:
            signal.signal(signal.SIGTERM, before)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def tail(log: Path, lines: int = 60) -> str:
    """The last lines of a log."""
    text = log.read_text(errors="replace").replace(str(ROOT), ".")  # a record names no folder
    return "\n".join(text.strip().splitlines()[-lines:])


def git_commit() -> str | None:
    """The commit of this checkout, with `-dirty` if it was changed since. None if git cannot tell."""
    command = f"git -C {shlex.quote(str(ROOT))} describe --always --dirty --abbrev=40 --exclude='*'"
    status, said = subprocess.getstatusoutput(command)
    return None if status else said


def describe(tree: str | None, arguments: Sequence[str]) -> dict[str, Any]:
    """What is run, on what.

    Args:
        tree: what to call it where git cannot tell.
    """
    import torch

    from minillm.bench.report import describe_machine, describe_versions

    machine, on_gpu = describe_machine(), torch.cuda.is_available()
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python3", "-m", "course.measure.gpu_check", *map(without_folder, arguments)]),
        "tree": git_commit() or tree,
        "sources": digest_of_sources(),
        "device": torch.cuda.get_device_name() if on_gpu else machine["cpu"],
        "num_gpus": torch.cuda.device_count(),
        "versions": {**describe_versions(), "triton": version("triton")},
        "flash_attention": {
            "versions": {name: version(name) for name in FLASH_ATTENTION},
            "modules": [name for name in FLASH_MODULES if importlib.util.find_spec(name) is not None],
        },
        "vllm": vllm_versions(),
        "machine": machine,
    }


def digest_of_sources() -> str:
    """SHA-256 of the Python and C++ that is measured: the same for equal trees, with git or without."""
    digest = hashlib.sha256()
    for file in sorted(each for each in (ROOT / "minillm").rglob("*") if each.suffix in (".py", ".cpp", ".h")):
        digest.update(f"{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def version(distribution: str) -> str | None:
    """None where it isn't installed, or not as a distribution."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def vllm_versions() -> dict[str, str] | None:
    """Versions of the vLLM that --compare would take and of its PyTorch; None where there is none."""
    from course.measure.contest import MissingBaselineError
    from course.measure.peers.vllm_peer import vllm_python

    try:
        python = vllm_python()
    except MissingBaselineError:
        return None
    program = "from importlib.metadata import version as v; print(v('vllm'), v('torch'))"
    said = subprocess.run([python, "-c", program], capture_output=True, text=True).stdout.split()
    return dict(zip(("vllm", "torch"), said))


def found(out: Path, outcomes: dict[str, str]) -> dict[str, Any]:
    """What became of the sections, each goal beside what was measured, and all reports, of now or before."""
    files = {section.name: out / f"{section.name}.json" for section in sections()}
    reports = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
    return {
        "outcomes": outcomes,
        "reasons": {name: tail(out / f"{name}.log") for name, o in outcomes.items() if o in ("refused", "failed")},
        "goals": as_record(reports),
        "sections": reports,
    }


if __name__ == "__main__":
    raise SystemExit(main())
