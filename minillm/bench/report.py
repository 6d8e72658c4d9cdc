"""The report every benchmark that measures writes: one envelope, so that a number never travels without its machine.

A report names no folder of the machine it was made on: it is meant to be published.
"""

import datetime
import os
import platform
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import torch

from minillm import __version__
from minillm.bench.writing import describe_command, without_folder
from minillm.frontend.engine import Engine
from minillm.host.platforms import describe_cpu
from minillm.kernels.quantization import dtype_name
from minillm.model.packed import chosen_packings


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """What one benchmark found, before it is put in the envelope."""

    results: Any
    """Dataclasses are fine."""
    settings: dict[str, Any]
    """Everything that decides the numbers, as in force."""
    dtype: str
    """Dtype of weights and KV cache, as in force (never "auto")."""
    device: torch.device
    text: str
    """The same for people: what was measured, then a table. It follows the model's name and dtype."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further top-level entries, such as the machine's measured peaks."""

    @classmethod
    def on(cls, engine: Engine, results: Any, settings: dict[str, Any], text: str, **extra: Any) -> "BenchmarkResult":
        """What was found on an engine, whose configuration is told among the settings."""
        model = engine.loaded_model
        described = {**settings, "engine": describe_engine(engine)}
        return cls(results, described, dtype_name(model.dtype), model.device, text, extra)


def make_report(machine: dict[str, Any], model: str, quick: bool, measured: BenchmarkResult) -> dict[str, Any]:
    """The envelope: when, what, on what, with which settings; then the results.

    Args:
        machine: from describe_machine(), taken before the first measurement, which raises the load average.
    """
    device = measured.device
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": describe_command(sys.argv),
        "model": without_folder(model),
        "dtype": measured.dtype,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else machine["cpu"],
        "versions": describe_versions(),
        "machine": machine,
        "settings": {**measured.settings, "quick": quick},
        **measured.extra,
        "results": measured.results,
    }


def describe_engine(engine: Engine) -> dict[str, Any]:
    """Every field of its configuration, and what `auto` and the like came to. CUDA graphs: the batch sizes of decode
    steps, and the numbers of tokens of other steps, that were recorded."""
    runner = engine.torch_runner
    return {
        **engine.config.model_dump(),
        "model": without_folder(engine.config.model),
        "dtype": dtype_name(engine.loaded_model.dtype),
        "activation_dtype": dtype_name(engine.loaded_model.decoder.activation_dtype),
        "attention": runner.attention.__name__,
        "products": chosen_packings(engine.loaded_model.decoder),
        "graph_batches": sorted(runner.fast_decode.graphs) if runner.fast_decode else [],
        "kv_blocks": runner.num_kv_blocks,
    }


def describe_versions() -> dict[str, str | None]:
    """Versions of this program, of what it runs on, and of CUDA and the GPU's driver where there is one."""
    import transformers

    versions: dict[str, str | None] = {
        "minillm": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    if torch.cuda.is_available():
        versions |= {"cuda": torch.version.cuda, "driver": driver_version()}
    return versions


def driver_version() -> str | None:
    """The NVIDIA driver's, by nvidia-smi; None if that is not there or says nothing."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(answer.split()), None)


def describe_machine() -> dict[str, Any]:
    """CPU, cores, instruction sets, library versions, GPU: without them a number means little."""
    cpu, flags = describe_cpu()
    versions = describe_versions()
    machine: dict[str, Any] = {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "flags": flags,
        "threads": torch.get_num_threads(),
        "load_average": list(os.getloadavg()),
        **{name: versions[name] for name in ("python", "torch", "transformers")},
    }
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
        machine["gpu"] = {
            "name": gpu.name,
            "memory_bytes": gpu.total_memory,
            "compute_capability": f"{gpu.major}.{gpu.minor}",
            "multiprocessors": gpu.multi_processor_count,
        }
    return machine


def with_unit(value: float, unit: str) -> str:
    """`2.9 TB/s`: three digits and a prefix."""
    scale, prefix = next((pair for pair in ((1e15, "P"), (1e12, "T"), (1e9, "G")) if value >= pair[0]), (1e6, "M"))
    return f"{value / scale:.3g} {prefix}{unit}"


def format_machine(machine: dict[str, Any]) -> str:
    """One line for the head of a table."""
    gpu = f"{machine['gpu']['name']}, " if "gpu" in machine else ""
    return (
        f"{gpu}{machine['cpu']}, {machine['cores']} cores ({' '.join(machine['flags'])}), torch {machine['torch']}, "
        f"transformers {machine['transformers']}; load average at the start {machine['load_average'][0]:.1f}"
    )
