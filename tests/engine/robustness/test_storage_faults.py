"""Disks that are full or cannot be written, and files that are damaged: one message that says what to do, and nothing
half-written is left."""

import errno
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from draft_heads import make_head

from course.lab.json_store import JsonStore
from course.lab.progress import Progress
from minillm.host import storage
from minillm.host.errors import StorageError
from minillm.host.storage import cache_home, write_whole
from minillm.kernels.cpu import NativeKernels, compiling, native_kernels
from minillm.model.errors import CorruptCheckpointError
from minillm.model.loader import LoadedModel
from minillm.model.pull import pull
from minillm.speculation.head_file import FACTS, WEIGHTS, load_head


def fill_the_disk(monkeypatch: pytest.MonkeyPatch, code: int = errno.ENOSPC) -> None:
    """Every file gets the first half of what is written to it."""
    write = Path.write_bytes

    def half(path: Path, content: bytes) -> int:
        write(path, content[: len(content) // 2])
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(Path, "write_bytes", half)


def block(folder: Path) -> None:
    """A file where the folder should be: nobody can write there, not even root, whom rights do not stop."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("not a folder")


# ------------------------------------------------------------------------ files, whole or not at all


@pytest.mark.parametrize(
    ("code", "says"),
    [(errno.ENOSPC, "is full.*Free some space"), (errno.EDQUOT, "is full"), (errno.EROFS, "Check its rights")],
)
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "deep" / "file"
    write_whole(file, b"old", "choose a folder")
    fill_the_disk(monkeypatch, code)
    with pytest.raises(StorageError, match=f"(?s){says}.*choose a folder"):
        write_whole(file, b"new and longer", "choose a folder")
    assert file.read_bytes() == b"old" and list(file.parent.iterdir()) == [file]


def test_without_a_home_folder_it_says_which_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINILLM_HOME", raising=False)

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(StorageError, match="set MINILLM_HOME"):
        cache_home()


def test_a_file_system_without_locks_is_a_storage_error(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object, **__: object) -> None:
        raise NotImplementedError("FileSystem does not appear to support flock")

    monkeypatch.setattr(storage.FileLock, "acquire", no_locks)
    with pytest.raises(StorageError, match=r"cannot be locked.*MINILLM_HOME"):
        pull("smollm2-135m", progress=False)
    said: list[str] = []
    JsonStore("progress.json", Progress, anywhere=True, say=said.append).change(lambda content: content.lesson("06"))
    assert len(said) == 1 and "The lesson works anyway" in said[0]


# ------------------------------------------------------------------------ draft heads


@pytest.mark.parametrize("damage", ["no weights", "half the weights", "empty facts", "half the facts", "no shape"])
def test_a_damaged_draft_head_is_named(damage: str, model: LoadedModel, tmp_path: Path) -> None:
    make_head(tmp_path, model)
    weights, facts = tmp_path / WEIGHTS, tmp_path / FACTS
    if damage == "no weights":
        weights.unlink()
    elif damage == "half the weights":
        weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    else:
        text = {"empty facts": "", "half the facts": facts.read_text()[:10], "no shape": "{}"}[damage]
        facts.write_text(text)
    with pytest.raises(CorruptCheckpointError, match="fetch its files again"):
        load_head(str(tmp_path), model)


# ------------------------------------------------------------------------ the C++ library

COMPILER = """\
#!/bin/sh
case " $* " in *" --version "*) echo "fake 1.0"; exit 0;; esac
echo called >> {log}
while [ "$1" != -o ]; do shift; done
for letter in l i b r a r y; do printf $letter >> "$2"; sleep {pause}; done
case "$2" in */selftest) chmod +x "$2"; cat /bin/true > "$2";; esac
exit {status}
"""


def make_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch, pause: float = 0.0, status: int = 0) -> Path:
    """A slow compiler that writes letter by letter. Returns the file that counts its calls."""
    program, log = folder / "c++", folder / "calls"
    program.write_text(COMPILER.format(log=log, pause=pause, status=status))
    program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program))
    log.touch()
    return log


@pytest.fixture
def fresh_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody has asked for the native kernels yet, and nobody will see what this test makes of them."""
    native_kernels.cache_clear()
    yield
    monkeypatch.undo()
    native_kernels.cache_clear()


linux = pytest.mark.skipif(sys.platform != "linux", reason="the library is built on Linux only")


@linux
def test_two_build_at_once_and_nobody_sees_half_a_library(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = make_compiler(tmp_path, monkeypatch, pause=0.02)
    with ThreadPoolExecutor(2) as pool:  # the compilers are processes; Python's part has nothing of its own to share
        built = [pool.submit(lambda: compiling.build().path.read_text()) for _ in range(2)]
    assert [each.result() for each in built] == ["library"] * 2
    assert len(list((home / "native").glob("kernels-*"))) == 1
    assert len(calls.read_text().splitlines()) == len(compiling.SOURCES) + 2, "the second waits for the first one's"


@linux
@pytest.mark.usefixtures("fresh_kernels")
def test_a_damaged_library_is_compiled_anew(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = make_compiler(tmp_path, monkeypatch)
    compiling.build().path.write_text("half a lib")
    before = len(calls.read_text().splitlines())
    loaded: list[str] = []

    def load(self: NativeKernels, path: Path) -> None:
        loaded.append(path.read_text())
        if loaded[-1] != "library":
            raise OSError(f"{path}: file too short")

    monkeypatch.setattr(NativeKernels, "__init__", load)
    assert native_kernels() is not None
    assert loaded == ["half a lib", "library"] and len(calls.read_text().splitlines()) == 2 * before


@linux
@pytest.mark.usefixtures("fresh_kernels")
@pytest.mark.parametrize("trouble", ["not a library", "compiler fails", "nowhere to write", "disk full"])
def test_without_the_library_pytorch_serves_and_the_log_says_what_it_needs(
    trouble: str, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_compiler(tmp_path, monkeypatch, status=int(trouble == "compiler fails"))
    if trouble == "nowhere to write":
        block(home)
    if trouble == "disk full":
        full = OSError(errno.ENOSPC, "No space left on device")
        monkeypatch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(full))
    assert native_kernels() is None
    assert "Using PyTorch's" in caplog.text and "MINILLM_HOME" in caplog.text
    left = [file.read_text() for file in home.rglob("kernels.so")] if home.is_dir() else []
    assert left == (["library"] if trouble == "not a library" else [])
