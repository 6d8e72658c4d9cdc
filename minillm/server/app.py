"""The ASGI application: routes, and errors in one shape wherever they are raised."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from minillm import __version__
from minillm.core.errors import MinillmError
from minillm.server.cors import foreign_origin
from minillm.server.endpoint import Exchange
from minillm.server.errors import ApiError, as_api_error
from minillm.server.protocol import Body, ChatBody, CompletionBody, DetokenizeBody, ResponsesBody, TokenizeBody, parse
from minillm.server.service import Service
from minillm.server.unsupported import instead_of
from minillm.server.wire import read_body

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def make_app(service: Service) -> Starlette:
    """Build it around a running engine."""
    model = {
        "id": service.model_name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "minillm",
        "root": service.thread.config.model,  # vLLM's benchmark takes the tokenizer's name from here
        "parent": None,
        "max_model_len": service.context_limit,
    }

    async def models(request: Request) -> Response:
        service.keys.caller(request.headers.get("authorization"), "")
        return _json({"object": "list", "data": [model]})

    async def one_model(request: Request) -> Response:
        service.keys.caller(request.headers.get("authorization"), "")
        service.check_model(request.path_params["name"])
        return _json(model)

    async def health(_: Request) -> Response:
        """Whether the process is well: to be started anew if this fails."""
        service.check_alive()
        return _json({"status": "ok", "clock": service.clock.now()})

    async def ready(_: Request) -> Response:
        """Whether the next request would get in: to be sent elsewhere if this fails."""
        service.check_ready()
        return _json({"status": "ready"})

    async def version(_: Request) -> Response:
        return _json({"version": __version__})

    def on_tokens(kind: type[Body], work: Callable[[Body], dict[str, Any]]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            service.keys.caller(request.headers.get("authorization"), "")
            raw = await read_body(request, service.serve.max_body_bytes, service.serve.body_timeout_s)
            return _json(await service.in_thread(work, parse(raw, kind)))

        return answer

    async def show_metrics(_: Request) -> Response:
        return Response(await service.render_metrics(), media_type=METRICS_TYPE)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.get_running_loop().run_in_executor(None, service.stop)

    app = Starlette(
        routes=[
            Route("/v1/chat/completions", partial(Exchange, service, ChatBody), methods=["POST"]),
            Route("/v1/completions", partial(Exchange, service, CompletionBody), methods=["POST"]),
            Route("/v1/responses", partial(Exchange, service, ResponsesBody), methods=["POST"]),
            Route("/tokenize", on_tokens(TokenizeBody, service.tokenize), methods=["POST"]),
            Route("/detokenize", on_tokens(DetokenizeBody, service.detokenize), methods=["POST"]),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", one_model),
            Route("/health", health),
            Route("/ready", ready),
            Route("/version", version),
            Route("/metrics", show_metrics),
        ],
        exception_handlers={HTTPException: _error, MinillmError: _error, Exception: _error},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # a redirect quotes the query, which may be no text: that would be a 500
    return app


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")


async def _error(request: Request, error: Exception) -> Response:
    headers: Mapping[str, str] = {}
    if isinstance(error, HTTPException):  # no such route, or not with this method
        headers = error.headers or {}
        # The path alone: the URL as a whole may be no text.
        path = request.scope["path"]
        if request.method == "OPTIONS" and "access-control-request-method" in request.headers:
            error = foreign_origin(request.headers.get("origin"))  # where some are allowed, server/cors.py answers
        else:
            instead = instead_of(path, {route.path for route in request.app.routes} - {path})
            error = ApiError(error.status_code, f"{request.method} {path[:100]}: {error.detail}{instead}")
    problem = as_api_error(error)
    return Response(problem.body, problem.status, {**headers, **problem.headers})
