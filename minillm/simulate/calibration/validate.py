"""Is the simulator right about this machine? The same traffic, once for real and once simulated.

    capacity      many requests at once: how many are served per second
    0.3 to 0.85   Poisson arrivals at a share of the real capacity, with several seeds

The real engine is given each request at its moment, as by a server, and both are asked for the same latencies.
A machine is faster in one minute than in the next. So traffic and the measuring of steps take turns, see measure.py:
what is compared are the simulator and the engine, not two moments of the machine.
"""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from minillm.core.known import known
from minillm.core.params import SamplingParams
from minillm.core.timeline import VirtualClock
from minillm.frontend.engine import Engine
from minillm.frontend.outputs import RequestOutput
from minillm.kernels.quantization import dtype_name
from minillm.model.arithmetic import ModelCost
from minillm.simulate.calibration.replay import Arrival, error_percent, run, summary_of, throughput_of
from minillm.simulate.cost.deployment import Deployment
from minillm.simulate.cost.placement import Placement
from minillm.simulate.cost.profile import Profile
from minillm.simulate.workload.arrivals import Arrivals, Poisson
from minillm.simulate.workload.kinds import Independent
from minillm.simulate.workload.lengths import Uniform
from minillm.simulate.workload.requests import make_workload, prompt_token_ids

PROMPT, OUTPUT = Uniform(low=16, high=256), Uniform(low=8, high=48)
TRAFFIC = Independent(prompt=PROMPT, output=OUTPUT)
"""What is asked; short enough for a laptop's CPU."""
LOADS = (0.3, 0.6, 0.85)
"""Shares of capacity."""
SEEDS = 5
NUM_REQUESTS = 30
NUM_AT_ONCE = 48


@dataclass(frozen=True, slots=True)
class Validation:
    """How far the simulator was from the real engine. Errors in percent of the real number."""

    real_capacity: float
    """Requests per second."""
    simulated_capacity: float
    error_percent: dict[float, dict[str, dict[str, float | None]]]
    """By load: `{ttft_s, tpot_s, e2e_s, queue_s}` to `{mean, p50, p90, p99}`, over the requests of all seeds."""

    @property
    def capacity_error_percent(self) -> float:
        return 100 * (self.simulated_capacity / self.real_capacity - 1)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; the loads as strings."""
        return {
            "traffic": f"prompts of {PROMPT.low} to {PROMPT.high} tokens, answers of "
            f"{OUTPUT.low} to {OUTPUT.high}; Poisson arrivals, {SEEDS} seeds",
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


def serve_traffic(engine: Engine, loads: Sequence[float] = LOADS, seeds: int = SEEDS) -> Iterator[RealRun]:
    """Serve traffic for real, one run at each `next`; see `num_runs`. Takes minutes; nothing else should run.

    The first run, of requests that come all at once, tells the capacity that the loads are shares of.

    Args:
        engine: real, idle, without prefix caching.
    """
    capacity = 0.0
    for seed in range(seeds):
        at_once = arrivals_of_traffic(None, NUM_AT_ONCE, seed)
        outputs = serve(engine, at_once)
        capacity = capacity or requests_per_s([outputs])
        yield RealRun(None, at_once, outputs)
        for load in loads:
            arrivals = arrivals_of_traffic(Poisson(rate=load * capacity), NUM_REQUESTS, seed)
            yield RealRun(load, arrivals, serve(engine, arrivals))


def num_runs(loads: Sequence[float] = LOADS, seeds: int = SEEDS) -> int:
    """How many runs `serve_traffic` makes."""
    return seeds * (1 + len(loads))


def validate(engine: Engine, profile: Profile, served: Sequence[RealRun]) -> Validation:
    """Simulate what was served, and compare.

    Args:
        engine: the one that served.
        profile: fitted to this machine.
    """
    return compare(deployment_of(engine, profile), served)


def compare(deployment: Deployment, served: Sequence[RealRun]) -> Validation:
    """Simulate on the deployment what was served, and compare."""
    outputs: dict[float | None, list[tuple[list[RequestOutput], list[RequestOutput]]]] = {}
    for real_run in served:
        simulated = simulate_run(deployment, real_run.arrivals)
        outputs.setdefault(real_run.load, []).append((real_run.outputs, simulated))
    real_capacity, simulated_capacity = (requests_per_s(runs) for runs in zip(*outputs.pop(None)))
    errors: dict[float, dict[str, dict[str, float | None]]] = {}
    for load, pairs in outputs.items():
        all_real, all_simulated = ([output for outputs in runs for output in outputs] for runs in zip(*pairs))
        errors[known(load)] = error_percent(summary_of(all_simulated), summary_of(all_real))
    return Validation(real_capacity, simulated_capacity, errors)


def requests_per_s(runs: Sequence[Sequence[RequestOutput]]) -> float:
    """Of several runs, the requests over the seconds."""
    seconds = [len(outputs) / throughput_of(outputs)["requests_per_s"] for outputs in runs]
    return sum(map(len, runs)) / sum(seconds)


def deployment_of(engine: Engine, profile: Profile) -> Deployment:
    """The simulated twin of a real engine.

    Raises:
        ValueError: the engine has no model (it is simulated itself).
    """
    model = engine.loaded_model
    dtype = dtype_name(model.dtype)
    config = engine.config.replace(
        num_kv_blocks=engine.runner.num_kv_blocks, kv_cache_memory_gb=None, max_model_len=engine.context_limit
    )
    return Deployment(ModelCost.of(model.model_config), profile, Placement(1, dtype, dtype), config)


def arrivals_of_traffic(arrivals: Arrivals | None, num_requests: int, seed: int) -> list[Arrival]:
    """TRAFFIC as a list; all at once, if there is no arrival process. Moments in seconds from 0."""
    workload = make_workload(TRAFFIC, arrivals or Poisson(rate=1.0), num_requests=num_requests, seed=seed)
    return [
        Arrival(
            f"request-{seed}-{request.index}",
            0.0 if arrivals is None else known(request.arrival),
            prompt_token_ids(workload.prompt(request), {}).tolist(),
            request.output_tokens,
        )
        for request in workload
    ]


def simulate_run(deployment: Deployment, arrivals: Sequence[Arrival]) -> list[RequestOutput]:
    """The same arrivals on the simulator."""
    clock = VirtualClock()
    return run(deployment.fast_engine(clock), clock, arrivals)


def serve(engine: Engine, arrivals: Sequence[Arrival]) -> list[RequestOutput]:
    """Give a real engine each request at its moment, and return them finished."""
    upcoming = list(arrivals)
    outputs: list[RequestOutput] = []
    begin = engine.clock.now()
    while upcoming or engine.has_unfinished:
        if not engine.has_unfinished:
            time.sleep(max(begin + upcoming[0].moment - engine.clock.now(), 0.0))
        now = engine.clock.now()
        while upcoming and begin + upcoming[0].moment <= now:
            arrival = upcoming.pop(0)
            params = SamplingParams(temperature=0, max_tokens=arrival.output_tokens, ignore_eos=True)
            engine.add_request(
                arrival.prompt_token_ids, params, request_id=arrival.request_id, arrival=begin + arrival.moment,
                stream=False,
            )  # fmt: skip
        outputs += engine.step()
    return outputs


def with_validation(profile: Profile, validation: Validation) -> Profile:
    """The profile, with what was found in its provenance."""
    provenance = {**profile.provenance, "error_in_traffic": validation.to_dict()}
    return dataclasses.replace(profile, provenance=provenance)
