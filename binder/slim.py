"""Remove what PyTorch's wheel carries for PyTorch's own developers: its C++ tests, and protoc. 130 MB on Linux.

`.venv/bin/python binder/slim.py`. Nothing here runs them, and nothing in Python imports them. Only files that PyTorch's
own list of files names are touched. `pip install --force-reinstall --no-deps torch` brings them back; uninstalling
works with and without them.
"""

import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

UNUSED = ("torch/test/", "torch/bin/")
USED = ("torch/bin/torch_shm_manager",)
"""By which processes share tensors."""


def unused_files(torch: Distribution) -> Iterator[Path]:
    """Those of PyTorch's files that are only for its developers, if they're still there."""
    for file in torch.files or ():
        name = file.as_posix()
        if name.startswith(UNUSED) and not name.startswith(USED):
            path = Path(str(file.locate()))
            if path.is_file():
                yield path


def remove(files: list[Path]) -> int:
    """Delete them. Returns how many bytes that frees."""
    freed = sum(file.stat().st_size for file in files)
    for file in files:
        file.unlink()
    return freed


def main() -> int:
    try:
        torch = distribution("torch")
    except PackageNotFoundError:
        print("PyTorch isn't installed here: nothing to remove", file=sys.stderr)
        return 1
    print(f"{remove(list(unused_files(torch))) / 1e6:.0f} MB freed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
