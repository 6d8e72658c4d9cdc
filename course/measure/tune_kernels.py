"""Which kernels and tiles are fastest on this GPU, for decodes: candidates beside what is in use.

    python3 -m course.measure.tune_kernels --out FOLDER --seconds 330

Shapes are those of Llama 3 8B and Qwen3 30B-A3B, and for one row Qwen3 0.6B. Each candidate is compared with a float32
reference, then timed in a CUDA graph that goes round copies of its weights, 200 MB from one use to the next, so no
cache holds them. Every result is a line of FOLDER/results.jsonl, and what's there isn't measured again.
A candidate that ends the process is noted, and the rest goes on without it. Kernels are compiled ahead, a process for
each processor.

`--rehearse` does all of it with small shapes in Triton's interpreter (TRITON_INTERPRET=1): its times mean nothing.
"""

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget

from course.measure.tuned_works import (
    MODELS,
    ROUNDED_ROWS,
    SIXTEEN_BITS,
    SMALL,
    TWO_LAUNCHES,
    LinearWork,
    PromptWork,
    Run,
    Work,
    works,
)

BANDWIDTH = 3.35e12
"""Bandwidth of an H100's memory (SXM), bytes/s, on paper."""
CAPABILITY = 90
"""Compiled for ahead; on another GPU kernels are compiled one by one."""
BUDGETS = {
    "row": 30.0,
    "likeliest": 8.0,
    "splits": 20.0,
    "int4": 60.0,
    "int8": 35.0,
    "fp8": 25.0,
    "swiglu": 30.0,
    "kv": 40.0,
    "moe": 40.0,
    "prompts": 25.0,
}
"""Seconds for each section, at most."""
SILENCE_S = 60.0
"""Without a result for so long, a process is ended."""
RESTARTS = 5
WAIT_FOR_COMPILER_S = 20.0
ENDED = "ended the process"
TIMED_S = 2e-3
"""What one timing takes, about."""
REPEATS = 5
GUESSED_BANDWIDTH = 2e12
ROUGH = 0.2
"""Largest error where both sides are rounded to 8 bits."""
MOST_LAUNCHES = 400


class Log:
    """Results, a line each, and what is being tried right now."""

    def __init__(self, folder: Path) -> None:
        self.results, self.trying = folder / "results.jsonl", folder / "trying.json"

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.results.read_text().splitlines()] if self.results.exists() else []

    def done(self) -> set[tuple[str, str, str]]:
        return {(line["section"], line["shape"], line["way"]) for line in self.lines()}

    def add(self, work: Work | None, way: str, **fields: Any) -> None:
        named = {"section": "", "shape": ""} if work is None else {"section": work.section, "shape": work.shape}
        with self.results.open("a") as file:
            file.write(json.dumps(named | {"way": way} | fields) + "\n")

    def begin(self, work: Work, way: str) -> None:
        self.trying.write_text(json.dumps({"section": work.section, "shape": work.shape, "way": way}))

    def note_crash(self, why: str) -> None:
        """Whatever was being tried ended the process."""
        if not self.trying.exists():
            return
        tried = json.loads(self.trying.read_text())
        if tuple(tried.values()) not in self.done():
            with self.results.open("a") as file:
                file.write(json.dumps(tried | {"note": why}) + "\n")

    def last_sign(self) -> float:
        return max((path.stat().st_mtime for path in (self.results, self.trying) if path.exists()), default=0.0)


def graph_seconds(run: Run, copies: int, bytes: int) -> float:
    """Median seconds of one run among many in a CUDA graph."""
    run(0)
    torch.cuda.synchronize()
    wanted = TIMED_S * GUESSED_BANDWIDTH / max(bytes, 1)
    launches = min(MOST_LAUNCHES, math.ceil(max(wanted, copies) / copies) * copies)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            run(i % copies)
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize()
    seconds = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        graph.replay()  # launched while the first runs, so a graph's own start hardly counts
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) / 1000 / launches / 2)
    return statistics.median(seconds)


def wall_seconds(run: Run, copies: int, bytes: int) -> float:
    start = time.perf_counter()
    run(copies - 1)
    return time.perf_counter() - start


def same(run: Run) -> Run:
    return run


def error_of(found: Tensor, reference: Tensor, spared: float) -> float:
    """Largest error, as a share of the reference's largest number; of rows, but for the worst of them."""
    each = (found.float() - reference).flatten(1).abs().amax(1) / reference.abs().max()
    return each.nan_to_num(nan=1e9, posinf=1e9).sort().values[-1 - int(len(each) * spared)].item()


class Tuner:
    """Measures every work, in turn.

    Args:
        end: of time.monotonic().
    """

    def __init__(self, log: Log, order: list[Work], device: str, compiled: dict[str, Future[None]], end: float) -> None:
        self.log, self.order, self.device, self.compiled, self.end = log, order, device, compiled, end
        self.seconds = graph_seconds if device == "cuda" else wall_seconds
        self.spent = dict.fromkeys(BUDGETS, 0.0)

    def tune(self) -> None:
        for work in self.order:
            if self.spent[work.section] > BUDGETS[work.section] or time.monotonic() > self.end:
                self.log.add(work, "all", note="no time left")
                continue
            start = time.monotonic()
            try:
                self.measure(work)
            except Exception as error:
                self.refuse_if_lost(error)
                self.log.add(work, "all", note=f"{type(error).__name__}: {str(error)[:300]}")
            work.release()
            self.spent[work.section] += time.monotonic() - start

    def refuse_if_lost(self, error: Exception) -> None:
        """After some errors nothing runs any more in this process."""
        if self.device == "cuda" and any(words in str(error) for words in ("illegal", "CUDA error", "misaligned")):
            raise error

    def measure(self, work: Work) -> None:
        self.log.begin(work, "prepare")
        torch.manual_seed(0)
        work.prepare(self.device)
        reference = work.reference()
        took: dict[Any, float] = {}
        for candidate in work.first():
            took[candidate] = self.try_one(work, str(candidate), partial(work.run, candidate), reference)
        ways = work.in_use()
        if isinstance(work, LinearWork):
            ways[SIXTEEN_BITS] = work.whole()
        for way, run in ways.items():
            self.try_one(work, way, partial(same, run), None if SIXTEEN_BITS in way else reference)
        del ways
        right = {candidate: seconds for candidate, seconds in took.items() if seconds < math.inf}
        best = sorted((c for c in right if c != "routing alone"), key=right.__getitem__)[:2]
        for candidate in work.next(best) if best else ():
            self.try_one(work, str(candidate), partial(work.run, candidate), reference)

    def try_one(self, work: Work, way: str, make: Callable[[], Run], reference: Tensor | None) -> float:
        """Seconds; infinite if it fails or computes wrongly."""
        known = [
            line
            for line in self.log.lines()
            if (line["section"], line["shape"], line["way"]) == (work.section, work.shape, way)
        ]
        if known:
            return math.inf if "note" in known[-1] else known[-1]["us"] / 1e6
        if time.monotonic() > self.end:
            return math.inf
        self.log.begin(work, way)
        try:
            future = self.compiled.get(key_of(work, way))
            if future is not None and not future.cancel():  # one that hasn't begun is compiled here
                with contextlib.suppress(TimeoutError):
                    future.result(timeout=WAIT_FOR_COMPILER_S)
            run = make()
            found = run(0)
            if self.device == "cuda":
                torch.cuda.synchronize()
            error = None
            if reference is not None and found.shape == reference.shape:
                error = error_of(found, reference, work.spared)
            seconds = self.seconds(run, work.copies, work.bytes)
        except Exception as failure:
            self.refuse_if_lost(failure)
            self.log.add(work, way, note=f"{type(failure).__name__}: {str(failure)[:300]}")
            return math.inf
        wrong = error is not None and error > (ROUGH if way == ROUNDED_ROWS else work.tolerance)
        rate = work.bytes / seconds
        fields = {"us": round(seconds * 1e6, 3), "gb_s": round(rate / 1e9), "share": round(rate / BANDWIDTH, 3)}
        self.log.add(work, way, **fields, error=error, **({"note": "wrong"} if wrong else {}))
        return math.inf if wrong else seconds


def key_of(work: Work, way: str) -> str:
    return f"{work.section}|{work.shape}|{way}"


class Warmup:
    """Stands for a Triton kernel: a launch only compiles it."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def compile_it(*given: Any, **options: Any) -> None:
            types = [value.dtype if isinstance(value, Tensor) else value for value in given]
            self.kernel.warmup(*types, grid=grid, **options)

        return compile_it


class NoGpu:
    """Stands for Triton's driver: says what to compile for, and needs no GPU to say so."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", CAPABILITY, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0


def only_compile() -> None:
    """From now on launches in this process compile."""
    triton.runtime.driver.set_active(NoGpu())
    from course.measure import row_kernel, tuned_works
    from minillm.kernels.triton import (
        attention,
        attention_kernels,
        experts,
        few_rows,
        fragments,
        likeliest,
        rounded_attention,
    )
    from minillm.kernels.triton.gpu import GpuLimits

    for module in (row_kernel, attention_kernels, experts, few_rows, fragments, likeliest, rounded_attention):
        for name, value in list(vars(module).items()):
            if hasattr(value, "warmup") and name in LAUNCHED:
                setattr(module, name, Warmup(value))
    for module in (attention, few_rows, tuned_works):
        module.gpu = lambda device: GpuLimits(132, 227 * 1024)  # type: ignore[attr-defined]


LAUNCHED = {
    *("attend_tiles", "combine_splits", "attend_pairs", "route", "multiply_by_experts", "add_shares"),
    *("multiply_few", "widen_all", "multiply_row", "_largest_of_part", "_largest_of_row"),
}


def compile_one(number: int, way: str) -> None:
    """Compile what this way of doing a work launches. The result is in Triton's cache."""
    work = works(MODELS)[number]
    work.copies = 1
    work.prepare("meta")
    for candidate in all_candidates(work):
        if str(candidate) == way:
            work.run(candidate)(0)
            return
    if run := work.in_use().get(way):
        run(0)


def all_candidates(work: Work) -> Iterator[Any]:
    """The first ones, and what may follow from them."""
    yield from work.first()
    for candidate in work.first():
        yield from work.next([candidate])


def start_compilers(log: Log) -> tuple[ProcessPoolExecutor, dict[str, Future[None]]]:
    """Begin to compile everything that is not measured yet: the first candidates of all works, then the rest."""
    count = max(2, min(15, (os.cpu_count() or 2) - 1))
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("fork"), initializer=only_compile)
    order, done = works(MODELS), log.done()
    futures: dict[str, Future[None]] = {}
    for later in (False, True):
        for number, work in enumerate(order):
            in_use = [] if later or isinstance(work, PromptWork) else ["now"]
            ways = [str(c) for c in (all_candidates(work) if later else work.first())] + in_use
            for way in ways:
                if key_of(work, way) not in futures and (work.section, work.shape, way) not in done:
                    futures[key_of(work, way)] = pool.submit(compile_one, number, way)
    return pool, futures


def measure_here(folder: Path, seconds: float, rehearse: bool) -> None:
    """What the inner process does."""
    log, end = Log(folder), time.monotonic() + seconds
    if rehearse:
        Tuner(log, works(SMALL), "cpu", {}, end).tune()
        return
    pool, compiled = start_compilers(log)  # before this process touches the GPU: it forks
    try:
        Tuner(log, works(MODELS), "cuda", compiled, end).tune()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def measure(folder: Path, seconds: float, rehearse: bool) -> None:
    """Run inner processes until all is measured, or time is up."""
    log, end = Log(folder), time.monotonic() + seconds
    for _ in range(RESTARTS):
        left = end - time.monotonic()
        if left < 10:
            break
        command = [
            sys.executable,
            "-m",
            "course.measure.tune_kernels",
            "--out",
            str(folder),
            "--seconds",
            str(left - 5),
        ]
        with (folder / "inner.log").open("a") as said:
            inner = subprocess.Popen(
                [*command, "--inner", *(["--rehearse"] if rehearse else [])],
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        started, why = time.time(), ENDED
        while inner.poll() is None:
            time.sleep(0.2)
            silent = time.time() - max(started, log.last_sign())
            if silent > SILENCE_S or time.monotonic() > end:
                why = "gave no sign of life" if silent > SILENCE_S else "out of time"
                break
        status = inner.poll()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(inner.pid, signal.SIGKILL)  # its compilers, too
        inner.wait()
        if status == 0:
            break
        log.note_crash(why)


def summary(lines: list[dict[str, Any]]) -> str:
    """For each shape: what's in use, 16 bits, and the three fastest that are right."""
    shapes: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in lines:
        shapes.setdefault((line["section"], line["shape"]), []).append(line)
    out = []
    for (section, shape), ways in shapes.items():
        right = [way for way in ways if "us" in way and way.get("note") != "wrong"]
        fixed = [
            way
            for way in right
            if way["way"] in ("now", SIXTEEN_BITS, ROUNDED_ROWS, TWO_LAUNCHES) or "alone" in way["way"]
        ]
        tried = sorted((way for way in right if way not in fixed), key=lambda way: way["us"])
        failed = [way for way in ways if "note" in way]
        out.append(f"{section} {shape}")
        out += [f"  {w['us']:9.2f} us {w['share']:6.1%}  {w['way']}" for w in [*fixed, *tried[:3]]]
        if failed:
            out.append(f"  {len(failed)} failed, the first: {failed[0]['way']}: {failed[0]['note'][:120]}")
    return "\n".join(out)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--seconds", type=float, default=330, help="for everything; default 330")
    parser.add_argument("--rehearse", action="store_true", help="small shapes, in the interpreter")
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if not given.seconds > 0:
        parser.error(f"--seconds is a number above 0, not {given.seconds}")
    if not given.rehearse and not torch.cuda.is_available():
        parser.error("PyTorch sees no CUDA device here: there is nothing to tune (--rehearse tries it in small)")
    try:
        given.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out {given.out}: {error.strerror}")
    if given.inner:
        measure_here(given.out, given.seconds, given.rehearse)
        return
    start = time.monotonic()
    measure(given.out, given.seconds, given.rehearse)
    if not given.rehearse:
        versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "device": torch.cuda.get_device_name()}
        (given.out / "machine.json").write_text(json.dumps(versions | {"seconds": round(time.monotonic() - start)}))
    print(summary(Log(given.out).lines()))


if __name__ == "__main__":
    main()
