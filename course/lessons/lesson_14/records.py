"""What was found for each claim, and where: a file that outlives the notebook."""

from dataclasses import field
from pathlib import Path

from pydantic import BaseModel, Field
from pydantic.dataclasses import dataclass

from course.lab.claims import VERDICTS
from course.lab.json_store import JsonFile
from minillm.host.storage import cache_home

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


class Records(BaseModel):
    """What the file holds. Unknown fields are left out."""

    records: list[Record] = Field(default_factory=list)


class Book:
    """Records in a JSON file: for each claim and device the newest. Two notebooks may write to it at once.

    Args:
        path: of the file; it need not be there.
    """

    def __init__(self, path: Path) -> None:
        self.file = JsonFile(path, Records)

    @classmethod
    def of_form(cls, short: bool) -> "Book":
        """The learner's own, in minillm's home. Results of the short form are kept apart from real ones."""
        return cls(cache_home() / "ledger" / ("short.json" if short else "ledger.json"))

    @property
    def path(self) -> Path:
        return self.file.path

    def records(self) -> list[Record]:
        """Oldest first. A file that cannot be understood is put aside, under another name, and a new one begun."""
        return sorted(self.file.read().records, key=lambda record: record.when)

    def put(self, record: Record) -> None:
        """Keep a record, in place of an older one of the same claim on the same device.

        Raises:
            OSError, Timeout: it cannot be written.
        """

        def replace(content: Records) -> None:
            others = [each for each in content.records if (each.id, each.device) != (record.id, record.device)]
            content.records = [*others, record]

        self.file.change(replace)
