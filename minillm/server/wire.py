"""ASGI, as far as timing and trouble need it: bodies with limits, clients that leave, bytes that are accepted."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive, Send

from minillm.server.errors import ApiError

T = TypeVar("T")

SLOW_READER = "minillm.slow_reader"
"""ASGI extension: the client is gone because it was cut off; it took nothing of the answer."""


class ClientGone(Exception):
    """The client has closed the connection: the answer is not wanted any more."""


async def read_body(receive: Receive, announced: int, max_bytes: int, timeout_s: float) -> bytes:
    """The request's body.

    Args:
        announced: its Content-Length; 0 if there is none. An oversized body is refused before it is sent.
    Raises:
        ApiError: 413: too large; 408: too slow.
        ClientGone: the client left.
    """
    too_large = ApiError(413, f"the body is larger than {max_bytes} bytes: shorten it", "body_too_large", close=True)
    if announced > max_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > max_bytes:
                    raise too_large
    except TimeoutError:
        raise ApiError(408, f"the body did not come within {timeout_s:g} s", "body_timeout", close=True) from None
    return bytes(body)


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Do some work, and give it up if the client leaves meanwhile.

    Raises:
        ClientGone: the client left.
    """
    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
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
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    raw.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})  # waits for the bytes before it
