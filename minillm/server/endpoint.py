"""POST /v1/completions, /v1/chat/completions and /v1/responses, from the first byte in to the last byte out."""

import asyncio
import functools
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send

from minillm.frontend.engine_thread import SubmitOptions
from minillm.frontend.outputs import Completion
from minillm.server.admission import BYTES_PER_TOKEN
from minillm.server.answers import AnswerShape, error_event, num_new_logprobs
from minillm.server.calls import DISCONNECTED, Call, completions_of
from minillm.server.connection import BoundedProtocol
from minillm.server.errors import INTERNAL_ERROR, ApiError, as_api_error
from minillm.server.generation import Generation, News
from minillm.server.protocol import GenerationBody, ResponsesBody, parse
from minillm.server.responses import ResponsesShape
from minillm.server.service import Service
from minillm.server.wire import CONNECTION, read_body, send_head, send_last, send_whole, unless_gone

logger = logging.getLogger(__name__)

PING_INTERVAL_S = 15
"""A stream sends a comment so often: proxies close silent connections."""
STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # nginx would collect tokens
}
MANY_LOGPROBS = 1000
"""Log-probabilities from which on they are shaped in a thread: that many take some milliseconds."""
MAX_CLIENT_ID = 128
"""Characters of a client's x-request-id that are logged."""
TRACE_HEADERS = ("traceparent", "tracestate")


Shape = AnswerShape | ResponsesShape


class Exchange:
    """One request and its answer; to be awaited. (So a class with its first two arguments is an ASGI application, as
    Starlette's own endpoints are.)

    Headers are sent with the first token, not before: a request that is refused by the engine, or that waits
    too long in the queue, still gets a proper status.
    """

    def __init__(
        self, service: Service, kind: type[GenerationBody], scope: Scope, receive: Receive, send: Send
    ) -> None:
        self.service, self.kind = service, kind
        self.receive, self._send = receive, send
        self.connection: BoundedProtocol | None = scope.get(CONNECTION)
        """What it came on; None: under another server."""
        self.request = Request(scope, receive)
        headers = self.request.headers
        self.call = Call(
            request_id=kind.id_prefix + uuid.uuid4().hex,
            path=scope["path"],
            is_chat=kind.is_chat,
            arrival=service.clock.now(),
            unix_time=time.time(),
            client_request_id=headers.get("x-request-id", "")[:MAX_CLIENT_ID] or None,
            trace_parent={name: headers[name] for name in TRACE_HEADERS if name in headers},
        )

    def __await__(self) -> Generator[Any, None, None]:
        return self.run().__await__()

    async def run(self) -> None:
        """Answer it, or say why not; then close the call, however it ended."""
        try:
            await self._admit()
        except asyncio.CancelledError:
            self.call.error_code = DISCONNECTED
            raise
        except ClientDisconnect:
            self.call.error_code = DISCONNECTED
        except Exception as error:
            await self._refuse(as_api_error(error), error)
        finally:
            if self.connection is not None and self.connection.was_cut:
                self.call.error_code = "slow_reader"
            self.service.close(self.call)

    async def _admit(self) -> None:
        """Past the checks that cost little, in the order of what they cost."""
        service, limits, call, request = self.service, self.service.serve, self.call, self.request
        address = "unknown" if request.client is None else request.client.host
        call.caller = service.keys.caller(request.headers.get("authorization"), address)
        with service.limiter.caller_slot(call.caller):
            raw = await read_body(request, limits.max_body_bytes, limits.body_timeout_s)
            call.arrive(service.clock.now())
            call.body = body = parse(raw, self.kind)
            service.check_model(body.model)
            if service.draining:
                raise ApiError(503, "this server is stopping: send it to another", "stopping")
            call.tenant = service.keys.tenant(call.caller, body.tenant)
            num_sequences = len(body.prompts()) * body.n
            longest = min(body.token_limit or body.default_tokens, service.context_limit)
            num_tokens = len(raw) // BYTES_PER_TOKEN + num_sequences * int(longest)
            with service.limiter.hold(num_sequences, call.tenant, num_tokens):
                call.waits = service.limiter.has_queue
                await self._answer(body)

    async def _answer(self, body: GenerationBody) -> None:
        service, call, limit = self.service, self.call, self.service.serve.request_timeout_s
        left = None if limit is None else limit - (service.clock.now() - call.arrival)
        with Generation(service.engine, call) as generation:
            try:
                async with asyncio.timeout(left):
                    send_end = await unless_gone(self.receive, self._generate(body, generation))
            except TimeoutError:
                if limit is None:
                    raise
                message = f"the request took longer than {limit:g} s, and was ended"
                raise ApiError(504, message, "deadline_exceeded") from None
            await send_end()
            if self.connection is not None and self.connection.is_gone:
                raise ClientDisconnect

    async def _generate(self, body: GenerationBody, generation: Generation) -> Callable[[], Awaitable[None]]:
        """Have the answer generated, and stream all but its end. Returns what sends the rest.

        Sending the end has to be the last thing that's awaited: a client that has read the last byte and asks again
        must find its slot free and its request counted. And the deadline is the engine's: how long a finished answer
        takes to be read is the reader's affair.
        """
        service, call = self.service, self.call
        prompts, params = await service.prepare(call, body)
        head = (call.request_id, int(call.unix_time), service.model_name)
        if isinstance(body, ResponsesBody):
            shape: Shape = ResponsesShape(body, *head)
        else:
            shape = AnswerShape(body, *head, service.texts, prompts)
        options = SubmitOptions(
            priority=body.priority, tenant=call.tenant, cache_salt=body.cache_salt or "", stream=body.stream
        )
        await generation.submit(prompts, params, **options)
        if body.stream:
            return await self._stream(generation, shape)
        await generation.result()
        return functools.partial(self._send_whole, generation, shape)

    async def _send_whole(self, generation: Generation, shape: Shape) -> None:
        outputs = generation.outputs
        completions = completions_of(outputs)
        body = await self._shaped(completions, shape.whole, outputs)
        try:
            await send_whole(self.send, 200, {"content-type": "application/json", **self._own_headers}, body)
        finally:
            self.service.accepted(completions)

    async def _stream(self, generation: Generation, shape: Shape) -> Callable[[], Awaitable[None]]:
        """What one engine step brings goes out in one write. Returns what sends the end."""
        news = await generation.news()
        # Log-probabilities may be many: then they are shaped in a thread.
        has_logprobs = any(completion.request_logprobs for _, completion in news)
        connection = None if has_logprobs else self.connection

        def write(news: News) -> bool:
            if connection is None or connection.lags:
                return False
            connection.write_chunk(shape.chunks(news))
            return True

        await send_head(self.send, 200, {**STREAM_HEADERS, **self._own_headers})
        pings = asyncio.create_task(self._ping())
        try:
            while True:
                completions = [completion for _, completion in news]
                chunks = await self._shaped(completions, shape.chunks, news)
                if generation.finished:
                    return functools.partial(self._send_end, chunks + shape.closing(generation.outputs), completions)
                await self._send({"type": "http.response.body", "body": chunks, "more_body": True})
                # Some of n end early. The last to end waits until the transport has taken everything.
                self.service.accepted([one for one in completions if one.finish_reason is not None])
                news = await generation.news(write)
        finally:
            pings.cancel()

    async def _send_end(self, chunks: bytes, completions: Sequence[Completion]) -> None:
        """Send the end of a stream."""
        try:
            await send_last(self._send, chunks)
        finally:
            self.service.accepted(completions)

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_INTERVAL_S)
            await self._send({"type": "http.response.body", "body": b": ping\n\n", "more_body": True})

    async def _shaped(self, completions: Sequence[Completion], shape: Callable[..., bytes], what: Any) -> bytes:
        """Shape here what is small: handing it to a thread would take longer. The rest would hold up all streams."""
        if sum(map(num_new_logprobs, completions)) < MANY_LOGPROBS:
            return shape(what)
        return await self.service.in_thread(shape, what)

    async def _refuse(self, problem: ApiError, error: Exception) -> None:
        """Tell the client: with a status, or with the last event of a stream, which has a status already."""
        if problem.code == INTERNAL_ERROR:
            logger.error("a request failed because of a bug", exc_info=error)
        self.call.error_code = problem.code or problem.type
        if self.call.status is None:
            await send_whole(self.send, problem.status, {**problem.headers, **self._own_headers}, problem.body)
        else:
            await self.send({"type": "http.response.body", "body": error_event(problem), "more_body": False})

    async def send(self, message: Message) -> None:
        """Send to the client. With its first message the answer has a status."""
        if message["type"] == "http.response.start":
            self.call.status = message["status"]
        await self._send(message)

    @property
    def _own_headers(self) -> dict[str, str]:
        degraded = {} if self.call.degraded is None else {"x-minillm-degraded": self.call.degraded}
        return {"x-request-id": self.call.request_id, **degraded}
