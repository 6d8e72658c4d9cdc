"""Small things that are kept for a learner between sessions: one JSON file each, in minillm's home folder.

They stay on this machine. Unless a file is kept `anywhere`, nothing is kept outside a notebook in use,
so neither tests nor builds of the lessons leave traces. And nothing here ever breaks a lesson: without a folder to
write to, it says so once, and the lesson goes on.
"""

import itertools
import os
import re
import sys
from codecs import BOM_UTF8
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from filelock import FileLock
from pydantic import BaseModel, ConfigDict, ValidationError

from minillm.host.storage import cache_home

Content = TypeVar("Content", bound=BaseModel)
PATIENCE_S = 2.0
"""For another notebook that is writing the same file."""
LESSON = re.compile(r"(\d\d[a-z]?)_.*\.ipynb$")
NO_LESSONS = ("exercises", "solutions")
"""Folders whose notebooks are named like the lessons that they belong to."""


class StoredModel(BaseModel):
    """What lies in a file. Fields of a newer version stay there when an older one writes."""

    model_config = ConfigDict(extra="allow")


def notebook() -> str | None:
    """The path of the notebook that this process is the kernel of; None = it is not one in use.

    JupyterLab's server says it in an environment variable, VS Code in a variable of the notebook.
    """
    if named := os.environ.get("JPY_SESSION_NAME"):
        return named
    ipython = sys.modules.get("IPython")  # in a kernel it is there
    shell = ipython.get_ipython() if ipython is not None else None
    return shell.user_ns.get("__vsc_ipynb_file__") if shell is not None else None


def lesson_here() -> str | None:
    """The number of the lesson that this notebook is, such as "06"; None = it is none."""
    *folders, file = re.split(r"[/\\]", notebook() or "")
    found = LESSON.match(file)
    if found is None:
        return None
    folder = folders[-1] if folders else Path.cwd().name  # a kernel begins in its notebook's folder
    return None if folder in NO_LESSONS else found.group(1)


class JsonFile(Generic[Content]):
    """One file of one kind of content. Several processes may change it at the same time.

    Args:
        kind: the pydantic model of its content; without arguments it is the empty content.
        on_broken: is told where a file was put that could not be understood.
    """

    def __init__(self, path: Path, kind: type[Content], on_broken: Callable[[Path], None] = lambda _: None) -> None:
        self.path, self.kind, self._on_broken = path, kind, on_broken

    def read(self) -> Content:
        """Empty if there is no such file. One that cannot be understood is put aside, and a new one begun.

        Raises:
            OSError: the folder cannot be read.
            Timeout: the file cannot be understood, and another process has been writing for PATIENCE_S.
        """
        try:
            return self._understood()
        except ValidationError:
            with self._lock():
                return self._understood_or_new()

    def change(self, how: Callable[[Content], None]) -> None:
        """Read, change in place, write.

        Raises:
            OSError: the folder cannot be written.
            Timeout: another process has been writing for PATIENCE_S.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock():
            content = self._understood_or_new()
            how(content)
            self._write(content)

    def _lock(self) -> FileLock:
        return FileLock(self.path.parent / f".{self.path.name}.lock", timeout=PATIENCE_S)

    def _understood(self) -> Content:
        try:
            return self.kind.model_validate_json(self.path.read_bytes().removeprefix(BOM_UTF8))
        except FileNotFoundError:
            return self.kind()

    def _understood_or_new(self) -> Content:
        """Under the lock: what another notebook has just written anew is not put aside."""
        try:
            return self._understood()
        except ValidationError:  # cut off, or edited by hand
            aside = self._free_name()
            os.replace(self.path, aside)
            self._on_broken(aside)
            return self.kind()

    def _free_name(self) -> Path:
        """`x.broken`, `x.broken-2` and so on: an earlier one stays."""
        names = (self.path.with_suffix(f".broken-{n}" if n > 1 else ".broken") for n in itertools.count(1))
        return next(name for name in names if not name.exists())

    def _write(self, content: Content) -> None:
        """Whole or not at all: beside the file, then in its place."""
        partial = self.path.with_suffix(f".{os.getpid()}.partial")
        try:
            partial.write_text(content.model_dump_json(indent=1) + "\n", encoding="utf-8")
            os.replace(partial, self.path)
        finally:
            partial.unlink(missing_ok=True)


class JsonStore(Generic[Content]):
    """A file in minillm's home folder that never breaks a lesson.

    Args:
        name: the file's.
        kind: as of JsonFile.
        anywhere: also outside of notebooks in use; for what was handed in in a terminal.
    """

    def __init__(
        self, name: str, kind: type[Content], *, anywhere: bool = False, say: Callable[[str], None] = print
    ) -> None:
        self.name, self.kind, self.anywhere = name, kind, anywhere
        self._say = say
        self._said = False

    @property
    def path(self) -> Path:
        return cache_home() / self.name

    def read(self) -> Content:
        """What is kept; empty if nothing is, or if nothing is to be kept here."""
        return self.read_or(self.kind())

    def read_or(self, otherwise: Content) -> Content:
        """What is kept, empty if nothing is; `otherwise` if nothing is to be kept here, or it cannot be read."""
        try:
            return self._file().read() if self._is_wanted() else otherwise
        except (OSError, NotImplementedError) as error:  # the last: files cannot be locked there
            self._mention(error)
            return otherwise

    def change(self, how: Callable[[Content], None]) -> None:
        """Read, change in place, write; nothing happens where nothing is to be kept."""
        if not self._is_wanted():
            return
        try:
            self._file().change(how)
        except (OSError, NotImplementedError) as error:
            self._mention(error)

    def _file(self) -> JsonFile[Content]:
        return JsonFile(self.path, self.kind, self._tell_of_broken)

    def _tell_of_broken(self, aside: Path) -> None:
        self._say(f"({self.path.name} could not be read. It has been renamed to {aside}, and a new one started.)")

    def _is_wanted(self) -> bool:
        return self.anywhere or notebook() is not None

    def _mention(self, error: Exception) -> None:
        if not self._said:
            self._said = True
            self._say(f"(Not kept for later: {self.path}: {error}. The lesson works anyway.)")
