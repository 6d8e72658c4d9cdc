"""A reader who stops reading, on real sockets: what the server does, and what a neighbour notices."""

import contextlib
import json
import socket
import time
from dataclasses import dataclass

from course.lab.display import Html, as_table
from course.lab.http_client import NAME, Heard, ask
from course.lab.lab import Lab
from course.lab.lesson_10 import traffic
from course.lab.run import percentile
from course.lab.server import LabServer
from course.lab.style import seconds
from minillm.core.timeline import StepShare
from minillm.server.calls import Call

PATIENCE_S = 1.5
"""Of a server for a reader who takes nothing; far shorter than one would deploy, to see it happen."""
RECEIVE_BUFFER = 4096
STREAMS = 4
"""Answers in one request: with log-probabilities of 20 tokens at each place they make a fat stream."""


@dataclass(frozen=True)
class Stalled:
    """A reader who takes nothing any more, and a neighbour on the same server."""

    outcome: str
    """As the server logs it."""
    written: int
    """Tokens that the engine wrote for them."""
    engine_s: float
    """From the request to the last step for it: the engine waits for no reader."""
    cut_s: float
    """From the request to the moment at which the server gave up."""
    answer_bytes: int
    """Of the whole answer, had somebody read it."""
    kernel_bytes: int
    """That the operating system had taken for them, found afterwards."""
    neighbour: Heard
    alone: Heard
    """The neighbour's request, with nobody else there."""
    blocks_after: int


def stall(lab: Lab) -> Stalled:
    """Real sockets: one reader opens a fat stream and never reads it, another reads beside them."""
    tokens = 64 if lab.scale == 1 else 48
    fat = {"n": STREAMS, "logprobs": 20, "temperature": 1.0, "seed": 1}
    with LabServer(lab, {"reader_timeout_s": PATIENCE_S}) as server:
        alone = ask(server.port, traffic.PROMPT, tokens)
        whole = ask(server.port, traffic.PROMPT, tokens, **fat)
        begun = time.perf_counter()
        with _deaf(server.port, {**ASKING, "max_tokens": tokens, **fat}) as sock:
            neighbour = ask(server.port, traffic.PROMPT, tokens)
            call = _closed(server, "slow_reader")
            kernel = _drain(sock)
        mine = [step for step in server.steps() if any(s.request_id.startswith(call.request_id) for s in step.shares)]
        return Stalled(
            outcome=call.outcome,
            # Each answer's first token comes from a step that reads the prompt.
            written=STREAMS + sum(_is_writing(share, call) for step in mine for share in step.shares),
            engine_s=mine[-1].end - begun,
            cut_s=call.finished - begun,
            answer_bytes=sum(read.size for read in whole.reads),
            kernel_bytes=kernel,
            neighbour=neighbour,
            alone=alone,
            blocks_after=server.kv_blocks_held(),
        )


def _is_writing(share: StepShare, call: Call) -> bool:
    return share.request_id.startswith(call.request_id) and not share.is_prefill


ASKING = {"model": NAME, "prompt": traffic.PROMPT, "ignore_eos": True, "stream": True}


def _deaf(port: int, body: dict[str, object]) -> socket.socket:
    """A connection on which a request has been sent, and nothing is read."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
    sock.settimeout(5)
    sock.connect(("127.0.0.1", port))
    data = json.dumps(body).encode()
    sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: lab\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    return sock


def _closed(server: LabServer, outcome: str, patience_s: float = 60.0) -> Call:
    """The first call that ended so.

    Raises:
        TimeoutError: none does.
    """
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        for call in list(server.calls.values()):
            if call.outcome == outcome:
                return call
        time.sleep(0.01)
    raise TimeoutError(f"no call ended as {outcome}")


def _drain(sock: socket.socket) -> int:
    """Bytes that are still to be had from a connection that the server has given up."""
    size = 0
    with contextlib.suppress(OSError):
        while piece := sock.recv(65_536):
            size += len(piece)
    return size


def stalled_table(found: Stalled) -> Html:
    """Who bore what."""
    alone, beside = ([percentile(heard.itl, q) for q in (50, 99)] for heard in (found.alone, found.neighbour))
    rows = [
        ("the engine wrote for them", f"{found.written} tokens, the last after {seconds(found.engine_s)}"),
        ("the server gave up after", f"{seconds(found.cut_s)}, logged as {found.outcome}"),
        ("the whole answer", f"{found.answer_bytes / 1e3:.0f} kB"),
        ("of it, taken by the operating system", f"{found.kernel_bytes / 1e3:.0f} kB"),
        ("KV blocks held afterwards", str(found.blocks_after)),
        ("a neighbour's ITL, alone", f"p50 {seconds(alone[0])}, p99 {seconds(alone[1])}"),
        ("the same, beside them", f"p50 {seconds(beside[0])}, p99 {seconds(beside[1])}"),
    ]
    return as_table(("a reader who stops reading", "what it costs"), rows)
