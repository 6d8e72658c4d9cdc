"""The capacity worksheet of a Deployment: its engines, its price, and what its steps' time is spent on.

sheet = worksheet_for(Deployment.of("llama-3-70b", "h100-sxm", tp=4), AZURE_CHAT, SLO(ttft=2.0, tpot=0.1))
print(plan_capacity(sheet, demand=50, price_per_hour=4 * 2.69))
"""

from collections.abc import Callable
from typing import Any

from course.simulator.capacity.worksheet import Worksheet, plan_capacity
from course.simulator.cluster.fleet import ClusterConfig
from course.simulator.cost.roofline import work_of
from course.simulator.deployment import Deployment
from course.simulator.errors import PricingError
from course.simulator.report import engines_for
from course.simulator.workload.requests import Traffic, Workload
from course.summary import SLO
from minillm.core.batch import ScheduledBatch

IMMEDIATE = 1e30
"""Bytes per second of a memory that takes no time."""


def worksheet_for(
    deployment: Deployment,
    traffic: Traffic | Workload,
    slo: SLO,
    *,
    config: ClusterConfig | None = None,
    **options: Any,
) -> Worksheet:
    """The worksheet of a deployment.

    Args:
        config: of the fleet; its number of replicas is replaced.
        options: further arguments of Worksheet.
    """
    return Worksheet(
        traffic,
        engines_for(deployment, config or ClusterConfig(), tells_stalls=False),
        slo,
        make_recording_engine=deployment.engine,
        config=config,
        explain=step_causes(deployment),
        **options,
    )


def step_causes(deployment: Deployment) -> Callable[[ScheduledBatch], dict[str, float]]:
    """What explains a step of this deployment: its seconds by resource.

    A matrix product, and attention, wait for the slower of arithmetic and memory, and are booked there. Launch and
    host are what neither hides: gaps between kernels, waiting for the host, work per step and per request.
    """
    model, drafting = deployment.step_time(), deployment.drafting()
    quick_memory = deployment.profile.hardware.replace(bandwidth=IMMEDIATE)
    computing = deployment.step_time(hardware=quick_memory)

    def explain(batch: ScheduledBatch) -> dict[str, float]:
        work = work_of(batch.requests, deployment.window)
        time, without_memory = model.price(work), computing.price(work)
        reading = sum(
            seconds
            for seconds, computed in ((time.linear, without_memory.linear), (time.attention, without_memory.attention))
            if seconds > computed
        )
        causes = {
            "compute": time.linear + time.attention - reading,
            "memory bandwidth": reading,
            "link": time.all_reduce,
            "launch and host": time.gaps + time.waiting_for_host + time.fixed,
        }
        return causes if deployment.config.speculative is None else {**causes, "drafting": drafting.seconds(batch)}

    return explain


def price_of_replica(deployment: Deployment) -> float:
    """Dollars per hour of all its accelerators, at the catalogue's price.

    Raises:
        PricingError: the catalogue has none.
    """
    hardware = deployment.profile.hardware
    if hardware.price_per_hour is None:
        raise PricingError(f"no price is known for {hardware.name}: say what a replica costs with --price-per-hour")
    return hardware.price_per_hour * deployment.placement.accelerators


def simulate_plan(
    deployment: Deployment,
    traffic: Traffic | Workload,
    slo: SLO,
    *,
    demand: float,
    headroom: float,
    price_per_hour: float | None,
    **options: Any,
) -> dict[str, Any]:
    """The worksheet, as JSON-able data (`plan`, `price_per_hour`, `price_source`) and as `text`.

    Args:
        traffic: made up, or a recording.
        demand: requests per second.
        price_per_hour: US dollars for one replica, in whichever pool; None = the catalogue's price of its accelerators.
        options: further arguments of Worksheet.
    Raises:
        WorkloadError: an argument is out of range.
        SimulationError: the limits cannot be met.
        PricingError: there is no price.
    """
    worksheet = worksheet_for(deployment, traffic, slo, **options)
    price, source = price_per_hour, "as given"
    if price is None:
        price, source = price_of_replica(deployment), deployment.profile.hardware.price_source
    per_unit = price * sum(worksheet.in_each.values())
    plan = plan_capacity(worksheet, demand, price_per_hour=per_unit, headroom=headroom)
    text = f"{plan}\nprice of a replica  ${price:.2f} an hour ({source})"
    return {"plan": plan.to_dict(), "price_per_hour": price, "price_source": source, "text": text}
