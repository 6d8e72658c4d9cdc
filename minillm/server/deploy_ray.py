"""More than one engine: Ray Serve runs the replicas, routes between them, scales them, and replaces dead ones.

    client --- Front (this process: connections, drain) --- Ray's router (the queue) --- RayReplica (one engine) ...

The front takes connections with the same limits as a server of one engine, and hands each request to Ray's router, in
the same process: a replica gets as many as it has slots, the rest wait there, and beyond --max-queue clients get 429.
A request whose replica dies before its answer has begun goes to another one; a stream that has begun ends with an
error. SIGTERM stops listening and waits for what is in the router, too; SIGHUP replaces the replicas one by one.
`/metrics` shows whichever replica answers: to see all of them, scrape Ray's own, or send spans to a collector.

On a cluster, start Ray there and run this on its head node (or set RAY_ADDRESS).
"""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send

from minillm.core.errors import ConfigError
from minillm.core.timeline import WallClock
from minillm.host.errors import MissingPackageError
from minillm.policies.config import EngineConfig
from minillm.server import access_log
from minillm.server.admission import AdmissionLimiter
from minillm.server.answers import error_event
from minillm.server.calls import Call
from minillm.server.config import ServeConfig
from minillm.server.errors import ApiError, as_api_error
from minillm.server.wire import read_body, send_whole, unless_gone

try:
    import ray
    from ray import serve as ray_serve
    from ray.exceptions import RayActorError
    from ray.serve.exceptions import BackPressureError
except ImportError as error:
    raise MissingPackageError(
        f'--replicas needs Ray Serve: pip install -c constraints.txt -e ".[ray]" ({error})'
    ) from error

logger = logging.getLogger(__name__)

APPLICATION = "minillm"
HEALTH_CHECK_S = 2
"""A replica is asked so often whether it is well; one whose process died is missed immediately."""
MAX_TRIES = 3
PASSED_ON = ("type", "http_version", "method", "scheme", "path", "raw_path", "query_string", "headers", "client")
"""The parts of an ASGI scope that a replica's application reads."""
BROKEN = ApiError(503, "the replica that wrote this answer is gone: ask again", "replica_lost")


class RayReplica:
    """One engine behind the HTTP application. Ray builds it in a process of its own."""

    def __init__(self, engine: EngineConfig, serve: ServeConfig) -> None:
        from minillm.server.app import make_app
        from minillm.server.server import make_service

        self.service = make_service(engine, serve)
        self.app = make_app(self.service)

    async def answer(self, scope: Scope, body: bytes) -> AsyncIterator[Message]:
        """What the application sends. Ray cancels it if the client leaves."""
        request: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        messages: asyncio.Queue[Message | None] = asyncio.Queue()

        async def receive() -> Message:
            return request.pop() if request else await asyncio.Event().wait()  # type: ignore[return-value]

        async def run() -> None:
            try:
                await self.app(scope, receive, messages.put)
            finally:
                messages.put_nowait(None)

        task = asyncio.create_task(run())
        try:
            while (message := await messages.get()) is not None:
                yield message
        finally:
            task.cancel()

    def check_health(self) -> None:
        """Ray replaces the replica if this raises."""
        self.service.check_alive()


class Front:
    """The ASGI application that clients are connected to, and what its server wants to know."""

    def __init__(self, serve: ServeConfig, handle: Any) -> None:
        self.serve = serve
        self.clock = WallClock()
        self.draining = False
        self.num_connections: Callable[[], int] = lambda: 0
        self._answer = handle.options(stream=True).answer.remote

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started: dict[bytes, bytes] = {}
        """Headers, once an answer has begun."""

        async def tell(message: Message) -> None:
            started.update(message.get("headers", ()))
            await send(message)

        try:
            await self._pass_on(scope, receive, tell)
        except ClientDisconnect:
            pass
        except Exception as error:
            await self._refuse(as_api_error(error), started, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if scope["path"] in ("/health", "/ready"):
            if scope["path"] == "/ready":
                await asyncio.to_thread(self._check_ready)
            return await send_whole(send, 200, {"content-type": "application/json"}, b'{"status":"ok"}')
        body = await read_body(request, self.serve.max_body_bytes, self.serve.body_timeout_s)
        kept = {name: scope[name] for name in PASSED_ON}
        for left in reversed(range(MAX_TRIES)):
            messages = self._answer(kept, body)
            try:
                first = await unless_gone(receive, anext(messages))
                break
            except RayActorError:  # it died before it said anything
                if not left:
                    raise BROKEN from None
            except BackPressureError:
                raise ApiError(429, "all replicas and the queue before them are full", "server_busy") from None
            except BaseException:
                messages.cancel()
                raise
        try:
            await send(first)
            await unless_gone(receive, self._rest(messages, send))
        except RayActorError:
            raise BROKEN from None
        finally:
            messages.cancel()  # of one that is over, it does nothing

    async def _rest(self, messages: AsyncIterator[Message], send: Send) -> None:
        async for message in messages:
            await send(message)

    async def _refuse(self, problem: ApiError, started: dict[bytes, bytes], send: Send) -> None:
        if not started:
            await send_whole(send, problem.status, problem.headers, problem.body)
        elif b"text/event-stream" in started.get(b"content-type", b""):
            await send({"type": "http.response.body", "body": error_event(problem), "more_body": False})
        else:
            raise problem  # half of an answer: the connection is closed

    def _check_ready(self) -> None:
        deployments = ray_serve.status().applications[APPLICATION].deployments.values()
        if self.draining or not any(one.replica_states.get("RUNNING") for one in deployments):
            raise ApiError(503, "no replica can answer now", "not_ready")

    # ---------------------------------------------------------------- for the server

    def close(self, call: Call) -> None:
        """A call that was refused before it could be passed on: replicas log all others."""
        call.finished = self.clock.now()
        if self.serve.access_log:
            access_log.write_line(call)

    def check_alive(self) -> None:
        """Ray replaces the engines: nothing here can die alone."""

    def abort_all(self) -> None:
        """The server cancels what is still open a moment later, and Ray what it has passed on."""


def application(engine: EngineConfig, serve: ServeConfig) -> "ray_serve.Application":
    """What Ray is to run: replicas of one core each (on a GPU: of one GPU each)."""
    from minillm.model.loader import choose_device

    device = choose_device(engine.device).type
    slots = AdmissionLimiter(serve, engine.for_device(device)).num_slots
    scaling = {
        "min_replicas": serve.replicas,
        "max_replicas": serve.max_replicas or serve.replicas,
        "target_ongoing_requests": max(slots // 2, 1),
    }
    deployment = ray_serve.deployment(
        RayReplica,
        name="engine",
        ray_actor_options={"num_cpus": 1, "num_gpus": int(device == "cuda")},
        max_ongoing_requests=slots,
        max_queued_requests=-1 if engine.max_queue_len is None else engine.max_queue_len,
        health_check_period_s=HEALTH_CHECK_S,
        graceful_shutdown_timeout_s=serve.drain_timeout_s,
        autoscaling_config=scaling,
    )
    return deployment.bind(engine, serve)


def deploy(engine: EngineConfig, serve: ServeConfig) -> Any:
    """Have Ray run the replicas; where it does already, replace them one by one. Returns Ray's DeploymentHandle."""
    quiet = {"log_level": "ERROR", "enable_access_log": False}
    return ray_serve.run(application(engine, serve), name=APPLICATION, route_prefix=None, logging_config=quiet)


def start_ray() -> None:
    """Join the cluster of RAY_ADDRESS, or start one on this machine.

    Raises:
        ConfigError: it does not start.
    """
    logging.getLogger("ray").setLevel(logging.ERROR)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would report to its makers, without being asked
    try:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises just that
        ray.shutdown()
        raise ConfigError(f"Ray did not start, try again: {error}") from error


def run_replicas(engine: EngineConfig, serve: ServeConfig, on_ready: Callable[[str], Any]) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Raises:
        ConfigError: the port is taken, or the replicas do not start.
    """
    from minillm.server.server import bind, make_room, make_server, run_server, url_of

    make_room(serve.max_connections)
    sock = bind(serve.host, serve.port)
    host, port = sock.getsockname()[:2]
    serve = serve.replace(port=port)
    start_ray()
    try:
        ray_serve.start(proxy_location="Disabled")
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        front = Front(serve, deploy(engine, serve))

        def ready() -> None:
            loop = asyncio.get_running_loop()
            if hasattr(signal, "SIGHUP"):
                loop.add_signal_handler(signal.SIGHUP, loop.run_in_executor, None, deploy, engine, serve)
            on_ready(url_of(host, port))

        run_server(make_server(front, front, ready), sock)
    except RuntimeError as error:
        raise ConfigError(f"the replicas did not start: {error}") from error
    finally:
        sock.close()
        ray_serve.shutdown()
        ray.shutdown()
