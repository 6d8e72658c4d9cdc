"""decoder.cpp to decoder.wasm: `python -m course.tab.model.build`, where clang and wasm-ld are.

The outcome is committed, so that a site is written without a compiler, with what it was made of in built.json. Debian
and Ubuntu: `apt install clang lld`.
"""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("decoder.cpp")
COMPILED, BUILT = SOURCE.with_suffix(".wasm"), SOURCE.with_name("built.json")
EXPORTED = ("start", "step", "likeliest", "draw", "__heap_base")
FLAGS = (
    *("--target=wasm32", "-std=c++17", "-O3", "-msimd128", "-mbulk-memory"),
    *("-nostdlib", "-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra", "-Werror"),
    *("-Wl,--no-entry", "-Wl,--allow-undefined", "-Wl,--strip-all"),
    *(f"-Wl,--export={name}" for name in EXPORTED),
)


def compiler() -> str | None:
    """What this machine would build it with; None if it can't."""
    if not all(map(shutil.which, ("clang++", "wasm-ld"))):
        return None
    return subprocess.run(["clang++", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]


def made_of() -> dict[str, object]:
    """The source and the flags, to be compared with built.json."""
    return {"source": hashlib.sha256(SOURCE.read_bytes()).hexdigest(), "flags": list(FLAGS)}


def build(compiled: Path) -> None:
    """Compile it. Raises CalledProcessError: the compiler has refused."""
    subprocess.run(["clang++", *FLAGS, str(SOURCE), "-o", str(compiled)], check=True)
    compiled.chmod(0o644)


if __name__ == "__main__":
    build(COMPILED)
    BUILT.write_text(json.dumps({**made_of(), "compiler": compiler()}, indent=1) + "\n", encoding="utf-8")
    print(f"{COMPILED.stat().st_size / 1e3:.0f} kB in {COMPILED}")
