"""The parts of a first token that no engine sees: the same traffic, through a real server and a real socket.

`minillm serve` runs in this process, on a port of its own, with the lab's weights. Client, server and engine therefore
read one clock, and every border is a stamp: nothing is inferred.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from course.lab.http_client import Heard, ask, together
from course.lab.lab import Lab
from course.lab.server import LabServer
from course.lab.workloads import Arrival, Workload
from course.lessons.lesson_05.causes import Stay, inside, shared_tokens
from minillm.core.brief import brief
from minillm.core.params import SamplingParams
from minillm.core.timeline import StepRecord
from minillm.observe.step_cost import StepCost, split_steps
from minillm.server.calls import Call
from minillm.server.protocol import GenerationBody
from minillm.server.service import Service


class StampingService(Service):
    """The server's own, which also writes down when it begins and ends to prepare a request."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.prepared: dict[str, tuple[float, float]] = {}
        """By call: the clock before and after tokenizing, waiting for a thread included."""

    async def prepare(self, call: Call, body: GenerationBody) -> tuple[list[list[int]], SamplingParams]:
        before = self.clock.now()
        prepared = await super().prepare(call, body)
        self.prepared[call.request_id] = before, self.clock.now()
        return prepared


@dataclass(frozen=True)
class OverHttp:
    """One workload through the server, in its order."""

    causes: tuple[dict[str, float], ...]
    """Of each TTFT, seconds from sending to the first token read by the client."""
    steps: tuple[StepRecord, ...]

    __repr__ = brief

    @property
    def ttft(self) -> list[float]:
        return [sum(each.values()) for each in self.causes]


def over_http(lab: Lab, workload: Workload, **fields: Any) -> OverHttp:
    """Play a workload to `minillm serve`, a client thread a request.

    Args:
        fields: EngineConfig fields that differ from the lab's defaults.
    Raises:
        RuntimeError: the server refused a request, or broke it off; its words.
    """
    config = lab.config(**fields)
    fields |= {"max_num_seqs": config.max_num_seqs, "enable_prefix_caching": config.enable_prefix_caching}
    with lab.alone(), LabServer(lab, service=StampingService, **fields) as server:
        heard = play(workload, server.port)
        calls = [answered(server, each) for each in heard]
        steps, size = server.steps(), server.service.thread.config.block_size
        prepared = [server.service.prepared[each.call_id] for each in heard]
    shared = shared_tokens([call.outputs[0].prompt_token_ids for call in calls], size)
    cut = partial(whole, steps, split_steps(steps))
    return OverHttp(tuple(map(cut, heard, calls, prepared, shared)), steps)


def play(workload: Workload, port: int) -> list[Heard]:
    """Send every request when it is due, each on a new connection; or, if the workload says one at a time, when the one
    before is over."""
    if workload.max_in_flight == 1:
        return [ask(port, arrival.prompt, arrival.max_tokens) for arrival in workload.arrivals]
    start = time.perf_counter()

    def client(arrival: Arrival) -> Heard:
        time.sleep(max(start + arrival.offset - time.perf_counter(), 0.0))
        return ask(port, arrival.prompt, arrival.max_tokens)

    return together([partial(client, arrival) for arrival in workload.arrivals])


def answered(server: LabServer, heard: Heard) -> Call:
    """A request that was answered to its end, as the server saw it.

    Raises:
        RuntimeError: it was not.
    """
    if heard.status != 200:
        raise RuntimeError(f"the server refused with {heard.status}: {heard.body[:500].decode()}")
    call = server.call(heard.call_id)
    if call.outcome != "ok":
        raise RuntimeError(f"the server broke {heard.call_id} off: {call.outcome}")
    return call


def whole(
    steps: Sequence[StepRecord],
    costs: Sequence[StepCost],
    heard: Heard,
    call: Call,
    prepared: tuple[float, float],
    shared: int,
) -> dict[str, float]:
    """From the client's send to the client's first token.

    Args:
        costs: of the steps, one each.
        prepared: clock seconds before and after tokenizing.
        shared: tokens that it begins with and others do, too.
    """
    before, after = prepared
    output = call.outputs[0]
    line = output.completions[0].timeline
    cold = max(shared - output.num_cached_tokens, 0)
    # The engine knows it from the moment that its token ids are there.
    spent = inside(Stay(f"{heard.call_id}-0", after, line.prefill_end, line.first_token, cold), steps, costs)
    around: Mapping[str, float] = {
        "way in": call.arrival - heard.sent,
        "parsing": before - call.arrival,
        "tokenizing": after - before,
        "way out": heard.arrivals[0] - line.first_token,
    }
    return {**spent, **around}
