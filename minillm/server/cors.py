"""Cross-origin requests: which web pages may call this server from a browser. None, unless --cors-origin names them.

A browser asks first, with OPTIONS and without the key (a preflight), and then shows the page the answer only if a
header allows it. Starlette's middleware knows the protocol; it stands around the whole application, so that errors
carry the header, too.
"""

from collections.abc import Iterable, Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from minillm.server.errors import ApiError

ANY = "*"
EXPOSED = ("retry-after", "x-request-id", "x-minillm-degraded")
"""The headers of ours that pages may read, beside those that they always may."""
METHODS = ("GET", "POST")


def foreign_origin(origin: str | None) -> ApiError:
    """The answer to a preflight for a page that may not call this server."""
    whose = (origin or "other origins")[:100]
    flag = f"--cors-origin {origin[:100] if origin else 'and theirs'}"
    return ApiError(403, f"pages of {whose} may not call this server from a browser: restart it with {flag}")


class Cors(CORSMiddleware):
    """Starlette's, with errors in our shape."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """Whether a page may send what it asks for."""
        answer = super().preflight_response(request_headers)
        if answer.status_code == 200:
            return answer
        if self.is_allowed_origin(request_headers["origin"]):
            problem = ApiError(403, f"pages may use {' and '.join(METHODS)} only: nothing here has another method")
        else:
            problem = foreign_origin(request_headers["origin"])
        own = {name: value for name, value in answer.headers.items() if name not in ("content-type", "content-length")}
        return Response(problem.body, problem.status, {**own, **problem.headers})


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Let pages from these origins call the application, with any header (a key, say); `*` = from all."""
    if not origins:
        return app
    return Cors(
        app,
        allow_origins=origins,
        allow_methods=METHODS,
        allow_headers=(ANY,),
        expose_headers=EXPOSED,
        allow_private_network=True,  # a page on the internet that calls a server on this machine
    )


def cors_headers(headers: Iterable[tuple[bytes, bytes]], origins: Sequence[str]) -> dict[str, str]:
    """Headers of an answer that is sent past the application, to a request with these headers."""
    origin = next((value.decode("latin-1") for name, value in headers if name == b"origin"), None)
    if origin is None or not {origin, ANY} & set(origins):
        return {}
    return {"access-control-allow-origin": ANY if ANY in origins else origin, "vary": "Origin"}
