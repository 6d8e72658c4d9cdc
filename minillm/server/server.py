"""The server process: bind, load, listen, say so, serve, drain."""

import asyncio
import functools
import gc
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from minillm.core.errors import ConfigError
from minillm.frontend.engine_thread import EngineThread
from minillm.frontend.errors import EngineDeadError
from minillm.host.storage import say
from minillm.model.loader import LoadedModel
from minillm.policies.config import EngineConfig
from minillm.server import access_log, tracing
from minillm.server.admission import AdmissionLimiter
from minillm.server.app import make_app
from minillm.server.calls import Observer
from minillm.server.config import ServeConfig
from minillm.server.connection import Backend, BoundedProtocol
from minillm.server.cors import with_cors
from minillm.server.service import Service

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 75
"""An idle connection is kept so long: longer than clients keep theirs, so that no request meets a closing one."""
OTHER_FILES = 128
"""Open files that are no connections, at most."""
FORCED_S = 1
"""After a second Ctrl-C: longest time for a step to end, and to tell every client that it is over."""
AFTER_DRAIN_S = 5
"""Past the drain timeout: time to tell every client that it is over."""


def make_service(engine: EngineConfig, serve: ServeConfig, model: LoadedModel | None = None) -> Service:
    """Load the model, start the engine, and put admission control before it.

    Raises:
        ConfigError, ModelError: the engine cannot be built, or the API keys cannot be read.
        MissingPackageError: tracing is asked for and not installed.
    """
    thread = EngineThread(engine.replace(max_queue_len=None), model)
    try:
        observers: list[Observer] = []
        if serve.otlp_endpoint is not None:
            name = serve.served_model_name or engine.model
            observers.append(tracing.to_collector(serve.otlp_endpoint, name, (serve.host, serve.port)).observe)
        if serve.access_log:
            access_log.log_to_stderr()
            observers.append(access_log.write_line)
        limiter = AdmissionLimiter(serve, thread.config.replace(max_queue_len=engine.max_queue_len))
        return Service(thread, serve, limiter, observers)
    except BaseException:
        thread.stop()
        raise


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet: a port that is taken shows before the model is loaded.

    Raises:
        ConfigError: it is taken, or no address of this machine.
    """
    # asyncio sends small chunks immediately (TCP_NODELAY) only where a socket says that it is TCP: else the tokens of a
    # second answer on a connection wait for the client's delayed acknowledgement, 40 ms.
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, proto=socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        message = f"cannot listen on {host} port {port}: {error.strerror}; choose another --port, or --host"
        raise ConfigError(message) from error
    return sock


def url_of(host: str, port: int) -> str:
    """The address as a client writes it: an IPv6 address stands in brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_room(num_connections: int) -> None:
    """Let this process open so many connections, where the limit on open files is lower than they need. Windows has
    no such limit.

    Raises:
        ConfigError: that is not allowed.
    """
    try:
        import resource
    except ImportError:
        return
    needed = num_connections + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"{num_connections} connections need {needed} open files, and this process may have {hard}: "
            "lower --max-connections, or raise the limit (ulimit -Hn)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class DrainingServer(uvicorn.Server):
    """uvicorn, which on SIGTERM or Ctrl-C stops listening and waits for requests in flight.

    Those that are not done within the drain timeout are ended with an error that says so. A second Ctrl-C
    ends them immediately.
    """

    def __init__(self, config: uvicorn.Config, service: Backend, on_ready: Callable[[], Any]) -> None:
        super().__init__(config)
        self._service = service
        self._on_ready = on_ready
        self.failure: EngineDeadError | None = None
        """Why it stopped by itself: an engine that is dead, after a lost GPU or a bug, serves nothing ever again."""
        service.num_connections = lambda: len(self.server_state.connections)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        try:
            self._service.check_alive()
        except EngineDeadError as error:
            self.failure = error
            return True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.draining = True
        timer = asyncio.create_task(self._end_of_drain())
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()
        if self.force_exit:
            await self._end_now()

    async def _end_of_drain(self) -> None:
        await asyncio.sleep(self._service.serve.drain_timeout_s)
        logger.warning("requests are still in flight after the drain timeout: they end here")
        await asyncio.to_thread(self._service.abort_all)

    async def _end_now(self) -> None:
        """After a second Ctrl-C: end all requests, and wait for no more than a moment until their clients are told."""
        threading.Thread(target=self._service.abort_all, daemon=True).start()  # asyncio's own would be waited for
        until = time.monotonic() + FORCED_S
        while self.server_state.tasks and time.monotonic() < until:
            await asyncio.sleep(0.01)
        if not self.server_state.tasks:  # else the engine is in a long step, and would be waited for
            await self.lifespan.shutdown()


def make_server(app: ASGIApp, service: Backend, on_ready: Callable[[], Any]) -> DrainingServer:
    """uvicorn with our protocol, limits and way of stopping; `on_ready` is called once it listens."""
    app = with_cors(app, service.serve.cors_origin)
    config = uvicorn.Config(
        app,
        http=functools.partial(BoundedProtocol, service, app),  # type: ignore[arg-type]
        ws="none",
        lifespan="auto",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(service.serve.drain_timeout_s) + AFTER_DRAIN_S,
    )
    return DrainingServer(config, service, on_ready)


def run(engine: EngineConfig, serve: ServeConfig, on_ready: Callable[[str], Any]) -> None:
    """Serve until SIGTERM or Ctrl-C. `on_ready` gets the base URL once clients can connect.

    Raises:
        ConfigError, ModelError: as make_room, bind and make_service.
        EngineDeadError: the engine died, and all requests have been told.
    """
    make_room(serve.max_connections)
    sock = bind(serve.host, serve.port)
    host, port = sock.getsockname()[:2]
    try:
        service = make_service(engine, serve.replace(port=port))
    except BaseException:
        sock.close()
        raise
    say(service.describe_kv())
    gc.collect()
    gc.freeze()  # else each full collection walks all that loading has made: up to 200 ms in the middle of a step
    run_server(make_server(make_app(service), service, lambda: on_ready(url_of(host, port))), sock)


def run_server(server: DrainingServer, sock: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises EngineDeadError."""
    # uvicorn puts handlers of its own in place, and at the end raises the signal again for those before it.
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run(sockets=[sock])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if server.failure is not None:
        raise server.failure
