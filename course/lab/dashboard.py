"""The dashboard: play traffic to the engine, watch it live, change one technique, see which phase moved.

Three threads, each with one job: the engine's own, the client's (session.py), and one publisher that reads a snapshot a
few times a second and sets one trait; between two of them the browser draws (live_view.py). No callback and no cell
ever waits.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping
from html import escape
from typing import Any, Protocol

import ipywidgets as widgets

from course.lab.controls import Controls
from course.lab.display import LivePanel
from course.lab.live_view import LiveView
from course.lab.noise import Noise, NoiseLog
from course.lab.pictures.blocks import draw_blocks
from course.lab.pictures.distribution import draw_distributions
from course.lab.pictures.phases import draw_phases
from course.lab.pictures.steps import draw_steps
from course.lab.pictures.timeline import draw_timeline
from course.lab.run import Run
from course.lab.style import ALARM
from course.lab.summary import Comparison, headline
from course.lab.svg import PATTERNS
from course.lab.workloads import MAKERS, LabWorkload, PromptArrival
from minillm import EngineConfig
from minillm.core.errors import ConfigError, MinillmError

FRAME_S = 1 / 6
"""Between two frames of Python's, a few milliseconds of work each; the browser draws many more between them."""
WIDTH, TALL = 560, 168
"""The size of the pictures in the left column, pixels."""
OWN = "your own prompt"
OWN_TOKENS = 64
PINS = "ABC"


def note(words: str) -> str:
    return f'<div style="padding:24px 0;opacity:.8">{words}</div>'


IDLE_HTML = note("Press <b>Run</b>: the requests appear here as they arrive.")
LOADING_HTML = note("<progress></progress> Preparing the engine; to load its model, once, takes about ten seconds.")


def render(compared: Comparison, status: str, pinned: Mapping[str, Run] | None = None) -> str:
    """One frame of the dashboard as HTML: two columns on a wide page, one on a narrow one."""
    run, ghost = compared.run, compared.before
    rows, steps = draw_timeline(run, ghost, size=(WIDTH, TALL), ghost_name=compared.name), draw_steps(run, ghost, WIDTH)
    right = f"{draw_blocks(run).svg()}{draw_distributions(run, ghost).svg()}"
    return frame(compared, status, pinned or {}, rows.svg() + steps.svg(), right)


def frame(compared: Comparison, status: str, pinned: Mapping[str, Run], left: str, right: str) -> str:
    """The five phases and the two numbers, and below them two columns: under each other on a narrow page."""
    beside = {compared.name: compared.before} if compared.before else {}
    beside = {name: run for name, run in {**beside, **pinned}.items() if compared.run.same_workload(run)}
    look = "gap:2px 10px;margin-bottom:4px;font-size:12px;line-height:20px"
    simulated = f"<b>{escape(compared.run.simulated_on)}</b>" if compared.run.simulated_on else ""
    return (
        f'<div style="{ROW}{look}">{simulated} {status} {compared.chips()}</div>'
        + beside_each_other(draw_phases(compared, beside).svg(), headline(compared))
        + beside_each_other(left, right)
    )


ROW = "display:flex;flex-wrap:wrap;align-items:center;"


def beside_each_other(left: str, right: str) -> str:
    """HTML in two columns on a wide page, under each other on a narrow one."""
    wide, less = (f"flex:{share} 1 {basis}px;min-width:0" for share, basis in ((5, 430), (4, 344)))
    look = "display:flex;flex-wrap:wrap;gap:0 20px"
    return f'<div style="{look}"><div style="{wide}">{left}</div><div style="{less}">{right}</div></div>'


class Playing(Protocol):
    """What a dashboard needs of a run in progress; :class:`course.lab.session.Session` is one."""

    def stop(self) -> None: ...
    def wait(self, timeout: float | None = None) -> bool: ...
    def run(self) -> Run: ...


class Bench(Protocol):
    """What a dashboard needs of a :class:`course.lab.Lab`."""

    def config(self, **fields: Any) -> EngineConfig: ...
    def workload(self, name: str | LabWorkload, seed: int = 0) -> LabWorkload: ...
    def start(self, traffic: LabWorkload, config: EngineConfig) -> Playing: ...


class Dashboard(LivePanel):
    """The live app. Without a kernel it works the same way: set `controls[...].value`, `run_button.click()`, `wait()`.

    Args:
        lab: the bench whose engine it drives.
        name: the workload to start with, by name, or a LabWorkload of your own.
        fields: EngineConfig fields that the controls start with.
    """

    extra_traffic: tuple[str, ...] = (OWN,)

    def __init__(self, lab: Bench, name: str | LabWorkload = "chat", **fields: Any) -> None:
        self.lab = lab
        self.controls = Controls(lab.config(**fields))
        self.run: Run | None = None
        """The run on show: the one going on, or the last one."""
        self.previous: Run | None = None
        """The run before it, drawn as a ghost."""
        self.pinned: dict[str, Run] = {}
        """Runs that stay on show beside later ones, by letter."""
        self.noise = NoiseLog()
        self._own = name if isinstance(name, LabWorkload) else None
        self._session: Playing | None = None
        self._status = ""
        self._worker: threading.Thread | None = None
        self._stop_requested = threading.Event()
        names = list(dict.fromkeys([*([name.name] if self._own else []), *MAKERS, *self.extra_traffic]))
        self.workload_picker = widgets.Dropdown(
            options=names,
            value=name.name if self._own else name,
            description="traffic",
            tooltip="What kind of requests arrive, and when",
            layout=widgets.Layout(width="240px"),
        )
        self.seed_picker = widgets.BoundedIntText(
            value=0,
            min=0,
            max=999,
            description="seed",
            layout=widgets.Layout(width="130px"),
            style={"description_width": "40px"},
            tooltip="A different seed gives different requests of the same kind; compare runs with the same seed",
        )
        self.prompt = widgets.Text(
            placeholder="Type a prompt, then press Run", layout=widgets.Layout(flex="1 1 260px", display="none")
        )
        self.workload_picker.observe(lambda _: self._offer_choices(), names="value")
        self._offer_choices()
        self.run_button = self._button("Run", "play", "Send the traffic to a fresh engine", self.start, "primary")
        self.stop_button = self._button("Stop", "stop", "Abort every request, within one step", self.stop)
        self.pin_button = self._button("Pin", "thumb-tack", "Keep this run visible as A, B or C", self.pin)
        self.reset_button = self._button("Reset", "undo", "Reset all controls", self.controls.reset)
        self.stop_button.disabled = self.pin_button.disabled = True
        self.patterns = widgets.ToggleButton(
            value=os.environ.get(PATTERNS) == "1",
            description="Patterns",
            layout=widgets.Layout(width="88px"),
            tooltip="Phases have patterns beside their colours, in every picture drawn from now on",
        )
        self.patterns.observe(lambda change: self._set_patterns(change["new"]), names="value")
        self.view = LiveView(value=IDLE_HTML, tips=self.controls.tips, layout=widgets.Layout(width="100%"))
        bar = [self.run_button, self.stop_button, self.pin_button, self.reset_button, self.patterns]
        bar += [self.workload_picker, self.seed_picker, self.prompt]
        self.widget = widgets.VBox(
            [widgets.Box(bar, layout=widgets.Layout(flex_flow="row wrap")), self.controls.panel(), self.view],
            layout=widgets.Layout(width="100%"),
        )

    @staticmethod
    def _button(name: str, icon: str, tooltip: str, act: Callable[[], None], style: str = "") -> widgets.Button:
        button = widgets.Button(description=name, icon=icon, tooltip=tooltip, button_style=style)
        button.layout.width = "88px"
        button.on_click(lambda _: act())
        return button

    def render(self, compared: Comparison, status: str) -> str:
        """One frame, as HTML."""
        return render(compared, status, self.pinned)

    # ---------------------------------------------------------------- what the buttons do

    def start(self) -> None:
        """Begin a run with what the controls show. Returns at once; ignored while one is going on."""
        if self._worker is not None and self._worker.is_alive():
            return
        self._stop_requested.clear()
        self._buttons(running=True)
        self._worker = threading.Thread(target=self._work, name="dashboard", daemon=True)
        self._worker.start()

    def stop(self) -> None:
        """End the run within one step. Returns at once."""
        self._stop_requested.set()
        self.stop_button.disabled = True
        if session := self._session:  # the worker forgets it the moment it is done
            session.stop()
        elif self.view.value == LOADING_HTML:
            self.view.value = note("<progress></progress> Stopping as soon as the engine is ready.")

    def pin(self) -> None:
        """Keep the run on show beside later ones; the oldest of three makes room for a fourth."""
        if self.run is None or self.run in self.pinned.values():
            return
        letter = next((each for each in PINS if each not in self.pinned), next(iter(self.pinned), ""))
        self.pinned.pop(letter, None)
        self.pinned[letter] = self.run
        self._show(f"<b>pinned as {letter}</b>")

    def _set_patterns(self, wanted: bool) -> None:
        os.environ[PATTERNS] = str(int(wanted))
        if self.run is not None:
            self._show(self._status)

    def _offer_choices(self) -> None:
        chosen = self.workload_picker.value
        self.seed_picker.disabled = chosen == OWN or (self._own is not None and chosen == self._own.name)
        self.prompt.layout.display = None if chosen == OWN else "none"

    def _traffic(self) -> LabWorkload:
        """What is to be played.

        Raises:
            ConfigError: the prompt is empty.
        """
        chosen = self.workload_picker.value
        if chosen == OWN:
            if not self.prompt.value.strip():
                raise ConfigError("Type a prompt into the field above, then press Run.")
            said = [{"role": "user", "content": self.prompt.value}]
            return LabWorkload(OWN, self.prompt.value, (PromptArrival(0.0, said, OWN_TOKENS, ends=True),))
        own = self._own if self._own is not None and chosen == self._own.name else None
        return own or self.lab.workload(chosen, self.seed_picker.value)

    def wait(self, timeout: float | None = None) -> bool:
        """For scripts and tests: wait until the run has ended. True if it has."""
        if self._worker is not None:
            self._worker.join(timeout)
        return self._worker is None or not self._worker.is_alive()

    def static_html(self) -> str:
        if self.run is None:
            return "<p><em>A live dashboard: run this cell, then press Run in it.</em></p>"
        return self.render(self.compared(), "The last run before this page was saved.")

    # ---------------------------------------------------------------- the publisher's thread

    def _work(self) -> None:
        try:
            self.view.value = LOADING_HTML
            traffic = self._traffic()
            self._session = self.lab.start(traffic, self.controls.config())
            self.previous, self.run = self.run, self._session.run()
            if self._stop_requested.is_set():  # pressed while the engine was being prepared
                self._session.stop()
            self._publish_until_done(self._session, f"{escape(traffic.name)}: {escape(traffic.about)}")
        except MinillmError as error:
            self._alert(f"<b>This cannot run.</b> {escape(str(error))}")
        except Exception as error:  # a bug of ours: say so, rather than freeze on the last frame
            self._alert(f"<b>The dashboard failed.</b> {escape(f'{type(error).__name__}: {error}')}")
        finally:
            if self._session is not None:
                self._session.stop()  # no effect on one that has ended
            self._session = None
            self._buttons(running=False)

    def _alert(self, words: str) -> None:
        self.view.value = f'<div role="alert" style="color:{ALARM};padding:12px 0">{words}</div>'

    def _publish_until_done(self, session: Playing, about: str) -> None:
        done = False
        while not done:
            started = time.perf_counter()
            done = session.wait(0)
            self.run = session.run()
            if done:
                self.noise.add(self.run)
            state = "stopped" if self.run.stopped else "done" if done else "running"
            self._show(f"<span><b>{state}</b> · {about}</span>")
            if not done:
                session.wait(max(FRAME_S - (time.perf_counter() - started), 0.02))

    def compared(self) -> Comparison:
        """The run on show, beside the one before it."""
        noise = self.noise.of(self.run) if self.run.done else Noise()  # not judged before its end
        return Comparison(self.run, self.previous, noise)

    def _show(self, status: str) -> None:
        self._status = status
        self.view.value = self.render(self.compared(), status + self._answer())

    def _answer(self) -> str:
        """The text that came so far, where the prompt was typed here."""
        if self.run.workload != OWN:
            return ""
        look = "flex:1 0 100%;white-space:pre-wrap;word-break:normal;margin:0"
        return f'<pre style="{look}">{escape("".join(self.run.rows[0].texts))}</pre>'

    def _buttons(self, running: bool) -> None:
        self.run_button.disabled = running
        self.stop_button.disabled = not running
        self.pin_button.disabled = running or self.run is None
        self.controls.hold(running)
