"""ASGI, as far as timing and trouble need it: bodies with limits, clients that leave, bytes that are accepted."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Send

from minillm.server.errors import ApiError

T = TypeVar("T")

CONNECTION = "minillm.connection"
"""Key in an ASGI scope: the BoundedProtocol (connection.py) that the request came on, where there is one."""


async def read_body(request: Request, max_bytes: int, timeout_s: float) -> bytes:
    """The request's body. An oversized one is refused before it is sent, if its length is announced.

    Raises:
        ApiError: 413: too large; 408: too slow.
        ClientDisconnect: the client left.
    """
    too_large = ApiError(413, f"the body is larger than {max_bytes} bytes: shorten it", "body_too_large", close=True)
    if int(request.headers.get("content-length", 0)) > max_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for piece in request.stream():
                body += piece
                if len(body) > max_bytes:
                    raise too_large
    except TimeoutError:
        raise ApiError(408, f"the body did not come within {timeout_s:g} s", "body_timeout", close=True) from None
    return bytes(body)


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Do some work, and give it up if the client leaves meanwhile.

    Raises:
        ClientDisconnect: the client left.
    """
    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_whole(send: Send, status: int, headers: dict[str, str], body: bytes) -> None:
    """Send a response, and wait until the transport has accepted it."""
    await send_head(send, status, {**headers, "content-length": str(len(body))})
    await send_last(send, body)


async def send_head(send: Send, status: int, headers: dict[str, str]) -> None:
    """Begin a response."""
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})


async def send_last(send: Send, body: bytes) -> None:
    """Send the end of a response, and wait until the transport has accepted it."""
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})  # waits for the bytes before it
