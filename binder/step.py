"""One step of the setup, quietly: `step.py LOG WHAT COMMAND...`. Any Python 3 runs it; nothing has been installed yet.

On a screen one line counts the seconds and says what is being fetched, and how much of it is here; elsewhere there is
a line a minute. What the command says goes to LOG, whose end is shown if it fails; a line that begins with `! ` is for
the reader, and is shown at once. The exit status is the command's. Ctrl-C (130) reaches the command, too: it has
the time to put things away.
"""

import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TextIO

TALKING = re.compile(r"^\s*(Collecting|Downloading|Using cached|Processing)\s+(\S+)")
"""Lines of pip that tell what it is at."""
FETCHED = re.compile(r"^Progress (\d+) of (\d+)$")
"""Bytes of one file, several times a second, if pip was told `--progress-bar raw`. Too many for a log."""
BAR_CELLS = 20
TOLD_AT_FAILURE = 25
QUIET_S = 60


class Progress:
    """The line on the screen, drawn by a thread of its own."""

    def __init__(self, what: str, screen: bool) -> None:
        self.what, self.screen = what, screen
        self.now = ""
        """What the command is at."""
        self._began, self._ended = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._draw, daemon=True)

    def __enter__(self) -> "Progress":
        if not self.screen:
            print(f"  {self.what}", flush=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def tell(self, line: str) -> None:
        """A line that stays, above the one that counts."""
        print(f"{self._start}{line}", flush=True)

    def close(self, verdict: str) -> None:
        self.tell(f"  {verdict} {self.what} [{self._seconds}]")

    @property
    def _start(self) -> str:
        return "\r\033[K" if self.screen else ""

    @property
    def _seconds(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"

    def _draw(self) -> None:
        while not self._ended.wait(0.5 if self.screen else QUIET_S):
            if self.screen:
                width = shutil.get_terminal_size().columns - 1  # a line that wraps could not be taken back
                print(self._start + f"  . {self.what} [{self._seconds}] {self.now}"[:width], end="", flush=True)
            else:
                print(f"    [{self._seconds}] {self.now}", flush=True)


def bar(fetched: int, total: int) -> str:
    """`[####......] 40 of 190 MB`. Args: bytes; a total of 0 is not known."""
    if total < fetched or total == 0:
        return f"{fetched / 1e6:.0f} MB"
    done = BAR_CELLS * fetched // total
    return f"[{'#' * done}{'.' * (BAR_CELLS - done)}] {fetched / 1e6:.0f} of {total / 1e6:.0f} MB"


def run(log: Path, what: str, command: list[str], screen: bool) -> int:
    progress = Progress(what, screen)
    try:
        with progress, log.open("a", encoding="utf-8") as file:
            file.write(f"$ {' '.join(command)}\n")
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
            )
            try:
                status = follow(process, file, progress)
            except KeyboardInterrupt:
                progress.now = "stopping"
                see_out(process)
                raise
    except KeyboardInterrupt:
        progress.close("stopped:")
        raise
    progress.close("failed:" if status else "done:")
    if status:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        print("\n".join(lines[-TOLD_AT_FAILURE:]), f"\n(all of it: {log})", file=sys.stderr)
    return status


def follow(process: "subprocess.Popen[str]", file: TextIO, progress: Progress) -> int:
    """Show and keep what the command says until it ends. Returns its status."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := FETCHED.match(line):
            progress.now = bar(*map(int, found.groups()))
            continue
        file.write(line)
        if line.startswith("! "):
            progress.tell(f"  {line.rstrip()}")
        elif found := TALKING.match(line):
            progress.now = " ".join(found.groups())
        elif line.startswith("Installing collected packages"):
            progress.now = "unpacking"
    return process.wait()


def see_out(process: "subprocess.Popen[str]") -> None:
    """Wait for a command that was told to stop: who starts again at once must not meet it. A second Ctrl-C kills it."""
    try:
        process.communicate()  # what it still says is read, or it might wait for ever
    except KeyboardInterrupt:
        process.kill()
        process.wait()


if __name__ == "__main__":
    try:
        sys.exit(run(Path(sys.argv[1]), sys.argv[2], sys.argv[3:], sys.stdout.isatty()))
    except KeyboardInterrupt:
        sys.exit(130)
