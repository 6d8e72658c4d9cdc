"""The dashboard: play traffic to the engine, watch it live, change one technique, see which phase moved.

Three threads, each with one job: the engine's own, the client's (session.py), and one publisher that
reads a snapshot at most eight times a second and sets one trait. No callback and no cell ever waits.
"""

import threading
import time
from html import escape
from typing import Any, Protocol

import ipywidgets as widgets

from course.lab.controls import Controls
from course.lab.display import LivePanel
from course.lab.pictures.blocks import draw_blocks
from course.lab.pictures.distribution import draw_distributions
from course.lab.pictures.steps import draw_steps
from course.lab.pictures.timeline import draw_timeline
from course.lab.run import Run
from course.lab.style import ALARM
from course.lab.summary import headline, phase_table
from course.lab.workloads import MAKERS, Workload
from minillm import EngineConfig
from minillm.core.errors import MinillmError

FRAME_S = 1 / 8


def note(words: str) -> str:
    return f'<div style="padding:24px 0;opacity:.8">{words}</div>'


IDLE_HTML = note("Press <b>Run</b>: the requests appear here as they arrive.")
LOADING_HTML = note("Preparing the engine. The first time, the model is loaded: about ten seconds.")


def render(run: Run, ghost: Run | None, status: str) -> str:
    """One frame of the dashboard as HTML: two columns on a wide page, one on a narrow one."""
    left = f"{draw_timeline(run, ghost).svg()}{draw_steps(run, ghost).svg()}"
    right = f"{draw_blocks(run).svg()}{draw_distributions(run, ghost).svg()}{phase_table(run, ghost).html}"
    return frame(status, headline(run, ghost), left, right)


def frame(status: str, head: str, *columns: str) -> str:
    """What is above all else, and columns of HTML: beside each other, or under each other on a narrow page."""
    beside = "".join(f'<div style="flex:1 1 560px;min-width:0">{column}</div>' for column in columns)
    look = "display:flex;flex-wrap:wrap;gap:8px 28px"
    return f'<div style="font-size:13px">{status}</div>{head}<div style="{look}">{beside}</div>'


class Playing(Protocol):
    """What a dashboard needs of a run in progress; :class:`course.lab.session.Session` is one."""

    def stop(self) -> None: ...
    def wait(self, timeout: float | None = None) -> bool: ...
    def run(self) -> Run: ...


class Bench(Protocol):
    """What a dashboard needs of a :class:`course.lab.Lab`."""

    def config(self, **fields: Any) -> EngineConfig: ...
    def workload(self, name: str | Workload, seed: int = 0) -> Workload: ...
    def start(self, traffic: Workload, config: EngineConfig) -> Playing: ...


class Dashboard(LivePanel):
    """The live app. Without a kernel it works the same way: set `controls[...].value`, `run_button.click()`, `wait()`.

    Args:
        lab: the bench whose engine it drives.
        name: the workload to start with, by name, or a Workload of your own.
        fields: EngineConfig fields that the controls start with.
    """

    def __init__(self, lab: Bench, name: str | Workload = "chat", **fields: Any) -> None:
        self.lab = lab
        self.controls = Controls(lab.config(**fields))
        self.run: Run | None = None
        """The run on show: the one going on, or the last one."""
        self.previous: Run | None = None
        """The run before it, drawn as a ghost."""
        self._own = name if isinstance(name, Workload) else None
        self._session: Playing | None = None
        self._worker: threading.Thread | None = None
        self._stop_requested = threading.Event()
        self._reset_requested = threading.Event()
        names = list(dict.fromkeys([*([name.name] if self._own else []), *MAKERS]))
        self.workload_picker = widgets.Dropdown(
            options=names, value=name.name if self._own else name, description="traffic",
            tooltip="What kind of requests arrive, and when", layout=widgets.Layout(width="240px"),
        )  # fmt: skip
        self.seed_picker = widgets.BoundedIntText(
            value=0, min=0, max=999, description="seed", layout=widgets.Layout(width="150px"),
            tooltip="Another seed gives other requests of the same kind; compare runs on the same seed",
        )  # fmt: skip
        self.workload_picker.observe(lambda _: self._offer_seeds(), names="value")
        self._offer_seeds()
        self.run_button = widgets.Button(
            description="Run", icon="play", button_style="primary", tooltip="Play the traffic to a fresh engine"
        )
        self.stop_button = widgets.Button(
            description="Stop", icon="stop", disabled=True, tooltip="Abort every request, within one step"
        )
        self.reset_button = widgets.Button(
            description="Reset", icon="undo", tooltip="Controls back to the start; forget both runs"
        )
        self.view = widgets.HTML(IDLE_HTML, layout=widgets.Layout(width="100%"))
        self.run_button.on_click(lambda _: self.start())
        self.stop_button.on_click(lambda _: self.stop())
        self.reset_button.on_click(lambda _: self.reset())
        bar = [self.run_button, self.stop_button, self.reset_button, self.workload_picker, self.seed_picker]
        self.widget = widgets.VBox(
            [widgets.Box(bar, layout=widgets.Layout(flex_flow="row wrap")), self.controls.panel(), self.view],
            layout=widgets.Layout(width="100%"),
        )

    def render(self, run: Run, ghost: Run | None, status: str) -> str:
        """One frame, as HTML."""
        return render(run, ghost, status)

    # ---------------------------------------------------------------- what the buttons do

    def start(self) -> None:
        """Begin a run with what the controls show. Returns at once; ignored while one is going on."""
        if self._worker is not None and self._worker.is_alive():
            return
        self._stop_requested.clear()
        self._reset_requested.clear()  # pressed at the very end of a run, it is not meant for the next
        self._buttons(running=True)
        self._worker = threading.Thread(target=self._work, name="dashboard", daemon=True)
        self._worker.start()

    def stop(self) -> None:
        """End the run within one step. Returns at once."""
        self._stop_requested.set()
        session = self._session  # the worker forgets it the moment it is done
        if session is not None:
            session.stop()

    def reset(self) -> None:
        """Stop, put the controls back to where they started, and forget both runs."""
        self.controls.reset()
        self._reset_requested.set()
        self.stop()
        if self._worker is None or not self._worker.is_alive():
            self._forget_runs()

    @property
    def _is_own(self) -> bool:
        """The traffic that was handed in is chosen: it is what it is, whatever the seed."""
        return self._own is not None and self.workload_picker.value == self._own.name

    def _offer_seeds(self) -> None:
        self.seed_picker.disabled = self._is_own

    def _forget_runs(self) -> None:
        self._reset_requested.clear()
        self.run = self.previous = None
        self.view.value = IDLE_HTML

    def wait(self, timeout: float | None = None) -> bool:
        """For scripts and tests: wait until the run has ended. True if it has."""
        if self._worker is not None:
            self._worker.join(timeout)
            return not self._worker.is_alive()
        return True

    def static_html(self) -> str:
        run = self.run
        if run is None:
            return "<p><em>A live dashboard: run this cell, then press Run in it.</em></p>"
        return self.render(run, self.previous, "The last run before this page was saved.")

    # ---------------------------------------------------------------- the publisher's thread

    def _work(self) -> None:
        try:
            self.view.value = LOADING_HTML
            own = self._own if self._is_own else None
            traffic = own or self.lab.workload(self.workload_picker.value, self.seed_picker.value)
            self._session = self.lab.start(traffic, self.controls.config())
            self.previous, self.run = self.run, self._session.run()
            if self._stop_requested.is_set():  # pressed while the engine was being prepared
                self._session.stop()
            self._publish_until_done(self._session, traffic)
        except MinillmError as error:
            self._alert(f"<b>This cannot run.</b> {escape(str(error))}")
        except Exception as error:  # a bug of ours: say so, rather than freeze on the last frame
            self._alert(f"<b>The dashboard failed.</b> {escape(f'{type(error).__name__}: {error}')}")
        finally:
            if self._session is not None:
                self._session.stop()  # no effect on one that has ended
            self._session = None
            if self._reset_requested.is_set():
                self._forget_runs()
            self._buttons(running=False)

    def _alert(self, words: str) -> None:
        self.view.value = f'<div role="alert" style="color:{ALARM};padding:12px 0">{words}</div>'

    def _publish_until_done(self, session: Playing, traffic: Workload) -> None:
        about = f"{escape(traffic.name)}: {escape(traffic.about)}"
        done = False
        while not done:
            started = time.perf_counter()
            done = session.wait(0)
            self.run = session.run()
            state = "stopped" if self.run.stopped else "done" if done else "running"
            self.view.value = self.render(self.run, self.previous, f"<b>{state}</b> · {about}")
            if not done:
                session.wait(max(FRAME_S - (time.perf_counter() - started), 0.02))

    def _buttons(self, running: bool) -> None:
        self.run_button.disabled = running
        self.stop_button.disabled = not running
