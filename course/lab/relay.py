"""What may stand between two machines: a distance, and a gateway that reads on when its reader has gone.

A relay of bytes on this machine. A real new connection is of no use before its handshakes are over, so the relay
lets the first bytes of one wait as long as the handshakes would take.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from course.lab.proxy import held

PIECE = 65_536
START_S = 10
HANDSHAKES = {"kept open": 0, "new, TCP": 1, "new, TCP + TLS 1.3": 2, "new, TCP + TLS 1.2": 3}
"""Round trips before a request can leave, by connection."""


@dataclass(frozen=True)
class RelayPath:
    """Between a client and a server."""

    rtt_s: float = 0.0
    """A round trip, seconds."""
    handshakes: int = 0
    """Round trips of a new connection before its first byte."""
    reads_on: bool = False
    """A gateway that reads an answer to its end, though the client has left."""


@contextmanager
def relay(port: int, way: RelayPath) -> Iterator[int]:
    """Put it before a server; its port.

    Raises:
        RuntimeError: it did not start.
    """
    ready: threading.Event = threading.Event()
    told: dict[str, object] = {}

    carrying: set[asyncio.Task[None]] = set()  # asyncio itself forgets them once their client has left

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_carry(port, way, reader, writer))
        carrying.add(task)
        task.add_done_callback(carrying.discard)

    async def serve() -> None:
        told["stop"], told["loop"] = asyncio.Event(), asyncio.get_running_loop()
        server = await asyncio.start_server(carry, "127.0.0.1", 0)
        told["port"] = server.sockets[0].getsockname()[1]
        ready.set()
        await told["stop"].wait()
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="relay", daemon=True)
    thread.start()
    if not ready.wait(START_S):
        raise RuntimeError("the relay did not start")
    try:
        yield told["port"]
    finally:
        told["loop"].call_soon_threadsafe(told["stop"].set)
        thread.join(10)


async def _carry(port: int, way: RelayPath, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection, both directions. Where no server listens any more, the client is told so by closing its own."""
    try:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        writer.close()
        return

    async def there() -> None:
        await asyncio.sleep(way.handshakes * way.rtt_s)
        await _pump(reader, server_writer, way.rtt_s / 2)
        if not way.reads_on:
            server_writer.close()

    async def back() -> None:
        await _pump(server_reader, writer, way.rtt_s / 2)
        writer.close()

    with contextlib.suppress(asyncio.CancelledError):  # the relay is taken away
        await asyncio.gather(there(), back())
    server_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Every byte, so much later. Goes on reading when no client takes them any more."""
    async for piece in held(_pieces(reader), delay_s):
        if not writer.is_closing():
            writer.write(piece)
            with contextlib.suppress(ConnectionError):
                await writer.drain()


async def _pieces(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(PIECE):
            yield piece
