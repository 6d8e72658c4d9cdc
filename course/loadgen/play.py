"""Sends requests when they are due, and keeps everything that comes back.

Open loop: each request goes out at its moment, whatever the server does. With `max_in_flight` the client holds
requests back while so many are open; when all are due at the start, that is a closed loop.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from course.loadgen.client import Client, ClientExchange, Failure, now
from course.loadgen.planned_requests import PlannedRequest
from course.loadgen.stream import read_answer


class Play:
    """One load test in progress.

    Args:
        requests: by index; a later turn stands after the turn it answers to.
        max_in_flight: most requests open at once; None = open loop.
        on_end: called for each request that has ended.
    """

    def __init__(
        self,
        requests: Sequence[PlannedRequest],
        client: Client,
        max_in_flight: int | None = None,
        on_end: Callable[[ClientExchange], None] = lambda exchange: None,
    ) -> None:
        self.exchanges = [ClientExchange(request) for request in requests]
        self.start = now()
        """When the play began; `PlannedRequest.due` counts from here."""
        self.was_cut_off = False
        self._client = client
        self._on_end = on_end
        self._slots = asyncio.Semaphore(max_in_flight or max(len(requests), 1))
        self._next = {r.after: self.exchanges[r.index] for r in requests if r.after is not None}
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Play to the end. When cancelled, what is open is cut off, and stays so in the record."""
        self.start = now()
        try:
            async with asyncio.TaskGroup() as group:
                self._tasks = [group.create_task(self._begin(p)) for p in self.exchanges if p.request.due is not None]
        except asyncio.CancelledError:
            self.was_cut_off = True
            raise

    def stop(self) -> None:
        """Cut off what is open, and send nothing more. Call it in the event loop's thread."""
        self.was_cut_off = True
        for task in self._tasks:
            task.cancel()

    async def _begin(self, exchange: ClientExchange) -> None:
        """A conversation from its first turn on."""
        assert exchange.request.due is not None
        exchange.due = self.start + exchange.request.due
        await asyncio.sleep(exchange.due - now())
        while await self._send(exchange):
            following = self._next.get(exchange.request.index)
            if following is None:
                return
            exchange = following
            exchange.due = now() + exchange.request.think_s
            await asyncio.sleep(exchange.request.think_s)

    async def _send(self, exchange: ClientExchange) -> bool:
        """Send one request. Whether it was answered."""
        try:
            async with self._slots:
                request = exchange.request
                body = self._client.endpoint.body(self._messages(exchange), request.max_tokens, request.tenant)
                await self._client.stream(body, exchange)
        except Exception as error:  # unforeseen: this request has failed, and the others go on
            exchange.fail(Failure.CLIENT_BUG, f"{type(error).__name__}: {error}")
            exchange.ended = now()
        exchange.is_over = True
        self._on_end(exchange)
        return exchange.failure is None

    def _messages(self, exchange: ClientExchange) -> list[dict[str, Any]]:
        """The conversation up to this turn, with the answers that really came: read while others still stream."""
        messages = [{"role": "user", "content": exchange.request.prompt}]
        while exchange.request.after is not None:
            exchange = self.exchanges[exchange.request.after]
            messages.insert(0, {"role": "assistant", "content": read_answer(exchange.reads).text})
            messages.insert(0, {"role": "user", "content": exchange.request.prompt})
        return messages
