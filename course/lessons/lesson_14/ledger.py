"""Measures claims one by one, keeps what was found, and shows it."""

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from course.lab.claims import REGISTRY, Claim, Entry
from course.lab.display import Html
from course.lab.lab import Lab
from course.lab.waiting import Stopped, with_progress
from course.lessons.lesson_14 import export
from course.lessons.lesson_14.measuring import Experiment, find_experiments
from course.lessons.lesson_14.records import KINDS, Book, Record
from course.lessons.lesson_14.rows import Row, rows_table
from minillm.bench.report import describe_machine, describe_versions

REPRESENTATIVE = ("A1", "A9", "A17", "B1", "D3", "D18", "E4", "F1")
"""What the short form measures: every source, every verdict that there is, and all of it quickly."""


class Ledger:
    """All claims, and what became of them here.

    Args:
        lab: experiments on the real engine run in it.
        book: where results are kept; None = the learner's own, under minillm's home.
        experiments: None = those of all lessons there are.
    """

    def __init__(
        self, lab: Lab, *, book: Book | None = None, experiments: Mapping[str, Experiment] | None = None
    ) -> None:
        self.lab = lab
        self.is_short = lab.scale != 1
        self.book = book or Book.of_form(self.is_short)
        self.experiments = find_experiments() if experiments is None else dict(experiments)
        self.device = device_name(lab)
        self._turn = threading.Lock()

    @property
    def chosen(self) -> list[str]:
        """Ids of the claims to measure in one go: all, or in the lab's short form a representative few."""
        return [claim for claim in (REPRESENTATIVE if self.is_short else REGISTRY) if claim in self.experiments]

    def rows(
        self,
        *,
        source: str | None = None,
        phase: str | None = None,
        verdict: str | None = None,
        lesson: str | None = None,
    ) -> list[Row]:
        """The claims that pass every filter, in the registry's order.

        Args:
            source: a name of claims.SHORT_NAMES, or the letter with which ids begin.
            phase: one of the five that the claim speaks of.
            verdict: one of records.KINDS.
            lesson: two digits; the lesson that measures it, or another one that it is a topic of.
        """
        found: dict[str, list[Record]] = {}
        for record in self.book.records():
            found.setdefault(record.id, []).append(record)
        rows = [self._row(entry, found.get(entry.id, [])) for entry in REGISTRY.values()]
        return [row for row in rows if row.passes(source, phase, verdict, lesson)]

    def row(self, claim: str) -> Row:
        """One claim.

        Raises:
            LookupError: there is no such claim.
        """
        entry = _entry(claim)
        return self._row(entry, [record for record in self.book.records() if record.id == entry.id])

    def measure(self, claim: str) -> Row:
        """Run a claim's experiment, keep what it found, and show it. An experiment that fails says why in its row.

        Raises:
            LookupError: there is no such claim, or nothing that measures it.
        """
        self._check(claim)
        self._run_all([claim])
        return self.row(claim)

    def measure_all(self, only: Sequence[str] | None = None, *, again: bool = False) -> Html:
        """Run every experiment that has no result on this machine yet, and show the rows. Each result is kept as soon
        as it is there: interrupt it, and call it again another day.

        Args:
            only: ids of claims; None = `chosen`.
            again: run also those that have a result.
        """
        wanted = list(self.chosen if only is None else only)
        missing = [claim for claim in wanted if again or not self.row(claim).is_done]
        missing = [claim for claim in missing if claim in self.experiments]
        self._run_all(missing)
        return rows_table([self.row(claim) for claim in wanted])

    def run(self, claim: str) -> Row:
        """As `measure`, of one claim, which isn't shown: for a thread that has no cell."""
        self._check(claim)
        with self._turn:
            self.book.put(self._record(claim, self.experiments[claim]))
        return self.row(claim)

    def _run_all(self, claims: Sequence[str]) -> None:
        """One by one; the cell's line tells which."""
        try:
            for claim in with_progress(claims, "measuring claims"):
                self.run(claim)
        except KeyboardInterrupt:
            raise Stopped(f"Stopped at {claim}. What was measured before is kept; run this again to go on.") from None

    def _check(self, claim: str) -> None:
        entry = _entry(claim)
        if claim not in self.experiments:
            raise LookupError(f"nothing measures {claim} yet: lesson {entry.lesson} has no experiment for it")

    def keep(self, found: Claim) -> Row:
        """Put a claim that a lesson's own cells have measured into its row, and show that.

        Raises:
            LookupError: there is no such claim, or nothing that measures it.
        """
        self._check(found.id)
        with self._turn:
            self.book.put(self._stamped(found.id, found.verdict, found.measured, None))
        return self.row(found.id)

    def table(self, **filters: str | None) -> Html:
        """The rows that pass the filters of `rows`."""
        return rows_table(self.rows(**filters))

    def counts(self) -> dict[str, int]:
        """How many rows there are of each kind."""
        found = Counter(row.kind for row in self.rows())
        return {kind: found[kind] for kind in KINDS}

    def export(self, name: str | Path = "ledger.md") -> Html:
        """Write all rows to a file, as CSV, JSON or Markdown, as its name ends. A bare name lies beside the book.

        Raises:
            ValueError: the name has another ending, or is the book's own.
        """
        path = Path(name).expanduser()
        path = path if path.parent != Path() else self.book.path.parent / path
        if path.resolve() == self.book.path.resolve():
            raise ValueError(f"{path.name} is the ledger itself: choose another name")
        rows = self.rows()
        text = export.as_text(rows, path.suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
        told = (
            f"{len(rows)} rows, {sum(row.record is not None for row in rows)} of them measured, are in {_short(path)}"
        )
        return Html(f"<p>{told}</p>", told)

    def _row(self, entry: Entry, records: Sequence[Record]) -> Row:
        """With the newest record of this machine; if it has none, the newest of another."""
        here = [record for record in records if record.device == self.device]
        record = (here or list(records) or [None])[-1]
        experiment = self.experiments.get(entry.id)
        is_old = record is not None and experiment is not None and record.code != experiment.code
        others = tuple(each for each in records if each is not record)
        return Row(entry, record, is_old, bool(here), experiment is not None, others)

    def _record(self, claim: str, experiment: Experiment) -> Record:
        verdict = measured = ""
        error = None
        began = time.perf_counter()
        try:
            found = experiment.run(self.lab)
            if found.id != claim:
                raise LookupError(f"this experiment is about {found.id}")
            verdict, measured = found.verdict, found.measured
        except Exception as problem:  # told in its row: the others go on
            error = f"{type(problem).__name__}: {problem}"
        return self._stamped(claim, verdict, measured, time.perf_counter() - began, error)

    def _stamped(self, claim: str, verdict: str, measured: str, took: float | None, error: str | None = None) -> Record:
        """With where, when and by which code."""
        when, code = datetime.now(UTC).isoformat(timespec="seconds"), self.experiments[claim].code
        return Record(claim, verdict, measured, took, when, self.device, describe_versions(), code, error)


def device_name(lab: Lab) -> str:
    """What the lab's engine runs on: the GPU's name, or the processor's and how many cores."""
    machine = describe_machine()
    if "gpu" in machine and lab.config().device != "cpu":
        return machine["gpu"]["name"]
    return f"{machine['cpu']}, {machine['cores']} cores"


def _entry(claim: str) -> Entry:
    if claim not in REGISTRY:
        raise LookupError(f"no claim {claim!r}: they are {', '.join(REGISTRY)}")
    return REGISTRY[claim]


def _short(path: Path) -> str:
    """With ~ for the home folder."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
