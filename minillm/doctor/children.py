"""Checks in processes of their own: one that crashes, hangs or can't import something doesn't keep the others from it.

A child writes each finding as one line of JSON to its standard output, as soon as it is found, then END.
"""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from minillm.doctor.checks import CHECKS, PLEASE_REPORT, Check
from minillm.doctor.report import CheckResult, Report

REAPING_S = 5.0
"""Seconds to wait for a killed child: one that hangs in the kernel, on a network file system, outlives even that."""
AT_ONCE = 4
END = "end"
DETAIL_CHARACTERS = 4000
SIGNAL_MEANINGS = {
    "SIGKILL": "most often the system had no memory left",
    "SIGILL": "an instruction that this processor doesn't have: a package was built for another one",
    "SIGSEGV": "a package of native code is broken, or doesn't fit another one",
    "SIGBUS": "a file was cut short, or there is no room in /dev/shm",
}


def examine() -> Report:
    """Run all checks, a few at a time, and collect what they find, in their order."""
    found: dict[str, list[CheckResult]] = {}
    torch_works = True
    children = Children()
    with ThreadPoolExecutor(min(AT_ONCE, os.cpu_count() or 1)) as pool:
        try:
            for stage in sorted({check.stage for check in CHECKS.values()}):
                able = {name: check for name, check in CHECKS.items() if check.stage == stage}
                for name in [name for name, check in able.items() if check.with_torch and not torch_works]:
                    found[name] = [unfinished(name, able.pop(name), "it needs torch", "mend that first")]
                if able:
                    print(f"minillm: looking at {', '.join(able)} ...", file=sys.stderr, flush=True)
                found |= zip(able, pool.map(children.run, able, able.values()))
                broken = [finding for finding in found.get("torch", []) if finding.status in ("bad", "unfinished")]
                torch_works = not broken
        except BaseException:  # Ctrl-C, which reaches only this process and this thread
            pool.shutdown(wait=False, cancel_futures=True)
            children.stop()
            raise
    needed = [name for name, check in CHECKS.items() if check.needed]
    undecided = [name for name in needed if any(finding.status == "unfinished" for finding in found[name])]
    return Report([finding for name in CHECKS for finding in found[name]], undecided)


class Children:
    """The processes in which checks run."""

    def __init__(self) -> None:
        self.running: set[subprocess.Popen[bytes]] = set()
        self.stopped = False

    def run(self, name: str, check: Check) -> list[CheckResult]:
        """What a check finds in a process of its own, also where it doesn't come to its end."""
        try:
            child = self.start(name)
        except OSError as error:  # no memory, or no processes left
            return [unfinished(name, check, str(error), "close something, and try again")]
        try:
            out, said = child.communicate(timeout=check.deadline_s)
            why = why_it_ended(child.returncode, said)
            fix = how_to_mend(child.returncode, why)
        except subprocess.TimeoutExpired:
            out, said = end(child)
            why = f"it was not done after {check.deadline_s:.0f} s"
            fix = f"try again when the machine is idle; else {PLEASE_REPORT}"
        finally:
            self.running.discard(child)
        findings, whole = read_findings(out)
        return findings if whole else [*findings, unfinished(name, check, why, fix, said)]

    def start(self, name: str) -> "subprocess.Popen[bytes]":
        """A child that looks for its libraries where this process would."""
        program = "import sys; sys.path[:] = {!r}; from minillm.doctor.children import answer; answer({!r})"
        child = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", program.format(sys.path, name)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONIOENCODING": "utf-8:backslashreplace"},
            start_new_session=True,  # so that what it starts, such as a compiler, can be ended with it
        )
        self.running.add(child)
        if self.stopped:
            kill(child)
        return child

    def stop(self) -> None:
        """Kill those that still run, and any that is just being started."""
        self.stopped = True
        for child in tuple(self.running):
            kill(child)


def kill(child: "subprocess.Popen[bytes]") -> None:
    """End a child and what it has started."""
    with contextlib.suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        child.kill()


def end(child: "subprocess.Popen[bytes]") -> tuple[bytes, bytes]:
    """Kill a child. Returns what it wrote until then."""
    kill(child)
    try:
        return child.communicate(timeout=REAPING_S)
    except subprocess.TimeoutExpired as late:
        return late.output or b"", late.stderr or b""


def answer(name: str) -> None:
    """Run the check called `name` in a child, and write what it finds. What libraries print goes to standard error."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        try:
            for finding in CHECKS[name].examine():
                print(json.dumps(dataclasses.asdict(finding)), file=out, flush=True)
        finally:
            sys.stdout.flush()  # before the traceback, whose end says why
        print(END, file=out)


def read_findings(out: bytes) -> tuple[list[CheckResult], bool]:
    """The findings in a child's standard output, and whether these are all. It may end in the middle of a line."""
    *lines, _ = out.decode("utf-8", "replace").split("\n")  # what follows the last line break is not whole
    return [CheckResult(**json.loads(line)) for line in lines if line != END], END in lines


def unfinished(name: str, check: Check, why: str, fix: str, said: bytes = b"") -> CheckResult:
    """The finding that stands for a check without an end."""
    details = said.decode("utf-8", "replace").strip()[-DETAIL_CHARACTERS:] or None
    return CheckResult(check.group, name, "unfinished", f"could not finish: {why}", fix, details)


def why_it_ended(status: int, said: bytes) -> str:
    """What a child's exit status means, and its last words."""
    text = said.decode("utf-8", "replace")
    words = text.partition("Fatal Python error")[0].strip().splitlines()[-1:]  # before faulthandler's stack
    last = f" ({words[0].strip()[:300]})" if words else ""
    if status >= 0:
        return words[0].strip()[:300] if words else f"it ended early, with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    meaning = SIGNAL_MEANINGS.get(name)
    return f"it was ended by {name}{f', {meaning}' if meaning else ''}{last}"


def how_to_mend(status: int, why: str) -> str:
    """What to do about a check that ended early: nearly always a package that it imports is broken.

    Args:
        status: the child's exit status; negative = a signal.
        why: what `why_it_ended` says.
    """
    if why.startswith(ModuleNotFoundError.__name__):
        return "make setup"
    if status == -signal.SIGKILL:
        return f"close something, and try again; else {PLEASE_REPORT}"
    return f"install the packages anew: make clean && make setup. If it's there again, {PLEASE_REPORT}"
