"""How a row of the ledger looks: the claim, its phases, what became of it; what was measured opens on demand."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from course.lab.claims import Entry
from course.lab.display import Html
from course.lab.style import ALARM, PHASE_COLOURS, PHASE_LABELS, seconds
from course.lessons.lesson_14.records import FAILED, UNMEASURED, Record

SIGNS = {"holds": "●", "holds only when": "◐", "wrong": "✕", "not shown": "○", FAILED: "!", UNMEASURED: "·"}
"""A sign beside each word, fuller the more of the claim is left."""
SOFT = "color:var(--jp-ui-font-color2,#57606a);font-size:12px"
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")


@dataclass(frozen=True)
class Row:
    """One claim, and what is known of it here."""

    entry: Entry
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
    def circumstances(self) -> str:
        """Where, when and how long it was measured."""
        if self.record is None:
            return ""
        took = "in its lesson" if self.record.seconds is None else seconds(self.record.seconds)
        told = f"{self.record.device}, {self.record.when[:10]}, {took}"
        told += "; on another machine" if not self.is_from_here else ""
        return told + ("; its experiment has changed since: measure it again" if self.is_old else "")

    def __str__(self) -> str:
        return f"{self.entry.id} {self.kind}: {self.finding} (claim: {self.entry.claim})"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": table_of([row_html(self, is_open=True)]), "text/plain": str(self)}


def row_html(row: Row, is_open: bool = False) -> str:
    """A `<tr>` of three cells.

    Args:
        is_open: what was measured is in sight, instead of folded away.
    """
    entry, cell = row.entry, "text-align:left;vertical-align:top;padding:5px 12px 5px 0;line-height:1.35"
    where = f"{entry.source_name} · lesson {entry.lesson} · {_phases(entry)}"
    claim = f'{escape(entry.claim)}<div style="{SOFT}">{where}</div>'
    colour = f"color:{ALARM};" if row.kind in ("wrong", FAILED) else ""
    separator = ": " if row.record is None else " "
    verdict = f'<b style="{colour}">{SIGNS[row.kind]} {row.kind}</b>{separator}{escape(row.finding)}'
    if row.record is not None:
        verdict += _details(row, is_open)
    return (
        f'<tr style="border-top:1px solid var(--jp-border-color2,#d0d7de)"><td width="44" style="{cell}"><b>{entry.id}'
        f'</b></td><td width="42%" style="{cell}">{claim}</td><td style="{cell}">{verdict}</td></tr>'
    )


def _details(row: Row, is_open: bool) -> str:
    record = row.record
    parts = [("Measured", record.measured), ("Verdict", record.verdict)] if record.error is None else []
    body = "".join(f"<div><b>{name}.</b> {escape(words)}</div>" for name, words in parts)
    body += "".join(f"<div>On {escape(other.device)}: {other.kind}.</div>" for other in row.others)
    where = f'<div style="{SOFT}">{escape(row.circumstances)}</div>'
    if not body:
        return where
    label = f'<summary style="{SOFT};cursor:pointer">what was measured</summary>'
    return f"<details{' open' if is_open else ''}>{label}{body}{where}</details>"


def _phases(entry: Entry) -> str:
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


def rows_table(rows: Sequence[Row]) -> Html:
    """Rows that show themselves."""
    if not rows:
        return Html("<p><em>No claim passes these filters.</em></p>", "No claim passes these filters.")
    return Html(table_of([row_html(row) for row in rows]), "\n".join(map(str, rows)))
