"""From the engine thread to readers in an event loop: one wake-up a step, and no queue that can grow.

Waking a loop costs a system call, and then the loop competes with the engine for Python's lock. So what
one step yields, for however many streams, travels together. Nor is a reader's task woken for each token: it leaves a
function with its collector that deals with most of them. A reader that lags finds one merged output instead of a
queue: what it can hold up in memory is its own answer, once.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Unpack

from minillm.core.params import SamplingParams
from minillm.frontend.engine_thread import EngineThread, SubmitOptions
from minillm.frontend.outputs import RequestOutput
from minillm.frontend.prompts import Prompt

Item = RequestOutput | Exception


class OutputCollector:
    """Outputs for one reader, who may have several requests in flight. Belongs to one event loop."""

    def __init__(self) -> None:
        self._outputs: dict[str, RequestOutput] = {}
        """All that is new since the last look, by request id."""
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._take: Callable[[RequestOutput], bool] | None = None

    def put(self, item: Item) -> None:
        """Add an output, or an error, which `get` then raises."""
        reader = None if self._reader is None or self._reader.done() else self._reader
        if reader and self._take and not isinstance(item, Exception):
            try:
                if self._take(item):
                    return
            except Exception as error:
                item = error
        if isinstance(item, Exception):
            self._error = item
        else:
            unread = self._outputs.get(item.request_id)
            self._outputs[item.request_id] = item if unread is None else merge(unread, item)
        if reader:
            reader.set_result(None)

    async def get(self, take: Callable[[RequestOutput], bool] | None = None) -> list[RequestOutput]:
        """Wait for news. Returns one output for each request that has some.

        Args:
            take: called immediately with what comes while this waits. If it returns True, it has dealt with it, and the
                wait goes on.
        Raises:
            Exception: the one that was put in, or raised by `take`.
        """
        self._take = take
        while not self._outputs and self._error is None:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        if self._error is not None:
            raise self._error
        outputs, self._outputs = list(self._outputs.values()), {}
        return outputs


class OutputDispatcher:
    """Carries items from the engine thread to the collectors of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._bag: deque[tuple[OutputCollector, Item]] = deque()
        self._called = False

    def post(self, collector: OutputCollector, item: Item) -> None:
        """Called in the engine thread only.

        Raises:
            RuntimeError: the event loop is closed.
        """
        self._bag.append((collector, item))
        if not self._called:
            self._called = True
            try:
                self.loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:
                self._called = False
                self._bag.clear()
                raise

    def _deliver(self) -> None:
        self._called = False  # first: what is posted from here on calls again
        while self._bag:
            collector, item = self._bag.popleft()
            collector.put(item)


def merge(unread: RequestOutput, latest: RequestOutput) -> RequestOutput:
    """The latest output, with what was new in the one before as well."""
    completions = [
        new._replace(new_text=old.new_text + new.new_text, num_new_tokens=old.num_new_tokens + new.num_new_tokens)
        for old, new in zip(unread.completions, latest.completions)
    ]
    return latest._replace(completions=completions)


class AsyncEngine:
    """The engine for asyncio: requests are handed over, and outputs read, without ever blocking the event loop."""

    def __init__(self, thread: EngineThread) -> None:
        self.thread = thread
        self._dispatcher: OutputDispatcher | None = None

    async def submit(
        self, prompt: Prompt, params: SamplingParams, collector: OutputCollector, **options: Unpack[SubmitOptions]
    ) -> RequestOutput:
        """Queue a request whose outputs go to `collector`. Returns it as the engine has taken it; the caller aborts it
        when no reader is left, or if this is cancelled: the engine may have taken it.

        Raises:
            RequestError: it cannot be served.
            EngineDeadError: the engine thread has stopped.
        """
        loop = asyncio.get_running_loop()
        if self._dispatcher is None or self._dispatcher.loop is not loop:
            self._dispatcher = OutputDispatcher(loop)
        post = self._dispatcher.post
        submitted = self.thread.submit_nowait(prompt, params, lambda item: post(collector, item), **options)
        return await asyncio.wrap_future(submitted)
