"""The same engine on hardware you need not own: a price list for steps, and a clock that only it advances.

from minillm.simulate import AZURE_CHAT, ClusterConfig, Deployment, Poisson, SLO, make_workload, simulate

deployment = Deployment.of("llama-3-70b", "h100-sxm", tp=4)
workload = make_workload(AZURE_CHAT, Poisson(rate=4), num_requests=300)
print(simulate(workload, ClusterConfig(replicas=2), deployment.fast_engine).summary(SLO(ttft=2.0)))
"""

import importlib
from typing import Any

_HOMES = {
    "SLO": "minillm.observe.summary",
    "Deployment": "minillm.simulate.deployment",
    "Poisson": "minillm.simulate.workload.arrivals",
    "Gamma": "minillm.simulate.workload.arrivals",
    "AZURE_CHAT": "minillm.simulate.workload.kinds",
    "AZURE_CODE": "minillm.simulate.workload.kinds",
    "make_workload": "minillm.simulate.workload.requests",
    "ClusterConfig": "minillm.simulate.cluster.fleet",
    "simulate": "minillm.simulate.cluster.fleet",
    "worksheet_for": "minillm.simulate.capacity.plan",
    "plan_capacity": "minillm.simulate.capacity.worksheet",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Import on first use (PEP 562), as in `minillm` itself: naming the package does not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'minillm.simulate' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
