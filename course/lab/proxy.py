"""A proxy that spoils streams on purpose: it delays, buffers, or gathers events, as real ones do unasked.

nginx buffers 4 or 8 KB by default, gateways scan whole paragraphs, load balancers gather small writes. The
engine's own figures show none of it. Put this between a client and a server, and see it in the client's:
`minillm proxy`.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

import aiohttp
import typer
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from minillm.core.errors import ConfigError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

HOP_BY_HOP = {
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "content-length",
    "host",
}
"""Headers of one connection, which the next one makes anew (RFC 9110, 7.6.1)."""
EVENT_END = b"\n\n"


@dataclass(frozen=True, slots=True)
class Spoiling:
    """What is done to a stream. The default does nothing."""

    hold_ms: float = 0.0
    """Each piece goes on this much later than it came; the gaps between pieces stay."""
    buffer_bytes: int = 0
    """Nothing goes on until so many bytes are there; the rest goes when the stream ends."""
    coalesce: int = 1
    """So many events go on together."""

    def __post_init__(self) -> None:
        if not self.hold_ms >= 0 or self.buffer_bytes < 0 or self.coalesce < 1:
            raise ConfigError("--hold-ms and --buffer-bytes are 0 or more, --coalesce is 1 or more")

    def apply(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The stream as the client will get it: the same bytes, at other moments."""
        if self.coalesce > 1:
            pieces = gathered(pieces, self.coalesce)
        if self.buffer_bytes:
            pieces = buffered(pieces, self.buffer_bytes)
        return held(pieces, self.hold_ms / 1e3) if self.hold_ms else pieces


async def gathered(pieces: AsyncIterator[bytes], count: int) -> AsyncIterator[bytes]:
    """`count` server-sent events at a time."""
    pending = b""
    async for piece in pieces:
        pending += piece
        while pending.count(EVENT_END) >= count:
            *whole, rest = pending.split(EVENT_END, count)
            pending = rest
            yield EVENT_END.join(whole) + EVENT_END
    if pending:
        yield pending


async def buffered(pieces: AsyncIterator[bytes], size: int) -> AsyncIterator[bytes]:
    """Chunks of at least `size` bytes."""
    pending = b""
    async for piece in pieces:
        pending += piece
        if len(pending) >= size:
            yield pending
            pending = b""
    if pending:
        yield pending


async def held(pieces: AsyncIterator[bytes], seconds: float) -> AsyncIterator[bytes]:
    """Each piece `seconds` after it came. Reading goes on meanwhile, so delays do not add up."""
    waiting: asyncio.Queue[tuple[float, bytes] | None] = asyncio.Queue()

    async def read() -> None:
        try:
            async for piece in pieces:
                waiting.put_nowait((time.perf_counter() + seconds, piece))
        finally:
            waiting.put_nowait(None)

    reader = asyncio.create_task(read())
    try:
        while (entry := await waiting.get()) is not None:
            due, piece = entry
            await asyncio.sleep(due - time.perf_counter())
            yield piece
        await reader  # raises what ended the stream
    finally:
        reader.cancel()
        with contextlib.suppress(asyncio.CancelledError, aiohttp.ClientError):
            await reader


def make_proxy(upstream: str, spoiling: Spoiling, tap: Callable[[bytes], None] | None = None) -> Starlette:
    """An app that hands every request on to `upstream`, and spoils what streams back.

    Args:
        upstream: URL of the server, without a path.
        tap: told each piece of an answer as it's read from the server, before anything is done to it.
    """
    base = upstream.rstrip("/").removesuffix("/v1")

    @contextlib.asynccontextmanager
    async def lifespan(proxy: Starlette) -> AsyncIterator[None]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=timeout, auto_decompress=False
        ) as proxy.state.session:
            yield

    async def forward(request: Request) -> Response:
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        try:
            answer = await request.app.state.session.request(
                request.method,
                base + path,
                data=await request.body(),
                headers=passed_on(request.headers),
                allow_redirects=False,
            )
        except (aiohttp.ClientError, TimeoutError) as error:
            message = f"{base} does not answer: {error or type(error).__name__}"
            return JSONResponse({"error": {"message": message, "type": "bad_gateway"}}, status_code=502)
        pieces = relayed(answer, tap)
        is_stream = answer.content_type == "text/event-stream"
        response = StreamingResponse(spoiling.apply(pieces) if is_stream else pieces, answer.status)
        response.raw_headers = [(k.lower().encode(), v.encode("latin-1")) for k, v in passed_on(answer.headers)]
        return response

    methods = ["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"]
    return Starlette(routes=[Route("/{path:path}", forward, methods=methods)], lifespan=lifespan)


async def relayed(answer: aiohttp.ClientResponse, tap: Callable[[bytes], None] | None = None) -> AsyncIterator[bytes]:
    """The answer's bytes as they come. A client that leaves closes the connection upstream, which aborts the work."""
    try:
        async for piece in answer.content.iter_any():
            if tap is not None:
                tap(piece)
            yield piece
    finally:
        answer.close()


def passed_on(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """The headers that go through a proxy; some, such as Set-Cookie, can be there several times."""
    return [(name, value) for name, value in headers.items() if name.lower() not in HOP_BY_HOP]


@app.command()
def proxy(
    upstream: Annotated[str, typer.Option(help="The server behind it.")] = "http://127.0.0.1:8000",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 = any that is free.")] = 8001,
    hold_ms: Annotated[float, typer.Option(help="Delay each piece of a stream by this much.")] = 0.0,
    buffer_bytes: Annotated[int, typer.Option(help="Hold everything until this many bytes are there.")] = 0,
    coalesce: Annotated[int, typer.Option(help="Pass this many events on together.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print its address as one JSON object.")] = False,
) -> None:
    """A proxy that delays, buffers or merges streams on purpose: latency that no GPU caused."""
    spoiler = make_proxy(upstream, Spoiling(hold_ms, buffer_bytes, coalesce))
    server = uvicorn.Server(uvicorn.Config(spoiler, host=host, port=port, log_level="warning"))

    async def run() -> None:
        serving = asyncio.create_task(server.serve())
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if server.started:
            url = f"http://{host}:{server.servers[0].sockets[0].getsockname()[1]}"
            words = json.dumps({"url": url, "upstream": upstream}) if as_json else f"{url} -> {upstream}"
            print(words, flush=True)
        await serving

    asyncio.run(run())
