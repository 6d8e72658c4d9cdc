"""A small OpenAI-compatible endpoint that does as it is told: known delays, known mistakes.

`python tests/course/fake_endpoint.py` runs one on port 8765, for a comparison of load generators.
"""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route


@dataclass
class Reply:
    """How one request is answered."""

    num_tokens: int = 4
    per_event: int = 1
    """Tokens in one event."""
    events_per_write: int = 1
    ttft_s: float = 0.0
    gap_s: float = 0.0
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    usage: bool = True
    ending: str = "done"
    """done, cut (the connection breaks), silent (ends without [DONE]), error (an error event), garbage (not JSON)"""
    content_type: str = "text/event-stream"
    extra: dict[str, Any] = field(default_factory=dict)
    """Further fields of the last event."""
    text: str = ""
    """Answer with this at once, without streaming."""
    gate: threading.Event | None = None
    """The answer begins when this is set."""


class FakeEndpoint:
    """Runs in a thread of its own while it is used as a context manager.

    Args:
        reply: called with the request's number (from 0, warm-ups included) and its body.
        knows_usage: refuse `stream_options`, as old servers do, when False.
        histograms: values that each answered request adds, by metric name; None = no /metrics.
    """

    def __init__(
        self,
        reply: Callable[[int, dict[str, Any]], Reply] = lambda number, body: Reply(),
        knows_usage: bool = True,
        histograms: dict[str, float] | None = None,
    ) -> None:
        self.reply = reply
        self.knows_usage = knows_usage
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.most_in_flight = self.in_flight = 0
        self.disconnected = threading.Event()
        """Somebody hung up before the answer was over."""
        self.registry = CollectorRegistry()
        buckets = (0.001, 0.01, 0.1, 1.0)
        self.histograms = {
            Histogram(name, "of the fake", registry=self.registry, buckets=buckets): value
            for name, value in (histograms or {}).items()
        }
        self.app = Starlette(
            routes=[
                Route("/v1/completions", self._answer, methods=["POST"]),
                Route("/v1/chat/completions", self._answer, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/metrics", self._metrics),
                Route("/health", self._health),
            ]
        )

    def __enter__(self) -> "FakeEndpoint":
        config = uvicorn.Config(self.app, port=0, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.002)
        self.url = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(10)

    # ---------------------------------------------------------------- its pages

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "fake-model", "object": "model"}]})

    async def _metrics(self, request: Request) -> Response:
        return PlainTextResponse(generate_latest(self.registry), status_code=200 if self.histograms else 404)

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "clock": time.perf_counter() + 1000.0})

    async def _answer(self, request: Request) -> Response:
        body = await request.json()
        if "stream_options" in body and not self.knows_usage:
            return JSONResponse({"error": {"message": "unknown field stream_options"}}, status_code=400)
        number = len(self.bodies)
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        reply = self.reply(number, body)
        if reply.status != 200:
            return JSONResponse({"error": {"message": "as told"}}, status_code=reply.status, headers=reply.headers)
        if reply.text:
            return JSONResponse({"choices": [{"index": 0, "message": {"role": "assistant", "content": reply.text}}]})
        stream = self._stream(reply, body, is_chat="chat" in request.url.path)
        return StreamingResponse(stream, media_type=reply.content_type)

    async def _stream(self, reply: Reply, body: dict[str, Any], is_chat: bool) -> AsyncIterator[bytes]:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            while reply.gate is not None and not reply.gate.is_set():
                await asyncio.sleep(0.002)
            await asyncio.sleep(reply.ttft_s)
            if is_chat:
                yield event({"choices": [{"delta": {"role": "assistant", "content": ""}, "index": 0}]})
            async for data in self._tokens(reply, is_chat):
                yield data
            async for data in self._end(reply, body, is_chat):
                yield data
            for histogram, value in self.histograms.items():
                histogram.observe(value)
        except asyncio.CancelledError:
            self.disconnected.set()
            raise
        finally:
            self.in_flight -= 1

    async def _tokens(self, reply: Reply, is_chat: bool) -> AsyncIterator[bytes]:
        """The events with text; the last token's words say its number."""
        texts = [f" t{i}" for i in range(reply.num_tokens)]
        events = ["".join(texts[i : i + reply.per_event]) for i in range(0, len(texts), reply.per_event)]
        start = time.perf_counter()
        for i in range(0, len(events), reply.events_per_write):
            due = start + reply.gap_s * i  # on a grid: delays do not add up
            await asyncio.sleep(max(due - time.perf_counter(), 0.0))
            bundle = events[i : i + reply.events_per_write]
            yield b"".join(event({"choices": [choice(text, is_chat)]}) for text in bundle)

    async def _end(self, reply: Reply, body: dict[str, Any], is_chat: bool) -> AsyncIterator[bytes]:
        if reply.ending == "cut":
            raise ConnectionResetError("as told")
        if reply.ending == "garbage":
            yield b"data: {not json\n\n"
        if reply.ending == "error":
            yield event({"error": {"message": "as told"}})
        if reply.ending != "done":
            return
        yield event({"choices": [{**choice("", is_chat), "finish_reason": "length"}]})
        last: dict[str, Any] = {"choices": [], **reply.extra}
        if reply.usage and (body.get("stream_options") or {}).get("include_usage"):
            last["usage"] = {"prompt_tokens": 7, "completion_tokens": reply.num_tokens, "total_tokens": 7}
        yield event(last) + b"data: [DONE]\n\n"


def choice(text: str, is_chat: bool) -> dict[str, Any]:
    return {"index": 0, "finish_reason": None, **({"delta": {"content": text}} if is_chat else {"text": text})}


def event(payload: dict[str, Any]) -> bytes:
    is_chat = any("delta" in each for each in payload.get("choices", ()))
    kind = "chat.completion.chunk" if is_chat else "text_completion"
    return f"data: {json.dumps({'id': 'fake', 'object': kind, 'created': 1, 'model': 'fake', **payload})}\n\n".encode()


if __name__ == "__main__":
    steady = FakeEndpoint(lambda number, body: Reply(num_tokens=body["max_tokens"], ttft_s=0.2, gap_s=0.02))
    uvicorn.run(steady.app, port=8765, log_level="warning")
