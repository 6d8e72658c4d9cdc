"""What the server owes its users when things go wrong. No timing: the engine is halted where order matters."""

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest
from patience import PATIENCE_S, wait_for
from server.running import CHAT, GREEDY, LONG, MODEL, Running, Serve

from minillm.core.errors import DeviceLostError
from minillm.frontend.errors import EngineDeadError
from minillm.server.app import make_app

POOL = ThreadPoolExecutor(32)


def chat(server: Running, **options: object) -> Future:
    """An answer that is being waited for, in a thread."""
    asked = {"model": MODEL, "messages": CHAT, **GREEDY, **options}
    return POOL.submit(lambda: server.client().chat.completions.create(**asked))


def raw_request(server: Running, body: dict, receive_buffer: int | None = None) -> socket.socket:
    """Send a chat request, and leave reading to the caller."""
    sock = server.connect(receive_buffer)
    payload = json.dumps({"model": MODEL, "messages": CHAT, **body}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(payload)}\r\n\r\n"
    sock.sendall(head.encode() + payload)
    return sock


# -------------------------------------------------------------------- clients that leave


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_blocks_and_what_it_cost_is_counted(serve: Serve, stream: bool):
    server = serve()
    sock = raw_request(server, {"max_tokens": 400, "ignore_eos": True, "stream": stream, "user": "me"})
    server.wait_until(lambda engine: any(request.num_output_tokens > 5 for request in engine.scheduler.running))
    sock.close()
    server.wait_until_idle()
    wait_for(lambda: server.metric("http_requests_total", outcome="disconnected") == 1, "its call is over")
    assert server.service.limiter.num_sequences == 0
    assert server.metric("generation_tokens_total") > 5
    assert server.metric("tenant_tokens_total", tenant="me", kind="generation") > 5


@pytest.mark.parametrize("stream", [True, False])
def test_a_slow_reader_is_bounded_and_delays_no_other_request(
    serve: Serve, expected: Callable[..., str], monkeypatch: pytest.MonkeyPatch, stream: bool
):
    # Its answer does not fit into what the sockets hold: 4 x 300 tokens of many bytes each, logprobs and all.
    monkeypatch.setattr("minillm.server.connection.SOCKET_SEND_BUFFER", 4096)
    server = serve(reader_timeout_s=0.5)
    slow = raw_request(
        server,
        {"max_tokens": 300, "ignore_eos": True, "stream": stream, "logprobs": True, "top_logprobs": 20, "n": 4},
        receive_buffer=4096,
    )
    server.wait_until(lambda engine: len(engine.scheduler.running) == 4)
    assert chat(server).result().choices[0].message.content == expected()
    slow.settimeout(PATIENCE_S)
    server.wait_until_idle()
    # And then it is cut off, although it never closed anything.
    wait_for(lambda: server.metric("http_requests_total", outcome="slow_reader") == 1, "the slow reader is cut off")
    assert server.service.limiter.num_sequences == 0
    slow.close()


# -------------------------------------------------------------------- too many


def test_a_full_queue_answers_429_at_once_and_says_when_to_come_back(serve: Serve, expected: Callable[..., str]):
    server = serve(engine={"max_num_seqs": 2, "max_queue_len": 3})
    with server.halted():
        served = [chat(server) for _ in range(5)]
        server.wait_until_admitted(5)
        with pytest.raises(openai.RateLimitError) as refused:
            chat(server).result()
        assert int(refused.value.response.headers["retry-after"]) >= 1
        assert refused.value.code == "server_busy"
    assert [answer.result().choices[0].message.content for answer in served] == [expected()] * 5
    chat(server).result()
    with pytest.raises(openai.BadRequestError, match="never fit"):
        chat(server, n=6).result()


def test_queue_timeout(serve: Serve):
    server = serve(engine={"max_num_seqs": 1, "queue_timeout_s": 600})
    for stream in (False, True):
        with raw_request(server, {"max_tokens": 400, "ignore_eos": True}):
            server.wait_until(lambda engine: len(engine.scheduler.running) == 1)
            with server.halted():
                second = chat(server, stream=stream, user="queued")
                server.wait_until_admitted(2)
                server.let_pass(seconds=601)
            with pytest.raises(openai.InternalServerError) as refused:
                second.result()
        assert refused.value.status_code == 503 and refused.value.code == "queue_timeout"
        server.wait_until_idle()
    assert server.metric("tenant_tokens_total", tenant="queued") == 0, "its prompt was not computed"


@pytest.mark.parametrize("stream", [False, True])
def test_deadline_while_nothing_was_sent(serve: Serve, stream: bool):
    server = serve(request_timeout_s=0.1)
    with server.halted(), pytest.raises(openai.InternalServerError) as refused:
        chat(server, **LONG, stream=stream).result(timeout=PATIENCE_S)  # although the engine does not even know of it
    assert refused.value.status_code == 504 and refused.value.code == "deadline_exceeded"
    server.wait_until_idle()
    assert server.service.limiter.num_sequences == 0


def test_the_deadline_counts_while_a_prompt_is_tokenized(serve: Serve, monkeypatch: pytest.MonkeyPatch):
    server = serve(request_timeout_s=0.1)
    tokenized, encode = threading.Event(), server.service._encode

    def slow(*prompts: object) -> list[list[int]]:
        assert tokenized.wait(PATIENCE_S)
        return encode(*prompts)

    monkeypatch.setattr(server.service, "_encode", slow)
    try:
        with pytest.raises(openai.InternalServerError) as refused:
            chat(server, **LONG).result(timeout=PATIENCE_S)
    finally:
        tokenized.set()
    assert refused.value.status_code == 504 and refused.value.code == "deadline_exceeded"
    server.wait_until_idle()


def test_deadline_in_a_stream(serve: Serve, deadlines: list[asyncio.Timeout]):
    server = serve(request_timeout_s=600)
    stream = server.client().chat.completions.create(model=MODEL, messages=CHAT, **LONG, stream=True)
    next(stream)
    with server.halted():
        [deadline] = deadlines
        server.loop.call_soon_threadsafe(deadline.reschedule, server.loop.time())
        with pytest.raises(openai.APIError, match="longer than 600 s"):
            list(stream)
    server.wait_until_idle()


def test_too_many_requests_of_one_key(serve: Serve, tmp_path: Path):
    keys = tmp_path / "keys"
    keys.write_text("a\nb\n")
    server = serve(api_key_file=str(keys), max_requests_per_key=1)

    def ask(key: str) -> object:
        client = server.client(api_key=key)
        return client.chat.completions.create(model=MODEL, messages=CHAT, **GREEDY)

    with server.halted():
        first = POOL.submit(ask, "a")
        server.wait_until_admitted(1)
        with pytest.raises(openai.RateLimitError) as refused:
            ask("a")
        other = POOL.submit(ask, "b")
    assert refused.value.code == "too_many_requests_per_key"
    first.result(), other.result(), ask("a")


# -------------------------------------------------------------------- too large


def test_prompt_limit(serve: Serve):
    server = serve(engine={"max_prompt_tokens": 40})
    with pytest.raises(openai.BadRequestError, match="max_prompt_tokens is 40") as refused:
        server.client().completions.create(model=MODEL, prompt="word " * 60)
    assert refused.value.code == "context_length_exceeded"


# -------------------------------------------------------------------- degrading on purpose


def test_shorter_answers_once_there_is_a_queue(serve: Serve):
    server = serve(engine={"max_num_seqs": 1}, overload_max_tokens=3)
    with server.halted():
        first = chat(server)
        server.wait_until_admitted(1)
        second = chat(server, extra_body={"ignore_eos": True, "min_tokens": 5})
        server.wait_until_admitted(2)
    assert first.result().usage.completion_tokens == 12
    assert second.result().usage.completion_tokens == 3
    assert server.metric("requests_degraded_total", how="shorter") == 1


def test_an_observer_that_fails_harms_no_request(serve: Serve, caplog: pytest.LogCaptureFixture):
    server = serve()

    def bad(_: object) -> None:
        raise RuntimeError("a bug")

    server.service.observers = (bad, *server.service.observers)
    chat(server).result()
    server.wait_until_idle()
    server.stop(), server.join()
    assert "could not take note" in caplog.text


# -------------------------------------------------------------------- the engine fails, the server stops


@pytest.mark.parametrize("stream", [False, True])
def test_a_step_that_fails_is_a_500_and_the_next_request_is_served(
    serve: Serve, expected: Callable[..., str], stream: bool
):
    server = serve()
    runner = server.engine(lambda engine: engine.runner)
    launch, failures = runner.launch, iter([RuntimeError("no more memory")])

    def fail_once(batch: object) -> object:
        for error in failures:
            raise error
        return launch(batch)

    server.engine(lambda _: setattr(runner, "launch", fail_once))
    with pytest.raises(openai.InternalServerError, match="no more memory") as refused:
        chat(server, stream=stream).result()
    assert refused.value.status_code == 500 and refused.value.code == "step_failed", "a bug would be internal_error"
    assert chat(server).result().choices[0].message.content == expected()


@pytest.mark.parametrize("how", ["a bug", "the GPU is lost"])
def test_an_engine_that_dies_is_a_503_and_shows_in_health_and_the_server_ends(serve: Serve, how: str):
    server = serve()

    def lose_gpu(_: object) -> None:
        raise DeviceLostError("the GPU is lost to this process (an illegal memory access): start it again")

    if how == "a bug":
        server.engine(lambda engine: setattr(engine, "step", lambda: 1 / 0))
    else:
        server.engine(lambda engine: setattr(engine.runner, "launch", lose_gpu))
    with pytest.raises(openai.InternalServerError) as refused:
        chat(server).result()
    assert refused.value.status_code == 503 and refused.value.code == "engine_stopped"
    assert refused.value.response.headers["retry-after"] == "1"
    server.join()
    failure = server.server.failure
    assert isinstance(failure, EngineDeadError) and ("illegal memory access" in str(failure)) == (how != "a bug")

    async def probe(path: str) -> httpx.Response:
        """As the application answers until the server has ended."""
        transport = httpx.ASGITransport(make_app(server.service))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.get(path)

    for path in ("/health", "/ready"):
        answer = asyncio.run(probe(path))
        assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
    assert "minillm:step_time_seconds_count" in asyncio.run(probe("/metrics")).text


LOST_GPU = """
import sys
from minillm.core.errors import DeviceLostError
from minillm.cli import main
from minillm.runner.torch_runner import TorchRunner

good = TorchRunner.launch

def launch(self, batch):
    if not batch.requests[0].request.request_id.startswith("warm-up"):
        raise DeviceLostError("the GPU is lost to this process (an illegal memory access): start it again")
    return good(self, batch)

TorchRunner.launch = launch
sys.argv = ["minillm", "serve", "--port", "0", "--json", "--num-kv-blocks", "64", "--model", sys.argv[1]]
main()
"""


@pytest.mark.slow
def test_a_lost_gpu_ends_the_process_with_an_error(tiny_llama_path: Path):
    command = [sys.executable, "-c", LOST_GPU, str(tiny_llama_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            ready = json.loads(process.stdout.readline())
            client = openai.OpenAI(base_url=ready["url"], api_key="none", max_retries=0)
            with pytest.raises(openai.InternalServerError) as refused:
                client.completions.create(model=ready["model"], prompt="x")
            assert refused.value.status_code in (500, 503)
            _, said = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 2 and "illegal memory access" in said


def test_ready_says_whether_the_next_request_would_get_in(serve: Serve):
    server = serve(engine={"max_num_seqs": 1, "max_queue_len": 1})
    assert server.http.get("/ready").json() == {"status": "ready"}
    with server.halted():
        served = [chat(server) for _ in range(2)]
        server.wait_until_admitted(2)
        answer = server.http.get("/ready")
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "server_busy"
        assert int(answer.headers["retry-after"]) >= 1 and server.http.get("/health").status_code == 200
    assert [one.result().choices[0].finish_reason for one in served] == ["length"] * 2
    server.service.draining = True
    assert server.http.get("/ready").json()["error"]["code"] == "stopping"
    assert server.http.get("/health").status_code == 200


def test_draining_finishes_what_is_in_flight_and_lets_no_request_in(serve: Serve, expected: Callable[..., str]):
    server = serve()
    stream = server.client().chat.completions.create(model=MODEL, messages=CHAT, **LONG, stream=True)
    text = next(stream).choices[0].delta.content
    server.stop()
    text += "".join(chunk.choices[0].delta.content for chunk in stream)
    assert text == expected(max_tokens=400)
    server.join()
    with pytest.raises(openai.APIConnectionError):
        chat(server).result()


def test_after_the_drain_timeout_every_client_is_told(serve: Serve):
    server = serve(drain_timeout_s=0.05, engine={"max_num_seqs": 1})
    stream = server.client().chat.completions.create(model=MODEL, messages=CHAT, **LONG, stream=True)
    next(stream)
    waiting = chat(server)
    server.wait_until_admitted(2)
    with server.halted():
        server.stop()  # the engine does nothing until the end of the drain has reached it
        wait_for(lambda: not server.service.thread._commands.empty(), "what is in flight is to be aborted")
    with pytest.raises(openai.APIError, match="stopping"):
        list(stream)
    with pytest.raises(openai.InternalServerError, match="stopping"):
        waiting.result()
    server.join()


def test_a_second_ctrl_c_ends_what_is_in_flight_and_every_client_is_told(serve: Serve, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("minillm.server.server.FORCED_S", PATIENCE_S)
    server = serve(engine={"max_num_seqs": 1})
    stream = server.client().chat.completions.create(model=MODEL, messages=CHAT, **LONG, stream=True)
    next(stream)
    waiting = chat(server)
    server.wait_until_admitted(2)
    with server.halted():
        server.stop()
        server.server.force_exit = True
        wait_for(lambda: not server.service.thread._commands.empty(), "what is in flight is to be aborted")
    with pytest.raises(openai.APIError, match="stopping"):
        list(stream)
    with pytest.raises(openai.InternalServerError, match="stopping"):
        waiting.result()
    server.join()
