"""The lab bench of a lesson: one model in memory, one engine on it at a time, and runs to compare.

lab = open_lab()
run = lab.run("chat", max_num_seqs=2)      # blocks, returns what happened
Dashboard(lab, "chat")                     # live (dashboard.py): toggles, Run, Stop
"""

import functools
import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from IPython import get_ipython
from IPython.core.interactiveshell import InteractiveShell

from course.lab import notes, progress, waiting
from course.lab.defaults import LAB_DEFAULTS, SIMULATED_MODEL
from course.lab.growing import play_out
from course.lab.pace import pace_of
from course.lab.predict import PredictionBook
from course.lab.run import Run
from course.lab.scale import scale_of
from course.lab.server_lab import ServerLab, servers_of_environment
from course.lab.session import Session
from course.lab.simulated_device import (
    SimulatedDeviceError,
    device_of_environment,
    placeholder_tokenizer,
)
from course.lab.simulated_notes import SimulatedNotebook
from course.lab.stepped_engine import SimulatedSession, SteppedEngine
from course.lab.workloads import LabWorkload, PromptArrival, workload
from minillm import Engine, EngineConfig
from minillm.frontend.engine_thread import WEIGHT_FIELDS
from minillm.frontend.errors import EngineDeadError
from minillm.host.openmp import end_team
from minillm.model.checkpoints import load_tokenizer, resolve
from minillm.model.loader import LoadedModel
from minillm.runner.kept_runners import KeptRunners

POOL_SHARE = 0.2
"""Share of a GPU's free memory for the KV pool that a lab's engines share: each hands out as many blocks as it was
given. A pool that grows from run to run would have CUDA graphs recorded anew for each."""

TAKEN = "waiting until another panel's run is over"
WARM_UP = LabWorkload("warm-up", "", tuple(PromptArrival(0.0, "Count to ten. " * 20, 4) for _ in range(4)))


class Lab(PredictionBook):
    """Owns the engine. Runs are played one after the other; each starts with an empty cache and history.

    Args:
        short: play small workloads, as the tests do; None = the environment variable MINILLM_SHORT is 1.
        make_engine: builds the engine thread from a config; None = a WatchedEngine.
        instead_of: closed before, if there is one: a cell that is run again leaves no engine behind.
            Its predictions are handed on: what was locked stays locked.
        defaults: config fields that differ from EngineConfig's own. The environment variable MINILLM_LAB_MODEL names
            the model of every lesson, for a machine that has room for a larger one.
    Raises:
        UnknownHardwareError: MINILLM_LAB_DEVICE is to be simulated, and names nothing that is known.
    """

    is_remote = False
    """Whether runs are on servers elsewhere (server_lab.py)."""

    def __init__(
        self,
        *,
        short: bool | None = None,
        make_engine: Callable[[EngineConfig], Any] | None = None,
        instead_of: "Lab | None" = None,
        **defaults: Any,
    ) -> None:
        if instead_of is not None:
            instead_of.close()
        super().__init__(instead_of)
        self.scale = scale_of(short)
        self.simulated = device_of_environment() if make_engine is None else None
        """The device, if it is simulated (simulated_device.py)."""
        model = os.environ.get("MINILLM_LAB_MODEL") or (SIMULATED_MODEL if self.simulated else None)
        self.defaults = {**LAB_DEFAULTS, **({"model": model} if model else {}), **defaults}
        self._make_engine = make_engine
        self._engine: Any = None
        self._session: Session | None = None
        self._closed = False
        self._own_runners = KeptRunners()
        self._turn = threading.RLock()  # the holder of `alone` may still make engines
        progress.note_opened()

    def config(self, **fields: Any) -> EngineConfig:
        """The lab's configuration with some fields changed.

        Raises:
            ConfigError: a field is unknown or out of range.
        """
        return EngineConfig(**{**self.defaults, **fields})

    def workload(self, name: "str | LabWorkload", seed: int = 0) -> LabWorkload:
        """A named workload at this lab's scale and pace; a LabWorkload is passed through."""
        return name if isinstance(name, LabWorkload) else workload(name, seed, self.scale).at_pace(self.pace)

    @functools.cached_property
    def pace(self) -> float:
        """What moments of arrival in named workloads are multiplied with: below 1 on a machine that serves faster than
        those they were written for."""
        return 1.0 if self._make_engine is not None else pace_of(self.config(), self.simulated)

    def run(self, name: "str | LabWorkload", *, seed: int = 0, **fields: Any) -> Run:
        """Play a workload to a fresh engine, wait for its end, and return what happened.

        Args:
            name: a workload's name, or a LabWorkload.
            fields: EngineConfig fields that differ from the lab's defaults.
        Raises:
            ConfigError: the engine cannot be built so.
        """
        traffic = self.workload(name, seed)
        named = waiting.say_run(traffic.name, is_loading=self._engine is None)
        session = self.start(traffic, self.config(**fields), is_watched=False)

        def tell() -> None:
            waiting.say(f"{named}: {session.num_ended} of {len(traffic.arrivals)} requests done")

        try:
            play_out(session, traffic, tell)
        except KeyboardInterrupt:  # the square button above the notebook
            ended = session.num_ended  # now: those that it aborts end as well
            session.stop()
            session.join()
            told = f"Stopped after {ended} of {len(traffic.arrivals)} requests; the run is discarded."
            raise waiting.Stopped(told) from None
        waiting.say(waiting.RUNNING)
        return session.run()

    def start(self, traffic: LabWorkload, config: EngineConfig, *, is_watched: bool = True) -> Session:
        """Begin a run; the session says when it is done. A second run waits until the first has ended.

        Args:
            is_watched: simulated seconds pass as slowly as real ones.
        """
        with self.alone():
            engine = self._prepare(config)
            if self.simulated is None:
                self._session = Session(engine, config, traffic)
            else:
                self._session = SimulatedSession(engine, config, traffic, is_watched)
            self._session.start()
            return self._session

    def room(self, **sizes: Any) -> dict[str, Any]:
        """Fields that only make room for a workload: what this small lab has to be given, and a server has anyway."""
        return sizes

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of the lab's model, or what counts tokens in its place; asking for it loads no weights."""
        if self.simulated is not None:
            return placeholder_tokenizer()
        return load_tokenizer(resolve(self.config().model))

    @property
    def model(self) -> LoadedModel:
        """The weights in memory; other engines may share them. Waits for a run that is going on. On a simulated device
        there are none, only what belongs to them."""
        return self._model_of(self.config())

    def needs_model(self, what: str) -> None:
        """Raise SimulatedDeviceError if this lab's device is simulated: `what` takes a model that computes."""
        if self.simulated is not None:
            raise SimulatedDeviceError(what)

    def engine(self, **fields: Any) -> Engine:
        """An engine of your own on the lab's weights, for experiments without traffic: nothing else steps it.

        Step it inside `with lab.alone():`, or it shares the device with whatever another panel runs.

        Args:
            fields: EngineConfig fields that differ from the lab's defaults.
        Raises:
            ConfigError: the engine cannot be built so.
        """
        config = self.config(**fields)
        if self.simulated is not None:
            return self.simulated.engine(config)
        return Engine(config, self._model_of(config))

    def next_engine(self, **fields: Any) -> Engine:
        """As `engine`, for experiments that follow each other: it ends the one before that this gave, and goes on with
        its KV pool and recorded graphs where they fit. On a GPU a small experiment takes less time than those."""
        config = self.config(**fields)
        if self.simulated is not None:
            return self.simulated.engine(config)
        model = self._model_of(config)
        self._own_runners.turn_to(model, config)
        return Engine(config, model, runners=self._own_runners)

    def serving_thread(self, config: EngineConfig) -> Any:
        """An EngineThread of your own on the lab's weights, for a server. On a simulated device it takes as long as it
        says: clients are real."""
        from minillm.frontend.engine_thread import EngineThread

        if self.simulated is not None:
            return self.simulated.serving_thread(config)
        return EngineThread(config, self.model)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While a thread steps an engine of its own: no other thread gets an engine, the model, or a run.

        Two engines at once would wait for each other on the same device, and what either measures would be of both;
        CUDA graphs cannot even be recorded while another thread launches kernels.

        Raises:
            EngineDeadError: the lab was closed.
        """
        if not self._turn.acquire(blocking=False):
            waiting.say(TAKEN)
            self._turn.acquire()
        try:
            if self._session is not None and not self._session.join(0):
                waiting.say(TAKEN)
                self._session.join()
            if self._closed:
                raise EngineDeadError("this lab was closed: run the cell that makes the lab, then this one again")
            end_team()  # of a cell that computed: it would slow the engine's steps
            yield
        finally:
            self._turn.release()

    def _model_of(self, config: EngineConfig) -> LoadedModel:
        """The weights that a configuration asks for. Those in memory, if it's these: then the lab's engine stays."""
        with self.alone():
            engine = self._engine if self._has_weights_of(config) else self._prepare(config)
            return engine.model

    def _has_weights_of(self, config: EngineConfig) -> bool:
        """Whether the lab's engine has the weights that a configuration asks for."""
        if self._engine is None:
            return False
        return all(getattr(self._engine.config, name) == getattr(config, name) for name in WEIGHT_FIELDS)

    def close(self) -> None:
        """End the run that is going on, stop the engine and let go of the model. The lab cannot be used any more."""
        self._closed = True
        if self._session is not None:
            self._session.stop()  # now: the run that has the turn may be waiting for its end
        with self._turn:
            if self._session is not None:
                self._session.stop()
                self._session.join()
                self._session = None  # it knows the engine
            if self._engine is not None:
                self._engine.stop()
                self._engine, self._own_runners = None, KeptRunners()
                gc.collect()  # an engine's parts refer to each other, and its KV pool is large

    def _prepare(self, config: EngineConfig) -> Any:
        """A fresh engine on the loaded weights. The first one is warmed up, so that no run pays for it."""
        if self._engine is not None:
            if not self._has_weights_of(config):
                self._own_runners = KeptRunners()  # it would keep the weights of before in memory, beside these
            try:
                self._engine.reconfigure(config)
                return self._engine
            except EngineDeadError:
                self._engine = None  # its thread has ended: build another
        self._engine = self._build(config)
        return self._engine

    def _build(self, config: EngineConfig) -> Any:
        if self._make_engine is not None:
            return self._make_engine(config)
        if self.simulated is not None:
            return SteppedEngine(self.simulated, config)
        engine = self._engine_thread(roomy(config))
        try:
            warm_up = Session(engine, config, WARM_UP)
            warm_up.start()
            warm_up.wait()
            engine.reconfigure(config)
        except BaseException:  # interrupted: nothing else holds this engine
            engine.stop()
            raise
        return engine

    def _engine_thread(self, config: EngineConfig) -> Any:
        """A lab with parts of a learner's own starts another one."""
        from course.lab.watched_engine import WatchedEngine

        return WatchedEngine(config)


def roomy(config: EngineConfig) -> EngineConfig:
    """The same, where there is a GPU with a KV pool and block tables that later engines fit into."""
    import torch

    if config.device == "cpu" or not torch.cuda.is_available():
        return config
    pool_gb = POOL_SHARE * torch.cuda.mem_get_info()[0] / 1e9
    return config.replace(num_kv_blocks=None, kv_cache_memory_gb=pool_gb, max_model_len=None)


def open_lab(**defaults: Any) -> Lab | ServerLab:
    """The lab of a notebook, under the name `lab`. One that was there before, as when the cell is run again, is closed.

    Where MINILLM_LAB_SERVER names servers that are up, runs go to them.

    Args:
        defaults: as for Lab; a server has its own.
    Raises:
        ConfigError: MINILLM_LAB_SERVER can't be read.
        EndpointError: no server answers there.
    """
    shell = get_ipython()
    before = shell.user_ns.get("lab") if shell is not None else None
    if not isinstance(before, (Lab, ServerLab)):
        before = None
    if servers := servers_of_environment():
        if before is not None:
            before.close()
        lab = ServerLab(servers, instead_of=before)
    else:
        lab = Lab(instead_of=before, **defaults)
    if shell is not None:
        _watch_notebook(shell, lab)
    return lab


def _watch_notebook(shell: InteractiveShell, lab: Lab | ServerLab) -> None:
    """Cells that the lab can't play end with a note; on a simulated device they're labelled."""
    notes.unwatch(shell)
    if lab.is_remote:
        notes.NotedNotebook(shell).watch()
    elif lab.simulated is not None:
        SimulatedNotebook(shell, lab.simulated, lab.config()).watch()
