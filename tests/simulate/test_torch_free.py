"""The simulator neither imports torch nor transformers: it answers at once, on machines without either."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

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


def heavy_imports(code: str) -> list[str]:
    """Which of the two some code has imported in the end, in a process of its own."""
    told = "import json, sys; print(json.dumps([name for name in ('torch', 'transformers') if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{told}"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_what_this_package_controls() -> None:
    """The same, with the engine and its proposers out of the picture: they are other packages' business."""
    stubs = (
        ("minillm.frontend.engine", "Engine"), ("minillm.simulate.leap", "LeapEngine"),
        ("minillm.speculation.base", "MadeUpProposer"),
    )  # fmt: skip
    code = "import sys, types\n"
    code += "".join(f"sys.modules[{module!r}] = types.SimpleNamespace({name}=object)\n" for module, name in stubs)
    assert heavy_imports(code + "".join(f"import {module}\n" for module in MODULES if "leap" not in module)) == []


def test_importing_and_simulating() -> None:
    found = heavy_imports("".join(f"import {module}\n" for module in MODULES) + SIMULATING)
    if found and heavy_imports("import minillm.frontend.engine, minillm.speculation.base"):
        pytest.xfail("the engine imports torch")
    assert found == []
