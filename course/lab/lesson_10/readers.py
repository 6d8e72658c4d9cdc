"""Readers: one who reads at their own pace, and one who stops reading altogether."""

import contextlib
import json
import math
import socket
import time
from dataclasses import dataclass

from course.lab.display import Html, as_table
from course.lab.explorer import Explorer, slider
from course.lab.http_client import NAME, Heard, ask
from course.lab.lab import Lab
from course.lab.lesson_10 import traffic
from course.lab.pictures.chart import Axis, Curve, draw_chart
from course.lab.run import percentile
from course.lab.server import LabServer
from course.lab.style import PHASE_COLOURS, seconds
from course.lab.svg import Picture
from minillm.core.timeline import StepShare
from minillm.server.calls import Call

PATIENCE_S = 1.5
"""Of a server for a reader who takes nothing; far shorter than one would deploy, to see it happen."""
RECEIVE_BUFFER = 4096
STREAMS = 4
"""Answers in one request: with log-probabilities of 20 tokens at each place they make a fat stream."""

# ---------------------------------------------------------------- reading at one's own pace


@dataclass(frozen=True)
class Answer:
    """One answer as it came, streamed or whole. Seconds since it was asked for."""

    arrivals: tuple[float, ...]
    """By token; of a whole answer, all the same."""
    words: int

    @property
    def engine_pace(self) -> float:
        """Words a minute at which a streamed answer was written."""
        return 60 * self.words / max(self.arrivals[-1] - self.arrivals[0], 1e-3)

    def read(self, words_per_minute: float) -> list[float]:
        """When a reader has read each token: not before it is there, and not faster than they read."""
        pace, done, moments = 60 / words_per_minute * self.words / len(self.arrivals), 0.0, []
        for there in self.arrivals:
            done = max(done, there) + pace
            moments.append(done)
        return moments

    def starved(self, words_per_minute: float) -> float:
        """Seconds that the reader waited for words, the first ones not counted."""
        return self.read(words_per_minute)[-1] - self.arrivals[0] - 60 / words_per_minute * self.words


def both_forms(server: LabServer) -> dict[str, Answer]:
    """The same answer from the same server, by turns streamed and whole; of each, the one of median length."""
    tokens, heard = traffic.num_tokens(server.lab), {True: [], False: []}
    for stream in (True, False) * (ROUNDS if server.lab.scale == 1 else 1):
        heard[stream].append(ask(server.port, traffic.PROMPT, tokens, stream=stream))
    streamed, whole = (_middle(heard[stream]) for stream in (True, False))
    words = max(len(streamed.text.split()), 1)
    arrivals = tuple(moment - streamed.sent for moment in streamed.arrivals)
    return {
        "streamed": Answer(arrivals, words),
        "whole": Answer((whole.ended - whole.sent,) * len(arrivals), words),
    }


ROUNDS = 5
"""An odd number: one of them is in the middle."""


def _middle(heard: list[Heard]) -> Heard:
    """The one whose time is the median: hiccups of the machine are at the ends."""
    return sorted(heard, key=lambda each: each.ended - each.sent)[len(heard) // 2]


def reading(forms: dict[str, Answer]) -> Explorer:
    """What is there to be read, and what has been read; with a handle for the reader, up to twice the engine's pace."""
    fastest = max(1000, 100 * math.ceil(forms["streamed"].engine_pace / 50))
    return Explorer(
        lambda words_per_minute: draw_reading(forms, words_per_minute),
        words_per_minute=slider("words a minute", 100, fastest, 240, 20),
    )


def draw_reading(forms: dict[str, Answer], words_per_minute: float) -> Picture:
    """Lines: text that has come. Dashes: text that has been read."""
    colours = {"streamed": PHASE_COLOURS["stream"], "whole": PHASE_COLOURS["prefill"]}
    curves, told, ends = [], [], []
    for name, answer in forms.items():
        per_token = answer.words / len(answer.arrivals)
        words = [per_token * (i + 1) for i in range(len(answer.arrivals))]
        done = answer.read(words_per_minute)
        there = (0.0, *answer.arrivals), (0.0, *words)
        if answer.arrivals[0] == answer.arrivals[-1]:
            there = (0.0, answer.arrivals[0], answer.arrivals[0]), (0.0, 0.0, words[-1])
        curves.append(Curve(f"{name}: there", *there, colour=colours[name]))
        curves.append(Curve(f"{name}: read", (answer.arrivals[0], *done), (0.0, *words), "dashes", colours[name]))
        ends.append((answer.arrivals[0], done[-1]))
        told.append(f"{name}: begins at {seconds(answer.arrivals[0])}, has read it at {seconds(done[-1])}")
    paces = f"the reader's pace: {words_per_minute:g} words a minute; the engine's: {forms['streamed'].engine_pace:.0f}"
    return draw_chart(
        _sooner(*ends), curves, Axis(f"seconds since asking ({paces})", low=0), Axis("words", low=0), height=290,
        description=f"At {words_per_minute} words a minute. {'; '.join(told)}.",
    )  # fmt: skip


def _sooner(streamed: tuple[float, float], whole: tuple[float, float]) -> str:
    """Of each, when reading begins and when it is done."""
    gains = [(name, b - a) for name, a, b in zip(("begins", "done"), streamed, whole)]
    told = ", ".join(f"{name} {seconds(abs(gain))} {'sooner' if gain >= 0 else 'later'}" for name, gain in gains)
    return f"Streamed, the reader {told.replace(', done', ', and is done')}"


# ---------------------------------------------------------------- a reader who stops


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
