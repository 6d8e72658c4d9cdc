"""The dashboard: play traffic to the engine, watch it live, change one technique, see which phase moved.

Three threads, each with one job: the engine's own, the client's (session.py), and one publisher that tells the browser
what happened, a few times a second. All that is seen is drawn there, from events and moments (view/). No callback and
no cell ever waits.
"""

import itertools
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Protocol

import anywidget
import traitlets

from course.lab.controls import CONTROLS, FIELDS, TechniqueControl, shown_by
from course.lab.display import LivePanel
from course.lab.noise import Noise, NoiseLog
from course.lab.printed import render
from course.lab.run import Run
from course.lab.summary import Comparison
from course.lab.svg import PATTERNS
from course.lab.view import bundle, library
from course.lab.view.trace import Told, TraceFeed, trace_of
from course.lab.workloads import LabWorkload, PromptArrival
from minillm import EngineConfig
from minillm.core.errors import ConfigError, MinillmError

FRAME_S = 1 / 8
"""Between two pieces of news; the browser draws sixty pictures a second from them. One takes 0.3 to 0.5 ms of CPU, all
of them 0.26 to 0.38% of a core (2 cores of an AMD EPYC, Zen 5, 2026-11-27; `tests/course/lab/dashboard_cost.py`)."""
OWN = "your own prompt"
OWN_TOKENS = 64
PINS = "ABC"
LOADING = "Preparing the engine. Loading its model takes about ten seconds, once."
STOPPING = "Stopping as soon as the engine is ready."


class DashboardView(anywidget.AnyWidget):
    """What the browser knows (view/view.js describes it), and what it asks for."""

    _esm = bundle.widget_script()
    _css = bundle.STYLE
    spec = traitlets.Dict().tag(sync=True)
    settings = traitlets.Dict().tag(sync=True)
    status = traitlets.Dict({"state": "idle", "words": ""}).tag(sync=True)
    shown = traitlets.Dict().tag(sync=True)


class Playing(Protocol):
    """What a dashboard needs of a run in progress; :class:`course.lab.session.Session` is one."""

    def stop(self) -> None: ...
    def wait(self, timeout: float | None = None) -> bool: ...
    def run(self) -> Run: ...


class DashboardLab(Protocol):
    """What a dashboard needs of a :class:`course.lab.Lab`."""

    def config(self, **fields: Any) -> EngineConfig: ...
    def workload(self, name: str | LabWorkload, seed: int = 0) -> LabWorkload: ...
    def start(self, traffic: LabWorkload, config: EngineConfig) -> Playing: ...


@dataclass(frozen=True)
class DashboardRun:
    """One run to make."""

    traffic: str
    fields: Mapping[str, Any]
    """What the controls say."""
    letter: str = ""
    """Pinned under this one, when it's over."""
    recipe: str = ""
    """The bet that it decides."""


class Dashboard(LivePanel):
    """The live app. Without a kernel it works the same way: `set(max_num_seqs=2)`, `start()`, `wait()`.

    Args:
        lab: the bench whose engine it drives.
        name: the workload to start with, by name, or a LabWorkload of your own.
        fields: EngineConfig fields that the controls start with.
    """

    extra_traffic: Mapping[str, str] = {OWN: "One prompt, typed by you."}
    controls: tuple[TechniqueControl, ...] = CONTROLS

    def __init__(self, lab: DashboardLab, name: str | LabWorkload = "chat", **fields: Any) -> None:
        self.lab = lab
        self.run: Run | None = None
        """The run on show: the one going on, or the last one."""
        self.previous: Run | None = None
        """The run before it, drawn as a ghost."""
        self.pinned: dict[str, Run] = {}
        """Runs that stay on show beside later ones, by letter."""
        self.noise = NoiseLog()
        self._start = lab.config(**fields)
        self._own = name if isinstance(name, LabWorkload) else None
        self._traffic_played = self._own
        self._session: Playing | None = None
        self._feed: TraceFeed | None = None
        self._telling = threading.Lock()
        """One news after the other, whoever tells them."""
        self._numbers = itertools.count(1)
        self._worker: threading.Thread | None = None
        self._stop_requested = threading.Event()
        own = {name.name: name.about} if self._own else {}
        traffics = {**own, **library.traffic_names(), **self.extra_traffic}
        start = name.name if self._own else str(name)
        self.widget = DashboardView(
            spec=library.spec(
                self.controls, self._start, traffics, own=OWN if OWN in self.extra_traffic else "", where=self.where
            ),
            settings={
                "traffic": start,
                "seed": 0,
                "prompt": "",
                "patterns": os.environ.get(PATTERNS) == "1",
                "fields": {control.field: getattr(self._start, control.field) for control in self.controls},
            },
            shown=self._opening(start),
        )
        self.widget.observe(lambda change: self._settings_changed(change["new"]), names="settings")
        self.widget.on_msg(lambda _widget, content, _buffers: self._asked(content))

    @property
    def where(self) -> str:
        """The server that is watched, if it isn't the lab's own engine."""
        return ""

    # ---------------------------------------------------------------- what one can do

    def set(self, *, traffic: str = "", seed: int | None = None, prompt: str | None = None, **fields: Any) -> None:
        """Choose traffic and settings, as with the controls."""
        chosen = {"traffic": traffic or None, "seed": seed, "prompt": prompt}
        now = self.widget.settings
        self.widget.settings = {
            **now,
            **{name: value for name, value in chosen.items() if value is not None},
            "fields": {**now["fields"], **fields},
        }

    def reset(self) -> None:
        """Put all controls back to where they started."""
        self.set(**{control.field: getattr(self._start, control.field) for control in self.controls})

    @property
    def is_busy(self) -> bool:
        """Whether a run is going on."""
        return self._worker is not None and self._worker.is_alive()

    def start(self) -> None:
        """Begin a run with what the controls show. Returns at once; ignored while one is going on."""
        now = self.widget.settings
        self._begin([DashboardRun(now["traffic"], now["fields"])])

    def try_out(self, recipe: str) -> None:
        """Begin both runs of a recipe, pinned as A and B; the first one twice, where none was ever repeated. Returns at
        once.

        Raises:
            LookupError: there is none of that name.
        """
        asked = library.recipe_named(recipe)
        first = {**shown_by(self._start), **asked["first"]}
        second = {**first, **asked["change"]}
        if self.is_busy:
            return
        self.set(traffic=asked["traffic"], **second)
        once = [] if self._knows_noise else [DashboardRun(asked["traffic"], first)]
        self._begin(
            [*once, DashboardRun(asked["traffic"], first, "A"), DashboardRun(asked["traffic"], second, "B", recipe)]
        )

    @property
    def _knows_noise(self) -> bool:
        """Runs were repeated where this one ran, or need not be."""
        return self.run is not None and (bool(self.run.simulated_on) or self.noise.of(self.run).num_repeats > 0)

    def _begin(self, jobs: Sequence[DashboardRun]) -> None:
        if self.is_busy:
            return
        self._stop_requested.clear()
        self._say("busy", LOADING)
        self._worker = threading.Thread(target=self._work, args=(jobs,), name="dashboard", daemon=True)
        self._worker.start()

    def stop(self) -> None:
        """End the run within one step. Returns at once."""
        self._stop_requested.set()
        if session := self._session:  # the worker forgets it the moment it is done
            session.stop()
        elif self.widget.status["words"] == LOADING:
            self._say("busy", STOPPING)

    def pin(self) -> None:
        """Keep the run on show beside later ones; the oldest of three makes room for a fourth."""
        if self.run is None or any(run is self.run for run in self.pinned.values()):
            return
        letter = next((each for each in PINS if each not in self.pinned), next(iter(self.pinned), ""))
        self._pin_as(letter, self.run)
        self._show(self.widget.shown["recipe"])

    def _pin_as(self, letter: str, run: Run) -> None:
        self.pinned.pop(letter, None)
        self.pinned[letter] = run

    def wait(self, timeout: float | None = None) -> bool:
        """For scripts and tests: wait until the run has ended. True if it has."""
        if self._worker is not None:
            self._worker.join(timeout)
        return not self.is_busy

    def static_html(self) -> str:
        if self.run is None:
            return "<p><em>A live dashboard: run this cell, then press Run in it.</em></p>"
        return self.printed("The last run before this page was saved.")

    def printed(self, status: str) -> str:
        """The run on show as pictures that need no script, HTML."""
        return render(self.compared(), escape(status), self.pinned)

    # ---------------------------------------------------------------- what the browser asks for

    def _settings_changed(self, settings: Told) -> None:
        os.environ[PATTERNS] = str(int(settings["patterns"]))

    def _asked(self, order: Told) -> None:
        """Any other order is none of ours."""
        match order:
            case {"do": "run"}:
                self.start()
            case {"do": "stop"}:
                self.stop()
            case {"do": "pin"}:
                self.pin()
            case {"do": "recipe", "id": str(name)}:
                self.try_out(name)
            case {"do": "whole"}:
                self._tell_whole()

    def _tell_whole(self) -> None:
        """For a page that was opened in mid-run."""
        with self._telling:
            if self._feed is not None and self.run is not None and not self.run.done:
                self.widget.shown = {**self.widget.shown, "run": self._trace(self.run)}

    # ---------------------------------------------------------------- the publisher's thread

    def _work(self, jobs: Sequence[DashboardRun]) -> None:
        try:
            for job in jobs:
                self._play(job)
                if self._stop_requested.is_set():
                    break
            self._say("idle", "")
        except MinillmError as error:
            self._say("failed", str(error))
        except Exception as error:  # a bug of ours: say so, rather than freeze on the last frame
            self._say("failed", f"The dashboard failed. {type(error).__name__}: {error}")
        finally:
            if self._session is not None:
                self._session.stop()  # no effect on one that has ended
            self._session = None

    def _play(self, job: DashboardRun) -> None:
        """One run, to its end.

        Raises:
            ConfigError: the combination is not valid, or the prompt is empty.
        """
        traffic = self._traffic(job.traffic)
        self._session = session = self.lab.start(traffic, self._start.replace(**job.fields))
        first = session.run()
        with self._telling:
            self.previous, self.run = self.run, first
            self._feed = TraceFeed(first, traffic, FIELDS)
            self._traffic_played = traffic
            self.widget.shown = self._said(self._feed.head, next(self._numbers), job.recipe)
        self._say("busy", "")
        if self._stop_requested.is_set():  # pressed while the engine was being prepared
            session.stop()
        self._publish_until_done(session)
        self.noise.add(self.run)
        if job.letter:
            self._pin_as(job.letter, self.run)
        self._show(job.recipe)

    def _traffic(self, name: str) -> LabWorkload:
        """What is to be played.

        Raises:
            ConfigError: the prompt is empty.
        """
        settings = self.widget.settings
        if name == OWN:
            if not settings["prompt"].strip():
                raise ConfigError("Type a prompt into the field above, then press Run.")
            said = [{"role": "user", "content": settings["prompt"]}]
            return LabWorkload(OWN, self.extra_traffic[OWN], (PromptArrival(0.0, said, OWN_TOKENS, ends=True),))
        own = self._own if self._own is not None and name == self._own.name else None
        return own or self.lab.workload(name, settings["seed"])

    def _publish_until_done(self, session: Playing) -> None:
        done = False
        while not done:
            started = time.perf_counter()
            done = session.wait(0)
            with self._telling:
                self.run = session.run()
                if not done:
                    self.widget.send({"id": self.widget.shown["id"], "more": self._feed.more(self.run)})
            if not done:
                session.wait(max(FRAME_S - (time.perf_counter() - started), 0.02))

    # ---------------------------------------------------------------- what is on show

    def compared(self) -> Comparison:
        """The run on show, beside the one before it."""
        noise = self.noise.of(self.run) if self.run.done else Noise()  # not judged before its end
        return Comparison(self.run, self.previous, noise)

    def _show(self, recipe: str) -> None:
        """The run on show, whole, under the number that it has."""
        with self._telling:
            self.widget.shown = self._said(self._trace(self.run), self.widget.shown["id"], recipe)

    def _said(self, run: Told, number: int, recipe: str) -> Told:
        """What the view shows of this run, and of those beside it."""
        compared = self.compared()
        before = self.previous if compared.is_possible else None
        pins = {
            letter: run for letter, run in self.pinned.items() if run is not self.run and self.run.same_workload(run)
        }
        name = next((letter for letter, run in pins.items() if run is before), compared.name)
        return {
            "id": number,
            "run": run,
            "before": before and self._trace(before),
            "beforeName": name,
            "noise": compared.judged() if before and self.run.done else {},
            "pinned": [[letter, self._trace(run)] for letter, run in pins.items()],
            "note": compared.note(),
            "recipe": recipe,
        }

    def _trace(self, run: Run) -> Told:
        return trace_of(run, self._traffic_played, FIELDS)

    def _opening(self, traffic: str) -> Told:
        """Before the first run: a recorded one, if there is one."""
        run = None if self.where else library.opening(traffic)
        note = f"{library.note_of(run)}: press Run for one of your own" if run else ""
        beside = {"before": None, "beforeName": "previous", "noise": {}, "pinned": [], "recipe": ""}
        return {"id": 0, "run": run, "note": note, **beside}

    def _say(self, state: str, words: str) -> None:
        self.widget.status = {"state": state, "words": words}
