"""What happy-path tests leave out, sent to the real server for real; and a neighbour who must not notice."""

import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from course.lab.display import Html, table_by_name
from course.lab.http_client import NAME, Heard, ask, connect
from course.lab.lab import Lab
from course.lab.server import HOST, LabServer
from course.lessons.lesson_10 import traffic
from minillm.server.answers import DONE

LIMITS = {"max_body_bytes": 20_000, "head_timeout_s": 0.6, "body_timeout_s": 0.6, "reader_timeout_s": 1.5}
"""Short ones, to see them at work."""
PAUSE_S = 0.4
"""What a slow tool takes between two requests of an agent."""
SETTLE_S, PATIENCE_S = 60.0, 60.0
"""For KV blocks to come back; for a long answer to be written and given up."""
FAT = {"n": 4, "logprobs": 20, "temperature": 1.0, "seed": 1}
"""Several answers in one request, with the likeliest tokens at each place: more than a socket holds."""
RECEIVE_BUFFER = 4096
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: lab\r\nContent-Type: application/json\r\n"


@dataclass(frozen=True)
class Trouble:
    """One kind of trouble, and what became of every request."""

    name: str
    answer: str
    """What the sender was told: status and code; or how its call was logged."""
    is_typed: bool
    """The sender got what the API promises for this."""
    neighbour_ok: bool
    """Another answer, under way at the time, came whole, to its last token."""
    blocks_left: int
    """KV blocks held when all was over."""

    @property
    def harmless(self) -> bool:
        return self.is_typed and self.neighbour_ok and self.blocks_left == 0


def send_all(lab: Lab) -> list[Trouble]:
    """One kind after the other, each beside a neighbour's stream."""
    with LabServer(lab, LIMITS) as server:
        return [_try(server, name, send) for name, send in KINDS.items()]


def _try(server: LabServer, name: str, send: Callable[[LabServer], tuple[str, bool]]) -> Trouble:
    heard: list[Heard] = []
    length = 48 if server.lab.scale == 1 else 16
    neighbour = threading.Thread(target=lambda: heard.append(ask(server.port, traffic.PROMPT, length)), daemon=True)
    neighbour.start()
    answer, is_typed = send(server)
    neighbour.join()
    end = time.monotonic() + SETTLE_S
    while server.kv_blocks_held() and time.monotonic() < end:
        time.sleep(0.01)
    written = [len(server.call(each.call_id).outputs[0].completions[0].token_ids) for each in heard]
    whole = written == [length] and heard[0].body.endswith(DONE)
    return Trouble(name, answer, is_typed, whole, server.kv_blocks_held())


# ---------------------------------------------------------------- the kinds


def _post(server: LabServer, body: bytes, status: int, code: str | None) -> tuple[str, bool]:
    """A whole request that must be refused."""
    line = connect(server.port)
    line.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = line.getresponse()
    said = json.loads(answer.read())["error"]
    line.close()
    return f"{answer.status}, {said['code']}", (answer.status, said["code"]) == (status, code)


def _body(**fields: object) -> bytes:
    return json.dumps({"model": NAME, "max_tokens": 4, "stream": True, **fields}).encode()


def _too_long(server: LabServer) -> tuple[str, bool]:
    words = "word " * (server.service.context_limit + 1)
    return _post(server, _body(prompt=words), 400, "context_length_exceeded")


def _too_large(server: LabServer) -> tuple[str, bool]:
    return _post(server, _body(prompt="x" * LIMITS["max_body_bytes"]), 413, "body_too_large")


def _no_json(server: LabServer) -> tuple[str, bool]:
    return _post(server, b'{"prompt": "hal', 400, "invalid_json")


def _half(payload: bytes) -> Callable[[LabServer], tuple[str, bool]]:
    """Some bytes of a request, and then nothing more: a slow sender."""

    def send(server: LabServer) -> tuple[str, bool]:
        with socket.create_connection((HOST, server.port), timeout=30) as sock:
            sock.sendall(payload)
            said = b""
            while piece := sock.recv(65_536):
                said += piece
        if not said:
            return "nothing", False
        status = said.split(b" ")[1].decode()
        code = json.loads(said.split(b"\r\n\r\n", 1)[1])["error"]["code"]
        return f"{status}, {code}", status == "408" and code in ("head_timeout", "body_timeout")

    return send


def _leaves_early(server: LabServer) -> tuple[str, bool]:
    """Hangs up while the prompt may still be being read."""
    before = _count(server, "disconnected")
    with socket.create_connection((HOST, server.port)) as sock:
        _send(sock, prompt=traffic.PROMPT, max_tokens=200, ignore_eos=True)
    return _logged(server, "disconnected", before)


def _leaves_late(server: LabServer) -> tuple[str, bool]:
    """Hangs up in the middle of its answer."""
    before = _count(server, "disconnected")
    ask(server.port, traffic.PROMPT, 200, leave_after=5)
    return _logged(server, "disconnected", before)


def _stops_reading(server: LabServer) -> tuple[str, bool]:
    """Keeps the connection open, and takes nothing from it."""
    before = _count(server, "slow_reader")
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        sock.connect((HOST, server.port))
        _send(sock, prompt=traffic.PROMPT, max_tokens=48, ignore_eos=True, **FAT)
        return _logged(server, "slow_reader", before)


def _send(sock: socket.socket, **fields: object) -> None:
    """A whole request, on a connection of one's own."""
    data = _body(**fields)
    sock.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(data) + data)


def _logged(server: LabServer, outcome: str, before: int) -> tuple[str, bool]:
    """There is no client left to be told; but the server must have noticed."""
    end = time.monotonic() + PATIENCE_S
    while _count(server, outcome) == before and time.monotonic() < end:
        time.sleep(0.01)
    noticed = _count(server, outcome) > before
    return f"nothing; logged as {outcome}" if noticed else "nothing, and nothing was logged", noticed


def _count(server: LabServer, outcome: str) -> int:
    """Calls that ended so."""
    return sum(call.outcome == outcome for call in list(server.calls.values()))


def _slow_tool(server: LabServer) -> tuple[str, bool]:
    """An agent asks, is silent while its tool works, and asks again on the same connection."""
    line = connect(server.port)
    first = ask(server.port, traffic.PROMPT, 4, connection=line)
    time.sleep(PAUSE_S)
    held = server.service.limiter.num_sequences
    second = ask(server.port, f"{traffic.PROMPT} {first.text} The tool says: 42.", 4, connection=line)
    line.close()
    fine = (first.status, second.status) == (200, 200) and held <= 1  # at most the neighbour's
    return f"{first.status} and {second.status}; held no slot in between", fine


KINDS: dict[str, Callable[[LabServer], tuple[str, bool]]] = {
    "a prompt longer than the context": _too_long,
    "a body larger than allowed": _too_large,
    "JSON that breaks off": _no_json,
    "headers that never end": _half(HEAD),
    "a body that never comes whole": _half(HEAD + b"Content-Length: 500\r\n\r\n{"),
    "hangs up at once": _leaves_early,
    "hangs up in mid-answer": _leaves_late,
    "stops reading": _stops_reading,
    "an agent whose tool is slow": _slow_tool,
}


def trouble_table(found: Sequence[Trouble]) -> Html:
    return table_by_name(
        "what is sent",
        {each.name: each for each in found},
        {
            "response": lambda each: each.answer,
            "verdict": lambda each: "as intended" if each.is_typed else "not as intended",
            "a neighbour's answer": lambda each: "whole" if each.neighbour_ok else "harmed",
            "KV blocks left": lambda each: str(each.blocks_left),
        },
    )
