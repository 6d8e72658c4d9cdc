"""What passes between a judge and the process that an answer runs in: plain data by value, everything else by number.

Both ends read with the same short list of types, so nothing that an answer sends can run code in the judge's process.
The child imports this file by itself (child.py): it needs the standard library only, and NumPy where that is loaded.
"""

import builtins
import collections
import dataclasses
import importlib
import io
import itertools
import pickle
import types
from collections.abc import Callable, Container
from typing import Any

LONGEST = 100_000
"""Items of a generator that are read: an endless one ends here."""
BASES = (str, bytes, int, float, tuple, list, dict, set, frozenset)
PLAIN = {type(None), bool, complex, bytearray, range, *BASES}
NUMPY = {"_reconstruct", "scalar", "dtype", "ndarray"}
VIEWS = (collections.deque, type({}.keys()), type({}.values()), type({}.items()))
PROPS = "props"


def home(kind: Any) -> str:
    """The last part of a module's name: the child has `props` where the judge has `course.grading.props`."""
    return str(getattr(kind, "__module__", "")).rpartition(".")[2]


def travels(kind: type) -> bool:
    """A type whose values are sent as they are: plain data, NumPy's arrays and scalars, and judges' records."""
    if kind in PLAIN or (home(kind) == PROPS and dataclasses.is_dataclass(kind)):
        return True
    if kind.__module__.partition(".")[0] != "numpy":
        return False
    return kind.__name__ == "ndarray" or any(base.__name__ in ("dtype", "generic") for base in kind.__mro__)


def becomes_plain(value: Any) -> bool:
    """Iterators, views and subclasses of plain types (named tuples, counters) are sent as what they hold."""
    return hasattr(type(value), "__next__") or isinstance(value, (*VIEWS, *BASES))


def first_items(value: Any) -> list[Any]:
    """The items of what can be iterated; of an endless one, just enough to see that it is too long."""
    return list(itertools.islice(value, LONGEST + 1))


class Packer(pickle.Pickler):
    """Writes a message.

    Args:
        number_of: a name for what stays where it is.
        stay: `id` of what does, though it could be sent.
    """

    def __init__(self, file: io.BytesIO, number_of: Callable[[Any], Any], stay: Container[int]) -> None:
        super().__init__(file, protocol=4)
        self._number_of, self._stay = number_of, stay

    def persistent_id(self, value: Any) -> Any:
        kind = type(value)
        if kind in PLAIN:
            return None
        if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
            name, where = getattr(value, "__name__", ""), str(getattr(value, "__module__", ""))
            is_ours = isinstance(value, type) and travels(value)
            is_known = is_ours or (where.partition(".")[0] == "numpy" and name in NUMPY)
            return None if is_known else self._number_of(value)
        goes = travels(kind) or (becomes_plain(value) and id(value) not in self._stay)
        return None if goes else self._number_of(value)

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)) or travels(kind):
            return NotImplemented
        if isinstance(value, VIEWS) or hasattr(kind, "__next__"):
            return list, (first_items(value),)
        base = next(base for base in BASES if isinstance(value, base))
        return base, ((dict if base is dict else list if base in (tuple, list, set, frozenset) else base)(value),)


class Unpacker(pickle.Unpickler):
    """Reads a message.

    Args:
        thing_of: what a number stands for.
    """

    def __init__(self, file: io.BytesIO, thing_of: Callable[[Any], Any]) -> None:
        super().__init__(file)
        self._thing_of = thing_of

    def find_class(self, module: str, name: str) -> Any:
        if module == "builtins" and getattr(builtins, name, None) in PLAIN:
            return getattr(builtins, name)
        if module.partition(".")[0] == "numpy" and name in NUMPY:
            return super().find_class(module, name)
        if module.rpartition(".")[2] == PROPS:
            prefix = f"{__package__}." if __package__ else ""
            return getattr(importlib.import_module(prefix + PROPS), name)
        raise pickle.UnpicklingError(f"{module}.{name} is no data")

    def persistent_load(self, number: Any) -> Any:
        return self._thing_of(number)


def packed(value: Any, number_of: Callable[[Any], Any], stay: Container[int] = ()) -> bytes:
    file = io.BytesIO()
    Packer(file, number_of, stay).dump(value)
    return file.getvalue()


def unpacked(data: bytes, thing_of: Callable[[Any], Any]) -> Any:
    return Unpacker(io.BytesIO(data), thing_of).load()
