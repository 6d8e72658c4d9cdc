"""What minillm's home folder holds of a learner: which files, to look at, to take along, or to erase.

Models, compiled kernels and calibrated profiles lie in the same folder. They are the machine's, and stay.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minillm.host.storage import cache_home


@dataclass(frozen=True)
class Kept:
    """One kind of file."""

    name: str
    """Relative to the home folder."""
    what: str

    def files(self) -> list[Path]:
        """It, and what was put aside because it could not be read (json_store.py); those that are there."""
        path = cache_home() / self.name
        return sorted({*path.parent.glob(path.name), *path.parent.glob(f"{path.stem}.broken*")})


KEPT = (
    Kept("progress.json", "lessons you have opened, predictions you have locked, how your checks went"),
    Kept("cards.json", "the schedule of your review cards"),
    Kept("exercises.jsonl", "your attempts at exercises, and the hints you have read"),
    Kept("drills.json", "your drills, with the full text of every answer, including those given in a terminal"),
    Kept("incidents.json", "incidents whose truth you have been told"),
    Kept("chat.history", "what you typed in minillm chat"),
    Kept("incident.history", "what you typed in minillm incident"),
    Kept("drill.history", "what you typed in minillm drill"),
    Kept("noise.json", "figures of your dashboard runs, from which the noise of this machine is estimated"),
    Kept("ledger/ledger.json", "what lesson 14's experiments measured on this machine"),
    Kept("ledger/short.json", "the same, in their short form"),
)


def found() -> Iterator[tuple[Kept, Path]]:
    """What is there now."""
    for kept in KEPT:
        for path in kept.files():
            yield kept, path


def contents() -> dict[str, Any]:
    """By file, what it holds: parsed where it is JSON, else its text."""
    read = {}
    for _, path in found():
        text = path.read_text(encoding="utf-8", errors="replace")
        try:
            read[str(path.relative_to(cache_home()))] = json.loads(text)
        except ValueError:
            read[str(path.relative_to(cache_home()))] = text
    return read


def erase() -> list[str]:
    """As if nothing had ever been kept. Returns what could not be erased, and why."""
    trouble = []
    for _, path in list(found()):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            trouble.append(f"{path}: {error.strerror or error}")
    return trouble
