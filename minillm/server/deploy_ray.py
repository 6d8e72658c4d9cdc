"""More than one engine: Ray Serve runs the replicas, routes between them, scales them, and replaces dead ones.

Nothing of that is home-made. Each replica is the same application as `minillm serve` on one machine, in a
process of its own. Ray's proxy takes the connections and holds the queue: a replica gets as many requests
as it has slots, the rest wait in the router, and beyond --max-queue clients get 503. When a replica dies,
requests that wait for its answer get 500 and may be sent again; a stream that has begun breaks off without
its [DONE], since its status was sent long ago. `/metrics` shows whichever replica answers: to see all of
them, scrape Ray's own metrics, or send spans to a collector.

On a cluster, start Ray there and run this on its head node (or set RAY_ADDRESS).
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from minillm.core.errors import ConfigError, MissingPackageError
from minillm.policies.config import EngineConfig
from minillm.server.admission import AdmissionLimiter
from minillm.server.config import ServeConfig

try:
    import ray
    from ray import serve as ray_serve
except ImportError as error:
    raise MissingPackageError(
        f'--replicas needs Ray Serve: pip install -c constraints.txt -e ".[ray]" ({error})'
    ) from error

APPLICATION = "minillm"
POLL_S = 0.2
HEALTH_CHECK_S = 2
"""A replica is asked so often whether it is well; one whose process died is missed at once."""

AFTER_DRAIN_S = 10
"""Past the drain timeout: time for Ray to end what is left."""


class Replica:
    """One engine behind the HTTP application. Ray builds it in a process of its own."""

    def __init__(self, engine: EngineConfig, serve: ServeConfig) -> None:
        from minillm.server.server import make_service

        self.service = make_service(engine, serve)

    def __serve_build_asgi_app__(self) -> Any:
        from minillm.server.app import make_app

        return make_app(self.service)

    def check_health(self) -> None:
        """Ray replaces the replica if this raises."""
        self.service.thread.check_alive()


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
        ray_serve.ingress()(Replica),
        name="engine",
        ray_actor_options={"num_cpus": 1, "num_gpus": int(device == "cuda")},
        max_ongoing_requests=slots,
        max_queued_requests=-1 if engine.max_queue_len is None else engine.max_queue_len,
        health_check_period_s=HEALTH_CHECK_S,
        graceful_shutdown_timeout_s=serve.drain_timeout_s,
        autoscaling_config=scaling,
    )
    return deployment.bind(engine, serve)


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


def drain(timeout_s: float) -> None:
    """Take the application away, and wait for the requests in its replicas: a shutdown alone ends the proxy at once,
    and every stream that goes through it. New requests get 404 from Ray meanwhile; what still waits in the router is
    dropped by the shutdown.
    """
    ray_serve.delete(APPLICATION, _blocking=False)  # the blocking one gives up after a minute
    deadline = time.monotonic() + timeout_s + AFTER_DRAIN_S
    while APPLICATION in ray_serve.status().applications and time.monotonic() < deadline:
        time.sleep(POLL_S)


def run_replicas(engine: EngineConfig, serve: ServeConfig, on_ready: Callable[[str], Any]) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Raises:
        ConfigError: the port is taken, or the replicas do not start.
    """
    from minillm.server.server import bind, url_of

    sock = bind(serve.host, serve.port)  # Ray's proxy opens it again: taken ports should show here and now
    port = sock.getsockname()[1]
    sock.close()
    stop = threading.Event()
    start_ray()
    for number in (signal.SIGTERM, signal.SIGINT):  # after Ray has put its own in place, which end it at once
        signal.signal(number, lambda *_: stop.set())
    try:
        ray_serve.start(http_options={"host": serve.host, "port": port})
        quiet = {"log_level": "ERROR", "enable_access_log": False}
        app = application(engine, serve.replace(port=port))
        ray_serve.run(app, name=APPLICATION, route_prefix="/", logging_config=quiet)
        on_ready(url_of(serve.host, port))
        stop.wait()
        drain(serve.drain_timeout_s)
    except RuntimeError as error:
        raise ConfigError(f"the replicas did not start: {error}") from error
    finally:
        ray_serve.shutdown()
        ray.shutdown()
