"""POST /v1/completions and /v1/chat/completions, from the first byte in to the last byte out."""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

from sse_starlette.sse import EventSourceResponse
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from minillm.frontend.outputs import Completion
from minillm.server.answers import DONE, AnswerShape, error_event, num_new_logprobs, of_fixed_text
from minillm.server.calls import Call
from minillm.server.errors import SERVER_BUSY, ApiError, as_api_error
from minillm.server.generation import Generation, until_deadline
from minillm.server.protocol import GenerationBody, parse
from minillm.server.service import Service
from minillm.server.wire import ClientGone, SlowReader, cut, read_body, send_whole, taken_within, unless_gone

logger = logging.getLogger(__name__)

PING_INTERVAL_S = 15
"""A stream that has nothing to say sends a comment so often: proxies close silent connections."""
MANY_LOGPROBS = 1000
"""So many are shaped in a thread: they take some milliseconds."""
TRACE_HEADERS = ("traceparent", "tracestate")

News = list[tuple[int, Completion]]


class GenerationEndpoint:
    """An ASGI application that answers one request after the other.

    Headers are sent with the first token, not before: a request that is refused by the engine, or that waits
    too long in the queue, still gets a proper status.
    """

    def __init__(self, service: Service, kind: type[GenerationBody]) -> None:
        self.service = service
        self.kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        call = Call(
            request_id=("chatcmpl-" if self.kind.is_chat else "cmpl-") + uuid.uuid4().hex,
            path=scope["path"],
            is_chat=self.kind.is_chat,
            arrival=self.service.clock.now(),
            unix_time=time.time(),
            trace_parent={name: headers[name] for name in TRACE_HEADERS if name in headers},
        )
        try:
            await self._serve(call, scope, receive, taken_within(self.service.serve.reader_timeout_s, send))
        except ClientGone:
            call.gone = True
        except SlowReader:  # what it holds up is freed
            call.error_code = "slow_reader"
            cut(scope)
        except asyncio.CancelledError:
            call.gone = True
            raise
        finally:
            self.service.close(call)

    async def _serve(self, call: Call, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._admit(call, scope, receive, send)
        except (ClientGone, SlowReader):
            raise
        except Exception as error:
            await self._refuse(call, error, send)

    async def _admit(self, call: Call, scope: Scope, receive: Receive, send: Send) -> None:
        """Past the checks that cost little, in the order of what they cost."""
        service, limits = self.service, self.service.serve
        headers = Headers(scope=scope)
        address = scope["client"][0] if scope.get("client") else "unknown"
        call.caller = service.keys.caller(headers.get("authorization"), address)
        with service.limiter.caller_slot(call.caller):
            length = headers.get("content-length")
            announced = int(length) if length is not None else None
            body = await read_body(receive, announced, limits.max_body_bytes, limits.body_timeout_s)
            call.arrive(service.clock.now())
            call.body = asked = parse(body, self.kind)
            if asked.model != service.model_name:
                message = f"there is no model {asked.model[:100]!r} here: send {service.model_name!r}"
                raise ApiError(404, message, "model_not_found", "model")
            if service.draining:
                raise ApiError(503, "this server is stopping: send it to another", "stopping", retry_after_s=1)
            shape = AnswerShape(asked, call.request_id, int(call.unix_time), service.model_name, service.texts)
            try:
                with service.limiter.hold(len(asked.prompts()) * asked.n):
                    call.waits = service.limiter.has_queue
                    await self._answer(call, asked, shape, scope, receive, send)
            except ApiError as error:
                is_overload = error.code in (SERVER_BUSY, "queue_timeout")
                if call.status is not None or limits.overload_answer != "apology" or not is_overload:
                    raise
                await self._apologise(call, shape, send)

    async def _answer(
        self, call: Call, body: GenerationBody, shape: AnswerShape, scope: Scope, receive: Receive, send: Send
    ) -> None:
        service, limit = self.service, self.service.serve.request_timeout_s
        async with AsyncExitStack() as stack:

            async def begin() -> tuple[Generation, News | None]:
                prompts, params = await service.prepare(call, body)
                generation = Generation(
                    service.engine,
                    call.request_id,
                    prompts,
                    params,
                    priority=body.priority,
                    arrival=call.arrival,
                    deadline_s=limit,
                    stream=body.stream,
                )
                stack.callback(lambda: call.outputs.extend(generation.outputs))
                await stack.enter_async_context(generation)
                return generation, await (generation.news() if body.stream else generation.result())

            async with until_deadline(limit, service.clock.now() - call.arrival):
                generation, first = await unless_gone(receive, begin())
            if first is not None:
                await self._stream(call, generation, first, shape, scope, receive, send)
            else:
                await self._send_whole(call, generation, shape, send)

    # ---------------------------------------------------------------- answers

    async def _send_whole(self, call: Call, generation: Generation, shape: AnswerShape, send: Send) -> None:
        body = await self._shaped(generation.choices, shape.whole, generation.choices, generation.outputs)
        call.status = 200
        try:
            await send_whole(send, 200, self._headers(call), body)
        finally:
            self.service.accepted(generation.choices)

    async def _stream(
        self,
        call: Call,
        generation: Generation,
        first: News,
        shape: AnswerShape,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        closing: list[Completion] = []
        events = self._events(call, generation, first, shape, closing)
        response = EventSourceResponse(
            events,
            headers={**self._headers(call), "content-type": "text/event-stream; charset=utf-8"},
            ping=PING_INTERVAL_S,
            sep="\n",
        )
        call.status = 200
        try:
            await response(scope, receive, send)
        finally:
            self.service.accepted(closing)
        call.gone = not generation.finished and call.error_code is None

    async def _events(
        self, call: Call, generation: Generation, news: News, shape: AnswerShape, closing: list[Completion]
    ) -> AsyncIterator[bytes]:
        """The stream's events, those of one engine step in one write. `closing` gets what the last one ends."""
        try:
            while not generation.finished:
                yield await self._chunks(shape, news)
                # Some of n end early. The last to end waits until the transport has taken everything.
                self.service.accepted([completion for _, completion in news if completion.finish_reason is not None])
                news = await generation.news()
            last = await self._chunks(shape, news)
        except Exception as error:
            problem = self._problem(error)
            call.error_code = problem.code
            yield error_event(problem)
            return
        closing.extend(completion for _, completion in news)
        usage = shape.usage_chunk(generation.outputs) if shape.include_usage else b""
        yield last + usage + DONE

    async def _chunks(self, shape: AnswerShape, news: News) -> bytes:
        return await self._shaped([completion for _, completion in news], shape.chunks, news)

    async def _shaped(self, completions: list[Completion], shape: Callable[..., bytes], *args: Any) -> bytes:
        """Shape here what is small: handing it to a thread would take longer. The rest would hold up all streams."""
        if sum(map(num_new_logprobs, completions)) < MANY_LOGPROBS:
            return shape(*args)
        return await self.service.in_thread(shape, *args)

    async def _apologise(self, call: Call, shape: AnswerShape, send: Send) -> None:
        """An apology at once can be worth more than an answer too late, or an error."""
        call.status, call.degraded = 200, "apology"
        call.outputs.clear()  # of a request that timed out in the queue: no part of what is said
        body, content_type = of_fixed_text(shape, self.service.serve.overload_apology)
        await send_whole(send, 200, {**self._headers(call), "content-type": content_type}, body)

    # ---------------------------------------------------------------- trouble

    async def _refuse(self, call: Call, error: Exception, send: Send) -> None:
        problem = self._problem(error)
        call.error_code = problem.code or problem.type
        if call.status is None:
            call.status = problem.status
            await send_whole(send, problem.status, {**problem.headers, "x-request-id": call.request_id}, problem.body)

    def _problem(self, error: Exception) -> ApiError:
        problem = as_api_error(error)
        if problem.code == "internal_error":
            logger.error("a request failed because of a bug", exc_info=error)
        return problem

    def _headers(self, call: Call) -> dict[str, str]:
        headers = {"content-type": "application/json", "x-request-id": call.request_id}
        return headers if call.degraded is None else {**headers, "x-minillm-degraded": call.degraded}
