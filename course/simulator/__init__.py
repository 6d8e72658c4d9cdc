"""The same engine on hardware you need not own: a price list for steps, and a clock that only it advances.

from course.simulator import AZURE_CHAT, ClusterConfig, Deployment, Poisson, SLO, make_workload, simulate

deployment = Deployment.of("llama-3-70b", "h100-sxm", tp=4)
workload = make_workload(AZURE_CHAT, Poisson(rate=4), num_requests=300)
print(simulate(workload, ClusterConfig(replicas=2), deployment.fast_engine).summary(SLO(ttft=2.0)))
"""

import importlib
from typing import Any

_HOMES = {
    "SLO": "course.summary",
    "Deployment": "course.simulator.deployment",
    "Poisson": "course.simulator.workload.arrivals",
    "Gamma": "course.simulator.workload.arrivals",
    "AZURE_CHAT": "course.simulator.workload.kinds",
    "AZURE_CODE": "course.simulator.workload.kinds",
    "make_workload": "course.simulator.workload.requests",
    "ClusterConfig": "course.simulator.cluster.fleet",
    "simulate": "course.simulator.cluster.fleet",
    "worksheet_for": "course.simulator.capacity.plan",
    "plan_capacity": "course.simulator.capacity.worksheet",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Import on first use (PEP 562), as in `minillm` itself: naming the package does not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'course.simulator' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
