"""Fills the capacity worksheet in for a deployment, as `minillm simulate --plan` prints it."""

from collections.abc import Callable

from minillm.errors import WorkloadError
from minillm.observe.summary import SLO
from minillm.simulate.arrivals import Arrivals
from minillm.simulate.capacity import CapacityPlan, plan_capacity
from minillm.simulate.capacity_deployment import price_of_replica, worksheet_for
from minillm.simulate.cluster import ClusterConfig
from minillm.simulate.deployment import Deployment
from minillm.simulate.progress import Progress
from minillm.simulate.workload import Traffic


def simulate_plan(
    deployment: Deployment,
    traffic: Traffic,
    slo: SLO | None,
    arrivals: Callable[[float], Arrivals],
    *,
    demand: float,
    target: float,
    headroom: float,
    price_per_hour: float | None,
    config: ClusterConfig,
    num_requests: int,
    seed: int,
    progress: Progress,
) -> CapacityPlan:
    """The worksheet.

    Args:
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
    price = price_of_replica(deployment) if price_per_hour is None else price_per_hour
    return plan_capacity(worksheet, demand, price_per_hour=price, headroom=headroom)
