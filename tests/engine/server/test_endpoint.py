"""One call of the ASGI application, without a network: what the server's side of the connection may do to it."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable

import pytest
from server.running import CHAT, MODEL, Running, Serve

from minillm.server.endpoint import Exchange
from minillm.server.protocol import ChatBody

SCOPE = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": [], "client": ("10.0.0.1", 1)}
BODY = {"model": MODEL, "messages": CHAT, "max_tokens": 3, "ignore_eos": True}


def call(server: Running, body: dict, send: Callable[[dict], Awaitable[None]]) -> Awaitable[None]:
    """A call of a client that sends its body and then stays."""
    messages = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

    async def receive() -> dict:
        return messages.pop() if messages else await asyncio.Event().wait()

    return Exchange(server.service, ChatBody, SCOPE, receive, send).run()


@pytest.mark.parametrize("stream", [True, False])
def test_a_call_that_is_cancelled_was_not_answered(serve: Serve, stream: bool):
    server = serve()
    calls = server.watched()

    async def main() -> None:
        sending = asyncio.Event()

        async def send(message: dict) -> None:
            if message["type"] == "http.response.body":
                sending.set()
                await asyncio.Event().wait()

        task = asyncio.ensure_future(call(server, {**BODY, "stream": stream}, send))
        await sending.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert [call.outcome for call in calls] == ["disconnected"]
    server.wait_until_idle()
    assert server.service.limiter.num_sequences == 0


def test_a_finished_stream_may_be_read_after_the_deadline(serve: Serve, deadlines: list[asyncio.Timeout]):
    """The deadline is for the engine. A reader of the last event is somebody else's business (reader_timeout_s)."""
    server = serve(request_timeout_s=600)
    calls = server.watched()
    sent = []

    async def send(message: dict) -> None:
        sent.append(message)
        if b"[DONE]" in message.get("body", b""):
            [deadline] = deadlines
            with contextlib.suppress(RuntimeError):  # finished: it ends nothing any more. Else let it be now
                deadline.reschedule(asyncio.get_running_loop().time())
            await asyncio.sleep(0.01)

    asyncio.run(call(server, {**BODY, "stream": True}, send))
    assert [ended.outcome for ended in calls] == ["ok"]
    assert sum(b"data:" in message.get("body", b"") for message in sent) and b"error" not in sent[-1].get("body", b"")


def test_the_wait_in_the_queue_begins_when_the_body_is_in(serve: Serve):
    # Regression: with a queue timeout, an idle server refused a body that came slowly.
    server = serve()
    calls, clock = server.watched(), server.service.clock
    half_sent: list[float] = []

    async def receive() -> dict:
        if len(half_sent) == 2:
            return await asyncio.Event().wait()
        half_sent.append(clock.now())
        whole = json.dumps(BODY).encode()
        half = whole[:9] if len(half_sent) == 1 else whole[9:]
        return {"type": "http.request", "body": half, "more_body": len(half_sent) == 1}

    async def send(message: dict) -> None:
        pass

    asyncio.run(Exchange(server.service, ChatBody, SCOPE, receive, send).run())
    assert calls[0].outputs[0].timeline.arrival == calls[0].arrival > half_sent[1]
    assert calls[0].upload_s >= half_sent[1] - half_sent[0] and calls[0].outcome == "ok"
