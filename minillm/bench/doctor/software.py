"""Packages and their pinned versions, a browser for the tests, a port for the server."""

import importlib.metadata
import os
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from minillm.bench.doctor.check import OPTIONAL, Check
from minillm.core.params import default_of
from minillm.server.config import ServeConfig

GROUP = "software"
NEEDED = ("torch", "transformers", "safetensors", "numpy", "pydantic", "starlette", "uvicorn")
"""What the numbers of the course depend on, or what breaks when it changes."""
LAB = ("jupyterlab", "ipywidgets", "ipykernel")
CONSTRAINTS = Path(__file__).parents[3] / "constraints.txt"
"""There in a checkout, not where minillm was installed as a wheel."""


def packages() -> Iterator[Check]:
    """The packages that matter, held against constraints.txt."""
    pins = read_pins(CONSTRAINTS) if CONSTRAINTS.is_file() else {}
    same = []
    for name in (*NEEDED, *LAB):
        version = installed_version(name)
        install = f"{sys.executable} -m pip install {f'-c {CONSTRAINTS} ' if pins else ''}"
        if version is None:
            yield Check(GROUP, name, "bad" if name in NEEDED else "absent", "not installed", install + name)
        elif pins.get(name, version) != version:
            found = f"{version}; minillm was tried with {pins[name]}"
            yield Check(GROUP, name, "absent", found, f"{install}{name}=={pins[name]}")
        else:
            same.append(f"{name} {version}")
    if same:
        compared = "as pinned" if pins else "not compared: there is no constraints.txt"
        yield Check(GROUP, "versions", "ok", f"{', '.join(same)} ({compared})")


def read_pins(file: Path) -> dict[str, str]:
    """Version by package."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", file.read_text(encoding="utf-8"), flags=re.MULTILINE))


def installed_version(name: str) -> str | None:
    """Without the `+cpu` of a build; None if it is not there."""
    try:
        return importlib.metadata.version(name).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def browser() -> Check:
    """What the browser tests need."""
    if chromium := find_chromium():
        return Check(OPTIONAL, "chromium", "ok", chromium)
    fix = "apt install chromium" if shutil.which("apt") else f"{sys.executable} -m playwright install chromium"
    return Check(OPTIONAL, "chromium", "absent", "not found; only the browser tests want it", fix)


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


def serving_port(port: int = default_of(ServeConfig, "port")) -> Check:
    """Whether `minillm serve` finds the port free that it takes if it is not told otherwise."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            found = f"{port} cannot be listened on: {error.strerror}"
            return Check(OPTIONAL, "port of the server", "absent", found, "minillm serve --port 0 (any free one)")
    return Check(OPTIONAL, "port of the server", "ok", f"{port} is free")
