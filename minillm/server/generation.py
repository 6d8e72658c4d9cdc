"""One API request in the engine: one engine request for each prompt, read through one collector."""

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Self, Unpack

from minillm.core.params import SamplingParams
from minillm.frontend.async_engine import AsyncEngine, OutputCollector
from minillm.frontend.engine_thread import SubmitOptions
from minillm.frontend.errors import InvalidGrammarError
from minillm.frontend.outputs import Completion, RequestOutput, up_to_now
from minillm.server.calls import Call
from minillm.server.errors import ApiError, check_ending

News = list[tuple[int, Completion]]
"""Completions that have something new, each with its choice index."""


class Generation:
    """Use it as `with`: leaving it in any way ends what is still running, within one step. The call gets the outputs,
    as far as they were made: also those that no client waited for.
    """

    def __init__(self, engine: AsyncEngine, call: Call) -> None:
        self._engine = engine
        self._call = call
        self._collector = OutputCollector()
        self._latest: dict[str, RequestOutput | None] = {}
        """The latest output of each request, by the engine's id, in the prompts' order; None before there is one."""
        self._places: dict[str, int] = {}
        """Each prompt's index, by the engine's request id."""
        self._ended: set[int] = set()
        """Choices that `news` has told the end of."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._call.outputs = [output if output.finished else up_to_now(output) for output in self.outputs]
        for engine_id in self._unfinished:
            self._engine.thread.abort(engine_id)

    async def submit(
        self, prompts: Sequence[list[int]], params: SamplingParams, **options: Unpack[SubmitOptions]
    ) -> None:
        """Hand all prompts (token ids) to the engine.

        Args:
            params: the same for all.
            options: as the engine thread takes them.
        Raises:
            ApiError: 400: the grammar that the answer is to follow is refused; it names the request's field.
            RequestError: one of them cannot be served.
            EngineDeadError: the engine thread has stopped.
        """
        ids = [f"{self._call.request_id}-{i}" for i in range(len(prompts))]
        self._latest = dict.fromkeys(ids)
        self._places = {engine_id: place for place, engine_id in enumerate(ids)}
        options["arrival"] = self._call.arrival
        submit = functools.partial(self._engine.submit, params=params, collector=self._collector, **options)
        try:
            taken = await asyncio.gather(*(submit(prompt, request_id=each) for each, prompt in zip(ids, prompts)))
        except InvalidGrammarError as error:
            field = self._call.body.constrained_by if self._call.body else None
            raise ApiError(400, str(error), "invalid_value", field) from None
        self._latest = dict(zip(ids, taken))

    @property
    def _unfinished(self) -> list[str]:
        return [engine_id for engine_id, output in self._latest.items() if output is None or not output.finished]

    @property
    def finished(self) -> bool:
        return not self._unfinished

    @property
    def outputs(self) -> list[RequestOutput]:
        """What has come so far, in the prompts' order."""
        return [output for output in self._latest.values() if output is not None]

    async def news(self, take: Callable[[News], bool] = lambda _: False) -> News:
        """Wait for what comes next.

        Args:
            take: called immediately with news that end nothing. If it returns True, it has dealt with them, and the
                wait goes on.
        Raises:
            ApiError: a choice ended without an answer.
            EngineDeadError: the engine thread has stopped.
        """

        def taken(output: RequestOutput) -> bool:
            return not any(one.finish_reason for one in output.completions) and take(self._news_of(output))

        outputs = await self._collector.get(taken)
        return [one for output in outputs for one in self._news_of(output)]

    def _news_of(self, output: RequestOutput) -> News:
        self._latest[output.request_id] = output
        news = []
        first = self._places[output.request_id] * len(output.completions)
        for index, completion in enumerate(output.completions, first):
            ends = completion.finish_reason is not None and index not in self._ended
            if ends:
                check_ending(completion)
                self._ended.add(index)
            if ends or completion.num_new_tokens:
                news.append((index, completion))
        return news

    async def result(self) -> None:
        """Wait for the end. Then `outputs` are complete. Raises like `news`."""
        while not self.finished:
            await self.news()
