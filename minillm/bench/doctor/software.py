"""The cache folder and the models in it, packages and their pinned versions."""

import importlib.metadata
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from minillm.bench.doctor.check import GB, Check
from minillm.kernels.storage import cache_home, free_bytes
from minillm.model.pull import EMBEDDED_MODELS, embedded_path

STORAGE, SOFTWARE = "storage", "software"
NEEDED = ("torch", "transformers", "safetensors", "numpy", "pydantic", "starlette", "uvicorn")
"""What the numbers of the course depend on, or what breaks when it changes."""
LAB = ("jupyterlab", "ipywidgets", "ipykernel")
CONSTRAINTS = Path(__file__).parents[3] / "constraints.txt"
"""There in a checkout, not where minillm was installed as a wheel."""


def storage() -> Iterator[Check]:
    """The cache folder, the models in it, and the room that is left."""
    home = cache_home()
    parent = next(folder for folder in (home, *home.parents) if folder.exists())
    if parent.is_dir() and os.access(parent, os.W_OK):
        yield Check.of(STORAGE, "cache folder", str(home))
    else:
        fix = "export MINILLM_HOME=FOLDER, one that you can write"
        yield Check.of(STORAGE, "cache folder", f"{home} cannot be written", fix, needed=True)
    missing = [name for name in EMBEDDED_MODELS if not embedded_path(name).is_dir()]
    needed, free = sum(EMBEDDED_MODELS[name].needed_bytes for name in missing), free_bytes(home)
    fix = f"free {needed / GB:.1f} GB, or export MINILLM_HOME=FOLDER, one on a bigger disk"
    yield Check.of(STORAGE, "free disk", f"{free / GB:.1f} GB", fix if free < needed else None, needed=True)
    for name in missing:
        yield Check.of(STORAGE, f"model {name}", "not fetched yet", f"minillm pull {name}")
    # Short names, converted GGUF files, and random weights of benchmarks.
    present = {name: embedded_path(name) for name in EMBEDDED_MODELS if name not in missing}
    present |= {file.parent.name: file.parent for file in sorted(home.glob("models/*/config.json"))}
    for name, folder in present.items():
        size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
        yield Check.of(STORAGE, f"model {name}", f"{folder}, {size / 1e6:.0f} MB")


def packages() -> Iterator[Check]:
    """The packages that matter, held against constraints.txt."""
    pins = read_pins(CONSTRAINTS) if CONSTRAINTS.is_file() else {}
    same = []
    for name in (*NEEDED, *LAB):
        version = installed_version(name)
        install = f"{sys.executable} -m pip install {f'-c {CONSTRAINTS} ' if pins else ''}"
        if version is None:
            yield Check.of(SOFTWARE, name, "not installed", install + name, needed=name in NEEDED)
        elif pins.get(name, version) != version:
            found = f"{version}; minillm was tried with {pins[name]}"
            yield Check.of(SOFTWARE, name, found, f"{install}{name}=={pins[name]}")
        else:
            same.append(f"{name} {version}")
    if same:
        compared = "as pinned" if pins else "not compared: there is no constraints.txt"
        yield Check.of(SOFTWARE, "versions", f"{', '.join(same)} ({compared})")


def read_pins(file: Path) -> dict[str, str]:
    """Version by package."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", file.read_text(encoding="utf-8"), flags=re.MULTILINE))


def installed_version(name: str) -> str | None:
    """Without the `+cpu` of a build; None if it is not there."""
    try:
        return importlib.metadata.version(name).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None
