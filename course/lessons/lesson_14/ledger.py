"""Measures claims one by one, keeps what was found, and shows it. The panel works with it by buttons."""

import hashlib
import importlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from types import ModuleType

import ipywidgets as widgets

from course.lab.claims import REGISTRY, SHORT_NAMES, Claim, RegisteredClaim
from course.lab.display import Html, LivePanel
from course.lab.explorer import buttons
from course.lab.lab import Lab
from course.lab.style import PHASE_LABELS
from course.lab.waiting import Stopped, with_progress
from course.lessons.lesson_14.rows import (
    GROUPS,
    KINDS,
    LABELS,
    Book,
    LedgerRow,
    Record,
    as_text,
    draw_map,
    row_html,
    rows_table,
    table_of,
)
from minillm.bench.report import describe_machine, describe_versions

COURSE = Path(__file__).parents[2]


@dataclass(frozen=True)
class Experiment:
    """What measures one claim."""

    lesson: str
    run: Callable[[Lab], Claim]
    code: str
    """Fingerprint of its lesson's code: a result of other code is an old one."""


def find_experiments() -> dict[str, Experiment]:
    """By claim id, from the words.py of every lesson."""
    found: dict[str, Experiment] = {}
    for folder in sorted((COURSE / "lessons").glob("lesson_*")):
        lesson = folder.name.removeprefix("lesson_")
        module = words_of(lesson)
        code = fingerprint(folder, getattr(module, "EXPERIMENT", ()))
        for claim, run in module.MEASURE.items():
            found[claim] = Experiment(lesson, run, code)
    return found


def words_of(lesson: str) -> ModuleType:
    """A lesson's words.py."""
    return importlib.import_module(f"course.lessons.lesson_{lesson}.words")


def fingerprint(lesson: Path, others: Sequence[str] = (), course: Path = COURSE) -> str:
    """Hash of a lesson's code and words, and of other code that its experiments run.

    Args:
        lesson: its folder.
        others: modules (each with its .toml) and folders under `course`; the lesson's words.py lists them as
            EXPERIMENT.
    """
    found = hashlib.sha256()
    for part in (lesson, *(course / name for name in others)):
        for path in sorted(part.rglob("*") if part.is_dir() else part.parent.glob(f"{part.stem}.*")):
            if path.suffix in (".py", ".toml"):  # a claim's words are in the .toml beside its module
                found.update(f"{path.name}\n".encode() + path.read_bytes())
    return found.hexdigest()[:12]


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
    ) -> list[LedgerRow]:
        """The claims that pass every filter, in the registry's order.

        Args:
            source: a name of claims.SHORT_NAMES, or the letter with which ids begin.
            phase: one of the five that the claim speaks of.
            verdict: one of rows.KINDS.
            lesson: two digits; the lesson that measures it, or another one that it is a topic of.
        """
        found: dict[str, list[Record]] = {}
        for record in self.book.records():
            found.setdefault(record.id, []).append(record)
        rows = [self._row(entry, found.get(entry.id, [])) for entry in REGISTRY.values()]
        return [row for row in rows if row.passes(source, phase, verdict, lesson)]

    def row(self, claim: str) -> LedgerRow:
        """One claim.

        Raises:
            LookupError: there is no such claim.
        """
        entry = _entry(claim)
        return self._row(entry, [record for record in self.book.records() if record.id == entry.id])

    def measure(self, claim: str) -> LedgerRow:
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

    def run(self, claim: str) -> LedgerRow:
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

    def keep(self, found: Claim) -> LedgerRow:
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
        text = as_text(rows, path.suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
        told = (
            f"{len(rows)} rows, {sum(row.record is not None for row in rows)} of them measured, are in {_short(path)}"
        )
        return Html(f"<p>{told}</p>", told)

    def _row(self, entry: RegisteredClaim, records: Sequence[Record]) -> LedgerRow:
        """With the newest record of this machine; if it has none, the newest of another."""
        here = [record for record in records if record.device == self.device]
        record = (here or list(records) or [None])[-1]
        experiment = self.experiments.get(entry.id)
        is_old = record is not None and experiment is not None and record.code != experiment.code
        others = tuple(each for each in records if each is not record)
        return LedgerRow(entry, record, is_old, bool(here), experiment is not None, others)

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
    """What the lab's engine runs on: the GPU's name, the processor's and how many cores, or what is simulated."""
    if lab.simulated is not None:
        return lab.simulated.label(lab.config())
    machine = describe_machine()
    if "gpu" in machine and lab.config().device != "cpu":
        return machine["gpu"]["name"]
    return f"{machine['cpu']}, {machine['cores']} cores"


def _entry(claim: str) -> RegisteredClaim:
    if claim not in REGISTRY:
        raise LookupError(f"no claim {claim!r}: they are {', '.join(REGISTRY)}")
    return REGISTRY[claim]


def _short(path: Path) -> str:
    """With ~ for the home folder."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


# ---------------------------------------------------------------- the ledger to work with

ALL = "all"


class LedgerPanel(LivePanel):
    """Filters over the claims; one of those in sight can be measured, or all that have no result here yet.

    Experiments run one after the other in a thread of their own, so that no cell waits and Stop works.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.filters: dict[str, widgets.Dropdown] = {
            "source": _dropdown("source", {name: name for name in SHORT_NAMES.values()}),
            "phase": _dropdown("phase", {label: phase for phase, label in PHASE_LABELS.items()}),
            "verdict": _dropdown("verdict", {LABELS[kind]: kind for kind in KINDS}),
            "lesson": _dropdown("lesson", {e: e for e in sorted({n for x in REGISTRY.values() for n in x.lessons})}),
        }
        self.group = buttons("a line for each", list(GROUPS))
        self.claim = widgets.Dropdown(description="claim", layout=widgets.Layout(width="160px"))
        self.one = _button("Measure it", self.measure)
        self.missing = _button("Measure what is missing here", self.measure_missing)
        self.stop_button = _button("Stop after this one", self.stop)
        self.stop_button.disabled = True
        self.map, self.message, self.count = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self.views = {claim: widgets.HTML(layout=widgets.Layout(width="100%")) for claim in REGISTRY}
        self._thread: threading.Thread | None = None
        self._stop_requested = threading.Event()
        for control in (*self.filters.values(), self.group):
            control.observe(lambda _: self.refresh(), names="value")
        wrap = widgets.Layout(flex_flow="row wrap", width="100%")
        choosing = widgets.Box(list(self.filters.values()), layout=wrap)
        measuring = widgets.Box([self.claim, self.one, self.missing, self.stop_button, self.message], layout=wrap)
        parts = [choosing, self.group, self.map, measuring, self.count, *self.views.values()]
        self.widget = widgets.VBox(parts, layout=widgets.Layout(width="100%"))
        self.refresh()

    @property
    def rows(self) -> list[LedgerRow]:
        """The claims that pass the filters."""
        return self.ledger.rows(**self._chosen())

    @property
    def in_sight(self) -> list[str]:
        """Their ids."""
        return [row.entry.id for row in self.rows]

    def refresh(self) -> None:
        """Draw the map and the rows that pass the filters; offer those that can be measured."""
        every, chosen = self.ledger.rows(), self._chosen()
        in_sight = [row.entry.id for row in every if row.passes(**chosen)]
        self.map.value = draw_map(every, self.group.value, in_sight).svg()
        self.count.value = f"Showing {len(in_sight)} of {len(self.ledger.rows())} claims."
        for row in every:
            # A view for each: only a value that has changed is drawn again, so evidence that is open stays open.
            view = self.views[row.entry.id]
            view.value = table_of([row_html(row)])
            view.layout.display = None if row.entry.id in in_sight else "none"
        kept = self.claim.value
        offered = [row.entry.id for row in every if row.has_experiment and row.entry.id in in_sight]
        self.claim.options = offered
        self.claim.value = kept if kept in offered else next(iter(offered), None)

    def measure(self) -> None:
        """The chosen claim, again if it has been."""
        if self.claim.value is not None:
            self._begin([self.claim.value])

    def measure_missing(self) -> None:
        """Every claim in sight that has no result of this machine yet."""
        self._begin([row.entry.id for row in self.rows if row.has_experiment and not row.is_done])

    def stop(self) -> None:
        """Begin no other claim; the one that is being measured is finished, and kept."""
        self._stop_requested.set()

    def wait(self) -> "LedgerPanel":
        """Until nothing is being measured."""
        if self._thread is not None:
            self._thread.join()
        return self

    def _begin(self, claims: Sequence[str]) -> None:
        """Measure these in the background, unless that is going on."""
        if self._thread is None or not self._thread.is_alive():
            self._stop_requested.clear()
            self._enable(measuring=True)
            self._thread = threading.Thread(target=self._work, args=(claims,), name="ledger", daemon=True)
            self._thread.start()

    def _work(self, claims: Sequence[str]) -> None:
        try:
            for place, claim in enumerate(claims, 1):
                if self._stop_requested.is_set():
                    break
                self.message.value = f"measuring {claim}, {place} of {len(claims)} …"
                self.ledger.run(claim)
                self.refresh()
            self.message.value = ""
        except Exception as error:  # the book cannot be read or written: no other claim could be kept either
            self.message.value = f"{claim} could not be kept, or shown: {escape(str(error))}"
        finally:
            self._enable(measuring=False)

    def _enable(self, measuring: bool) -> None:
        self.one.disabled = self.missing.disabled = measuring
        self.stop_button.disabled = not measuring

    def _chosen(self) -> dict[str, str | None]:
        """The filters of `Ledger.rows`, as they stand."""
        return {name: None if menu.value == ALL else menu.value for name, menu in self.filters.items()}

    def static_html(self) -> str:
        return self.map.value + rows_table(self.rows).html


def _button(words: str, action: Callable[[], None]) -> widgets.Button:
    button = widgets.Button(description=words, layout=widgets.Layout(width="auto"))
    button.on_click(lambda _: action())
    return button


def _dropdown(label: str, options: dict[str, str]) -> widgets.Dropdown:
    return widgets.Dropdown(
        options=[(ALL, ALL), *options.items()],
        description=label,
        style={"description_width": "52px"},
        layout=widgets.Layout(width="205px"),
    )
