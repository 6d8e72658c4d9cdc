"""The same engine on hardware nobody here owns: a price list for steps, and a clock that only it advances.

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
    "Poisson": "minillm.simulate.arrivals",
    "Gamma": "minillm.simulate.arrivals",
    "AZURE_CHAT": "minillm.simulate.workload_kinds",
    "AZURE_CODE": "minillm.simulate.workload_kinds",
    "make_workload": "minillm.simulate.workload",
    "ClusterConfig": "minillm.simulate.cluster",
    "simulate": "minillm.simulate.cluster",
    "worksheet_for": "minillm.simulate.capacity_deployment",
    "plan_capacity": "minillm.simulate.capacity",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Import on first use (PEP 562), as in `minillm` itself: naming the package does not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'minillm.simulate' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
