"""Every Triton kernel compiles for Blackwell, Hopper and Ampere, with nothing spilled, on a machine without a GPU."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is for Linux")

ROOT = Path(__file__).parents[3]
LARGE_PRODUCTS = {100: "tcgen05.mma", 90: "wgmma.mma_async", 80: "mma.sync"}
"""The instruction that multiplies tiles of 32 rows and more, by compute capability."""
SLOW_TO_START = "draw_wide|fill_in|int. widened|fp8 rows"
"""Kernels that always wait for the one ahead to end before they start: none of them is in each decode step's layers."""


@pytest.mark.slow
def test_every_kernel_compiles_for_sm_100_sm_90_and_sm_80(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    script = Path(__file__).parent / "compile_kernels.py"
    run = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    kernels = [json.loads(line) for line in run.stdout.splitlines()]
    print(run.stdout)
    assert len(kernels) == 3 * 65
    for kernel in kernels:
        assert kernel["cubin_bytes"] > 0
        assert kernel["stack_bytes"] == 0 and kernel["local_bytes"] == 0, kernel
        assert kernel["registers"] <= 255 and kernel["shared_bytes"] <= kernel["shared_memory"], kernel
        starts_early = kernel["capability"] == 90 and not re.match(SLOW_TO_START, kernel["name"])
        assert (kernel["before_wait"] is not None) == starts_early, kernel
        assert {"prefetch"}.issuperset(kernel["before_wait"] or []), kernel
        if "bf16" in kernel["name"]:
            assert kernel["wide_loads"], kernel
        if re.search("attention bf16|linear bf16 rows", kernel["name"]):  # copies under way while tensor cores work
            instruction = "mma.sync" if "decode" in kernel["name"] else LARGE_PRODUCTS[kernel["capability"]]
            assert kernel["tensor_cores"] == [instruction] and kernel["async_copies"], kernel
        if "linear bf16" in kernel["name"]:  # see TILES: no product reads registers that change
            assert kernel["products_under_way"] == 0, kernel
