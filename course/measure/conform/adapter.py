"""What an adapter offers, so that an engine's scheduler and block manager can be tried without its model or a GPU.

An adapter is a Python file with a class named `Adapter`: it makes the engine's own scheduler, and in each step turns
what that schedules into rows for a :class:`CountingModel`, as the engine's runner would for a GPU.
"""

import importlib.util
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import NamedTuple, Protocol

from course.measure.conform.counting import CountingModel
from minillm.core.errors import MinillmError


class Limits(NamedTuple):
    """The engine that a check wants, in vLLM's names."""

    num_blocks: int = 64
    block_size: int = 16
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 512
    max_model_len: int = 512


class RefusedError(Exception):
    """The engine says that it can't serve this request, and says why. (Any ValueError counts as well.)"""


class Adapter(Protocol):
    """An engine over a model that counts.

    Args:
        limits: what it may use. One that can't be set is a reason to raise NotImplementedError.
        model: computes its steps.
    """

    def __init__(self, limits: Limits, model: CountingModel) -> None: ...

    def add(self, name: str, prompt: list[int], max_tokens: int) -> None:
        """Queue a request, greedy and without an end token. Raises RefusedError if it can never be served."""
        ...

    def step(self) -> dict[str, list[int]]:
        """One step. Returns the new tokens by request; an empty dictionary where the step brought none."""
        ...

    def is_idle(self) -> bool:
        """Whether no request is queued or running."""
        ...

    def num_free_tokens(self) -> int:
        """KV positions that a new request could take: those that only a prefix cache holds are free as well."""
        ...

    def abort(self, name: str) -> None:
        """The client left: end the request, whatever its state. Raises NotImplementedError if the engine can't."""
        ...


METHODS = ("add", "step", "is_idle", "num_free_tokens", "abort")
"""What an adapter must have, besides its constructor."""


class AdapterError(MinillmError):
    """The adapter can't be used: what's wrong is in its file, not in the engine. The message says why."""


class LimitError(TimeoutError):
    """What `time_limit` raises."""


BUILT_IN = Path(__file__).parent / "adapters"
"""Adapters that come along, by the name of the engine."""

IMPORT_LIMIT_S = 120.0
"""An engine that imports a compiler and a model library takes a quarter of that."""


def load_adapter(name: str, limit_s: float = IMPORT_LIMIT_S) -> type[Adapter]:
    """The class `Adapter` of a file, or of a built-in one by its name, such as nano_vllm.

    What the file prints while it's imported goes to standard error: standard output may be one JSON object.

    Args:
        limit_s: seconds that its import may take.
    Raises:
        AdapterError: there's no such file, it can't be imported in time, or its class Adapter is missing or not whole.
    """
    built_in = BUILT_IN / f"{name.replace('-', '_')}.py"
    path = built_in if built_in.exists() else Path(name)
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in BUILT_IN.glob("[!_]*.py")))
        raise AdapterError(f"no adapter {name}: give a Python file with a class Adapter, or one of {known}")
    loader = SourceFileLoader("conform_adapter", str(path))
    spec = importlib.util.spec_from_file_location("conform_adapter", path, loader=loader)
    assert spec is not None  # a loader is given
    module = importlib.util.module_from_spec(spec)
    try:
        with redirect_stdout(sys.stderr), time_limit(limit_s, "its import"):
            loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise AdapterError(f"{path}: {type(error).__name__}: {error}") from error
    make = getattr(module, "Adapter", None)
    if not isinstance(make, type):
        raise AdapterError(f"{path} has no class Adapter")
    if lacks := [name for name in METHODS if not callable(getattr(make, name, None))]:
        raise AdapterError(f"{path}: its class Adapter lacks {', '.join(lacks)}")
    return make


@contextmanager
def time_limit(seconds: float, what: str) -> Iterator[None]:
    """Raise LimitError where the code below is by then; a wait inside a lock or a socket is interrupted, too.

    Args:
        what: begins the error's message.
    """

    def stop(*_: object) -> None:
        raise LimitError(f"{what} hasn't ended after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
