"""Fleets of simulated deployments: the fast engine tells every client the same as the recording one."""

import json

import pytest

from minillm.simulate.cluster.fleet import ClusterConfig, simulate
from minillm.simulate.deployment import Deployment
from minillm.simulate.workload.arrivals import Gamma
from minillm.simulate.workload.kinds import Independent, Sessions, SharedPrefix
from minillm.simulate.workload.lengths import Fixed, LogNormal, Uniform
from minillm.simulate.workload.requests import make_workload

CHAT = Independent(prompt=LogNormal(median=300, sigma=0.8, high=3000), output=LogNormal(median=40, sigma=0.8, high=300))
SESSIONS = Sessions(turns=Uniform(low=1, high=4), output=Fixed(tokens=40), think_s=0.5)
TENANTS = SharedPrefix(tenants=4, prefix=Fixed(tokens=800), output=Fixed(tokens=40))


@pytest.mark.parametrize(
    ("traffic", "fields"),
    [
        (CHAT, {"replicas": 2, "router": {"policy": "round_robin"}}),
        (TENANTS, {"replicas": 3, "router": {"policy": "prefix_aware"}}),
        (SESSIONS, {"replicas": 2, "clients": {"max_in_flight": 6}}),
        (CHAT, {"clients": {"timeout_s": 1.0, "max_attempts": 3, "backoff_s": 0.2, "jitter": 0.5}}),
        (CHAT, {"clients": {"first_byte_timeout_s": 0.3, "max_attempts": 2}, "network": {"rtt_s": 0.08}}),
        (CHAT, {"shedding": {"max_outstanding": 8, "deadline_s": 0.5}}),
        (CHAT, {"autoscaling": {"target": 4, "interval_s": 0.5, "window_s": 1}, "cold_start_s": 1.0}),
        (
            SESSIONS,
            {"disaggregation": {"prefill_replicas": 1, "kv_bytes_per_token": 1e5, "link_bytes_per_s": 1e10}},
        ),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_the_fast_engine_tells_clients_the_same(traffic: object, fields: dict) -> None:
    deployment = Deployment.of("qwen3-1.7b", "l4", num_kv_blocks=1500)
    workload = make_workload(traffic, Gamma(rate=60, cv=3), num_requests=60, seed=2)
    config = ClusterConfig(**fields)
    plain, fast = (simulate(workload, config, make) for make in (deployment.engine, deployment.fast_engine))
    assert json.dumps(plain.to_dict()) == json.dumps(fast.to_dict())
    assert plain.samples == fast.samples
    for run in (plain, fast):
        run.check_conservation()
