"""The parts of a first token that no engine sees: the same traffic, through a real server and a real socket.

`minillm serve` runs in this process, on a port of its own, with the lab's weights. Client, server and engine therefore
read one clock, and every border is a stamp: nothing is inferred.
"""

import http.client
import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from course.lab.lab import Lab
from course.lab.lesson_05.causes import Stay, inside, shared_tokens
from course.lab.workloads import Arrival, Workload
from minillm import EngineConfig
from minillm.async_engine import EngineThread
from minillm.models.loader import LoadedModel
from minillm.request import SamplingParams
from minillm.serve.call import Call
from minillm.serve.config import ServeConfig
from minillm.serve.door import Door
from minillm.serve.metrics import Metrics
from minillm.serve.server import bind, make_server
from minillm.serve.service import Service
from minillm.timeline import StepRecord

NAME = "lab"
TIMEOUT_S = 600


class StampingService(Service):
    """The server's own, which also writes down when it begins and ends to prepare a request, and keeps each call."""

    def __init__(self, thread: EngineThread, serve: ServeConfig, door: Door) -> None:
        super().__init__(thread, serve, door, [self])
        self.prepared: dict[str, tuple[float, float]] = {}
        """By call: the clock before and after tokenizing, waiting for a thread included."""
        self.calls: dict[str, Call] = {}

    async def prepare(self, call: Call) -> tuple[list[list[int]], SamplingParams]:
        before = self.clock.now()
        prepared = await super().prepare(call)
        self.prepared[call.request_id] = before, self.clock.now()
        return prepared

    def observe(self, call: Call) -> None:
        self.calls[call.request_id] = call


@dataclass(frozen=True)
class Heard:
    """What one client saw of its request. Clock seconds."""

    sent: float
    first_byte: float
    call_id: str


@dataclass(frozen=True)
class OverHttp:
    """One workload through the server, in its order."""

    causes: tuple[dict[str, float], ...]
    """Of each TTFT, seconds from sending to the first token read by the client."""
    steps: tuple[StepRecord, ...]

    @property
    def ttft(self) -> list[float]:
        return [sum(each.values()) for each in self.causes]


def over_http(lab: Lab, workload: Workload, **fields: object) -> OverHttp:
    """Play a workload to `minillm serve`, a client thread a request.

    Args:
        fields: EngineConfig fields that differ from the lab's defaults.
    Raises:
        RuntimeError: the server refused a request; its words.
    """
    with serving(lab.config(**fields), lab.model) as (service, port):
        heard = play(workload, port)
        steps = service.thread.ask(lambda engine: tuple(engine.steps)).result()
        size = service.thread.config.block_size
        calls = service.calls
        wait_for(lambda: all(each.call_id in calls for each in heard))
    prompts = [calls[each.call_id].outputs[0].prompt_token_ids for each in heard]
    shared = shared_tokens(prompts, size)
    causes = [whole(each, service, steps, common) for each, common in zip(heard, shared)]
    return OverHttp(tuple(causes), steps)


@contextmanager
def serving(config: EngineConfig, model: LoadedModel) -> Iterator[tuple[StampingService, int]]:
    """A server in a thread, and its port. It is stopped at the end."""
    serve = ServeConfig(port=0, served_model_name=NAME, access_log=False, drain_timeout_s=5)
    sock = bind(serve.host, serve.port)
    service = StampingService(EngineThread(config.replace(max_queue_len=None), model), serve, Door(serve, config))
    ready = threading.Event()
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    server = make_server(service, Metrics(NAME), ready.set)
    thread = threading.Thread(target=server.run, args=([sock],), name="minillm-serve", daemon=True)
    thread.start()
    try:
        ready.wait(60)
        yield service, sock.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(30)


def play(workload: Workload, port: int) -> list[Heard]:
    """Send every request when it is due; or, if the workload says one at a time, when the one before is over."""
    if workload.max_in_flight == 1:
        return [ask(arrival, port) for arrival in workload.arrivals]
    start = time.perf_counter()
    heard: dict[int, Heard | Exception] = {}

    def client(index: int, arrival: Arrival) -> None:
        time.sleep(max(start + arrival.offset - time.perf_counter(), 0.0))
        try:
            heard[index] = ask(arrival, port)
        except Exception as error:
            heard[index] = error

    threads = [threading.Thread(target=client, args=each, daemon=True) for each in enumerate(workload.arrivals)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    for answer in heard.values():
        if isinstance(answer, Exception):
            raise answer
    return [heard[i] for i in range(len(workload.arrivals))]


def ask(arrival: Arrival, port: int) -> Heard:
    """One request on a new connection, read to its end."""
    body = {
        "model": NAME, "prompt": arrival.prompt, "max_tokens": arrival.max_tokens, "temperature": 0,
        "ignore_eos": True, "stream": True,
    }  # fmt: skip
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    sent = time.perf_counter()  # minillm's clock
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(f"the server refused with {answer.status}: {answer.read(500).decode()}")
    while not answer.readline().startswith(b"data:"):
        pass
    first_byte = time.perf_counter()
    answer.read()
    connection.close()
    return Heard(sent, first_byte, answer.headers["x-request-id"])


def whole(heard: Heard, service: StampingService, steps: tuple[StepRecord, ...], shared: int) -> dict[str, float]:
    """From the client's send to the client's first token."""
    call = service.calls[heard.call_id]
    before, after = service.prepared[heard.call_id]
    output = call.outputs[0]
    line = output.completions[0].timeline
    cold = max(shared - output.num_cached_tokens, 0)
    # The engine knows it from the moment that its token ids are there.
    spent = inside(Stay(f"{heard.call_id}-0", after, line.prefill_end, line.first_token, cold), steps)
    around: Mapping[str, float] = {
        "way in": call.arrival - heard.sent,
        "parsing": before - call.arrival,
        "tokenizing": after - before,
        "way out": heard.first_byte - line.first_token,
    }
    return {**spent, **around}


def wait_for(condition: object, patience_s: float = 10.0) -> None:
    """The server closes a call a moment after its last byte."""
    end = time.perf_counter() + patience_s
    while not condition() and time.perf_counter() < end:
        time.sleep(0.005)
