"""The real server, `minillm serve`, in this process: own threads, own port, the lab's weights. Proxies, too.

Client, server and engine read one clock, so that both ends of the wire can be drawn on one axis.
"""

import asyncio
import logging
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import uvicorn

from course.lab.http_client import NAME, Heard, ask
from course.lab.lab import Lab
from course.lab.proxy import Spoiling, make_proxy
from course.loadgen.server_metrics import Histogram, Scrape, read_metrics
from minillm.core.step_log import StepRecord
from minillm.core.timeline import Timeline
from minillm.server.admission import AdmissionLimiter
from minillm.server.app import make_app
from minillm.server.calls import Call
from minillm.server.config import ServeConfig
from minillm.server.server import bind, make_server
from minillm.server.service import Service

SLOTS = 8
START_S, STOP_S = 60, 30
SCRAPE_S = 30
HOST = "127.0.0.1"


@dataclass(frozen=True)
class ServerEnd:
    """One answer at the server's end of the wire. Clock seconds."""

    tokens: tuple[float, ...]
    """When each was handed over."""
    borders: tuple[float, ...]
    """The six of its five phases."""
    told: dict[str, float]
    """Means at /metrics, of this request: seconds by name."""


def means(measured: Mapping[str, Histogram]) -> dict[str, float]:
    """What was measured at all."""
    return {name: histogram.mean for name, histogram in measured.items() if histogram.mean is not None}


class LabServer:
    """Listens as soon as it is made, and has answered once: a first request is slower. A context manager; `close` may
    also be called.

    Args:
        serve: fields of ServeConfig that differ from its defaults.
        service: the server's own, or one that also notes things.
        instead_of: closed before this one is built, if there is one: a cell that is run again leaves none behind.
        fields: EngineConfig fields that differ from the lab's. Nothing is cached from one request to the next, so
            that equal requests are equal work.
    Raises:
        RuntimeError: it did not start.
    """

    def __init__(
        self,
        lab: Lab,
        serve: dict[str, Any] | None = None,
        *,
        service: type[Service] = Service,
        instead_of: "LabServer | None" = None,
        **fields: Any,
    ) -> None:
        if instead_of is not None:
            instead_of.close()
        self._config = lab.config(**{"max_num_seqs": SLOTS, "enable_prefix_caching": False, **fields})
        settings = ServeConfig(**{"port": 0, "access_log": False, "drain_timeout_s": 1, **(serve or {})})
        self._settings, self._service_class = settings.replace(served_model_name=NAME), service
        self.lab = lab
        self.calls: dict[str, Call] = {}
        """Requests that are over, by id."""
        self._open()

    def _open(self) -> None:
        thread = self.lab.serving_thread(self._config.replace(max_queue_len=None))
        limiter = AdmissionLimiter(self._settings, self._config)
        try:
            self.service = self._service_class(thread, self._settings, limiter, [self._keep])
            self._server = _Background(make_server(make_app(self.service), self.service, lambda: None))
        except BaseException:
            thread.stop()
            raise
        self.port = self._server.port
        try:
            self._warm_up()
        except BaseException:
            self.close()
            raise

    def _keep(self, call: Call) -> None:
        self.calls[call.request_id] = call

    def _warm_up(self) -> None:
        """Whatever is loaded or compiled at a first use is, before anything is compared."""
        self.call(ask(self.port, "warm-up", 4).call_id)
        self.calls.clear()

    def __enter__(self) -> "LabServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._server.close()

    def ensure_open(self) -> None:
        """Open it again if it was closed; at another port, then."""
        if not self.is_open:
            self._open()

    @property
    def is_open(self) -> bool:
        return self._server.is_open

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def about(self) -> str:
        """Where it is, in a few words."""
        return f"listening at {self.url}"

    asked: Mapping[str, Any] = MappingProxyType({})
    """Further fields of every request's body."""

    def fresh(self, prompt: str) -> str:
        """The prompt, so that nothing of it is cached: as it is, for this server caches nothing."""
        return prompt

    def way(self, **spoiling: Any) -> AbstractContextManager[int]:
        """The port to ask at; behind it, the teaching proxy if anything is to be spoiled."""
        return proxy(self.port, **spoiling)

    def end_of(self, heard: Heard, before: Scrape) -> ServerEnd:
        """An answer as the server saw it.

        Args:
            before: its /metrics before it was asked.
        """
        line = self.timeline(heard.call_id)  # it has closed the request, so it's in /metrics
        return ServerEnd(tuple(line.deliveries), tuple(line.borders()), means(self.metrics().since(before)))

    def steps(self) -> tuple[StepRecord, ...]:
        """What the engine has done so far; clock seconds."""
        return self.service.thread.call(lambda engine: tuple(engine.steps)).result()

    def kv_blocks_held(self) -> int:
        return self.service.thread.call(lambda engine: engine.scheduler.kv.pool.num_used).result()

    def metrics(self) -> Scrape:
        """What a dashboard would read."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=SCRAPE_S) as answer:
            return read_metrics(answer.read().decode())

    def call(self, call_id: str, patience_s: float = 30.0) -> Call:
        """A request, once the server has closed it: a moment after its last byte.

        Raises:
            TimeoutError: it does not come to an end.
        """
        end = time.monotonic() + patience_s
        while call_id not in self.calls:
            if time.monotonic() > end:
                raise TimeoutError(f"the server has not closed {call_id}")
            time.sleep(0.002)
        return self.calls[call_id]

    def timeline(self, call_id: str) -> Timeline:
        """The server's own stamps of a request that is over."""
        return self.call(call_id).outputs[0].timeline


class _Background:
    """A uvicorn server in a thread.

    Raises:
        RuntimeError: it did not start.
    """

    def __init__(self, server: uvicorn.Server) -> None:
        self._server = server
        self._loop: asyncio.AbstractEventLoop | None = None
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # readers who are cut on purpose are no error
        sock = bind(HOST, 0)
        self.port: int = sock.getsockname()[1]
        self._thread = threading.Thread(target=self._run, args=(sock,), name="lab-server", daemon=True)
        self._thread.start()
        end = time.monotonic() + START_S
        while not server.started and self._thread.is_alive() and time.monotonic() < end:
            time.sleep(0.005)
        if not server.started:
            server.should_exit = True
            sock.close()
            raise RuntimeError("the lab's server did not start")

    def _run(self, sock: object) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            await self._server.serve([sock])

        asyncio.run(serve())

    def ask(self, question: Callable[[], float]) -> float:
        """The answer to a question that is put in the server's thread."""

        async def answer() -> float:
            return question()

        return asyncio.run_coroutine_threadsafe(answer(), self._loop).result(START_S)

    @property
    def is_open(self) -> bool:
        return self._thread.is_alive() and not self._server.should_exit

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(STOP_S)


@contextmanager
def in_background(app: Any, **options: Any) -> Iterator[_Background]:
    """Any ASGI application on a port of its own, for a while."""
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1, **options)
    running = _Background(uvicorn.Server(config))
    try:
        yield running
    finally:
        running.close()


@contextmanager
def proxy(port: int, **spoiling: Any) -> Iterator[int]:
    """minillm's teaching proxy before a server; its port.

    Args:
        spoiling: fields of Spoiling: hold_ms, buffer_bytes, coalesce. None at all: no proxy, the server's own port.
    """
    if Spoiling(**spoiling) == Spoiling():
        yield port
        return
    with in_background(make_proxy(f"http://{HOST}:{port}", Spoiling(**spoiling))) as running:
        yield running.port
