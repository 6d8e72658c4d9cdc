"""One API request in the engine: one engine request for each prompt, read through one inbox."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from minillm.core.params import SamplingParams
from minillm.frontend.async_engine import AsyncEngine, OutputCollector
from minillm.frontend.outputs import Completion, RequestOutput
from minillm.server.errors import ApiError, check_ending


class Generation:
    """Use it as `async with`: leaving it in any way ends what is still running, within one step.

    Args:
        prompts: token ids of each.
        params: the same for all.
        arrival: when the API request was there with its whole body, in seconds of the engine's clock.
        deadline_s: seconds from arrival on, after which `news` raises; None = none.
        stream: False: only finished outputs are wanted.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        request_id: str,
        prompts: Sequence[list[int]],
        params: SamplingParams,
        *,
        priority: int,
        arrival: float,
        deadline_s: float | None,
        stream: bool,
    ) -> None:
        self._engine = engine
        self._prompts = dict(zip([f"{request_id}-{i}" for i in range(len(prompts))], prompts))
        self._order = {engine_id: i for i, engine_id in enumerate(self._prompts)}
        self._params = params
        self._options: dict[str, Any] = {"priority": priority, "arrival": arrival, "stream": stream}
        self._deadline_s = deadline_s
        self._inbox = OutputCollector()
        self._timer: asyncio.TimerHandle | None = None
        self._latest: dict[str, RequestOutput] = {}

    async def __aenter__(self) -> "Generation":
        if self._deadline_s is not None:
            loop = asyncio.get_running_loop()
            left = self._deadline_s - (self._engine.thread.clock.now() - self._options["arrival"])
            self._timer = loop.call_later(left, self._inbox.put, deadline_error(self._deadline_s))
        offers = [
            self._engine.submit(prompt, self._params, self._inbox, request_id=engine_id, **self._options)
            for engine_id, prompt in self._prompts.items()
        ]
        try:
            refusals = [r for r in await asyncio.gather(*offers, return_exceptions=True) if isinstance(r, Exception)]
            if refusals:
                raise refusals[0]
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end()

    @property
    def finished(self) -> bool:
        return len(self._latest) == len(self._prompts) and all(output.finished for output in self._latest.values())

    @property
    def outputs(self) -> list[RequestOutput]:
        """What has come so far, in the prompts' order."""
        return [self._latest[engine_id] for engine_id in self._prompts if engine_id in self._latest]

    @property
    def choices(self) -> list[Completion]:
        """Of the finished answer: all completions of all prompts."""
        return [completion for output in self.outputs for completion in output.completions]

    async def news(self) -> list[tuple[int, Completion]]:
        """Wait for what comes next: completions that have something new, each with its choice index.

        Raises:
            ApiError: one of them ended without an answer, or the deadline is over.
            EngineDeadError: the engine thread has stopped.
        """
        news = []
        for output in await self._inbox.get():
            before = self._latest.get(output.request_id)
            self._latest[output.request_id] = output
            first = self._order[output.request_id] * self._params.n
            for i, completion in enumerate(output.completions):
                ended = completion.finish_reason is not None
                if ended:
                    check_ending(completion)
                had_ended = before is not None and before.completions[i].finish_reason is not None
                if completion.num_new_tokens or (ended and not had_ended):
                    news.append((first + i, completion))
        return news

    async def result(self) -> None:
        """Wait for the end. Then `choices` are complete. Raises like `news`."""
        while not self.finished:
            await self.news()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for engine_id in self._prompts:
            output = self._latest.get(engine_id)
            if output is None or not output.finished:
                self._engine.thread.abort(engine_id)


@asynccontextmanager
async def until_deadline(seconds: float | None, passed: float) -> AsyncIterator[None]:
    """What is done inside ends with the deadline, `seconds` after the request came, `passed` of which are over.

    Raises:
        ApiError: 504.
    """
    if seconds is None:
        yield
        return
    try:
        async with asyncio.timeout(seconds - passed):
            yield
    except TimeoutError:
        raise deadline_error(seconds) from None


def deadline_error(seconds: float) -> ApiError:
    """504: it took too long."""
    return ApiError(504, f"the request took longer than {seconds:g} s, and was ended", "deadline_exceeded")
