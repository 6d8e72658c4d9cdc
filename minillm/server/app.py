"""The ASGI application: routes, and errors in one shape wherever they are raised."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from minillm.core.errors import EngineDeadError, MinillmError
from minillm.server.endpoint import GenerationEndpoint
from minillm.server.errors import ApiError, as_api_error
from minillm.server.metrics import Metrics
from minillm.server.protocol import ChatBody, CompletionBody
from minillm.server.service import Service

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def make_app(service: Service, metrics: Metrics, started: int) -> Starlette:
    """Build it around a running engine.

    Args:
        started: Unix time, seconds; the model's `created`.
    """
    model = {
        "id": service.model_name,
        "object": "model",
        "created": started,
        "owned_by": "minillm",
        "max_model_len": service.context_limit,
    }

    async def models(request: Request) -> Response:
        _check_key(service, request)
        return _json({"object": "list", "data": [model]})

    async def one_model(request: Request) -> Response:
        _check_key(service, request)
        name = request.path_params["name"]
        if name != service.model_name:
            raise ApiError(404, f"there is no model {name[:100]!r} here", "model_not_found", "model")
        return _json(model)

    async def health(_: Request) -> Response:
        if service.draining:
            raise ApiError(503, "this server is stopping", "stopping")
        service.thread.check_alive()
        return _json({"status": "ok", "clock": service.clock.now()})

    async def show_metrics(_: Request) -> Response:
        with contextlib.suppress(EngineDeadError):  # then what was last seen of it is shown
            await asyncio.wrap_future(service.thread.call(metrics.look))
        return Response(metrics.render(), media_type=METRICS_TYPE)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.get_running_loop().run_in_executor(None, service.stop)

    app = Starlette(
        routes=[
            Route("/v1/chat/completions", GenerationEndpoint(service, ChatBody), methods=["POST"]),
            Route("/v1/completions", GenerationEndpoint(service, CompletionBody), methods=["POST"]),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", one_model),
            Route("/health", health),
            Route("/metrics", show_metrics),
        ],
        exception_handlers={HTTPException: _http_error, MinillmError: _any_error, Exception: _any_error},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # a redirect quotes the query, which may be no text: that would be a 500
    return app


def _check_key(service: Service, request: Request) -> None:
    service.keys.caller(request.headers.get("authorization"), "")


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")


def _respond(error: ApiError, headers: dict[str, str] | None = None) -> Response:
    return Response(error.body, error.status, {**(headers or {}), **error.headers})


async def _http_error(request: Request, error: Exception) -> Response:
    """No such route, or not with this method."""
    assert isinstance(error, HTTPException)
    # The path alone: the URL as a whole may be no text.
    message = f"{request.method} {request.scope['path'][:100]}: {error.detail}"
    return _respond(ApiError(error.status_code, message), dict(error.headers or {}))


async def _any_error(_: Request, error: Exception) -> Response:
    return _respond(as_api_error(error))
