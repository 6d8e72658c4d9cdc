"""What a benchmark prints: the machine it ran on, and a table for people."""

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from minillm.bench.compare import PeerResult, WorkloadResult
from minillm.bench.roof import Bandwidth

CPU_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd", "bf16", "i8mm")
"""Of /proc/cpuinfo's flags, those that decide how fast small matrices are multiplied."""
BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}


def describe_machine() -> dict[str, Any]:
    """CPU, cores, instruction sets and library versions: without them a number means little."""
    import transformers

    cpu, flags = platform.processor() or platform.machine(), []
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        fields = dict(line.split(":", 1) for line in cpuinfo.read_text().splitlines() if ":" in line)
        fields = {key.strip(): value.strip() for key, value in fields.items()}
        cpu = fields.get("model name", cpu)
        present = fields.get("flags", fields.get("Features", "")).split()
        flags = [flag for flag in CPU_FLAGS if flag in present]
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "flags": flags,
        "threads": torch.get_num_threads(),
        "load_average": list(os.getloadavg()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def computes_bfloat16(machine: dict[str, Any]) -> bool:
    """Whether the CPU multiplies bfloat16. Without that it is emulated, and float32 can be the faster dtype."""
    return bool(BF16_FLAGS.intersection(machine["flags"]))


def format_table(machine: dict[str, Any], bandwidth: Bandwidth, results: Sequence[WorkloadResult]) -> str:
    """A few lines per workload; milliseconds, and the spread over repeats in brackets."""
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores ({' '.join(machine['flags'])}), torch {machine['torch']}, "
        f"transformers {machine['transformers']}",
        f"memory: read {bandwidth.read / 1e9:.1f} GB/s, copy {bandwidth.copy / 1e9:.1f} GB/s; "
        f"load average at the start {machine['load_average'][0]:.1f}",
    ]
    for result in results:
        floor = f"; memory floor {1e3 * result.floor_itl:.1f} ms a step" if result.floor_itl else ""
        lines += ["", f"{result.title}{floor}"]
        latencies = f"{'TTFT p50':>10}{'ITL p50':>9}{'ITL p99':>9}"
        lines.append(f"  {'':18}{'tok/s':>8}{'seconds':>20}{latencies}{'floor':>7}{'speedup':>21}")
        lines += [_row(peer, result.reference) for peer in result.peers]
    return "\n".join(lines)


def _row(peer: PeerResult, reference: str | None) -> str:
    seconds = f"{peer.seconds.median:.2f} [{peer.seconds.low:.2f}-{peer.seconds.high:.2f}]"
    floor = "" if peer.percent_of_floor is None else f"{peer.percent_of_floor:.0f}%"
    speedup = "1 (reference)" if peer.peer == reference else ""
    if reference in peer.speedups:
        ratio = peer.speedups[reference]
        speedup = f"{ratio.median:.2f}x [{ratio.low:.2f}-{ratio.high:.2f}]"
    latencies = f"{1e3 * peer.ttft_p50:>10.0f}{1e3 * peer.itl_p50:>9.1f}{1e3 * peer.itl_p99:>9.1f}"
    return f"  {peer.peer:18}{peer.tokens_per_s.median:>8.1f}{seconds:>20}{latencies}{floor:>7}{speedup:>21}"
