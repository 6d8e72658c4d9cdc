"""The simulator from Python, in the few lines that its docstring promises; and without torch or NumPy."""

import json
import subprocess
import sys

import course.simulator
from course.simulator import AZURE_CHAT, SLO, ClusterConfig, Deployment, Poisson, make_workload, simulate


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
    assert all(getattr(course.simulator, name) is not None for name in course.simulator.__all__)


# ---------------------------------------------------------------- the standard library alone

ALONE = """
import importlib, pkgutil, sys

for heavy in ("numpy", "scipy", "pandas", "torch", "transformers"):
    sys.modules[heavy] = None

import course.simulator, minillm.core, minillm.observe, minillm.policies

for package in (course.simulator, minillm.core, minillm.observe, minillm.policies):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if ".accuracy.fitting." not in module.name:  # an instrument, which nothing else imports
            importlib.import_module(module.name)

from course.simulator import AZURE_CHAT, ClusterConfig, Deployment, Poisson, make_workload, simulate
deployment = Deployment.of("qwen3-1.7b", "l4", num_kv_blocks=3000)
fleet = ClusterConfig(replicas=2, router={"policy": "random"})
run = simulate(make_workload(AZURE_CHAT, Poisson(rate=4), num_requests=5), fleet, deployment.fast_engine)
assert run.outcomes == {"completed": 5}

from course.incidents.generate import generate
generate(1, 1, "overload")

from minillm.cli import app
app("simulate --model qwen3-1.7b --hardware l4 --plan --qps 2 --slo-ttft 2 --num-requests 40 --json".split())
"""


def test_it_needs_no_other_library() -> None:
    """As in a browser, where there is none: importing, a fleet, an incident, a capacity plan."""
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["plan"]
