"""A server that is started to be tried or measured, and ended with that."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from minillm.core.errors import MinillmError
from minillm.strict_model import StrictModel

START_LIMIT_S = 600.0
"""vLLM compiles and records graphs before it answers: minutes, on some machines."""
END_LIMIT_S = 20.0
LOG_END = 8_000
"""Characters of what it printed that an error quotes: a vLLM that fails tells why some screens before its last line."""
GUARD = "import os, signal, sys; sys.stdin.read(); os.killpg(int(sys.argv[1]), signal.SIGKILL)"
"""What outlives us, even a SIGKILL: the end of its standard input is our end."""


class ServerError(MinillmError):
    """The command didn't become a server. The message has the end of what it printed."""


@contextmanager
def serving(
    command: Sequence[str],
    log: Path,
    words: Mapping[str, object] = {},
    env: Mapping[str, str] = {},
    limit_s: float = START_LIMIT_S,
) -> Iterator[str]:
    """Start a command in which {port} and other {words} are filled in, and wait until its /v1/models answers.

    What it has started ends with it, and with us, however we end.

    Args:
        log: gets what it prints.
        env: environment variables beside ours.
        limit_s: seconds that it may take to answer.
    Returns:
        Its URL, without /v1.
    Raises:
        ServerError: it ended, or doesn't answer in time.
    """
    port = _free_port()
    filled = [_filled(word, {**words, "port": port}) for word in command]
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                filled, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env={**os.environ, **env}
            )
        except OSError as error:
            raise ServerError(f"{shlex.join(filled)}: {error}") from error
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # it has the server ended, too
    try:
        with _guarded(process.pid):
            _wait(url, process, log, limit_s)
            yield url
    finally:
        signal.signal(signal.SIGTERM, before)
        _end(process)


def _filled(word: str, words: Mapping[str, object]) -> str:
    """A word of the command; {names} that we don't know stay as they are."""
    for name, value in words.items():
        word = word.replace(f"{{{name}}}", str(value))
    return word


@contextmanager
def _guarded(group: int) -> Iterator[None]:
    """Have a process group killed if we're killed meanwhile."""
    guard = subprocess.Popen([sys.executable, "-c", GUARD, str(group)], stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        guard.kill()
        guard.communicate()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command and what it has started: a shell's server, a server's workers."""
    with suppress(ProcessLookupError):  # nothing of it is left
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_LIMIT_S)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait(url: str, process: subprocess.Popen[bytes], log: Path, limit_s: float) -> None:
    """Wait until /v1/models answers. Raises ServerError, with what it answered last, if it doesn't in time."""
    deadline, last = time.monotonic() + limit_s, "nothing listens there"
    while process.poll() is None and time.monotonic() < deadline:
        try:
            status = httpx.get(f"{url}/v1/models", timeout=5).status_code
            if status == 200:
                return
            last = f"HTTP {status}"
        except httpx.HTTPError as error:
            last = str(error)
        time.sleep(0.3)
    late = f"{url}/v1/models isn't ready after {limit_s:g} s ({last})"
    ended = late if process.poll() is None else f"it ended with status {process.returncode}"
    raise ServerError(f"{ended}. The end of what it printed:\n{log.read_text(errors='replace')[-LOG_END:]}")


def as_flags(config: StrictModel) -> list[str]:
    """The options of `minillm serve` that make this config: of its fields, those that were set."""
    flags = []
    for name, value in config.model_dump(mode="json", exclude_unset=True).items():
        words = name.replace("_", "-")
        if value is None:
            continue  # which no flag can say, and which is what such a field is without one
        if isinstance(value, bool):
            flags.append(f"--{words}" if value else f"--no-{words}")
        elif isinstance(value, list):
            flags += [word for one in value for word in (f"--{words}", one)]
        else:
            flags += [f"--{words}", value if isinstance(value, str) else json.dumps(value)]
    return flags
