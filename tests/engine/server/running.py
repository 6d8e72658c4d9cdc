"""A real server on a real port, in a thread of the tests or in a process of its own, and what tests want of it."""

import asyncio
import copy
import dataclasses
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import httpx
import openai
import uvicorn
from integrity import check_engine
from patience import PATIENCE_S, wait_for

from minillm.frontend.engine import Engine
from minillm.model.loader import LoadedModel
from minillm.policies.config import EngineConfig
from minillm.server.app import make_app
from minillm.server.calls import Call
from minillm.server.config import ServeConfig
from minillm.server.server import bind, make_server, make_service
from minillm.server.service import Service

MODEL = "tiny"
CHAT = [{"role": "user", "content": "Tell me about the weather in five words."}]
GREEDY = {"temperature": 0, "max_tokens": 12, "extra_body": {"ignore_eos": True}}
TOOLS_TEMPLATE = """{%- if tools %}Tools in <tool_call></tool_call>: {{ tools | length }}
{%- endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}
{% endfor %}assistant: """
"""A chat template that knows tools: it tells how many there are, so that any number of them fits the window."""
LONG = {"temperature": 0, "max_tokens": 400, "extra_body": {"ignore_eos": True}}


@dataclass
class Running:
    """A server, and what tests want of it."""

    url: str
    service: Service
    server: uvicorn.Server
    loop: asyncio.AbstractEventLoop
    stop: Callable[[], None]
    """Asks it to drain; returns at once."""
    join: Callable[[], None]

    @cached_property
    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE_S)

    def client(self, **options: Any) -> openai.OpenAI:
        """The official client. Without options always the same one: making it costs tens of milliseconds."""
        return self._make_client(**options) if options else self._client

    @cached_property
    def _client(self) -> openai.OpenAI:
        return self._make_client()

    def _make_client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(**{"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0, **options})

    def async_client(self, **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(**{"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0, **options})

    def connect(self, receive_buffer: int | None = None) -> socket.socket:
        """A connection, to send what no client would."""
        host, port = self.url.removeprefix("http://").split(":")
        sock = socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.settimeout(PATIENCE_S)
        sock.connect((host, int(port)))
        return sock

    def raw(self, payload: bytes, *, after: bytes | None = None, then: bytes = b"", at_once: bool = False) -> bytes:
        """Send bytes, and read until the server closes.

        Args:
            after: send more, `then`, once that has come.
            at_once: the payload, a small one, is there when the server hears of the connection: no limit of time that
                begins with the connection can run out before.
        """
        with ExitStack() as stack:
            with self.deaf() if at_once else nullcontext():
                sock = stack.enter_context(self.connect())
                sock.sendall(payload)
            answer = b""
            while piece := sock.recv(65_536):
                answer += piece
                if after is not None and after in answer:
                    sock.sendall(then)
                    after = None
            return answer

    def tasks(self) -> list[str]:
        """What runs in the server's event loop, by name of the coroutine."""

        async def look() -> list[str]:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            return sorted(task.get_coro().__qualname__ for task in others)

        return asyncio.run_coroutine_threadsafe(look(), self.loop).result(timeout=PATIENCE_S)

    def num_connections(self) -> int:
        return len(self.server.server_state.connections)

    def engine(self, question: Callable[[Engine], Any]) -> Any:
        """Ask the engine, between two steps."""
        return self.service.thread.call(question).result(timeout=PATIENCE_S)

    def wait_until(self, condition: Callable[[Engine], bool]) -> None:
        """Returns as soon as the engine is in some state."""
        wait_for(lambda: self.engine(condition), "the engine comes into some state")

    def wait_until_admitted(self, num_sequences: int) -> None:
        """So many sequences are in flight; the engine need not know of them."""
        wait_for(lambda: self.service.limiter.num_sequences >= num_sequences, f"{num_sequences} are admitted")

    def watched(self) -> list[Call]:
        """Calls that are over, from now on."""
        calls: list[Call] = []
        self.service.observers = (*self.service.observers, calls.append)
        return calls

    def wait_until_idle(self) -> None:
        """Nothing is in flight, and no KV block is held."""
        self.wait_until(lambda engine: not engine.has_unfinished)
        self.engine(check_engine)
        assert self.engine(lambda engine: engine.scheduler.kv.pool.num_used) == 0

    @contextmanager
    def deaf(self) -> Iterator[None]:
        """The server's event loop stands still meanwhile; the kernel takes connections, and what is sent."""
        go = threading.Event()
        self.loop.call_soon_threadsafe(go.wait, PATIENCE_S)
        try:
            yield
        finally:
            go.set()

    @contextmanager
    def halted(self) -> Iterator[None]:
        """No step is taken meanwhile. Requests reach the engine afterwards."""
        go = threading.Event()
        held = self.service.thread.call(lambda _: go.wait(PATIENCE_S))
        try:
            yield
        finally:
            go.set()
            held.result(timeout=PATIENCE_S)

    def let_pass(self, seconds: float) -> None:
        """The clock that the server and its engine read is so much later from now on."""
        before = self.service.clock.now
        self.service.clock.now = lambda: before() + seconds

    def metric(self, name: str, **labels: str) -> float:
        """The sum over all series of a metric that have these labels."""
        total = 0.0
        for line in self.http.get("/metrics").text.splitlines():
            series, _, value = line.rpartition(" ")
            full, _, rest = series.partition("{")
            if full == f"minillm:{name}" and all(f'{key}="{wanted}"' in rest for key, wanted in labels.items()):
                total += float(value)
        return total


Serve = Callable[..., Running]


@contextmanager
def running(engine: EngineConfig, serve: ServeConfig, model: LoadedModel) -> Iterator[Running]:
    sock = bind(serve.host, serve.port)
    service = make_service(engine, serve, model)
    ready, loops = threading.Event(), []

    def on_ready() -> None:
        loops.append(asyncio.get_running_loop())
        ready.set()

    server = make_server(make_app(service), service, on_ready)
    thread = threading.Thread(target=server.run, args=([sock],), name="server")
    thread.start()
    assert ready.wait(PATIENCE_S)

    def stop() -> None:
        server.should_exit = True

    def join() -> None:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the server does not stop"

    try:
        yield Running(f"http://127.0.0.1:{sock.getsockname()[1]}", service, server, loops[0], stop, join)
    finally:
        stop()
        join()


@contextmanager
def serve_process(
    model: Path, *flags: str, stderr: IO[str] | None = None
) -> "Iterator[tuple[str, subprocess.Popen[str]]]":
    """`minillm serve` in a process of its own, once it answers: its URL, and the process."""
    command = [sys.executable, "-m", "minillm", "serve", "--model", str(model), "--served-model-name", MODEL, "--json"]
    flags = ("--port", "0", "--no-access-log", *flags)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(
        [*command, *flags], env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True
    ) as process:
        try:
            ready = process.stdout.readline() if process.stdout else ""
            assert ready, f"it ended with {process.wait()} instead of starting"
            yield json.loads(ready)["url"].removesuffix("/v1"), process
        finally:
            process.kill()


def with_template(model: LoadedModel, template: str = TOOLS_TEMPLATE) -> LoadedModel:
    """The same model with another chat template."""
    tokenizer = copy.deepcopy(model.tokenizer)
    tokenizer.chat_template = template
    return dataclasses.replace(model, tokenizer=tokenizer)
