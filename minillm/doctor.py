"""What this machine has of what minillm uses, and how to get what is missing."""

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from minillm.models.pull import EMBEDDED_MODELS, embedded_path
from minillm.models.storage import cache_home, free_bytes

if TYPE_CHECKING:
    import torch

GB = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `absent` is fine to live with; `bad` keeps minillm from working."""

    name: str
    status: Literal["ok", "absent", "bad"]
    found: str
    fix: str | None = None


def examine() -> list[Check]:
    """Look at everything; takes the seconds that importing torch takes."""
    return [*_machine(), *_storage(), *_compute(), *_lab()]


def find_chromium() -> str | None:
    """The browser that the browser tests drive: the system's, else the one playwright installed."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    caches = [os.environ.get("PLAYWRIGHT_BROWSERS_PATH"), "~/.cache/ms-playwright", "~/Library/Caches/ms-playwright"]
    for cache in filter(None, caches):
        for pattern in ("chromium-*/chrome-linux*/chrome", "chromium-*/chrome-mac*/*.app/Contents/MacOS/*"):
            if found := sorted(Path(cache).expanduser().glob(pattern)):
                return str(found[-1])
    return None


def _machine() -> Iterator[Check]:
    import psutil

    yield Check("python", "ok", f"{platform.python_version()} ({sys.executable})")  # pip refuses older than 3.11
    cores = psutil.cpu_count(logical=False) or os.cpu_count()
    yield Check("processor", "ok", f"{platform.machine()}, {cores} cores, {os.cpu_count()} threads")
    memory = psutil.virtual_memory()
    found = f"{memory.total / GB:.1f} GB, {memory.available / GB:.1f} GB available"
    if memory.available >= 1.5 * GB:
        yield Check("memory", "ok", found)
    else:
        fix = "the default model wants 1.5 GB: close something, or give the engine kv_cache_memory_gb=0.2"
        yield Check("memory", "absent", found, fix)


def _storage() -> Iterator[Check]:
    home = cache_home()
    parent = next(folder for folder in (home, *home.parents) if folder.exists())
    if os.access(parent, os.W_OK):
        yield Check("cache folder", "ok", str(home))
    else:
        yield Check("cache folder", "bad", f"{home} cannot be written", "set MINILLM_HOME to a folder you can write")
    missing = [name for name in EMBEDDED_MODELS if not embedded_path(name).is_dir()]
    needed = sum(EMBEDDED_MODELS[name].needed_bytes for name in missing)
    free = free_bytes(home)
    if free >= needed:
        yield Check("free disk", "ok", f"{free / GB:.1f} GB")
    else:
        fix = f"free {needed / GB:.1f} GB, or set MINILLM_HOME to a folder on a bigger disk"
        yield Check("free disk", "bad", f"{free / GB:.1f} GB", fix)
    for name in EMBEDDED_MODELS:
        if name in missing:
            yield Check(f"model {name}", "absent", "not fetched yet", f"minillm pull {name}")
        else:
            yield Check(f"model {name}", "ok", str(embedded_path(name)))


def _compute() -> Iterator[Check]:
    try:
        import torch
    except ImportError as error:
        yield Check("torch", "bad", str(error), "run `make setup`")
        return
    instructions = torch.backends.cpu.get_cpu_capability()
    yield Check("torch", "ok", f"{torch.__version__}, {torch.get_num_threads()} threads, {instructions}")
    if torch.cuda.is_available():
        yield Check("gpu", "ok", torch.cuda.get_device_name())
    else:
        yield Check("gpu", "absent", "none seen", "none is needed; for one, install its driver and torch's CUDA build")
    yield from _attention(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    yield _native()
    yield _quantization()
    yield from _draft_heads()


def _draft_heads() -> Iterator[Check]:
    """For which models a trained head comes with minillm, for speculative.method=draft_head."""
    from minillm.speculation import head_file

    heads = head_file.packaged_heads()
    for name in heads:
        if (head_file.HEADS / name / head_file.WEIGHTS).is_file():
            yield Check(f"draft head {name}", "ok", f"speculative.method=draft_head works with model={name}")
        else:
            folder = head_file.HEADS / name
            yield Check(f"draft head {name}", "absent", f"{folder} has no {head_file.WEIGHTS}", "install minillm again")
    missing = [name for name in EMBEDDED_MODELS if name not in heads]
    if missing:
        fix = f"minillm train-draft --model {missing[0]} --out FOLDER, then speculative.model=FOLDER"
        yield Check("draft heads", "absent", f"none comes with minillm for {', '.join(missing)}", fix)


def _quantization() -> Check:
    """Which lossy settings this machine computes."""
    import torch

    gpu = torch.cuda.is_available()
    names = ["int8", "int4", *(["fp8"] if gpu and torch.cuda.get_device_capability() >= (8, 9) else [])]
    found = f"weights {', '.join(names)}; KV cache int8, fp8. All lossy: `minillm bench quality` prints what they cost"
    if "fp8" not in names:
        found += "; fp8 weights want a GPU of compute capability 8.9 or more"
    return Check("quantization", "ok", found)


def _native() -> Check:
    """Whether the C++ is there that decode steps on a CPU are fast by."""
    from minillm.models.native import native_kernels

    if native_kernels() is None:
        fix = "decode on the CPU is slower without: install g++ (Debian and Ubuntu: apt install g++)"
        return Check("native kernels", "absent", "not compiled", fix)
    return Check("native kernels", "ok", "compiled for this processor")


def _attention(device: "torch.device") -> Iterator[Check]:
    """What `auto` picks, and for every other backend whether it could run here."""
    import torch

    from minillm.attention.select import BACKENDS, PREFERENCE, Demands, select_backend, survey

    chosen = select_backend("auto", device, Demands(dtype=torch.bfloat16))
    name = next(name for name, backend in BACKENDS.items() if backend is chosen)
    preference = ", ".join(PREFERENCE[device.type])
    found = f"auto = {name} on {device.type} in bfloat16: the first of ({preference}) that can run here"
    yield Check("attention backend", "ok", found)
    for choice in survey(device):
        if choice.name == name:
            continue
        if choice.missing:
            yield Check(f"attention {choice.name}", "absent", f"cannot run on this {device.type}", choice.missing)
        else:
            yield Check(f"attention {choice.name}", "ok", f"attention_backend={choice.name!r} runs here")


def _lab() -> Iterator[Check]:
    if importlib.util.find_spec("jupyterlab"):
        import jupyterlab

        yield Check("jupyterlab", "ok", jupyterlab.__version__)
    else:
        yield Check("jupyterlab", "absent", "not installed", 'pip install -c constraints.txt -e ".[lab]"')
    if chromium := find_chromium():
        yield Check("chromium", "ok", chromium)
    else:
        fix = "only the browser tests want it: apt install chromium, or playwright install chromium"
        yield Check("chromium", "absent", "not found", fix)
