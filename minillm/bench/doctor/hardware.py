"""Processor, memory and the speed that its bandwidth allows, GPU, our own kernels, attention backends."""

import os
import platform
import sys
from collections.abc import Iterator

import psutil
import torch

from minillm.bench.doctor.check import GB, Check
from minillm.bench.report import describe_cpu
from minillm.core.params import default_of
from minillm.kernels.attention.select import BACKENDS, PREFERENCE, Demands, select_backend, survey
from minillm.kernels.cpu import native_kernels
from minillm.kernels.cpu.compiling import how_to_get_a_compiler, known_fault
from minillm.kernels.device import available_bytes
from minillm.model.arithmetic import find_model
from minillm.model.packing import former_trials
from minillm.policies.config import EngineConfig
from minillm.runner.machine_peaks import measure_bandwidth, measure_read

MACHINE, COMPUTE, ATTENTION = "machine", "compute", "attention"
ENOUGH_MEMORY = 1_500_000_000
"""Bytes: the default model, its KV cache and PyTorch."""
BUFFER_BYTES = 256_000_000
"""About what the default model takes: larger than nearly every cache."""
READS = 3
CONTEXT = 512
"""Tokens of context in the step whose floor is told."""
BUSY_SHARE = 0.5
"""With more of the cores at work for others, a measured figure says little."""
FLAG_USES = {
    "avx512f": "our kernels work on 16 numbers at once",
    "avx512_bf16": "products of bfloat16 pairs",
    "amx_bf16": "products of bfloat16 tiles",
}
"""Instructions that decide how fast an x86 CPU computes here, and what for (minillm/model/packing.py)."""


def machine() -> Iterator[Check]:
    """Python, processor and memory."""
    yield Check.of(MACHINE, "python", f"{platform.python_version()} ({sys.executable})")  # pip refuses older ones
    cores = psutil.cpu_count(logical=False) or os.cpu_count()
    yield Check.of(MACHINE, "processor", f"{platform.machine()}, {cores} cores, {os.cpu_count()} threads")
    available = available_bytes()
    found = f"{psutil.virtual_memory().total / GB:.1f} GB, {available / GB:.1f} GB available"
    wanted = f"the default model wants {ENOUGH_MEMORY / GB:.1f} GB: close something, or --set kv_cache_memory_gb=0.2"
    yield Check.of(MACHINE, "memory", found, wanted if available < ENOUGH_MEMORY else None)


def memory(device: torch.device) -> Iterator[Check]:
    """How fast what a decode step reads is read, and the floor of such a step of the default model.

    At batch 1 it reads every weight and the request's keys and values once, and computes next to nothing: no engine
    gets below the bytes over the bandwidth.
    """
    bandwidth, source = find_bandwidth(device)
    yield Check.of(MACHINE, "memory bandwidth", f"{bandwidth / GB:.1f} GB/s {source}")
    name = default_of(EngineConfig, "model")
    cost = find_model(name)
    step_bytes = cost.read_bytes("bfloat16") + CONTEXT * cost.kv_bytes_per_token("bfloat16")
    floor = step_bytes / bandwidth
    found = (
        f"{name} at batch 1, {CONTEXT} tokens of context: {1e3 * floor:.2f} ms per token, {1 / floor:.0f} tokens/s at "
        f"most ({step_bytes / 1e6:.0f} MB at {bandwidth / GB:.1f} GB/s)"
    )
    yield Check.of(MACHINE, "roofline", found)


def find_bandwidth(device: torch.device) -> tuple[float, str]:
    """Bytes per second, measured now, and of what."""
    if device.type == "cuda":
        return measure_bandwidth(device=device).copy, "copied on the GPU, measured now"
    size = min(BUFFER_BYTES, available_bytes() // 8)
    measured = measure_read(torch.ones(max(size // 4, 1)), READS)
    cores, load = os.cpu_count() or 1, psutil.getloadavg()[0]
    busy = f" (load {load:.1f} on {cores} cores: more when it is idle)" if load > BUSY_SHARE * cores else ""
    return measured, f"read, measured now{busy}"


def compute() -> Iterator[Check]:
    """Instructions, GPU, and whether the C++ is there that decode steps on a CPU are fast by."""
    if sys.platform == "linux":
        name, present = describe_cpu()
        uses = [f"{flag} ({use})" for flag, use in FLAG_USES.items() if flag in present]
        has = ", ".join(uses or present or ["none of the instructions that matter"])
        yield Check.of(COMPUTE, "instructions", f"{name}; has {has}")
    yield Check.of(COMPUTE, "torch", f"{torch.__version__}, {torch.get_num_threads()} threads")
    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory
        yield Check.of(COMPUTE, "gpu", f"{torch.cuda.get_device_name()}, {memory / 2**30:.0f} GiB")
    else:
        fix = "none is needed; for one, install its driver and torch's CUDA build"
        yield Check.of(COMPUTE, "gpu", "none seen", fix)
    if native_kernels() is not None:
        yield Check.of(COMPUTE, "native kernels", "compiled for this processor")
        for trial in former_trials():
            yield Check.of(COMPUTE, "matrix products", f"{trial.threads} threads, {trial.model}: {trial.text()}")
    elif known_fault():
        found = "they failed their self-test, so PyTorch's do their work: decode on the CPU is slower"
        yield Check.of(COMPUTE, "native kernels", found, "please report what `python -m minillm.kernels.cpu` prints")
    elif sys.platform == "linux":
        found = "not compiled: decode on the CPU is slower"
        yield Check.of(COMPUTE, "native kernels", found, how_to_get_a_compiler())
    else:
        yield Check.of(COMPUTE, "native kernels", "only on Linux", "none: PyTorch's kernels do their work")


def attention(device: torch.device) -> Iterator[Check]:
    """What `auto` picks, and for every other backend whether it could run here."""
    chosen = select_backend("auto", device, Demands(dtype=torch.bfloat16))
    name = next(name for name, backend in BACKENDS.items() if backend is chosen)
    preference = ", ".join(PREFERENCE[device.type])
    found = f"auto = {name} on {device.type} in bfloat16: the first of ({preference}) that can run here"
    yield Check.of(ATTENTION, "attention backend", found)
    for other, objection in survey(device).items():
        found = f"cannot run on this {device.type}" if objection else f"attention_backend={other!r} runs here"
        if other != name:
            yield Check.of(ATTENTION, f"attention {other}", found, objection or None)
