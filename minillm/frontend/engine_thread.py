"""The engine in a thread of its own, with a stream for each request.

The thread owns the engine: no other thread touches it. Everything that others want done is a command on a
queue, carried out between two steps; so an abort or a stop takes effect within one step.
"""

import gc
import logging
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

from minillm.core.errors import DeviceLostError, RequestError
from minillm.core.params import SamplingParams
from minillm.core.timeline import Clock, WallClock
from minillm.frontend.engine import Engine
from minillm.frontend.errors import EngineDeadError
from minillm.frontend.outputs import RequestOutput
from minillm.frontend.prompts import Prompt
from minillm.frontend.structured_outputs import GrammarCompiler
from minillm.host.device import let_go
from minillm.host.openmp import end_team
from minillm.model.loader import LoadedModel
from minillm.policies.config import EngineConfig
from minillm.runner.kept_runners import KeptRunners

if TYPE_CHECKING:
    from minillm.frontend.grammar_matcher import CompiledGrammar

logger = logging.getLogger(__name__)

WEIGHT_FIELDS = ("model", "dtype", "device", "load_format", "quantization", "int4_group_size", "tensor_parallel_size")
"""Config fields that decide the weights in memory; a change in others needs no loading."""

Sink = Callable[[RequestOutput | Exception], None]
"""Where a request's outputs go; an exception ends the stream."""

T = TypeVar("T")


class SubmitOptions(TypedDict, total=False):
    """See Engine.add_request."""

    priority: int
    tenant: str
    cache_salt: str
    request_id: str | None
    arrival: float | None
    """Clock seconds; None = the call of `submit_nowait`."""
    stream: bool
    """False: only the final output is wanted."""


class RequestStream:
    """The outputs of one request, as they come. Iterate over it, or wait for `result()`."""

    def __init__(
        self, request_id: str, outputs: "queue.SimpleQueue[RequestOutput | Exception]", thread: "EngineThread"
    ) -> None:
        self.request_id = request_id
        self._outputs = outputs
        self._thread = thread
        self._last: RequestOutput | None = None

    def __iter__(self) -> Iterator[RequestOutput]:
        while self._last is None or not self._last.finished:
            yield self._next(timeout=None)

    def result(self, timeout: float | None = None) -> RequestOutput:
        """Wait for the final output, at most `timeout` seconds for each step of it.

        Raises:
            TimeoutError: nothing came in time; the request is still in flight.
            EngineDeadError: the engine thread has stopped.
        """
        while self._last is None or not self._last.finished:
            self._next(timeout)
        return self._last

    def abort(self) -> None:
        """End the request within one step; the stream then ends with FinishReason.ABORT."""
        self._thread.abort(self.request_id)

    def _next(self, timeout: float | None) -> RequestOutput:
        try:
            item = self._outputs.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"{self.request_id}: no output for {timeout} s") from None
        if isinstance(item, Exception):
            raise item
        if item.finished:
            # The reader is the client here: the last byte is accepted when it takes the last output.
            for completion in item.completions:
                completion.timeline.accept(self._thread.clock.now())
        self._last = item
        return item


class EngineThread:
    """A daemon thread that steps an engine while there is work, and sleeps while there is none.

    It also loads and builds there, so that no other thread has a team of OpenMP's workers (host/openmp.py).

    Args:
        config: the engine's configuration.
        model: weights in memory; None loads `config.model`.
        clock: the one source of time; None = the wall clock.
        build: makes each engine, one with parts of your own, say; None = as they are, and on the same runner as far
            as that can be kept.
    Raises:
        ConfigError, ModelError: the engine cannot be built.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: LoadedModel | None = None,
        *,
        clock: Clock | None = None,
        build: Callable[..., Engine] | None = None,
    ) -> None:
        self.clock = clock or WallClock()
        self._runners = KeptRunners()
        self._build = build or partial(Engine, runners=self._runners)
        self._commands: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._sinks: dict[str, Sink] = {}
        self._stopping = False
        self._closed = False
        self._closing = threading.Lock()
        self._death: BaseException | None = None
        built: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._build_and_run, args=(config, model, built), name="minillm-engine", daemon=True
        )
        self._thread.start()
        built.result()

    # ---------------------------------------------------------------- from any thread

    def submit(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Unpack[SubmitOptions]
    ) -> RequestStream:
        """Queue a request; its arrival is now. Returns once the engine has taken it, within a step.

        Raises:
            RequestError: it cannot be served.
            EngineDeadError: the engine thread has stopped.
        """
        outputs: queue.SimpleQueue[RequestOutput | Exception] = queue.SimpleQueue()
        taken = self.submit_nowait(prompt, params, outputs.put, **options).result()
        return RequestStream(taken.request_id, outputs, self)

    def submit_nowait(
        self, prompt: Prompt, params: SamplingParams | None, sink: Sink, **options: Unpack[SubmitOptions]
    ) -> "Future[RequestOutput]":
        """Like :meth:`submit`, but each output is passed to `sink`, in the engine thread, and nothing waits: the future
        gives the request as the engine has taken it, or raises the refusal.

        An open-loop client needs this: one that waits for a busy engine sends late, and measures too little.
        """
        if options.get("arrival") is None:
            options["arrival"] = self.clock.now()

        grammars = self.grammars

        def add(grammar: "CompiledGrammar | None" = None) -> RequestOutput:
            if grammar is not None and self.grammars is not grammars:
                raise RequestError(
                    "the engine was reconfigured while the request's grammar was compiled: send it again"
                )
            added = self._engine.add_request(prompt, params, grammar=grammar, **options)
            self._sinks[added] = sink
            return self._engine.outputs.groups[added].output()

        if params is None or params.structured_outputs is None:
            return self._send(add)
        return self._send_with(grammars.start(params.structured_outputs), add)

    def abort(self, request_id: str) -> None:
        """End a request within one step. Unknown ids are fine: it may just have finished."""
        self._send(lambda: self._dispatch([self._engine.abort(request_id)]))

    def call(self, question: Callable[[Engine], T]) -> "Future[T]":
        """Have the engine thread look at the engine, between two steps. The question must not change it."""
        return self._send(lambda: question(self._engine))

    def abort_all(self) -> None:
        """End every request within one step, and wait until that is done."""
        self._send(lambda: self._dispatch(self._engine.abort_all())).result()

    def reconfigure(self, config: EngineConfig) -> None:
        """Abort everything and go on with a new engine; weights, KV pool and recorded graphs are kept where they fit.

        Raises:
            ConfigError, ModelError: the new configuration cannot be built, and one like the old engine is.
        """
        self._send(lambda: self._replace_engine(config)).result()

    def check_alive(self) -> None:
        """Raise EngineDeadError if the thread has stopped."""
        if self._is_over:
            raise self._dead_error()

    def stop(self) -> None:
        """Abort everything and end the thread, within one step."""
        if self._thread.is_alive():
            self._send(self._begin_stop)
            self._thread.join()

    def __enter__(self) -> "EngineThread":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _send(self, command: Callable[[], Any], reply: Future[Any] | None = None) -> Future[Any]:
        reply = Future() if reply is None else reply
        with self._closing:
            if self._is_over:
                if reply.set_running_or_notify_cancel():
                    reply.set_exception(self._dead_error())
            else:
                self._commands.put((command, reply))
        return reply

    def _send_with(
        self, compiling: "Future[CompiledGrammar]", add: "Callable[[CompiledGrammar], RequestOutput]"
    ) -> "Future[RequestOutput]":
        """Send a request once its grammar is compiled, from the thread that compiled it: the engine waits for none."""
        reply: Future[RequestOutput] = Future()

        def go_on(compiled: "Future[CompiledGrammar]") -> None:
            if compiled.cancelled():
                return
            error = compiled.exception()
            if error is None:
                self._send(lambda: add(compiled.result()), reply)
            elif reply.set_running_or_notify_cancel():
                reply.set_exception(self._dead_error() if self._closed else error)

        compiling.add_done_callback(go_on)
        reply.add_done_callback(lambda _: compiling.cancel())  # the client has left; otherwise it is too late for that
        return reply

    @property
    def _is_over(self) -> bool:
        """No command is carried out any more. In a process that was forked off, there is no such thread."""
        return self._closed or not self._thread.is_alive()

    def _dead_error(self) -> EngineDeadError:
        called = (
            "stop() was called" if self._closed else "a fork takes no threads along: make an engine in each process"
        )
        error = EngineDeadError(f"the engine thread has stopped: {self._death or called}")
        error.__cause__ = self._death
        return error

    # ---------------------------------------------------------------- in the engine thread

    def _build_and_run(self, config: EngineConfig, model: LoadedModel | None, built: "Future[None]") -> None:
        try:
            self._set_engine(self._build(config, model, clock=self.clock), model)
        except BaseException as error:  # also what is no Exception: a library in Rust panics, say
            built.set_exception(error)
            return
        built.set_result(None)
        self._run()

    def _run(self) -> None:
        try:
            while True:
                self._run_commands(wait=not self._engine.has_unfinished)
                if self._stopping:
                    break
                if self._engine.has_unfinished:
                    self._dispatch(self._engine.step())
                self.look_at(self._engine, is_idle=not self._engine.has_unfinished)
        except BaseException as error:  # a bug in the engine: no caller may wait forever
            self._death = error
        self._close()

    def _run_commands(self, wait: bool) -> None:
        """Carry out the commands that have come; with nothing else to do, wait for one, without any workers."""
        if wait and self._commands.empty():
            end_team()
        while wait or not (self._stopping or self._commands.empty()):
            command, reply = self._commands.get()
            wait = False
            if not reply.set_running_or_notify_cancel():
                continue  # the caller has cancelled it
            try:
                reply.set_result(command())
            except BaseException as error:
                reply.set_exception(error)
                if isinstance(error, DeviceLostError):
                    raise

    def _dispatch(self, outputs: Iterable[RequestOutput | None]) -> None:
        for output in filter(None, outputs):
            finished = output.finished
            sink = self._sinks.pop(output.request_id) if finished else self._sinks.get(output.request_id)
            if sink is not None and not self._hand_over(sink, output) and not finished:
                del self._sinks[output.request_id]
                self._engine.abort(output.request_id)

    def _hand_over(self, sink: Sink, item: RequestOutput | Exception) -> bool:
        """False if the reader is gone (its event loop is closed, say). No other stream may suffer from that."""
        try:
            sink(item)
        except Exception:
            logger.exception("a client is gone: its request ends here")
            return False
        return True

    def _replace_engine(self, config: EngineConfig) -> None:
        model = self.model if config.same_in(self.config, WEIGHT_FIELDS) else None
        # The old one goes first: on a GPU its KV pool takes most of the memory, and elsewhere, too, the new one may
        # want its runner.
        self._dispatch(self._engine.abort_all())
        self._engine.close()
        to_go: list[weakref.ref[object]] = [weakref.ref(self._engine.drafts)]  # a drafting model has a KV pool, too
        if not self._runners.turn_to(model, config):
            to_go.append(weakref.ref(self._engine.runner))
        del self._engine
        if any(part() is not None for part in to_go):  # something refers to itself
            gc.collect()  # not always: in a notebook that takes a quarter of a second
        try:
            engine = self._build(config, model, clock=self.clock)
        except BaseException as error:
            let_go(error)
            self._runners.turn_to(self.model, self.config)
            gc.collect()
            self._stopping, self._death = True, error  # unless the old one can be had again
            self._set_engine(self._build(self.config, self.model, clock=self.clock), self.model)
            self._stopping, self._death = False, None
            raise
        self._set_engine(engine, model)

    def _set_engine(self, engine: Engine, model: LoadedModel | None) -> None:
        self._engine, self.config = engine, engine.config
        self.grammars: GrammarCompiler = engine.grammars
        """The present engine's. Any thread may use it."""
        loaded = engine.model or model
        assert loaded is not None, "an engine without a model was given one to be built with"
        self.model = loaded
        self.look_at(engine, is_idle=True)

    def look_at(self, engine: Engine, *, is_idle: bool) -> None:
        """Show the engine, in a subclass. Called in its thread: between steps, and when it is made and closed."""

    def _begin_stop(self) -> None:
        self._stopping = True
        self._dispatch(self._engine.abort_all())

    def _close(self) -> None:
        """End the streams and refuse the commands that came too late: no caller is left waiting."""
        error = self._dead_error()
        with self._closing:
            self._closed = True  # from here on no command comes in
        while not self._commands.empty():
            reply = self._commands.get()[1]
            if reply.set_running_or_notify_cancel():
                reply.set_exception(error)
        for sink in self._sinks.values():
            self._hand_over(sink, error)
        self._sinks.clear()
        if not hasattr(self, "_engine"):  # neither a new one nor one like the old could be built
            return
        try:
            self._engine.close()
            self.look_at(self._engine, is_idle=True)
        except Exception:  # of an engine that failed halfway
            logger.exception("the engine could not be closed, or looked at, at its end")
