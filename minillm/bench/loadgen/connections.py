"""What a new connection costs, against one that is kept open."""

from dataclasses import dataclass

import aiohttp

from minillm.bench.loadgen.client import IDLE_S, now


@dataclass(frozen=True, slots=True)
class RoundTrips:
    """Seconds of each small request, from sending to its last byte."""

    new: list[float]
    """Each on a connection of its own: name look-up, TCP, and TLS where there is any."""
    kept: list[float]
    """All on one that is open."""


async def compare_connections(url: str, count: int = 20, path: str = "/health") -> RoundTrips:
    """Ask for a small page, with new and kept connections by turns, so that a slow spell hits both.

    Args:
        url: of the server, without a path.
    Raises:
        aiohttp.ClientError: nobody answers there.
    """
    found = RoundTrips([], [])
    fresh = aiohttp.TCPConnector(force_close=True)
    pooled = aiohttp.TCPConnector(keepalive_timeout=IDLE_S)
    async with aiohttp.ClientSession(connector=fresh) as new, aiohttp.ClientSession(connector=pooled) as kept:
        await _round_trip(kept, url + path)  # opens the one connection
        for _ in range(count):
            found.new.append(await _round_trip(new, url + path))
            found.kept.append(await _round_trip(kept, url + path))
    return found


async def _round_trip(session: aiohttp.ClientSession, url: str) -> float:
    start = now()
    async with session.get(url) as response:
        await response.read()
    return now() - start
