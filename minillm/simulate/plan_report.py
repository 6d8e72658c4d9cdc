"""Fills the capacity worksheet in for a deployment, as `minillm simulate --plan` prints it."""

from collections.abc import Callable
from typing import Any

from minillm.core.errors import WorkloadError
from minillm.observe.summary import SLO
from minillm.simulate.arrivals import Arrivals
from minillm.simulate.capacity import plan_capacity
from minillm.simulate.capacity_deployment import price_of_replica, worksheet_for
from minillm.simulate.cluster import ClusterConfig
from minillm.simulate.deployment import Deployment
from minillm.simulate.progress import Progress
from minillm.simulate.workload import Traffic, Workload


def simulate_plan(
    deployment: Deployment,
    traffic: Traffic | Workload,
    slo: SLO | None,
    arrivals: Callable[[float], Arrivals] | None,
    *,
    demand: float,
    target: float,
    headroom: float,
    price_per_hour: float | None,
    config: ClusterConfig,
    num_requests: int,
    seed: int,
    progress: Progress,
) -> tuple[dict[str, Any], str]:
    """The worksheet, as JSON-able data (`plan`, `price_per_hour`, `price_source`) and as text.

    Args:
        traffic: made up, or a recording.
        arrivals: of made-up traffic, at a given rate.
        demand: requests per second.
        price_per_hour: of one replica; None = the catalogue's price of its accelerators.
        num_requests: in each run, per replica.
    Raises:
        WorkloadError: no limit, or an argument out of range.
        SimulationError: the limits cannot be met.
        PricingError: there is no price.
    """
    if slo is None:
        raise WorkloadError("--plan needs a limit to plan for: --slo-ttft, --slo-tpot or --slo-e2e, in seconds")
    worksheet = worksheet_for(
        deployment, traffic, slo, watch=progress.watch, target=target, arrivals=arrivals, num_requests=num_requests,
        seed=seed, config=config, announce=progress.begin,
    )  # fmt: skip
    if price_per_hour is None:
        price, source = price_of_replica(deployment), deployment.profile.hardware.price_source
    else:
        price, source = price_per_hour, "as given"
    plan = plan_capacity(worksheet, demand, price_per_hour=price, headroom=headroom)
    report = {"plan": plan.to_dict(), "price_per_hour": price, "price_source": source}
    return report, f"{plan}\nprice of a replica  {price:.2f} an hour ({source})"
