"""The cache folder: where models lie, and how a folder appears in it whole or not at all.

A folder is built beside its final place and renamed into it as the very last act (a rename within
one file system is atomic), so a folder that is there is whole, however its builder ended.
"""

import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from minillm.host.errors import StorageError

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
ANOTHER_HOME = "set MINILLM_HOME to a folder"


def cache_home() -> Path:
    """The cache folder: `$MINILLM_HOME`, or `~/.cache/minillm`.

    Raises:
        StorageError: there is no home folder, as in some containers.
    """
    chosen = os.environ.get("MINILLM_HOME")
    try:
        return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "minillm"
    except RuntimeError as error:
        raise StorageError(f"this account has no home folder: {ANOTHER_HOME} you can write") from error


def say(message: str) -> None:
    """A line of progress. Standard error, because standard output belongs to results."""
    print(f"minillm: {message}", file=sys.stderr, flush=True)


def build_once(target: Path, build: Callable[[Path], None], needed_bytes: int, *, replace: bool = False) -> Path:
    """Make the folder `target` by calling `build(work_folder)`, unless it is there already.

    Of two processes the second waits, and then finds what the first has built. What a killed one leaves half built,
    the next one sweeps away.

    Args:
        needed_bytes: free disk space that `build` needs, work files included.
        replace: build anew even if the folder is there.
    Raises:
        StorageError: the disk is full, or the folder cannot be written.
    """
    if target.is_dir() and not replace:
        return target
    with storage_errors(target.parent, needed_bytes):
        target.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(target):
            if target.is_dir() and not replace:
                return target
            work = target.parent / f".{target.name}.partial"
            for leftover in (work, old_of(work)):  # We hold the lock, so the process that left these is dead.
                shutil.rmtree(leftover, ignore_errors=True)
            if free_bytes(target.parent) < needed_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            try:
                work.mkdir()
                build(work)
                _publish(work, target)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return target


def free_bytes(folder: Path) -> int:
    """Free disk space where `folder` is, or would be."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def old_of(work: Path) -> Path:
    """Where a replaced folder waits to be deleted."""
    return work.with_name(work.name + ".old")


def _publish(work: Path, target: Path) -> None:
    """Everything is on the disk before its name is: a power cut cannot leave a named, empty file."""
    for path in [*work.iterdir(), work]:
        _fsync(path)
    # An older one is moved aside in one stroke: a kill in the middle must not leave half a model with this name.
    old = old_of(work)
    if target.exists():
        target.rename(old)
    work.rename(target)
    _fsync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _only_one(target: Path) -> Iterator[None]:
    """Holds the target's lock; the operating system frees it when its holder dies."""
    lock = FileLock(target.with_name(f".{target.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"another process is preparing {target.name}; waiting for it")
        lock.acquire()
    except NotImplementedError as error:
        raise OSError(errno.ENOLCK, "files cannot be locked there") from error
    try:
        yield
    finally:
        lock.release()


def write_whole(file: Path, content: bytes, elsewhere: str) -> None:
    """Write a file whole or not at all: beside its place, then into it. Its folder is made if it is missing.

    Args:
        elsewhere: for the message: how to choose another folder.
    Raises:
        StorageError: the disk is full, or the folder cannot be written.
    """
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    with storage_errors(file.parent, len(content), elsewhere):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.write_bytes(content)
            partial.replace(file)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def storage_errors(folder: Path, needed_bytes: int, elsewhere: str = ANOTHER_HOME) -> Iterator[None]:
    """Turns what the operating system says about the disk into words about what to do.

    Args:
        elsewhere: how to choose another folder.
    Raises:
        StorageError
    """
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            raise StorageError(
                f"the disk that holds {folder} is full: this needs {needed_bytes / 1e6:.0f} MB and "
                f"{free_bytes(folder) / 1e6:.0f} MB are free. Free some space, or {elsewhere} on a bigger disk"
            ) from error
        raise StorageError(
            f"cannot write the folder {folder}: {error}. Check its rights, or {elsewhere} you can write"
        ) from error
