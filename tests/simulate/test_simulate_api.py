"""The simulator from Python, in the few lines that its docstring promises; and what importing it costs."""

import minillm.simulate
from minillm.simulate import (
    AZURE_CHAT,
    SLO,
    ClusterConfig,
    Deployment,
    Poisson,
    make_workload,
    simulate,
)


def test_the_docstrings_example() -> None:
    deployment = Deployment.of("llama-3.1-8b", "h100-sxm")
    workload = make_workload(AZURE_CHAT, Poisson(rate=20), num_requests=60)
    run = simulate(workload, ClusterConfig(replicas=4), deployment.engine)
    summary = run.summary(SLO(ttft=0.5, tpot=0.05))
    assert summary.counts == {"length": 60} and 0 < summary.attainment <= 1
    assert "TTFT" in str(summary)
    fast = simulate(workload, ClusterConfig(replicas=4), deployment.fast_engine)
    assert fast.to_dict() == run.to_dict()


def test_every_exported_name_is_there() -> None:
    assert all(getattr(minillm.simulate, name) is not None for name in minillm.simulate.__all__)
