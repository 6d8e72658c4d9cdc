"""What was found for each claim, and where: a file that outlives the notebook."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from filelock import FileLock

from course.lab.claims import VERDICTS
from minillm.models.storage import cache_home

VERSION = 1
FAILED, UNMEASURED = "failed", "not measured yet"
KINDS = ("holds", "holds only when", "wrong", "not shown", FAILED, UNMEASURED)
"""What may have become of a claim."""


@dataclass(frozen=True)
class Record:
    """One claim, measured once, on one machine."""

    id: str
    verdict: str
    """Begins with one of VERDICTS; empty where the experiment failed."""
    measured: str
    """What was found, in words and numbers."""
    seconds: float | None
    """That the experiment took; None: it was measured in a lesson's own cells."""
    when: str
    """Date and time in UTC, ISO 8601."""
    device: str
    """The GPU's name, or the processor's."""
    versions: dict[str, str | None] = field(default_factory=dict)
    code: str = ""
    """Fingerprint of the code that measured it."""
    error: str | None = None
    """Why the experiment failed."""

    @property
    def kind(self) -> str:
        if self.error is not None:
            return FAILED
        return next((kind for kind in VERDICTS if self.verdict.startswith(kind)), FAILED)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Record":
        """Raises TypeError: a field is missing. Fields that nobody knows are left out."""
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in content.items() if name in known})


class Book:
    """Records in a JSON file: for each claim and device the newest. Two notebooks may write to it at once.

    Args:
        path: of the file; it need not be there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of_form(cls, short: bool) -> "Book":
        """The learner's own, in minillm's home. Results of the short form are kept apart from real ones."""
        return cls(cache_home() / "ledger" / ("short.json" if short else "ledger.json"))

    def records(self) -> list[Record]:
        """Oldest first. A file that cannot be read is set aside, under another name, and a new one begun."""
        if not self.path.is_file():
            return []
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            if content["version"] != VERSION:
                raise ValueError(f"version {content['version']}")
            found = [Record.from_dict(each) for each in content["records"]]
        except (ValueError, KeyError, TypeError, AttributeError):
            self.path.replace(self.path.with_suffix(".unreadable"))
            return []
        return sorted(found, key=lambda record: record.when)

    def put(self, record: Record) -> None:
        """Keep a record, in place of an older one of the same claim on the same device."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path.with_suffix(".lock")):
            kept = [each for each in self.records() if (each.id, each.device) != (record.id, record.device)]
            self._write([*kept, record])

    def _write(self, records: Iterable[Record]) -> None:
        """Whole or not at all: written beside, then renamed."""
        content = {"version": VERSION, "records": [asdict(record) for record in records]}
        beside = self.path.with_suffix(f".{os.getpid()}.partial")
        beside.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        beside.replace(self.path)
