"""The simulator neither imports torch nor transformers: it answers at once, on machines without either."""

import subprocess
import sys
from pathlib import Path

from minillm import simulate

SIMULATING = """
from minillm.simulate import AZURE_CHAT, SLO, ClusterConfig, Deployment, Poisson, make_workload, simulate
deployment = Deployment.of("qwen3-1.7b", "l4", num_kv_blocks=3000)
run = simulate(make_workload(AZURE_CHAT, Poisson(rate=4), num_requests=5), ClusterConfig(), deployment.fast_engine)
assert run.outcomes == {"completed": 5}
"""
ROOT = Path(simulate.__file__).parent
MODULES = sorted(
    ".".join(("minillm", "simulate", *file.relative_to(ROOT).with_suffix("").parts))
    for file in ROOT.rglob("*.py")
    if file.name != "__init__.py"
)


def test_importing_and_simulating() -> None:
    program = "".join(f"import {module}\n" for module in MODULES) + SIMULATING
    program += "import sys; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_command_line_does_not_even_wait_for_numpy() -> None:
    program = "import sys, minillm.simulate, minillm.__main__; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
