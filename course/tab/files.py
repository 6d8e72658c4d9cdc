"""What a browser needs to run the course's Python, put together in one folder.

Pyodide (CPython compiled to WebAssembly) comes from npm, wheels from PyPI, at the versions named here and in
constraints.txt. They are fetched once, into the cache folder, and served by the site itself: nothing is loaded from
elsewhere, and a page that was opened once works offline.
"""

import base64
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

from minillm.core.errors import MinillmError
from minillm.host.storage import build_once, cache_home, say

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYODIDE = "314.0.7"
PYODIDE_URL = f"https://registry.npmjs.org/pyodide/-/pyodide-{PYODIDE}.tgz"
PYODIDE_SHA512 = "0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A=="
"""As npm publishes it (`npm view pyodide dist.integrity`)."""
FROM_PYODIDE = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
PLATFORM, PYTHON = "pyemscripten_2026_0_wasm32", "3.14"
"""What that version of Pyodide runs wheels of."""
WHEELS = (
    "annotated-types",
    "filelock",
    "platformdirs",
    "pydantic",
    "pydantic_core",
    "typing-inspection",
    "typing_extensions",
)
NEEDED_BYTES = 60_000_000
SOURCES = ("minillm", "course", "solutions")
"""Exercises are read from their solutions' sources: what a page shows of them, it shows as stubs."""
LEFT_OUT = (
    "course/data",
    "course/images",
    "course/lab/lab.py",
    "course/lab/roof.py",
    "course/lab/server",
    "course/lab/view/recorded",
    "course/loadgen",
    "course/measure",
    "course/site",
    "minillm/bench",
    "minillm/doctor",
    "minillm/kernels/cpu",
    "minillm/kernels/triton",
    "minillm/runner/kept_runners.py",
    "minillm/runner/torch_runner.py",
    "minillm/server",
)
"""Much of it measures a real model: absent.py stands in for what pictures import of that."""
KEPT = "course/data/challenge"
"""The ladder's recorded scores, which travel although course/data doesn't."""
KINDS = {".py", ".toml", ".json", ".js", ".md"}
CHUNK_BYTES = 1 << 16


class TabFilesError(MinillmError):
    """Python for the browser could not be fetched."""


def write(folder: Path) -> None:
    """The folder that a worker starts from.

    Raises:
        TabFilesError: there is no network, and nothing was fetched before.
        StorageError: the disk is full.
    """
    fetched = build_once(cache_home() / f"tab-{_versions()}", _fetch, NEEDED_BYTES)
    shutil.copytree(fetched, folder, dirs_exist_ok=True)
    shutil.copy(HERE / "worker.js", folder)
    packed = course_archive()
    name = f"course-{hashlib.sha256(packed).hexdigest()[:12]}.zip"
    (folder / name).write_bytes(packed)
    wheels = sorted(path.name for path in folder.glob("*.whl"))
    (folder / "packed.json").write_text(json.dumps({"wheels": wheels, "course": name}), encoding="utf-8")


def pins() -> list[str]:
    """`name==version` of each wheel, from constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    known = {line.partition("==")[0]: line.split(";")[0].strip() for line in lines if "==" in line}
    return [known[name] for name in WHEELS]


def _versions() -> str:
    """A name that changes with any of them."""
    return hashlib.sha256(" ".join([PYODIDE, PLATFORM, *pins()]).encode()).hexdigest()[:12]


def _fetch(folder: Path) -> None:
    say(f"fetching Python for the browser, once: Pyodide {PYODIDE} and {len(WHEELS)} wheels, 9 MB")
    try:
        packed = _downloaded(PYODIDE_URL)
    except OSError as error:
        raise TabFilesError(f"{PYODIDE_URL} could not be fetched: {error}") from error
    if base64.b64encode(hashlib.sha512(packed).digest()).decode() != PYODIDE_SHA512:
        raise TabFilesError(f"{PYODIDE_URL} is not the file that it was when its sum was written down")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for name in FROM_PYODIDE:
            member = archive.extractfile(f"package/{name}")
            assert member is not None
            (folder / name).write_bytes(member.read())
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    wanted = ["--only-binary=:all:", "--platform", PLATFORM, "--python-version", PYTHON, *pins()]
    done = subprocess.run([*pip, *wanted], capture_output=True, text=True)
    if done.returncode:
        raise TabFilesError(f"pip could not fetch the wheels: {done.stderr.strip().splitlines()[-1]}")


def _downloaded(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as response:
        return b"".join(iter(lambda: response.read(CHUNK_BYTES), b""))


def course_archive() -> bytes:
    """The sources of engine and course as a zip archive: the same bytes for the same files."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(_sources()):
            entry = zipfile.ZipInfo(str(path.relative_to(ROOT)), (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
    return packed.getvalue()


def _sources() -> Iterator[Path]:
    for top in SOURCES:
        for path in (ROOT / top).rglob("*"):
            name = str(path.relative_to(ROOT))
            is_lesson = re.fullmatch(r"course/(\d\d\w*|start)\.py", name)
            is_read = path.suffix in KINDS and path.name != "README.md" and not is_lesson
            if is_read and (name.startswith(KEPT) or not name.startswith(LEFT_OUT)):
                yield path
