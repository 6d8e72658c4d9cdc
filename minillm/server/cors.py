"""Cross-origin requests: which web pages may call this server from a browser. None, unless --cors-origin names them.

A browser asks first, with OPTIONS and without the key (a preflight), and then shows the page the answer only if a
header allows it. Starlette's middleware knows the protocol; it stands around the whole application, so that errors
carry the header, too.
"""

from collections.abc import Iterable, Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

ANY = "*"
EXPOSED = ("retry-after", "x-request-id", "x-minillm-degraded")
"""The headers of ours that pages may read, beside those that they always may."""


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Let pages from these origins call the application, with any header (a key, say); `*` = from all."""
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST"),
        allow_headers=(ANY,),
        expose_headers=EXPOSED,
        allow_private_network=True,  # a page on the internet that calls a server on this machine
    )


def cors_headers(headers: Iterable[tuple[bytes, bytes]], origins: Sequence[str]) -> dict[str, str]:
    """For an answer that is sent past the application, to a request with these headers."""
    origin = next((value.decode("latin-1") for name, value in headers if name == b"origin"), None)
    if origin is None or not {origin, ANY} & set(origins):
        return {}
    return {"access-control-allow-origin": ANY if ANY in origins else origin, "vary": "Origin"}
