"""What was found for each claim: records that outlive the notebook, how a row looks, a picture of all, and exports."""

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from pydantic import BaseModel, Field
from pydantic.dataclasses import dataclass as stored_dataclass

from course.lab.claims import IN_PART, VERDICTS, Claim, RegisteredClaim
from course.lab.display import Html
from course.lab.json_store import JsonFile
from course.lab.style import ALARM, PHASE_COLOURS, PHASE_LABELS, WIDTH, seconds
from course.lab.svg import INK, PAPER, SOFT, Picture, line, rect, tag, text
from minillm.host.storage import cache_home

FAILED, UNMEASURED = "failed", "not measured yet"
CONDITION = "only when"
KINDS = ("holds", CONDITION, "wrong", "not shown", FAILED, UNMEASURED)
"""What may have become of a claim."""
LABELS = {kind: IN_PART if kind == CONDITION else kind for kind in KINDS}
"""Each kind as it's shown."""


@stored_dataclass(frozen=True)
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


SIGNS = {"holds": "●", "only when": "◐", "wrong": "✕", "not shown": "○", FAILED: "!", UNMEASURED: "·"}
"""A sign beside each word, fuller the more of the claim is left."""
SMALL_PRINT = "color:var(--jp-ui-font-color2,#57606a);font-size:12px"
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")


# ---------------------------------------------------------------- rows


@dataclass(frozen=True)
class LedgerRow:
    """One claim, and what is known of it here."""

    entry: RegisteredClaim
    record: Record | None
    """The newest of this machine, else the newest of another."""
    is_old: bool = False
    """The code that measures it has changed since."""
    is_from_here: bool = True
    has_experiment: bool = True
    others: tuple[Record, ...] = ()
    """From other machines."""

    @property
    def kind(self) -> str:
        """One of records.KINDS."""
        return UNMEASURED if self.record is None else self.record.kind

    @property
    def is_done(self) -> bool:
        """Measured on this machine, by the code there is now, without an error."""
        return self.record is not None and self.is_from_here and not self.is_old and self.kind != FAILED

    def passes(self, source: str | None, phase: str | None, verdict: str | None, lesson: str | None) -> bool:
        """Whether it is in sight under these filters; see `Ledger.rows`."""
        return (
            source in (None, self.entry.source_name, self.entry.id[0])
            and (phase is None or phase in self.entry.phases)
            and verdict in (None, self.kind)
            and (lesson is None or lesson in self.entry.lessons)
        )

    @property
    def finding(self) -> str:
        """What became of the claim, in a sentence that follows its sign and kind."""
        if self.record is None:
            return "measure it" if self.has_experiment else f"lesson {self.entry.lesson} has no experiment yet"
        if self.record.error is not None:
            return self.record.error
        return SENTENCE.split(self.record.verdict.removeprefix(self.kind).lstrip(" ,.:;"))[0]

    @property
    def label(self) -> str:
        """Its kind as it's shown, before `told`."""
        return LABELS[self.kind]

    @property
    def told(self) -> str:
        """`finding` as it stands behind its kind: "wrong for one server", but "wrong. There's no such knee"."""
        if self.record is None or self.kind == FAILED:
            return f": {self.finding}"
        if self.record.verdict.removeprefix(self.kind).startswith((":", ".")):
            return f". {self.finding[:1].upper()}{self.finding[1:]}"
        return f": {self.finding}" if self.kind == CONDITION else f" {self.finding}"

    @property
    def circumstances(self) -> str:
        """Where, when and how long it was measured."""
        if self.record is None:
            return ""
        took = "in its lesson" if self.record.seconds is None else seconds(self.record.seconds)
        told = f"{self.record.device}, {self.record.when[:10]}, {took}"
        told += "; on another machine" if not self.is_from_here else ""
        return told + ("; its experiment has changed since: measure it again" if self.is_old else "")

    def __str__(self) -> str:
        return f"{self.entry.id} {self.label}{self.told} (claim: {self.entry.claim})"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": table_of([row_html(self, is_open=True)]), "text/plain": str(self)}


def row_html(row: LedgerRow, is_open: bool = False) -> str:
    """A `<tr>` of three cells.

    Args:
        is_open: what was measured is in sight, instead of folded away.
    """
    entry, cell = row.entry, "text-align:left;vertical-align:top;padding:5px 12px 5px 0;line-height:1.35"
    where = f"{entry.source_name} · lesson {entry.lesson} · {_phases(entry)}"
    claim = f'{escape(entry.claim)}<div style="{SMALL_PRINT}">{where}</div>'
    colour = f"color:{ALARM};" if row.kind in ("wrong", FAILED) else ""
    verdict = f'<b style="{colour}">{SIGNS[row.kind]} {row.label}</b>{escape(row.told)}'
    if row.record is not None:
        verdict += _details(row, is_open)
    return (
        f'<tr style="border-top:1px solid var(--jp-border-color2,#d0d7de)"><td width="44" style="{cell}"><b>{entry.id}'
        f'</b></td><td width="42%" style="{cell}">{claim}</td><td style="{cell}">{verdict}</td></tr>'
    )


def _details(row: LedgerRow, is_open: bool) -> str:
    record = row.record
    parts = []
    if record.error is None:
        claim = Claim(record.id, record.measured, record.verdict)
        parts = [("Measured", claim.measured), ("Verdict", claim.told)]
    body = "".join(f"<div><b>{name}.</b> {escape(words)}</div>" for name, words in parts)
    body += "".join(f"<div>On {escape(other.device)}: {LABELS[other.kind]}.</div>" for other in row.others)
    where = f'<div style="{SMALL_PRINT}">{escape(row.circumstances)}</div>'
    if not body:
        return where
    label = f'<summary style="{SMALL_PRINT};cursor:pointer">what was measured</summary>'
    return f"<details{' open' if is_open else ''}>{label}{body}{where}</details>"


def _phases(entry: RegisteredClaim) -> str:
    """Names with a swatch each; all five are "every phase"."""
    if len(entry.phases) == len(PHASE_LABELS):
        return "every phase"
    swatch = "display:inline-block;width:9px;height:9px;border-radius:2px;background:"
    return ", ".join(
        f'<span style="{swatch}{PHASE_COLOURS[phase]}"></span> {PHASE_LABELS[phase]}' for phase in entry.phases
    )


def table_of(rows: Sequence[str]) -> str:
    """Rows of `row_html` as a table."""
    look = "border-collapse:collapse;width:100%;max-width:920px;font-size:13px;table-layout:fixed"
    return f'<table style="{look}"><tbody>{"".join(rows)}</tbody></table>'


def rows_table(rows: Sequence[LedgerRow]) -> Html:
    """Rows that show themselves."""
    if not rows:
        return Html("<p><em>No claim passes these filters.</em></p>", "No claim passes these filters.")
    return Html(table_of([row_html(row) for row in rows]), "\n".join(map(str, rows)))


# ---------------------------------------------------------------- all claims in one picture

GROUPS: dict[str, Callable[[LedgerRow], Sequence[str]]] = {
    "source": lambda row: (row.entry.source_name,),
    "phase": lambda row: tuple(PHASE_LABELS[phase] for phase in row.entry.phases),
    "lesson": lambda row: (f"lesson {row.entry.lesson}",),
}
"""What a line of tiles has in common. A claim about two phases is in both lines."""
LEFT, TILE, STEP = 92, 24, 27
FOOT = 8
PER_LINE = (WIDTH - LEFT) // STEP


def draw_map(rows: Sequence[LedgerRow], group: str = "source", lit: Sequence[str] | None = None) -> Picture:
    """Tiles in lines by `group`.

    Args:
        group: one of GROUPS.
        lit: ids of claims that pass the filters; the others are faint. None = all.
    """
    lines = _lines(rows, group)
    body, y = _legend(rows), 34.0
    for name, members in lines.items():
        body += text(LEFT - 8, y + 17, name, size=12, text_anchor="end")
        for i, row in enumerate(members):
            x, down = LEFT + STEP * (i % PER_LINE), y + STEP * (i // PER_LINE)
            faint = lit is not None and row.entry.id not in lit
            body += tag("g", tile(x, down, row), opacity=0.18 if faint else None)
        y += STEP * -(-len(members) // PER_LINE) + 5
    told = "; ".join(f"{name}: {_told(members)}" for name, members in lines.items())
    measured = sum(row.kind != UNMEASURED for row in rows)
    title = f"What became of {len(rows)} claims? {measured} measured"
    return Picture(title, body, y + 2, description=told + ".")


def tile(x: float, y: float, row: LedgerRow, named: bool = True) -> str:
    """One claim: full = it holds, a foot = under a condition, a cross = wrong, hollow = not shown, dashed = open."""
    fill = INK if row.kind == "holds" else PAPER
    dash = "3 3" if row.kind == UNMEASURED else None
    edge = ALARM if row.kind in ("wrong", FAILED) else SOFT if row.kind == UNMEASURED else INK
    drawn = rect(x, y, TILE, TILE, rx=4, fill=fill, stroke=edge, stroke_width=1.4, stroke_dasharray=dash)
    if row.kind == "only when":
        drawn += rect(x, y + TILE - FOOT, TILE, FOOT, fill=INK, rx=3)
    if row.kind == "wrong":
        left, low, high = x + TILE / 2 - 3.5, y + TILE - FOOT - 1, y + TILE - 2
        drawn += line(left, low, left + 7, high, stroke=ALARM, stroke_width=1.8)
        drawn += line(left, high, left + 7, low, stroke=ALARM, stroke_width=1.8)
    if row.kind == FAILED:
        drawn += text(x + TILE - 6, y + 10, "!", size=11, fill=ALARM, font_weight="bold")
    up = 4 if row.kind in ("only when", "wrong") else 0
    ink = PAPER if row.kind == "holds" else SOFT if row.kind == UNMEASURED else INK
    if not named:
        return drawn
    return drawn + text(x + TILE / 2, y + 16 - up, row.entry.id, size=11, fill=ink, text_anchor="middle")


def _legend(rows: Sequence[LedgerRow]) -> str:
    """The kinds that occur, with how many of each. A tile without a name stands for each."""
    body, x = "", float(LEFT)
    for kind in KINDS:
        count = sum(row.kind == kind for row in rows)
        if count:
            sample = next(row for row in rows if row.kind == kind)
            mark = tag("g", tile(0, 0, sample, named=False), transform=f"translate({x:.0f} 2) scale(0.68)")
            label = f"{LABELS[kind]}: {count}"
            body += mark + text(x + 22, 14, label, size=11, fill=SOFT)
            x += 40 + 6.0 * len(label)
    return body


def _lines(rows: Sequence[LedgerRow], group: str) -> Mapping[str, list[LedgerRow]]:
    found: dict[str, list[LedgerRow]] = {}
    for row in rows:
        for name in GROUPS[group](row):
            found.setdefault(name, []).append(row)
    if group == "phase":
        return {name: found[name] for name in PHASE_LABELS.values() if name in found}
    return found if group == "source" else dict(sorted(found.items()))


def _told(rows: Sequence[LedgerRow]) -> str:
    return ", ".join(f"{row.entry.id} {row.label}" for row in rows)


# ---------------------------------------------------------------- CSV, JSON, Markdown


def fields_of(row: LedgerRow) -> dict[str, object]:
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


def as_csv(rows: Sequence[LedgerRow]) -> str:
    written = io.StringIO()
    table = [fields_of(row) for row in rows]
    writer = csv.DictWriter(written, fieldnames=list(table[0]) if table else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return written.getvalue()


def as_json(rows: Sequence[LedgerRow]) -> str:
    return json.dumps([fields_of(row) for row in rows], indent=1, ensure_ascii=False) + "\n"


def as_markdown(rows: Sequence[LedgerRow]) -> str:
    lines = ["| | claim | found | where |", "|---|---|---|---|"]
    for row in rows:
        found = f"{SIGNS[row.kind]} **{row.label}**{row.told}"
        cells = (row.entry.id, row.entry.claim, found, row.circumstances)
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


WRITERS: dict[str, Callable[[Sequence[LedgerRow]], str]] = {".csv": as_csv, ".json": as_json, ".md": as_markdown}


def as_text(rows: Sequence[LedgerRow], ending: str) -> str:
    """All rows in the format of a file's ending.

    Raises:
        ValueError: there is no such format.
    """
    if ending.lower() not in WRITERS:
        raise ValueError(f"the ledger is written as {', '.join(WRITERS)}, not as {ending or 'a file without ending'}")
    return WRITERS[ending.lower()](rows)
