"""The same questions at the size that production has: the simulator, under the unchanged scheduler.

on_70b = simulated_70b.deployment()                                  # Llama-3 70B on four H100s
run = simulated_70b.serve(on_70b, AZURE_CHAT, qps=3)                 # a FleetRun: run.summary(), run.records
simulated_70b.error_band(on_70b)                                     # how far its step times were from real ones
"""

from collections.abc import Callable, Iterable
from html import escape
from typing import Any

from course.lab.display import Html
from course.lab.scale import enough
from course.simulator.cluster.fleet import ClusterConfig, simulate
from course.simulator.cluster.run import FleetRun
from course.simulator.cost.hardware import find_hardware
from course.simulator.cost.profile import LEFT_OUT_ERROR, Profile, find_profile, moved, roofline_profile
from course.simulator.cost.roofline import StepWork
from course.simulator.deployment import Deployment
from course.simulator.report import engines_for
from course.simulator.workload.arrivals import Arrivals, Poisson
from course.simulator.workload.kinds import TrafficModel
from course.simulator.workload.requests import Workload, make_workload

ALL_ERRORS = "../docs/simulator.md"
"""As seen from a lesson."""
MODEL, HARDWARE, TP = "llama-3-70b", "h100-sxm", 4
TODAY, OLD, SHEET = "today's, with CUDA graphs", "of 2023, without", "the data sheet"
STACKS: dict[str, Callable[[str], Profile]] = {
    TODAY: find_profile,
    OLD: lambda hardware: moved(find_profile("h100-sxm-2023"), find_hardware(hardware)),
    SHEET: lambda hardware: roofline_profile(find_hardware(hardware)),
}
"""What the price of a step stands on, by hardware. The first was fitted to vLLM on an RTX 4090, and is moved; the
second was fitted to an H100 of 2023."""


def deployment(**fields: Any) -> Deployment:
    """Llama-3 70B on four H100s.

    Args:
        fields: fields of EngineConfig; or `model`, `profile` (a hardware's name), `tp`, `kv_heads`, `weight_dtype`,
            `kv_dtype`.
    Raises:
        PricingError, ConfigError: such a deployment is not possible; the words say why.
    """
    return Deployment.of(**{"model": MODEL, "profile": HARDWARE, "tp": TP, **fields})


def serve(
    on: Deployment,
    traffic: TrafficModel,
    *,
    qps: float = 1.0,
    arrivals: Arrivals | None = None,
    num_requests: int = 400,
    least: int = 20,
    seed: int = 0,
    **fleet: Any,
) -> FleetRun:
    """Play traffic to it. In the lab's short form, a quarter of the requests.

    Args:
        qps: requests per second, Poisson, unless `arrivals` says otherwise.
        least: requests, even in the short form.
        fleet: fields of ClusterConfig, such as replicas=2.
    """
    count = enough(num_requests, least)
    workload = make_workload(traffic, arrivals or Poisson(rate=qps), num_requests=count, seed=seed)
    config = ClusterConfig(**fleet)
    return simulate(workload, config, engines_for(on, config))


def play(on: Deployment, workload: Workload, small: Deployment | None = None, **fleet: Any) -> FleetRun:
    """Serve a workload whose prompts share nothing: no prefix is looked up, nothing is sampled over time.

    Args:
        small: the small model, with model_routing or degrading.
        fleet: fields of ClusterConfig.
    """
    config = ClusterConfig(**{"sample_every_s": None, **fleet})
    make_small = small and engines_for(small.without_prefix_lookups(), config)
    engines = engines_for(on.without_prefix_lookups(), config)
    return simulate(workload.anonymous(), config, engines, make_small_engine=make_small)


def prefill_work(tokens: int) -> StepWork:
    """What a step does that computes all of one prompt."""
    return StepWork(tokens, 1, 1, tokens * (tokens + 1) // 2, tokens, prefills=1)


def decode_work(batch: int, context: float, rows: int = 1) -> StepWork:
    """What a step does in which each request computes and judges so many tokens, behind `context` others."""
    pairs = batch * (rows * context + rows * (rows + 1) / 2)
    return StepWork(batch * rows, batch * rows, batch, pairs, batch * (context + rows), prefills=0)


def steady_rate(ends: Iterable[float]) -> float:
    """Answers a second over the middle three fifths of a run in which all come at once: filling and emptying the slots
    do not count.

    Args:
        ends: when each answer was done, seconds.
    """
    done = sorted(ends)
    first, last = len(done) // 5, 4 * len(done) // 5
    return (last - first) / (done[last] - done[first])


def error_band(on: Deployment) -> Html:
    """One line: whose constants a simulation rests on, and how far they were from real measurements."""
    fitted = on.profile.provenance.get("held_out_error")
    if fitted:
        told = f"constants of a stack without CUDA graphs, in the median {fitted['all']['median_percent']:g}% off "
        told += f"on {fitted['all']['steps']} steps they had not seen"
    else:  # moved from another card
        *_, (recordings, off) = LEFT_OUT_ERROR.items()
        told = "step-time constants of vLLM 0.19, fitted to an RTX 4090 and scaled to this card by its data sheet. "
        told += f"Against {recordings.partition(' (')[0]}: {off}"
    words = f"Simulated on {on.placement.tp} x {on.profile.hardware.name}: {told}."
    link = f'<a href="{ALL_ERRORS}">All comparisons</a>'
    return Html(f"<p><em>{escape(words)}</em> {link}</p>", words)
