"""A child process that runs Python, and a pipe to it."""

import os
import subprocess
import sys
from multiprocessing import Pipe
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


def start_python(*arguments: str, **options: Any) -> "tuple[subprocess.Popen[bytes], Connection]":
    """Start a new Python that imports what this one can. A fork could not use CUDA, and multiprocessing would run the
    caller's script a second time.

    Args:
        arguments: what to run, and its arguments. One more follows: the file descriptor of the pipe's other end.
        options: more of Popen's.
    """
    ours, theirs = Pipe()
    with theirs:  # so that the pipe ends with the process
        process = subprocess.Popen(
            [sys.executable, "-P", *arguments, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            # Absolute, as "" is the current folder; and notebooks append Paths.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            **options,
        )
    return process, ours
