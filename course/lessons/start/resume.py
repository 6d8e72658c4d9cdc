"""What is done, what comes next, and what is kept of a learner; the start page's HTML for all of it."""

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from course.drills import attempts
from course.drills.library import ALL as DRILLS
from course.incidents import daily
from course.lab import progress
from course.lab.display import Html, LivePanel, as_table, link_to, phase_strip, tabs
from course.lab.live_view import LiveView
from course.lab.phase_map.measure import PhaseMap
from course.lab.phase_map.picture import show_map_folded
from course.lab.progress import LessonRecord, Progress
from course.lab.style import size
from course.lessons.start import imported
from course.lessons.start.contents import (
    HOW_ESTIMATED,
    PATHS,
    LearningPath,
    Lesson,
    Practice,
    Stop,
    lessons,
    minutes_of_stage,
    written,
)
from course.rounds import history
from course.rounds.library import IDS as ROUNDS
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
    Kept("progress.json", "lessons you've opened, predictions you've locked, how your checks went"),
    Kept("cards.json", "the schedule of your review cards"),
    Kept("exercises.jsonl", "your attempts at exercises, and the hints you've read"),
    Kept("drills.json", "your drills, with the full text of every answer, including those given in a terminal"),
    Kept("rounds.json", "design rounds you've played, and the level of each area"),
    Kept("incidents.json", "incidents whose cause you've been shown"),
    Kept("incident_left.json", "an incident you left unfinished"),
    Kept("round_left.json", "a design round you left unfinished"),
    Kept("daily.json", "how you did in the daily incidents"),
    Kept("napkin.json", "how you did in the sums of the day"),
    Kept("chat.history", "what you typed in minillm chat"),
    Kept("incident.history", "what you typed in minillm incident"),
    Kept("drill.history", "what you typed in minillm drill"),
    Kept("napkin.history", "what you typed in minillm napkin"),
    Kept("round.history", "what you typed in minillm round"),
    Kept("roof.json", "bandwidth and FLOP/s that lessons 06 and 09 last measured on this machine"),
    Kept("noise.json", "figures of your dashboard runs, from which the noise of this machine is estimated"),
    Kept("ledger/ledger.json", "what lesson 14's experiments measured on this machine"),
    Kept("ledger/short.json", "the same, in their short form"),
)
"""Models, compiled kernels and calibrated profiles lie in the same folder. They are the machine's, and stay."""


def kept_files() -> Iterator[tuple[Kept, Path]]:
    """What is there now."""
    for kept in KEPT:
        for path in kept.files():
            yield kept, path


def kept_contents() -> dict[str, Any]:
    """By file, what it holds: parsed where it is JSON, else its text."""
    read = {}
    for _, path in kept_files():
        text = path.read_text(encoding="utf-8", errors="replace")
        try:
            read[str(path.relative_to(cache_home()))] = json.loads(text)
        except ValueError:
            read[str(path.relative_to(cache_home()))] = text
    return read


def erase_kept() -> list[str]:
    """As if nothing had ever been kept. Returns what could not be erased, and why."""
    trouble = []
    for _, path in list(kept_files()):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            trouble.append(f"{path}: {error.strerror or error}")
    return trouble


# ---------------------------------------------------------------- what is done, and what comes next

NOT_YET, BEGUN, DONE = "○", "◐", "●"
WORDS = {NOT_YET: "not opened", BEGUN: "begun", DONE: "done"}


@dataclass(frozen=True)
class Place:
    """Where to go on."""

    words: str
    link: str


def state(lesson: Lesson, record: LessonRecord | None) -> str:
    """DONE when each prediction was scored and each question of the check answered."""
    if record is None:
        return NOT_YET
    return BEGUN if _open_cell(lesson, record) else DONE


def _open_cell(lesson: Lesson, record: LessonRecord) -> tuple[int, str] | None:
    """The first cell in which something is left to do, and what; None = nothing is."""
    left = [(i, "a prediction to lock") for key, i in lesson.bets.items() if key not in record.predictions]
    left += [(i, "a prediction to score") for key, i in lesson.bets.items() if record.predictions.get(key, 0) is None]
    left += [
        (i, f"question {key.removeprefix('q')} of the check")
        for key, i in lesson.questions.items()
        if key not in record.checks
    ]
    return min(left, default=None)


def next_place(known: Mapping[str, Lesson], done: Progress, order: Sequence[str] = ()) -> Place | None:
    """The next thing to do: in the lesson that was open last, else in the first one of the order that is not done.

    Args:
        order: the lessons' numbers; none given, as they are numbered.
    Returns:
        None when all is done.
    """
    latest = done.latest
    if latest in known and (found := _open_cell(known[latest], done.lessons[latest])):
        cell, what = found
        return Place(
            f"Lesson {latest} · {known[latest].title} ({what})", f"{known[latest].file}#cell-id=cell-{cell:02d}"
        )
    for number in order or known:
        if number in known and state(known[number], done.lessons.get(number)) != DONE:
            return Place(f"Lesson {number} · {known[number].title}", known[number].link())
    return None


def where_next() -> Html:
    """A sentence and a link: the next thing to do."""
    known, done = lessons(), progress.FILE.read()
    place = next_place(known, done)
    if place is None:
        return Html("<p><b>Everything is done.</b> The review cards below keep it fresh.</p>", "Everything is done.")
    lead = "Continue" if done.lessons else "Begin here"
    many = sum(state(lesson, done.lessons.get(number)) == DONE for number, lesson in known.items())
    look = "border-left:6px solid;padding:6px 14px;font-size:15px"
    link = link_to(place.link, place.words)
    told = ", ".join([f"{many} of {len(known)} lessons done", *practised()])
    html = f'<div style="{look}"><b>{lead}:</b> {link.html}<br><small>{told}</small></div>'
    return Html(html, f"{lead}: {place.words} ({place.link}). {told}")


def shown_of_progress() -> dict[str, dict[str, str]]:
    """By the source of each cell of the start page that depends on progress, what it shows now."""
    shown = {
        "where_next()": where_next(),
        "show_paths()": show_paths(),
        "found = PhaseMap.stored()\nshow_map_folded(found)": show_map_folded(PhaseMap.stored()),
    }
    return {source: {"text/html": each.html, "text/plain": str(each)} for source, each in shown.items()}


def practised() -> list[str]:
    """How much practice there has been, kind by kind; empty before there was any."""
    days = daily.RESULTS.read().days
    kinds = (
        ({each.drill for each in attempts.FILE.read().done}, f"of {len(DRILLS)} drills"),
        ({each.round for each in history.FILE.read().done}, f"of {len(ROUNDS)} design rounds"),
        (days, "daily incident" if len(days) == 1 else "daily incidents"),
    )
    return [f"{len(played)} {what}" for played, what in kinds if played]


def show_paths(paths: Sequence[LearningPath] = PATHS) -> Html:
    """The paths behind tabs."""
    shown = {path.name: show_path(path) for path in paths}
    legend = ", ".join(f"{sign} {words}" for sign, words in WORDS.items())
    notes = f"<p><small>{legend}. {escape(HOW_ESTIMATED)}</small></p>"
    pages = {name: path.html for name, path in shown.items()}
    return Html(tabs("paths", pages) + notes, "\n\n".join(map(str, shown.values())))


def show_path(path: LearningPath) -> Html:
    """A path as a table: for each stage its lessons and what else to do, why, which phases, how long, how far."""
    known, done, rows = lessons(), progress.FILE.read(), []
    for stage in path.stages:
        length = written(minutes_of_stage(stage, known))
        head = f'<b style="display:inline-block;min-width:4em">{escape(stage.name)}</b><br>{length}'
        name: str | Html = Html(head, f"{stage.name}, {length}")
        for stop in stage.stops:
            rows.append((name, *_stop(stop, known.get(stop.number), done.lessons.get(stop.number))))
            name = ""
        for each in stage.practice:
            rows.append((name, _practice(each), "", "", written(each.minutes), ""))
            name = ""
    shown = as_table(("", "what", "why", "phases", "time", "so far"), rows)
    return Html(f"<p>{escape(path.for_whom)}</p>{shown.html}", f"{path.name}. {path.for_whom}\n{shown}")


def _practice(each: Practice) -> str | Html:
    if each.link:
        return link_to(each.link, f"→ {each.do}")
    code = f": <code>{escape(each.command)}</code>" if each.command else ""
    return Html(f"→ {escape(each.do)}{code}", f"{each.do}: {each.command}" if each.command else each.do)


def _stop(stop: Stop, lesson: Lesson | None, record: LessonRecord | None) -> tuple[str | Html, ...]:
    """The lesson, why, which parts, and how far. One that is not there yet is named without a link."""
    if lesson is None:
        return stop.number, stop.why, "", "not in this copy of the course", ""
    name = link_to(lesson.link(), f"{state(lesson, record)} {stop.number} {lesson.title}")
    length = written(lesson.minutes(*stop.sections))
    parts = Html(f'{length}<br><span style="font-size:11px">{stop.which}</span>', f"{length}, {stop.which}")
    return name, stop.why, phase_strip(lesson.phases), parts, _scores(lesson, record)


def _scores(lesson: Lesson, record: LessonRecord | None) -> str:
    if record is None:
        return ""
    checks = record.checks.values()
    earned, possible = sum(check.score for check in checks), sum(check.possible for check in checks)
    points = f": {earned:g} of {possible:g} points" if checks else ""
    answered = f"{len(checks)} of {len(lesson.questions)} questions{points}"
    return f"{len(record.predictions)} of {len(lesson.bets)} predictions, {answered}"


class Keeping(LivePanel):
    """What is kept of a learner, file by file, to take along, to add to from elsewhere, or to erase, which asks once
    more."""

    def __init__(self) -> None:
        self.view = LiveView()
        self.reset = widgets.Button(icon="trash", layout=widgets.Layout(width="auto"))
        self.reset.on_click(lambda _: self.press())
        self.bring = widgets.FileUpload(
            description="Import a copy", accept=".json", layout=widgets.Layout(width="auto")
        )
        self.bring.observe(self._bring_in, names="value")
        self.keep = widgets.Button(description="No, keep it")
        self.keep.on_click(lambda _: self._ask(False))
        self.buttons = widgets.HBox()
        self.widget = widgets.VBox([self.view, self.buttons])
        self._told: list[str] = []
        """What was done last."""
        self._ask(False)

    def press(self) -> None:
        """The first time it asks, the second time it erases."""
        if self._sure:
            self._told = [f"Not erased: {words}" for words in erase_kept()]
        self._ask(not self._sure)

    def _bring_in(self, change: Mapping[str, Any]) -> None:
        """Add what a file holds that was exported here or by the site."""
        if not change["new"]:
            return
        try:
            self._told = [imported.bring_in(bytes(file["content"])) for file in change["new"]]
        except imported.NoProgressError as error:
            self._told = [str(error)]
        self.bring.value = ()  # the same file may be chosen again
        self._draw()

    def _ask(self, sure: bool) -> None:
        """Whether the next press erases; then there is a way back beside it."""
        self._sure = sure
        self.reset.description = "Really? Press again to erase" if sure else "Erase all of it"
        self.buttons.children = (self.reset, self.keep) if sure else (self.bring, self.reset)
        self._draw()

    def _draw(self) -> None:
        told = "".join(f"<p>{escape(words)}</p>" for words in self._told)
        rows = [
            (str(path.relative_to(cache_home())), each.what, size(path.stat().st_size)) for each, path in kept_files()
        ]
        if not rows:
            self.view.value = f"{told}<p>Nothing is stored yet.</p>"
            return
        data = b64encode(json.dumps(kept_contents(), indent=1).encode()).decode()
        link = f'<a download="minillm-progress.json" href="data:application/json;base64,{data}">Save a copy</a>'
        self.view.value = f"{told}{as_table(('file', 'what it holds', 'size'), rows).html}<p>{link}</p>"

    def static_html(self) -> str:
        rows = [(each.name, each.what) for each in KEPT]
        return f"{as_table(('file', 'what it holds'), rows).html}<p>Run this cell to see which of them are there.</p>"


def keep_or_reset() -> Keeping:
    """All that is kept of a learner, a link that saves it, a button that adds a copy, and one that erases it."""
    return Keeping()
