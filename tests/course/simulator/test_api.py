"""The simulator from Python, in the few lines that its docstring promises; and without torch: it answers at once."""

import subprocess
import sys
from pathlib import Path

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


# ---------------------------------------------------------------- neither torch nor transformers

SIMULATING = """
from course.simulator import AZURE_CHAT, SLO, ClusterConfig, Deployment, Poisson, make_workload, simulate
deployment = Deployment.of("qwen3-1.7b", "l4", num_kv_blocks=3000)
run = simulate(make_workload(AZURE_CHAT, Poisson(rate=4), num_requests=5), ClusterConfig(), deployment.fast_engine)
assert run.outcomes == {"completed": 5}
"""
ROOT = Path(course.simulator.__file__).parent
MODULES = sorted(
    ".".join(("course", "simulator", *file.relative_to(ROOT).with_suffix("").parts))
    for file in ROOT.rglob("*.py")
    if file.name != "__init__.py"
)


def test_importing_and_simulating() -> None:
    program = "".join(f"import {module}\n" for module in MODULES) + SIMULATING
    program += "import sys; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_command_line_does_not_even_wait_for_numpy() -> None:
    program = "import sys, course.simulator.cli, minillm.cli; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
