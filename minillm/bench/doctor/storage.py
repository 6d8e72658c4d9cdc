"""The cache folder, the disk it is on, and the models in it."""

import os
from collections.abc import Iterator
from pathlib import Path

from minillm.bench.doctor.check import GB, Check
from minillm.kernels.storage import cache_home, free_bytes
from minillm.model.pull import EMBEDDED_MODELS, embedded_path

GROUP = "storage"


def storage() -> Iterator[Check]:
    """The cache folder, the models in it, and the room that is left."""
    home = cache_home()
    parent = next(folder for folder in (home, *home.parents) if folder.exists())
    if parent.is_dir() and os.access(parent, os.W_OK):
        yield Check(GROUP, "cache folder", "ok", str(home))
    else:
        fix = "export MINILLM_HOME=FOLDER, one that you can write"
        yield Check(GROUP, "cache folder", "bad", f"{home} cannot be written", fix)
    missing = [name for name in EMBEDDED_MODELS if not embedded_path(name).is_dir()]
    needed = sum(EMBEDDED_MODELS[name].needed_bytes for name in missing)
    free = free_bytes(home)
    if free >= needed:
        yield Check(GROUP, "free disk", "ok", f"{free / GB:.1f} GB")
    else:
        fix = f"free {needed / GB:.1f} GB, or export MINILLM_HOME=FOLDER, one on a bigger disk"
        yield Check(GROUP, "free disk", "bad", f"{free / GB:.1f} GB", fix)
    for name in EMBEDDED_MODELS:
        if name in missing:
            yield Check(GROUP, f"model {name}", "absent", "not fetched yet", f"minillm pull {name}")
        else:
            yield Check(GROUP, f"model {name}", "ok", _described(embedded_path(name)))
    for folder in _others(home):
        yield Check(GROUP, f"model {folder.name}", "ok", _described(folder))


def _others(home: Path) -> list[Path]:
    """Folders of other models: converted GGUF files, and random weights of benchmarks."""
    found = sorted(home.glob("models/*/config.json"))
    return [file.parent for file in found if file.parent.name not in EMBEDDED_MODELS]


def _described(folder: Path) -> str:
    size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    return f"{folder}, {size / 1e6:.0f} MB"
