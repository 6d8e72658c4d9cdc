"""A run on a simulated device: the client steps the engine itself, so that neither waits for the other.

Time is the runner's. It stands still while Python works, and jumps from one event to the next: the end of a step, or
the next arrival. So the same run gives the same figures on any machine, in a fraction of its own seconds. Where it is
watched, each jump takes as long as it says.
"""

import queue
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from course.lab.session import Event, Session
from course.lab.simulated_device import PlaceholderModel, SimulatedDevice, check_params
from course.lab.snapshot import PUBLISH_INTERVAL_S, EngineSnapshot, RequestView, take_snapshot
from course.lab.workloads import LabWorkload
from minillm.core.params import SamplingParams
from minillm.core.request import Request
from minillm.core.timeline import VirtualClock
from minillm.frontend.outputs import RequestOutput
from minillm.frontend.prompts import Prompt
from minillm.policies.config import EngineConfig

if TYPE_CHECKING:
    from minillm.frontend.engine_thread import Sink

GLANCE_S = 0.05
"""A client that waits in real time looks so often whether Stop was pressed."""

ROUNDING_S = 1e-9
"""No sum of seconds is further off: a clock that was moved to a due request is not just short of it."""


class WatchableClock(VirtualClock):
    """Simulated time, which passes no faster than real time while it is watched."""

    def __init__(self) -> None:
        super().__init__()
        self.is_watched = False
        self._real = time.perf_counter()

    def advance_to(self, moment: float) -> None:
        seconds = moment - self.now()
        super().advance_to(moment)
        if self.is_watched:
            # From the end of the last wait on: what Python takes in between is a part of this one.
            self._real = max(self._real + seconds, time.perf_counter())
            time.sleep(max(self._real - time.perf_counter(), 0.0))
        else:
            self._real = time.perf_counter()


class SteppedEngine:
    """What a Session wants of a WatchedEngine, without a thread: `advance` makes its steps."""

    def __init__(self, device: SimulatedDevice, config: EngineConfig) -> None:
        self.device = device
        self._sinks: dict[str, Sink] = {}
        self._start(config, device.model(config))

    def reconfigure(self, config: EngineConfig) -> None:
        """Abort everything and go on with a new engine.

        Raises:
            ConfigError, PricingError: it can't be built; the old one stays.
        """
        self._start(config, self.model if config.model == self.config.model else self.device.model(config))

    def _start(self, config: EngineConfig, model: PlaceholderModel) -> None:
        clock = WatchableClock()  # from 0, so that equal runs agree to the last digit
        self._engine = self.device.engine(config, model, clock=clock)  # raises before anything else has changed
        self.model, self.clock, self.config = model, clock, config
        self._views: dict[Request, RequestView] = {}
        self._sinks.clear()
        self._publish()

    def submit_nowait(
        self, prompt: Prompt, params: SamplingParams | None, sink: "Sink", **options: Any
    ) -> "Future[None]":
        """Queue a request; each output is passed to `sink`. The future is done already, or has the refusal.

        Raises:
            SimulatedDeviceError: its output depends on a model.
        """
        check_params(params)
        reply: Future[None] = Future()
        try:
            added = self._engine.add_request(prompt, params, **options)
        except Exception as error:
            reply.set_exception(error)
        else:
            self._sinks[added] = sink
            reply.set_result(None)
        return reply

    def abort_all(self) -> None:
        """End every request."""
        self._dispatch(self._engine.abort_all())
        self._publish()

    def advance(self, until: float | None) -> bool:
        """Make a step; with nothing to do, let time pass until then. False: there is nothing to do, and that is past.

        Args:
            until: clock seconds; None = for ever.
        """
        if self._engine.has_unfinished:
            self._dispatch(self._engine.step())
            if not self._engine.has_unfinished or self.clock.now() - self._published >= PUBLISH_INTERVAL_S:
                self._publish()
            return True
        now = self.clock.now()
        if until is None or until <= now:
            return False
        self.clock.advance_to(min(until, now + GLANCE_S) if self.clock.is_watched else until)
        return True

    def snapshot(self) -> EngineSnapshot:
        """The last published look at the engine, from any thread."""
        return self._snapshot

    def stop(self) -> None:
        """It has no thread: nothing goes on."""

    def _dispatch(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            sink = self._sinks.pop(output.request_id) if output.finished else self._sinks.get(output.request_id)
            if sink is not None:
                sink(output)

    def _publish(self) -> None:
        self._snapshot, self._published = take_snapshot(self._engine, self._views), self.clock.now()


class SimulatedSession(Session):
    """The same client, in simulated time.

    Args:
        watched: the run takes as long as it says.
    """

    def __init__(self, engine: SteppedEngine, config: EngineConfig, workload: LabWorkload, watched: bool) -> None:
        super().__init__(engine, config, workload)
        self._stepped = engine
        self._room_since = 0.0
        """When a client with a limit last had room for another request, seconds after the run began."""
        engine.clock.is_watched = watched

    def simulated_on(self) -> str:
        return self._stepped.device.label(self._config)

    def _moment_of(self, due: float) -> float:
        """When it was due, or the client had room for it: a step may have been under way."""
        return max(due, self._room_since)

    def _next_event(self, timeout: float | None) -> Event | None:
        until = None if timeout is None else self._stepped.clock.now() + timeout + ROUNDING_S
        was_full = self._client_is_full()
        while self._inbox.empty():
            if (until is not None and self._stepped.clock.now() >= until) or not self._stepped.advance(until):
                raise queue.Empty
        if was_full:
            self._room_since = self._now
        return self._inbox.get()
