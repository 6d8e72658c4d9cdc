"""The ledger as CSV, JSON or Markdown."""

import csv
import io
import json
from collections.abc import Callable, Sequence

from course.lessons.lesson_14.rows import SIGNS, Row


def fields_of(row: Row) -> dict[str, object]:
    """A row as plain values; seconds is a number, or None."""
    record = row.record
    return {
        "id": row.entry.id,
        "claim": row.entry.claim,
        "source": row.entry.source,
        "lessons": " ".join(row.entry.lessons),
        "phases": " ".join(row.entry.phases),
        "kind": row.kind,
        "verdict": record.verdict if record else "",
        "measured": record.measured if record else "",
        "device": record.device if record else "",
        "when": record.when if record else "",
        "seconds": round(record.seconds, 2) if record and record.seconds is not None else None,
        "versions": " ".join(f"{name} {version}" for name, version in record.versions.items()) if record else "",
        "error": (record.error or "") if record else "",
    }


def as_csv(rows: Sequence[Row]) -> str:
    written = io.StringIO()
    table = [fields_of(row) for row in rows]
    writer = csv.DictWriter(written, fieldnames=list(table[0]) if table else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return written.getvalue()


def as_json(rows: Sequence[Row]) -> str:
    return json.dumps([fields_of(row) for row in rows], indent=1, ensure_ascii=False) + "\n"


def as_markdown(rows: Sequence[Row]) -> str:
    lines = ["| | claim | found | where |", "|---|---|---|---|"]
    for row in rows:
        found = f"{SIGNS[row.kind]} **{row.kind}** {row.finding}"
        cells = (row.entry.id, row.entry.claim, found, row.circumstances)
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


WRITERS: dict[str, Callable[[Sequence[Row]], str]] = {".csv": as_csv, ".json": as_json, ".md": as_markdown}


def as_text(rows: Sequence[Row], ending: str) -> str:
    """All rows in the format of a file's ending.

    Raises:
        ValueError: there is no such format.
    """
    if ending.lower() not in WRITERS:
        raise ValueError(f"the ledger is written as {', '.join(WRITERS)}, not as {ending or 'a file without ending'}")
    return WRITERS[ending.lower()](rows)
