"""Runs the library's self-test (selftest.cpp) before the engine loads it, in a process that may crash.

A library can end the process that it's loaded into: a fortified build that finds a fault aborts, and an instruction
that the CPU doesn't have is a signal. So it's tried once, where nothing else is lost; the verdict is kept beside it.
A self-test that came to no verdict, since something else stopped it, says nothing about the library.
"""

import errno
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

LIMIT_CPU_S = 60
"""Seconds of CPU time. A self-test takes a third of one; if it takes so many, it hangs, however busy the machine is."""
LIMIT_S = 180.0
"""Seconds to wait for it. A machine may be busy or suspended, so that being late is no fault of the library."""
LOG = "selftest.log"
LAST_LINES = 3
WRONG_NUMBERS = 3
"""The program's exit status where a function computes wrongly, and only there (selftest.cpp)."""
FAULTS = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
"""Signals that a process brings upon itself."""
NOEXEC = "nothing may be executed there: the cache folder is mounted noexec. Set MINILLM_HOME to a folder elsewhere"


class NoVerdictError(Exception):
    """A self-test was stopped from outside, was late, or could not begin: the library may be right or wrong."""


def run_selftest(program: Path) -> str | None:
    """What went wrong, and in which check; None: every function computes rightly. What it printed is kept beside it.

    Raises:
        NoVerdictError: it could not be found out this time.
    """
    log = program.with_name(LOG)
    # Two threads share work as any number does; idle ones sleep, so that a busy machine isn't kept from other work.
    environment = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive", **os.environ}
    command = [str(program), str(LIMIT_CPU_S)]
    with log.open("wb") as output:
        streams: dict[str, Any] = dict(stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            status = subprocess.run(command, env=environment, timeout=LIMIT_S, **streams).returncode
        except subprocess.TimeoutExpired:
            raise NoVerdictError(with_last_lines(f"it had not ended after {LIMIT_S:g} s", log)) from None
        except OSError as error:
            advice = f" ({NOEXEC})" if error.errno == errno.EACCES else ""
            raise NoVerdictError(f"it could not be started: {error}{advice}") from error
    if status == 0:
        return None
    if status == WRONG_NUMBERS:
        return with_last_lines("it found wrong numbers", log)
    if -status in FAULTS:
        return with_last_lines(f"it was ended by {name_of(-status)}", log)
    if -status == signal.SIGXCPU:
        return with_last_lines(f"it had not ended after {LIMIT_CPU_S} s of CPU time", log)
    ended = f"it was ended by {name_of(-status)}" if status < 0 else f"it ended with status {status}"
    raise NoVerdictError(with_last_lines(ended, log))


def with_last_lines(ended: str, log: Path) -> str:
    """How a self-test ended, with the last lines that it printed: they name the check."""
    said = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
    return "\n".join([ended + (", after it printed" if said else ""), *(f"  {line}" for line in said)])


def name_of(number: int) -> str:
    """SIGSEGV for 11."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
