"""The checks: each is a function that yields what it finds, and imports what it needs itself."""

import importlib.metadata
import importlib.util
import io
import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from minillm.core.errors import MinillmError
from minillm.doctor.report import CheckResult
from minillm.host import platforms, pythons

if TYPE_CHECKING:
    import torch

GB = 1_000_000_000
MACHINE, COMPUTE, STORAGE, SOFTWARE, ENGINE = "machine", "compute", "storage", "software", "engine"
DEADLINE_S = 120.0
"""Importing torch from a cold, slow disk takes half a minute."""
COMPILING_S = 300.0
"""Where the C++ may have to be compiled first: under a minute on 2 cores, many where others use them."""
PLEASE_REPORT = "please report it, with what `minillm doctor --json` prints"

ENOUGH_MEMORY = 1_500_000_000
"""Bytes: the default model, its KV cache and PyTorch."""
BUFFER_BYTES = 256_000_000
"""About what the default model takes: larger than nearly every cache."""
READS = 3
CONTEXT = 512
"""Tokens of context in the step whose floor is told."""
BUSY_SHARE = 0.5
"""Share of the cores at work for others beyond which a measured figure says little."""
FLAG_USES = {
    "avx512f": "our kernels work on 16 numbers at once",
    "avx512_bf16": "products of bfloat16 pairs",
    "amx_bf16": "products of bfloat16 tiles",
    "bf16": "products of bfloat16 pairs",
}
"""Instructions that decide how fast a CPU computes here, and what for (minillm/model/packing.py)."""
NEEDED = ("torch", "transformers", "safetensors", "numpy", "pydantic", "starlette", "uvicorn", "typer")
"""What the numbers of the course depend on, or what breaks when it changes."""
LAB = ("jupyterlab", "ipywidgets", "ipykernel")
CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
"""There in a checkout, not where minillm was installed as a wheel."""
ENVIRONMENT = CONSTRAINTS.with_name(".venv")


@dataclass(frozen=True, slots=True)
class Check:
    """A function that yields findings, and how it is run."""

    group: str
    examine: Callable[[], Iterator[CheckResult]]
    stage: int
    """All checks of a stage are run before those of the next one."""
    needed: bool = False
    """minillm can't be said to work where this one could not finish."""
    with_torch: bool = False
    """Imports torch, so there is no use in it where that fails."""
    deadline_s: float = DEADLINE_S


# ---------------------------------------------------------------- machine


def system() -> Iterator[CheckResult]:
    """Python, operating system and processor, by the standard library alone."""
    tried = pythons.OLDEST_PYTHON <= sys.version_info[:2] <= pythons.NEWEST_PYTHON
    oldest, newest = map(pythons.dotted, (pythons.OLDEST_PYTHON, pythons.NEWEST_PYTHON))
    free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    found = f"{platform.python_version()}{', free-threaded' if free_threaded else ''} ({sys.executable})"
    advice = (
        f"minillm was tried with {oldest} to {newest}, with the GIL: make clean, then make setup PYTHON=python{newest}"
    )
    yield CheckResult.of(MACHINE, "python", found, None if tried and not free_threaded else advice)
    here = platforms.Platform.here()
    library = f", glibc {pythons.dotted(here.glibc)}" if here.glibc else ", musl" if here.musl else ""
    yield CheckResult.of(MACHINE, "system", f"{here.name} on {here.machine}{library}")
    torch_is_there = importlib.util.find_spec("torch") is not None  # it may have been built there
    if not torch_is_there and (ENVIRONMENT / ".installed").exists():
        fix = f"{ENVIRONMENT}/bin/python -m minillm.doctor"
        yield CheckResult.of(MACHINE, "environment", f"not the one of make setup, {ENVIRONMENT}", fix)
    for note in platforms.notes(here):
        yield CheckResult.of(MACHINE, note.topic, note.says, note.fix, needed=note.blocks and not torch_is_there)
    name, present = platforms.describe_cpu()
    uses = [f"{flag} ({use})" for flag, use in FLAG_USES.items() if flag in present]
    has = ", ".join(uses or present)
    yield CheckResult.of(MACHINE, "processor", f"{name}, {os.cpu_count()} threads{f'; has {has}' if has else ''}")


def memory() -> Iterator[CheckResult]:
    """Memory that may still be taken."""
    import psutil

    from minillm.host.memory import available_bytes

    available = available_bytes()
    found = f"{psutil.virtual_memory().total / GB:.1f} GB, {available / GB:.1f} GB available"
    wanted = f"the default model wants {ENOUGH_MEMORY / GB:.1f} GB: close something, or --set kv_cache_memory_gb=0.2"
    yield CheckResult.of(MACHINE, "memory", found, wanted if available < ENOUGH_MEMORY else None)


# ---------------------------------------------------------------- compute


def compiler() -> Iterator[CheckResult]:
    """The C++ compiler, and whether it fortifies what it compiles, as Ubuntu's does."""
    here = platforms.Platform.here()
    if why_not := platforms.why_no_native_kernels(here):
        yield CheckResult.of(COMPUTE, "compiler", f"none is used: {why_not}")
        return
    command = platforms.find_compiler()
    if command is None:
        found = f"{platforms.no_compiler()}: decode on the CPU is slower, and lessons 06 and 09 show other proportions"
        yield CheckResult.of(COMPUTE, "compiler", found, platforms.how_to_get_a_compiler(here))
        return
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, errors="replace", check=True)
    macros = subprocess.run(
        [*command, "-O2", "-dM", "-E", "-x", "c++", os.devnull],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    level = re.search(r"#define _FORTIFY_SOURCE (\d)", macros.stdout)
    fortified = f", fortifies by default (_FORTIFY_SOURCE={level[1]})" if level else ""
    yield CheckResult.of(
        COMPUTE, "compiler", f"{shlex.join(command)}: {version.stdout.partition(chr(10))[0]}{fortified}"
    )


def torch_itself() -> Iterator[CheckResult]:
    """PyTorch, and the GPU that it sees."""
    if importlib.util.find_spec("torch") is None:
        yield CheckResult.of(COMPUTE, "torch", "not installed", "make setup", needed=True)
        return
    import torch

    yield CheckResult.of(COMPUTE, "torch", f"{torch.__version__}, {torch.get_num_threads()} threads")
    if torch.cuda.is_available():
        size = torch.cuda.get_device_properties(0).total_memory
        yield CheckResult.of(COMPUTE, "gpu", f"{torch.cuda.get_device_name()}, {size / 2**30:.0f} GiB")
    elif shutil.which("nvidia-smi") is None:
        yield CheckResult.of(COMPUTE, "gpu", "none, and none is needed")
    elif torch.version.cuda is None:
        fix = f"{sys.executable} -m pip install --force-reinstall {constrained()}torch"
        yield CheckResult.of(COMPUTE, "gpu", "nvidia-smi is there, but this torch is built for CPUs", fix)
    else:
        fix = f"run nvidia-smi: it names the driver's trouble, or a CUDA older than torch's, {torch.version.cuda}"
        yield CheckResult.of(COMPUTE, "gpu", "nvidia-smi is there, but torch sees no GPU", fix)


def native() -> Iterator[CheckResult]:
    """Whether the C++ is there that decode steps on a CPU are fast by; compiles it, once."""
    from minillm.kernels.cpu import native_kernels
    from minillm.kernels.cpu.compiling import known_fault

    name, instead = "native kernels", "PyTorch's own take their place"
    if platforms.why_no_native_kernels(platforms.Platform.here()) or platforms.find_compiler() is None:
        yield CheckResult.of(COMPUTE, name, f"none without a compiler: {instead}")
        return
    said = io.StringIO()
    logging.basicConfig(stream=said, level=logging.INFO, format="%(message)s")
    if native_kernels() is not None:
        yield CheckResult.of(COMPUTE, name, "compiled for this processor, and tried")
    elif (fault := known_fault()) is not None:
        found = f"they failed their self-test: {instead}, and decode on the CPU is slower"
        yield CheckResult(COMPUTE, name, "absent", found, PLEASE_REPORT, fault)
    else:
        found = said.getvalue().strip() or f"{instead}, and decode on the CPU is slower"
        fix = f"try again, or mend what it says of the compiler or the cache folder; else {PLEASE_REPORT}"
        yield CheckResult(COMPUTE, name, "absent", found, fix, said.getvalue())


def bandwidth() -> Iterator[CheckResult]:
    """How fast what a decode step reads is read, and the floor of such a step of the default model.

    At batch 1 it reads every weight and the request's keys and values once, and computes very little: no engine
    gets below the bytes over the bandwidth.
    """
    from minillm.model.arithmetic import ModelBytes
    from minillm.model.checkpoints import load_model_config, resolve
    from minillm.policies.config import EngineConfig
    from minillm.strict_model import default_of

    measured, source = find_bandwidth(best_device())
    yield CheckResult.of(COMPUTE, "memory bandwidth", f"{measured / GB:.1f} GB/s {source}")
    name = default_of(EngineConfig, "model")
    step_bytes = ModelBytes.of(load_model_config(resolve(name)), "bfloat16").step([CONTEXT])
    floor = step_bytes / measured
    found = (
        f"{name} at batch 1, {CONTEXT} tokens of context: {1e3 * floor:.2f} ms per token, {1 / floor:.0f} tokens/s at "
        f"most ({step_bytes / 1e6:.0f} MB at {measured / GB:.1f} GB/s)"
    )
    yield CheckResult.of(COMPUTE, "roofline", found)


def find_bandwidth(device: "torch.device") -> tuple[float, str]:
    """Bytes per second, measured now, and of what."""
    import psutil
    import torch

    from minillm.bench import machine_peaks
    from minillm.host.memory import available_bytes

    if device.type == "cuda":
        return machine_peaks.measure_bandwidth(device=device).copy, "copied on the GPU, measured now"
    size = min(BUFFER_BYTES, available_bytes() // 8)
    measured = machine_peaks.measure_read(torch.ones(max(size // 4, 1)), READS)
    cores, load = os.cpu_count() or 1, psutil.getloadavg()[0]
    busy = f" (load {load:.1f} on {cores} cores: more when it is idle)" if load > BUSY_SHARE * cores else ""
    return measured, f"read, measured now{busy}"


def best_device() -> "torch.device":
    """The one that the engine would choose."""
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


# ---------------------------------------------------------------- engine


def attention() -> Iterator[CheckResult]:
    """What `auto` picks, what else runs here, and on a GPU what keeps the others from it."""
    import torch

    from minillm.kernels.attention.select import BACKENDS, Demands, select_backend, survey

    device = best_device()
    chosen = select_backend("auto", device, Demands(dtype=torch.bfloat16))
    name = next(name for name, backend in BACKENDS.items() if backend is chosen)
    objections = {other: objection for other, objection in survey(device).items() if other != name}
    others = ", ".join(other for other, objection in objections.items() if objection is None) or "none"
    yield CheckResult.of(ENGINE, "attention", f"auto = {name} on {device.type} in bfloat16; also here: {others}")
    for other, objection in objections.items():
        # On a CPU it can only be `native`, of which the check of the native kernels tells more.
        if objection is not None and device.type == "cuda" and "cuda" in BACKENDS[other].device_types:
            yield CheckResult.of(ENGINE, f"attention {other}", f"can't run on this {device.type}", objection)


def generation() -> Iterator[CheckResult]:
    """The default model, if it is here, answers: the proof that everything above fits together."""
    from minillm.core.params import SamplingParams
    from minillm.frontend.llm import LLM
    from minillm.host.memory import available_bytes
    from minillm.model.pull import embedded_path
    from minillm.policies.config import EngineConfig
    from minillm.strict_model import default_of

    name = default_of(EngineConfig, "model")
    if not embedded_path(name).is_dir():
        yield CheckResult.of(ENGINE, "generation", f"not tried, since {name} is not here yet")
        return
    if available_bytes() < ENOUGH_MEMORY:
        yield CheckResult.of(ENGINE, "generation", "not tried, since there is little memory")
        return
    prompt, params = "The capital of France is", SamplingParams(max_tokens=4, temperature=0)
    try:
        [output] = LLM(model=name, kv_cache_memory_gb=0.1).generate(prompt, params, use_tqdm=False)
    except MinillmError as error:  # which says what to do
        yield CheckResult.of(ENGINE, "generation", "it failed", str(error), needed=True)
    else:
        yield CheckResult.of(ENGINE, "generation", f"{name} continues {prompt!r} with {output.text!r}")


# ---------------------------------------------------------------- storage and software


def storage() -> Iterator[CheckResult]:
    """The cache folder, the models in it, and the room that is left."""
    from minillm.host.storage import cache_home, free_bytes
    from minillm.model.pull import EMBEDDED_MODELS, embedded_path

    try:
        home = cache_home()
    except MinillmError as error:
        yield CheckResult.of(STORAGE, "cache folder", str(error), "export MINILLM_HOME=FOLDER", needed=True)
        return
    parent = next(folder for folder in (home, *home.absolute().parents) if folder.exists())
    if parent.is_dir() and os.access(parent, os.W_OK):
        yield CheckResult.of(STORAGE, "cache folder", str(home))
    else:
        fix = "export MINILLM_HOME=FOLDER, one that you can write"
        yield CheckResult.of(STORAGE, "cache folder", f"{home} cannot be written", fix, needed=True)
    missing = [name for name in EMBEDDED_MODELS if not embedded_path(name).is_dir()]
    needed, free = sum(EMBEDDED_MODELS[name].needed_bytes for name in missing), free_bytes(home)
    fix = f"free {needed / GB:.1f} GB, or export MINILLM_HOME=FOLDER, one on a bigger disk"
    yield CheckResult.of(STORAGE, "free disk", f"{free / GB:.1f} GB", fix if free < needed else None, needed=True)
    for name in missing:
        yield CheckResult.of(STORAGE, f"model {name}", "not fetched yet", f"minillm pull {name}")
    # Short names, converted GGUF files, and random weights of benchmarks.
    present = {name: embedded_path(name) for name in EMBEDDED_MODELS if name not in missing}
    present |= {file.parent.name: file.parent for file in sorted(home.glob("models/*/config.json"))}
    for name, folder in present.items():
        size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
        yield CheckResult.of(STORAGE, f"model {name}", f"{folder}, {size / 1e6:.0f} MB")


def packages() -> Iterator[CheckResult]:
    """The packages that matter, held against constraints.txt."""
    pins = read_pins(CONSTRAINTS) if CONSTRAINTS.is_file() else {}
    installed = {name: version for name in (*NEEDED, *LAB) if (version := installed_version(name)) is not None}
    for names, what in ((NEEDED, "packages"), (LAB, "lab packages")):
        if missing := [name for name in names if name not in installed]:
            fix = "make setup" if pins else f"{sys.executable} -m pip install {' '.join(missing)}"
            yield CheckResult.of(SOFTWARE, what, f"not installed: {', '.join(missing)}", fix, needed=names is NEEDED)
    others = {name: version for name, version in installed.items() if pins.get(name, version) != version}
    for name, version in others.items():
        fix = f"{sys.executable} -m pip install {constrained()}{name}=={pins[name]}"
        yield CheckResult.of(SOFTWARE, name, f"{version}; minillm was tried with {pins[name]}", fix)
    if same := [f"{name} {version}" for name, version in installed.items() if name not in others]:
        compared = "as pinned" if pins else "not compared: there is no constraints.txt"
        yield CheckResult.of(SOFTWARE, "versions", f"{', '.join(same)} ({compared})")


def constrained() -> str:
    """The option of pip that holds it to our versions."""
    return f"-c {CONSTRAINTS} " if CONSTRAINTS.is_file() else ""


def read_pins(file: Path) -> dict[str, str]:
    """Version by package."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", file.read_text(encoding="utf-8"), flags=re.MULTILINE))


def installed_version(name: str) -> str | None:
    """A package's version without the `+cpu` of a build; None if it is not there."""
    try:
        return importlib.metadata.version(name).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


CHECKS = {
    "system": Check(MACHINE, system, 1, needed=True),
    "memory": Check(MACHINE, memory, 1),
    "compiler": Check(COMPUTE, compiler, 1),
    "torch": Check(COMPUTE, torch_itself, 1, needed=True),
    "native kernels": Check(COMPUTE, native, 2, with_torch=True, deadline_s=COMPILING_S),
    "memory bandwidth": Check(COMPUTE, bandwidth, 4, with_torch=True),  # alone: a neighbour would slow it down
    "attention": Check(ENGINE, attention, 3, with_torch=True),
    "generation": Check(ENGINE, generation, 3, needed=True, with_torch=True),
    "storage": Check(STORAGE, storage, 1),
    "packages": Check(SOFTWARE, packages, 1),
}
"""Checks by name; the report gives that name to one that could not finish."""
