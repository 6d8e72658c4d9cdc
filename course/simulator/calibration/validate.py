"""Is the simulator right about this machine? The same traffic, once for real and once simulated.

    capacity      many requests at once: how many are served per second
    0.3 to 0.85   Poisson arrivals at a share of the real capacity, with several seeds

The real engine is given each request at its moment, as by a server, and both are asked for the same latencies.
A machine is faster in one minute than in the next. So traffic and the measuring of steps take turns, see measure.py:
what is compared are the simulator and the engine, not two moments of the machine.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from course.simulator.calibration.replay import Arrival, run
from course.simulator.cost.models import PricedModel
from course.simulator.cost.placement import Placement
from course.simulator.cost.profile import Profile
from course.simulator.deployment import Deployment
from course.simulator.latencies import SummaryDict, error_percent, rates, summary_of
from course.simulator.workload.arrivals import AllAtOnce, Arrivals, Poisson
from course.simulator.workload.kinds import Independent
from course.simulator.workload.lengths import Uniform
from course.simulator.workload.requests import make_workload, prompt_token_ids
from minillm.core.brief import brief
from minillm.core.timeline import VirtualClock
from minillm.frontend.engine import Engine
from minillm.frontend.outputs import RequestOutput


@dataclass(frozen=True, slots=True)
class ServedTraffic:
    """What is served, for real and simulated. Lengths in tokens."""

    prompt: Uniform
    output: Uniform
    loads: tuple[float, ...]
    """Shares of capacity."""
    seeds: int
    num_requests: int
    """In each run at a load."""
    num_at_once: int
    """Requests that come all at once, to find the capacity."""

    __repr__ = brief

    @property
    def num_runs(self) -> int:
        """How many runs `serve_traffic` makes."""
        return self.seeds * (1 + len(self.loads))

    @property
    def told(self) -> str:
        """In words, for a profile's provenance."""
        lengths = f"prompts of {self.prompt.low} to {self.prompt.high} tokens, answers of {self.output.low} to"
        return f"{lengths} {self.output.high}; Poisson arrivals, {self.seeds} seeds"


CPU_TRAFFIC = ServedTraffic(Uniform(low=16, high=256), Uniform(low=8, high=48), (0.3, 0.6, 0.85), 5, 30, 48)
"""Short enough for a laptop's CPU."""
GPU_TRAFFIC = ServedTraffic(Uniform(low=64, high=2048), Uniform(low=32, high=256), (0.4, 0.8), 2, 40, 128)
"""Chats. An H100 with an 8B model serves it all in half a minute."""


@dataclass(frozen=True, slots=True)
class Validation:
    """How far the simulator was from the real engine. Errors in percent of the real number."""

    real_capacity: float
    """Requests per second."""
    simulated_capacity: float
    error_percent: dict[float, SummaryDict]
    """By load, over the requests of all seeds."""
    traffic: ServedTraffic

    __repr__ = brief

    @property
    def capacity_error_percent(self) -> float:
        return 100 * (self.simulated_capacity / self.real_capacity - 1)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; the loads as strings."""
        return {
            "traffic": self.traffic.told,
            "real_capacity_requests_per_s": round(self.real_capacity, 3),
            "capacity_error_percent": round(self.capacity_error_percent, 2),
            "error_percent_by_load": {str(load): errors for load, errors in self.error_percent.items()},
        }


@dataclass(frozen=True, slots=True)
class RealRun:
    """Traffic that the real engine has served."""

    load: float | None
    """Share of capacity; None = all requests at once, to find the capacity."""
    arrivals: list[Arrival]
    outputs: list[RequestOutput]

    __repr__ = brief


def serve_traffic(engine: Engine, traffic: ServedTraffic) -> Iterator[RealRun]:
    """Serve traffic for real, one run at each `next`: `traffic.num_runs` of them. Nothing else should run.

    The first run, of requests that come all at once, tells the capacity that the loads are shares of.

    Args:
        engine: real, idle, without prefix caching.
    """
    capacity = 0.0
    for seed in range(traffic.seeds):
        for load in (None, *traffic.loads):
            if load is None:
                arrivals = arrivals_of_traffic(traffic, AllAtOnce(), traffic.num_at_once, seed)
            else:
                arrivals = arrivals_of_traffic(traffic, Poisson(rate=load * capacity), traffic.num_requests, seed)
            begin = engine.clock.now()
            outputs = run(engine, [replace(arrival, moment=begin + arrival.moment) for arrival in arrivals])
            capacity = capacity or requests_per_s([outputs])
            yield RealRun(load, arrivals, outputs)


def compare(deployment: Deployment, served: Sequence[RealRun], traffic: ServedTraffic) -> Validation:
    """Simulate on the deployment what was served, and compare."""
    real: defaultdict[float | None, list[list[RequestOutput]]] = defaultdict(list)
    simulated: defaultdict[float | None, list[list[RequestOutput]]] = defaultdict(list)
    for one in served:
        real[one.load].append(one.outputs)
        simulated[one.load].append(simulate_run(deployment, one.arrivals))
    errors = {
        load: error_percent(summary_of(chain.from_iterable(simulated[load])), summary_of(chain.from_iterable(runs)))
        for load, runs in real.items()
        if load is not None
    }
    return Validation(requests_per_s(real[None]), requests_per_s(simulated[None]), errors, traffic)


def requests_per_s(runs: Sequence[Sequence[RequestOutput]]) -> float:
    """Requests of several runs over their seconds."""
    seconds = [len(outputs) / rates(outputs)["requests_per_s"] for outputs in runs]
    return sum(map(len, runs)) / sum(seconds)


def deployment_of(engine: Engine, profile: Profile) -> Deployment:
    """The simulated twin of a real engine."""
    from minillm.kernels.quantization import dtype_name

    model = engine.model
    assert model is not None, "a simulated engine has no twin"
    dtype = dtype_name(model.dtype)
    config = engine.config.replace(
        num_kv_blocks=engine.runner.num_kv_blocks, kv_cache_memory_gb=None, max_model_len=engine.context_limit
    )
    return Deployment(PricedModel.of(model.model_config), profile, Placement(1, dtype, dtype), config)


def arrivals_of_traffic(traffic: ServedTraffic, arrivals: Arrivals, num_requests: int, seed: int) -> list[Arrival]:
    """The traffic as a list. Moments in seconds from 0."""
    kind = Independent(prompt=traffic.prompt, output=traffic.output)
    workload = make_workload(kind, arrivals, num_requests=num_requests, seed=seed)
    return [
        Arrival(
            f"request-{seed}-{request.index}",
            request.arrival or 0.0,
            prompt_token_ids(workload.prompt(request), {}),
            request.output_tokens,
        )
        for request in workload
    ]


def simulate_run(deployment: Deployment, arrivals: Sequence[Arrival]) -> list[RequestOutput]:
    """The same arrivals on the simulator."""
    return run(deployment.fast_engine(VirtualClock()), arrivals)
