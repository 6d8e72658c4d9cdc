"""Is the simulator right about this machine? The same traffic, once for real and once simulated.

    capacity      many requests at once: how many are served per second
    0.3 to 0.85   Poisson arrivals at a share of the real capacity, with several seeds

The real engine is given each request at its moment, as by a server, and both are asked for the same latencies.
"""

import dataclasses
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tqdm.auto import tqdm

from minillm.clock import VirtualClock
from minillm.engine import Engine
from minillm.request import RequestOutput, SamplingParams
from minillm.simulate.arrivals import Arrivals, Poisson
from minillm.simulate.costs import ModelCost, Placement
from minillm.simulate.deployment import Deployment
from minillm.simulate.lengths import Uniform
from minillm.simulate.profile import Profile
from minillm.simulate.replay import Arrival, error_percent, run, summary_of, throughput_of
from minillm.simulate.workload import make_workload, prompt_token_ids
from minillm.simulate.workload_kinds import Independent

TRAFFIC = Independent(prompt=Uniform(low=16, high=256), output=Uniform(low=8, high=48))
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
            "traffic": f"prompts of {TRAFFIC.prompt.low} to {TRAFFIC.prompt.high} tokens, answers of "
            f"{TRAFFIC.output.low} to {TRAFFIC.output.high}; Poisson arrivals, {SEEDS} seeds",
            "real_capacity_requests_per_s": round(self.real_capacity, 3),
            "capacity_error_percent": round(self.capacity_error_percent, 2),
            "error_percent_by_load": {str(load): errors for load, errors in self.error_percent.items()},
        }


def validate(engine: Engine, profile: Profile, loads: Sequence[float] = LOADS, seeds: int = SEEDS) -> Validation:
    """Serve traffic for real, and simulate the same. Takes some minutes; nothing else should run.

    Args:
        engine: real, idle, without prefix caching.
        profile: fitted to this machine.
    """
    deployment = deployment_of(engine, profile)
    with tqdm(total=1 + len(loads) * seeds, desc="validating", unit="run", disable=None, file=sys.stderr) as bar:
        at_once = arrivals_of_traffic(None, NUM_AT_ONCE, seed=0)
        capacity = throughput_of(serve(engine, at_once))["requests_per_s"]
        simulated = throughput_of(simulate_run(deployment, at_once))["requests_per_s"]
        bar.update()
        errors = {}
        for load in loads:
            real_outputs, simulated_outputs = [], []
            for seed in range(seeds):
                arrivals = arrivals_of_traffic(Poisson(rate=load * capacity), NUM_REQUESTS, seed)
                real_outputs += serve(engine, arrivals)
                simulated_outputs += simulate_run(deployment, arrivals)
                bar.update()
            errors[load] = error_percent(summary_of(simulated_outputs), summary_of(real_outputs))
    return Validation(capacity, simulated, errors)


def deployment_of(engine: Engine, profile: Profile) -> Deployment:
    """The simulated twin of a real engine.

    Raises:
        AttributeError: the engine has no model (it is simulated itself).
    """
    model = engine.model
    dtype = str(model.dtype).removeprefix("torch.")
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
            0.0 if arrivals is None else request.arrival,
            prompt_token_ids(workload.prompt(request), {}).tolist(),
            request.output_tokens,
        )
        for request in workload
    ]


def simulate_run(deployment: Deployment, arrivals: Sequence[Arrival]) -> list[RequestOutput]:
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
