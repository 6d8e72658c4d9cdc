"""Plays one workload to an engine and reads the answers: the client of the experiment.

One thread sends each request when it is due and takes every token as it comes. It never waits for the
engine, so a slow engine cannot slow the traffic down; Stop takes effect within a step.
"""

import contextlib
import copy
import functools
import queue
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from course.lab.run import Owners, Row, Run, blocks_held, run_lengths
from course.lab.snapshot import EngineSnapshot, RequestView
from course.lab.workloads import LabWorkload, PromptArrival
from minillm import EngineConfig, RequestOutput
from minillm.frontend.errors import EngineDeadError

if TYPE_CHECKING:
    from course.lab.watched_engine import WatchedEngine

Event = tuple[int, RequestOutput | Exception]
"""Row of the request, and what the engine said about it."""


def _twin(error: BaseException) -> BaseException:
    """An equal error, from the same place. One object that all who wait raise would gather, and keep, their frames."""
    try:
        twin = copy.copy(error)
    except Exception:  # its constructor wants something else than it keeps
        return error
    return twin.with_traceback(error.__traceback__)


MOST_BLOCKS = 4096
"""A larger KV pool isn't followed block by block: nobody could draw it."""


class Session:
    """One run in progress. Call start() once; stop(), wait() and run() at any time, from any thread."""

    def __init__(self, engine: "WatchedEngine", config: EngineConfig, workload: LabWorkload) -> None:
        self.workload = workload
        self._engine = engine
        self._config = config
        self._ids = [f"{workload.name}-{i}" for i in range(len(workload.arrivals))]
        self._inbox: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._sent: dict[int, float] = {}
        self._outputs: dict[int, RequestOutput] = {}
        """Final output of each request, its last byte taken by this client."""
        self._texts: dict[int, list[str]] = {}
        self._refused: dict[int, str] = {}
        self._fullest = self._seen = engine.snapshot()
        self._kv_frames: list[tuple[float, Owners]] = []
        self._began = engine.clock.now()
        self._stopped = False
        self._final: Run | None = None
        self._failed: BaseException | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work, name="client", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Send nothing more, and abort what is in flight within a step."""
        self._stopped = True
        self._inbox.put(None)

    def wait(self, timeout: float | None = None) -> bool:
        """True when the run has ended within `timeout` seconds. Raises what ended it before its time.

        Raises:
            EngineDeadError: the engine's thread stopped in mid-run.
        """
        ended = self.join(timeout)
        if ended and self._failed is not None:
            raise _twin(self._failed) from self._failed.__cause__
        return ended

    def join(self, timeout: float | None = None) -> bool:
        """The same for those who want the run out of their way, however it ended: raises nothing of it."""
        return self._done.wait(timeout)

    def run(self) -> Run:
        """What has happened so far; when the run is over, what happened, whatever the engine does next."""
        return self._final or self._look(done=False)

    @property
    def num_ended(self) -> int:
        """Requests that have been answered or refused."""
        return len(self._outputs) + len(self._refused)

    def _look(self, done: bool) -> Run:
        snapshot = self._engine.snapshot()
        views = {view.request_id: view for view in snapshot.requests}
        rows = tuple(self._row(i, views.get(name)) for i, name in enumerate(self._ids))
        outputs = tuple(output for _, output in sorted(self._outputs.items()))
        return Run(
            self.workload.name,
            self._config,
            rows,
            snapshot.steps,
            snapshot,
            self._fullest,
            outputs,
            self._began,
            done,
            self._stopped,
            kv_frames=tuple(self._kv_frames),
            simulated_on=self.simulated_on(),
        )

    def simulated_on(self) -> str:
        """Which device was simulated; empty: this run was computed."""
        return ""

    def _row(self, index: int, view: RequestView | None) -> Row:
        return Row(
            index=index,
            request_id=self._ids[index],
            due=self.workload.arrivals[index].offset,
            sent=self._sent.get(index),
            refused=self._refused.get(index),
            view=self._as_received(index, view),
            texts=tuple(self._texts.get(index, ())),
        )

    def _as_received(self, index: int, view: RequestView | None) -> RequestView | None:
        """The engine's view of a request, with its stream phase closed by this client."""
        output = self._outputs.get(index)
        if view is None or view.finish_reason is None or output is None:
            return view
        return replace(view, borders=tuple(output.timeline.borders()))

    # ---------------------------------------------------------------- in the client's thread

    def _work(self) -> None:
        """Whatever fails, the run ends: no caller waits forever."""
        try:
            self._play()
            self._final = self._look(done=True)
        except BaseException as error:  # raised again in the caller that waits
            self._failed = error
        finally:
            self._done.set()

    def _play(self) -> None:
        self._began = self._engine.clock.now()
        due = list(enumerate(self.workload.arrivals))
        while (due and not self._stopped) or self._open:
            if due and not self._stopped and self._now >= due[0][1].offset and not self._client_is_full():
                self._send(*due.pop(0))
            else:
                self._listen(self._patience(due))
        self._await_last_snapshot()
        self._keep_fullest(self._engine.snapshot())

    @property
    def _now(self) -> float:
        return self._engine.clock.now() - self._began

    @property
    def _open(self) -> int:
        return len(self._sent) - self.num_ended

    def _client_is_full(self) -> bool:
        limit = self.workload.max_in_flight
        return limit is not None and self._open >= limit

    def _patience(self, due: list) -> float | None:
        """Seconds to listen before the next request is due; None = until something is heard."""
        if not due or self._stopped or self._client_is_full():
            return None
        return max(due[0][1].offset - self._now, 0.0)

    def _moment_of(self, due: float) -> float:
        """When a request is sent whose turn it is, seconds after the run began."""
        return self._now

    def _send(self, index: int, arrival: PromptArrival) -> None:
        self._sent[index] = moment = self._moment_of(arrival.offset)
        sink = functools.partial(self._hear, index)
        options = {"request_id": self._ids[index], "tenant": arrival.tenant, "arrival": self._began + moment}
        reply = self._engine.submit_nowait(arrival.prompt, arrival.params, sink, **options)
        reply.add_done_callback(lambda done: done.exception() and self._hear(index, done.exception()))

    def _hear(self, index: int, said: RequestOutput | Exception) -> None:
        """Called in the engine's thread: only puts it on the queue."""
        self._inbox.put((index, said))

    def _listen(self, timeout: float | None) -> None:
        self._keep_fullest(self._engine.snapshot())
        try:
            event = self._next_event(timeout)
        except queue.Empty:
            return
        if event is None:  # Stop was pressed
            with contextlib.suppress(EngineDeadError):
                self._engine.abort_all()
            return
        index, said = event
        if isinstance(said, Exception):
            self._refused[index] = str(said)
            if isinstance(said, EngineDeadError):
                self._failed = said
            return
        self._texts.setdefault(index, []).append(said.completions[0].new_text)
        if said.finished:
            said.timeline.accept(self._engine.clock.now())
            self._outputs[index] = said

    def _next_event(self, timeout: float | None) -> Event | None:
        """What is heard next; None = Stop was pressed. Raises queue.Empty: nothing was, for so many seconds."""
        return self._inbox.get(timeout=timeout)

    def _keep_fullest(self, snapshot: EngineSnapshot) -> None:
        if snapshot is self._seen:  # one snapshot is current for many tokens
            return
        self._seen = snapshot
        if blocks_held(snapshot) > blocks_held(self._fullest):
            self._fullest = snapshot
        if len(snapshot.block_owners) > MOST_BLOCKS:
            return
        owners = run_lengths(snapshot.block_owners)
        if not self._kv_frames or self._kv_frames[-1][1] != owners:
            self._kv_frames.append((snapshot.now, owners))

    def _await_last_snapshot(self) -> None:
        """The engine publishes a moment after it has handed over the last token."""
        ended = {self._ids[index] for index in self._outputs}
        for _ in range(200):
            if ended <= {view.request_id for view in self._engine.snapshot().requests if view.finish_reason}:
                return
            time.sleep(0.005)
