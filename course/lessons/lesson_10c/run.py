"""What lesson 10c plays on the real server: clients that leave, clients that misbehave, and a retry storm."""

import asyncio
import functools
import json
import math
import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from course.lab.http_client import NAME, Heard, ask, connect, together
from course.lab.lab import Lab
from course.lab.relay import RelayPath, relay
from course.lab.scale import is_short
from course.lab.server import HOST, LabServer
from course.lab.texts import CHAT_QUESTIONS
from course.lab.waiting import with_progress
from course.lessons.lesson_10.run import PROMPT, num_tokens
from course.lessons.lesson_10c.simulated import (
    BUDGET,
    GIVE_UP,
    IMMEDIATELY,
    JITTER,
    Storm,
    moment_of,
    moments_since,
    policies,
)
from course.loadgen.client import Api, Client, ClientExchange, Endpoint, Failure, now
from course.loadgen.planned_requests import PlannedRequest, planned_requests
from course.loadgen.retrying import send_until_answered
from course.simulator.cluster.retries import Retries, RetryPolicy
from course.simulator.workload.arrivals import Spikes
from course.simulator.workload.kinds import Independent
from course.simulator.workload.lengths import Fixed
from course.simulator.workload.requests import make_workload
from minillm.core.brief import brief
from minillm.core.step_log import StepRecord
from minillm.server.answers import DONE

HALF = 0.5

STRAIGHT, GATEWAY = "straight to the server", "through a gateway that reads on"


@dataclass(frozen=True)
class AbandonedAnswer:
    """One answer whose reader hung up. Clock seconds."""

    heard: Heard
    steps: tuple[StepRecord, ...]
    """From its arrival to its end."""
    written: int
    """Tokens that the engine wrote of it."""
    ended: float
    """When the server had done with it."""
    outcome: str
    """As the server's log says."""

    __repr__ = brief

    @property
    def rest(self) -> int:
        """Tokens that the reader did not wait for."""
        return self.heard.asked - len(self.heard.arrivals)

    @property
    def saved(self) -> float:
        """The share of the rest that wasn't generated."""
        return (self.heard.asked - self.written) / self.rest

    @property
    def kv_back(self) -> float:
        """Seconds from leaving to the end of the last step that held KV blocks for it; 0 if that came before."""
        left = self.heard.ended
        return max((step.end - left for step in self.steps if step.kv_blocks_used and step.end > left), default=0.0)


def leave(server: LabServer, share: float = 0.5, reads_on: bool = False, tokens: int | None = None) -> AbandonedAnswer:
    """Ask for an answer, alone on the server, and hang up after a share of it."""
    tokens = tokens or num_tokens(server.lab)
    with relay(server.port, RelayPath(reads_on=reads_on)) as port:
        heard = ask(port, PROMPT, tokens, leave_after=round(share * tokens))
        call = server.call(heard.call_id)
    steps = tuple(step for step in server.steps() if step.end > heard.sent)
    return AbandonedAnswer(heard, steps, _written(steps, heard.call_id), call.finished, call.outcome)


def _written(steps: Sequence[StepRecord], call_id: str) -> int:
    """Tokens that were written: the last step that reads its prompt writes one, and so does each after it."""
    mine = [share for step in steps for share in step.shares if share.request_id.startswith(call_id)]
    return sum(not share.is_prefill for share in mine) + any(share.is_prefill for share in mine)


def both_ways(server: LabServer, share: float = 0.5) -> dict[str, AbandonedAnswer]:
    """The same reader, leaving after the same share, straight and through a gateway."""
    return {STRAIGHT: leave(server, share), GATEWAY: leave(server, share, reads_on=True)}


# ---------------------------------------------------------------- many readers


@dataclass(frozen=True)
class CrowdOfReaders:
    """Many readers, some of whom leave; and what the engine did."""

    name: str
    asked: int
    """Output tokens, of all together."""
    written: int
    prompt_tokens: int
    steps: int
    """That the engine took for all of them."""
    seconds: float
    """In which a step was running."""

    def tokens_saved(self, other: "CrowdOfReaders") -> float:
        """Share of the other's tokens, prompts too, that were not computed here."""
        return 1 - (self.written + self.prompt_tokens) / (other.written + other.prompt_tokens)

    def steps_saved(self, other: "CrowdOfReaders") -> float:
        """Steps that the engine didn't run. Those that it runs get shorter, too, where a row fewer makes them so."""
        return 1 - self.steps / other.steps

    def time_saved(self, other: "CrowdOfReaders") -> float:
        """The engine's time, as a share of the other's."""
        return 1 - self.seconds / other.seconds


def crowd(server: LabServer, readers: int, leaving: int, share: float, reads_on: bool) -> CrowdOfReaders:
    """All requests arrive at once; the first `leaving` hang up after a share of their answers."""
    tokens = max(12, num_tokens(server.lab) // 2)
    begun = max((step.end for step in server.steps()), default=0.0)

    with relay(server.port, RelayPath(reads_on=reads_on)) as port:

        def read(i: int) -> Heard:
            stop = round(share * tokens) if i < leaving else None
            return ask(port, f"{i}. {CHAT_QUESTIONS[i % len(CHAT_QUESTIONS)]}", tokens, leave_after=stop)

        heard = together([partial(read, i) for i in range(readers)])
        for each in heard:
            server.call(each.call_id)
    steps = [step for step in server.steps() if step.start > begun]
    return CrowdOfReaders(
        GATEWAY if reads_on else STRAIGHT,
        asked=readers * tokens,
        written=sum(_written(steps, each.call_id) for each in heard),
        prompt_tokens=sum(step.num_prefill_tokens for step in steps),
        steps=len(steps),
        seconds=busy_s(steps),
    )


def busy_s(steps: Sequence[StepRecord]) -> float:
    """Seconds in which a step was running. On a GPU one is planned while the one before runs: both count once."""
    busy, until = 0.0, -math.inf
    for step in sorted(steps, key=lambda step: step.start):
        busy += max(step.end - max(step.start, until), 0.0)
        until = max(until, step.end)
    return busy


CROWD_ROUNDS = 3
SEATED, IN_LINE = "a slot for each", "a queue for two slots"


def crowds(lab: Lab, readers: int = 8, share: float = 0.5) -> dict[tuple[str, str], CrowdOfReaders]:
    """Half of the readers leave halfway: few slots and many, with a server that notices and one that cannot. Several
    rounds, by turns; the quickest of each counts, for whatever else runs can only slow one down."""
    found: dict[tuple[str, str], CrowdOfReaders] = {}
    for room, slots in ((SEATED, readers), (IN_LINE, 2)):
        with LabServer(lab, max_num_seqs=slots) as server:
            for reads_on in (True, False) * (CROWD_ROUNDS if lab.scale == 1 else 1):
                each = crowd(server, readers, readers // 2, share, reads_on)
                found[room, each.name] = min(found.get((room, each.name), each), each, key=lambda one: one.seconds)
    return found


def saved_share(leaving: float, read: float, prompt_share: float) -> float:
    """Share of all compute: of readers who leave x what they did not read x what of a request is writing."""
    return leaving * (1 - read) * (1 - prompt_share)


# ---------------------------------------------------------------- what happy-path tests leave out
# Sent to the real server for real, beside a neighbour who must not notice.

LIMITS = {"max_body_bytes": 20_000, "head_timeout_s": 0.6, "body_timeout_s": 0.6, "reader_timeout_s": 1.5}
"""Short ones, to see them at work."""
PAUSE_S = 0.4
"""What a slow tool takes between two requests of an agent."""
SETTLE_S, NOTICED_S = 60.0, 60.0
"""For KV blocks to come back; for a long answer to be written and given up."""
FAT = {"n": 4, "logprobs": 20, "temperature": 1.0, "seed": 1, "max_tokens": 48}
"""Several answers in one request, with the likeliest tokens at each place: more than a socket holds."""
LONG_FAT = {"n": 4, "temperature": 1.0, "seed": 1, "max_tokens": 400}
"""The same where there are no likeliest tokens, on a simulated device."""
RECEIVE_BUFFER = 4096
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: lab\r\nContent-Type: application/json\r\n"


@dataclass(frozen=True)
class ClientFault:
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


def send_all_faults(lab: Lab) -> list[ClientFault]:
    """One kind after the other, each beside a neighbour's stream."""
    with LabServer(lab, LIMITS) as server:
        return [_send_fault(server, name, send) for name, send in FAULTS.items()]


def _send_fault(server: LabServer, name: str, send: Callable[[LabServer], tuple[str, bool]]) -> ClientFault:
    heard: list[Heard] = []
    length = 48 if server.lab.scale == 1 else 16
    neighbour = threading.Thread(target=lambda: heard.append(ask(server.port, PROMPT, length)), daemon=True)
    neighbour.start()
    answer, is_typed = send(server)
    neighbour.join()
    end = time.monotonic() + SETTLE_S
    while server.kv_blocks_held() and time.monotonic() < end:
        time.sleep(0.01)
    written = [len(server.call(each.call_id).outputs[0].completions[0].token_ids) for each in heard]
    whole = written == [length] and heard[0].body.endswith(DONE)
    return ClientFault(name, answer, is_typed, whole, server.kv_blocks_held())


# ---------------------------------------------------------------- the kinds of faults


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
        _send_request(sock, prompt=PROMPT, max_tokens=200, ignore_eos=True)
    return _logged(server, "disconnected", before)


def _leaves_late(server: LabServer) -> tuple[str, bool]:
    """Hangs up in the middle of its answer."""
    before = _count(server, "disconnected")
    ask(server.port, PROMPT, 200, leave_after=5)
    return _logged(server, "disconnected", before)


def _stops_reading(server: LabServer) -> tuple[str, bool]:
    """Keeps the connection open, and takes nothing from it."""
    before = _count(server, "slow_reader")
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        sock.connect((HOST, server.port))
        _send_request(sock, prompt=PROMPT, ignore_eos=True, **(FAT if server.lab.simulated is None else LONG_FAT))
        return _logged(server, "slow_reader", before)


def _send_request(sock: socket.socket, **fields: object) -> None:
    """A whole request, on a connection of one's own."""
    data = _body(**fields)
    sock.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(data) + data)


def _logged(server: LabServer, outcome: str, before: int) -> tuple[str, bool]:
    """There is no client left to be told; but the server must have noticed."""
    end = time.monotonic() + NOTICED_S
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
    first = ask(server.port, PROMPT, 4, connection=line)
    time.sleep(PAUSE_S)
    held = server.service.limiter.num_sequences
    second = ask(server.port, f"{PROMPT} {first.text} The tool says: 42.", 4, connection=line)
    line.close()
    fine = (first.status, second.status) == (200, 200) and held <= 1  # at most the neighbour's
    return f"{first.status} and {second.status}; held no slot in between", fine


FAULTS: dict[str, Callable[[LabServer], tuple[str, bool]]] = {
    "a prompt longer than the context": _too_long,
    "a body larger than allowed": _too_large,
    "JSON that breaks off": _no_json,
    "headers that never end": _half(HEAD),
    "a body that never comes whole": _half(HEAD + b"Content-Length: 500\r\n\r\n{"),
    "hangs up immediately": _leaves_early,
    "hangs up in mid-answer": _leaves_late,
    "stops reading": _stops_reading,
    "an agent whose tool is slow": _slow_tool,
}


# ---------------------------------------------------------------- a retry storm

SLOTS = 4
SERVICE_S = 0.25
"""A request in a full batch: answers are made so long that it takes about this."""
PATIENCE_S = 4 * SERVICE_S
"""For the whole answer."""
LOAD, OVERLOAD = 0.5, 4.0
"""Shares of what the server can do: before and after the spike, and in it."""
START_S, LENGTH_S, ENDS_S, SHORT_ENDS_S = 2.0, 2.0, 12.0, 5.5
TRIAL_TOKENS, FEWEST, MOST = 8, 4, 96
REFUSALS = (Failure.RATE_LIMITED, Failure.SERVER_ERROR)


def live_storms(
    lab: Lab, *, only: Sequence[str] = (GIVE_UP, IMMEDIATELY, JITTER, BUDGET), ends_s: float = ENDS_S, **fields: Any
) -> dict[str, Storm]:
    """Each policy against a server of its own. The load follows what this machine's server can do, measured first.

    Args:
        only: these policies. In the lab's short form, the first two, cut off at SHORT_ENDS_S.
        ends_s: when a storm is cut off, seconds.
        fields: of EngineConfig; max_queue_len is what the server does about it.
    """
    fields = {"max_num_seqs": SLOTS, **fields}
    with LabServer(lab, **fields) as server:
        tokens, capacity = _calibrate(server)
    found = {}
    only, ends_s = (only[:2], SHORT_ENDS_S) if is_short() else (only, ends_s)
    for name in with_progress(only, "retry storms"):
        with LabServer(lab, **fields) as server:
            found[name] = _play_storm(server, policies(PATIENCE_S)[name], tokens, capacity, ends_s)
    return found


def _calibrate(server: LabServer) -> tuple[int, float]:
    """Tokens of an answer that takes SERVICE_S, and such requests a second with all slots full."""

    def wave(tokens: int) -> float:
        start = now()
        together([functools.partial(ask, server.port, f"Request {i}", tokens) for i in range(SLOTS)])
        return now() - start

    trial = min(wave(TRIAL_TOKENS) for _ in range(3))
    tokens = min(max(round(TRIAL_TOKENS * SERVICE_S / trial), FEWEST), MOST)
    return tokens, SLOTS / min(wave(tokens) for _ in range(2))


def _play_storm(server: LabServer, policy: RetryPolicy, tokens: int, capacity: float, ends_s: float) -> Storm:
    spikes = Spikes(rate=LOAD * capacity, spike_rate=OVERLOAD * capacity, start_s=START_S, length_s=LENGTH_S)
    traffic = Independent(prompt=Fixed(tokens=12), output=Fixed(tokens=tokens))
    requests = planned_requests(make_workload(traffic, spikes, duration_s=ends_s))
    endpoint = Endpoint(server.url, Api.COMPLETIONS, NAME, extra={"ignore_eos": True})
    with ThreadPoolExecutor(1) as thread:  # a notebook's own thread has an event loop already
        start, tried = thread.submit(asyncio.run, _send_attempts(endpoint, policy, requests, ends_s)).result()
    answered = {each.request.index for each in tried if _is_good(each)}
    after = [r.index for r in requests if START_S + LENGTH_S < moment_of(r.due) < ends_s - PATIENCE_S]
    return Storm(
        spike=(START_S, START_S + LENGTH_S),
        due=tuple(moment_of(r.due) for r in requests),
        offered=moments_since(start, (each.sent for each in tried)),
        good=moments_since(start, (each.ended for each in tried if _is_good(each))),
        refused=moments_since(start, (e.ended for e in tried if e.sent is None or e.failure in REFUSALS)),
        goodput_after=sum(index in answered for index in after) / max(len(after), 1),
    )


async def _send_attempts(
    endpoint: Endpoint, policy: RetryPolicy, requests: list[PlannedRequest], ends_s: float
) -> tuple[float, list[ClientExchange]]:
    """When it began, on the client's clock, and every attempt."""
    tried: list[ClientExchange] = []
    retries = Retries(policy, random.Random(0).random)
    async with Client(endpoint, PATIENCE_S) as client:
        start = now()

        async def send(request: PlannedRequest) -> None:
            await asyncio.sleep(start + moment_of(request.due) - now())
            await send_until_answered(client, request, retries, tried)

        tasks = [asyncio.create_task(send(request)) for request in requests]
        _, still_open = await asyncio.wait(tasks, timeout=ends_s)
        for task in still_open:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return start, tried


def _is_good(each: ClientExchange) -> bool:
    return each.is_over and each.failure is None
