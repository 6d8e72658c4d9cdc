"""One step of the setup, quietly: `step.py LOG WHAT COMMAND...`. Any Python 3 runs it; nothing has been installed yet.

On a screen one line counts the seconds and says what is being fetched; elsewhere there is a line a minute. What the
command says goes to LOG, whose end is shown if it fails. The exit status is the command's.
"""

import re
import subprocess
import sys
import threading
import time
from pathlib import Path

TALKING = re.compile(r"^\s*(Collecting|Downloading|Using cached|Processing)\s+(\S+)")
"""Lines of pip that tell how far it is."""
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

    def close(self, verdict: str) -> None:
        start = "\r\033[K" if self.screen else ""
        print(f"{start}  {verdict} {self.what} [{self._seconds}]", flush=True)

    @property
    def _seconds(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"

    def _draw(self) -> None:
        while not self._ended.wait(0.5 if self.screen else QUIET_S):
            if self.screen:
                print(f"\r\033[K  . {self.what} [{self._seconds}] {self.now}"[:100], end="", flush=True)
            else:
                print(f"    [{self._seconds}] {self.now}", flush=True)


def run(log: Path, what: str, command: list[str], screen: bool) -> int:
    with Progress(what, screen) as progress, log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(command)}\n")
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            if found := TALKING.match(line):
                progress.now = " ".join(found.groups())
            elif line.startswith("Installing collected packages"):
                progress.now = "unpacking"
        status = process.wait()
    progress.close("failed:" if status else "done:")
    if status:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        print("\n".join(lines[-TOLD_AT_FAILURE:]), f"\n(all of it: {log})", file=sys.stderr)
    return status


if __name__ == "__main__":
    try:
        sys.exit(run(Path(sys.argv[1]), sys.argv[2], sys.argv[3:], sys.stdout.isatty()))
    except KeyboardInterrupt:
        sys.exit(130)
