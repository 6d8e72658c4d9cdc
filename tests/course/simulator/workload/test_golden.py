"""Golden results: the same seed gives the same bytes on every machine, today and next year.

When one of these fails, ask what changed: the random streams, a default of a traffic kind, or, for the fleet,
the scheduler. If the change is meant, write the new values down:

    python tests/course/simulator/workload/test_golden.py > tests/course/simulator/workload/golden.json
"""

import dataclasses
import hashlib
import json
import sys
from pathlib import Path

import pytest

from course.simulator.cluster.fleet import ClusterConfig, simulate
from course.simulator.workload.arrivals import Gamma, Poisson, Ramp, Spikes
from course.simulator.workload.kinds import AZURE_CHAT, AZURE_CODE, AgentLoop, Rag, Sessions, SharedPrefix
from course.simulator.workload.requests import Workload, make_workload

GOLDEN = Path(__file__).parent / "golden.json"
RECIPES = {
    "chat": (AZURE_CHAT, Poisson(rate=5)),
    "code": (AZURE_CODE, Gamma(rate=2.5, cv=13)),
    "tenants": (SharedPrefix(tenants=6, skew=1.0), Spikes(rate=2, spike_rate=20, start_s=10, length_s=5)),
    "rag": (Rag(documents=100), Ramp(start_rate=1, end_rate=10, length_s=30)),
    "sessions": (Sessions(), Poisson(rate=3)),
    "agents": (AgentLoop(), Poisson(rate=1)),
}


def rows(name: str) -> list[dict]:
    return [dataclasses.asdict(request) for request in recipe(name)]


def recipe(name: str) -> Workload:
    traffic, arrivals = RECIPES[name]
    return make_workload(traffic, arrivals, num_requests=50, seed=7, name=name)


def digest(data: object) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def fleet_rows() -> list[dict]:
    """A few requests with everything switched on."""
    from priced_runner import priced_engines

    config = ClusterConfig(
        replicas=2,
        router={"policy": "prefix_aware"},
        clients={"timeout_s": 4.0, "max_attempts": 2, "backoff_s": 0.5, "jitter": 0.5},
        network={"rtt_s": 0.05, "far_share": 0.2, "far_rtt_s": 0.3, "hold_chunks": 3, "ingress_s": 0.01},
        seed=3,
    )
    run = simulate(recipe("sessions"), config, priced_engines(floor_s=0.02, num_kv_blocks=400))
    return run.to_dict()["requests"]


def values() -> dict[str, str]:
    return {name: digest(rows(name)) for name in RECIPES} | {"fleet": digest(fleet_rows())}


@pytest.mark.parametrize("name", list(RECIPES))
def test_workloads_do_not_drift(name: str) -> None:
    assert digest(rows(name)) == json.loads(GOLDEN.read_text())[name]


def test_the_fleet_does_not_drift() -> None:
    assert digest(fleet_rows()) == json.loads(GOLDEN.read_text())["fleet"]


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3] / "engine"))
    print(json.dumps(values(), indent=2))
