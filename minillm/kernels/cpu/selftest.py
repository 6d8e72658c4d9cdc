"""Runs the library's self-test (selftest.cpp) before the engine loads it, in a process that may crash.

A library can end the process that it's loaded into: a fortified build that finds a fault aborts, and an instruction
that the CPU doesn't have is a signal. So it's tried once, where nothing else is lost; the verdict is kept beside it.
"""

import os
import signal
import subprocess
from pathlib import Path

LIMIT_S = 60.0
"""It takes a third of a second on one core; a machine may be busy, or emulated."""
LOG = "selftest.log"
LAST_LINES = 3


def run_selftest(program: Path) -> str | None:
    """What went wrong, and in which check; None: every function computes rightly. What it printed is kept beside it."""
    log = program.with_name(LOG)
    # Two threads share work as any number does; idle ones sleep, so that a busy machine isn't kept from other work.
    environment = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive", **os.environ}
    with log.open("wb") as output:
        try:
            status = subprocess.run(
                [str(program)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                timeout=LIMIT_S,
            ).returncode
        except subprocess.TimeoutExpired:
            ended = f"it had not ended after {LIMIT_S:g} s"
        except OSError as error:
            ended = f"it could not be started: {error}"
        else:
            if status == 0:
                return None
            ended = f"it was ended by {name_of(-status)}" if status < 0 else f"it ended with status {status}"
    said = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
    return "\n".join([ended + (", after it printed" if said else ""), *(f"  {line}" for line in said)])


def name_of(number: int) -> str:
    """SIGSEGV for 11."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
