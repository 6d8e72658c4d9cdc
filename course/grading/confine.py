"""What code may use that must depend on nothing but its arguments (`minillm beat`): no clock, no files, no way out.

Two walls: either is enough for accidents, intent needs both. `refusals` reads the source before it runs: no name and no
attribute that leads from an object to the interpreter. `close` is for the process it runs in (child.py): builtins
and modules are short lists, and Python's own audit events end in a refusal, which no code can take back.
"""

import ast
import builtins
import importlib
import random
import sys
import types
from collections.abc import Iterator
from typing import Any

MODULES: dict[str, tuple[str, ...]] = {
    "bisect": ("bisect", "bisect_left", "bisect_right", "insort", "insort_left", "insort_right"),
    "collections": ("ChainMap", "Counter", "OrderedDict", "defaultdict", "deque", "namedtuple"),
    "collections.abc": ("Callable", "Collection", "Iterable", "Iterator", "Mapping", "Sequence"),
    "dataclasses": ("dataclass", "field", "replace"),
    "functools": ("cache", "cached_property", "cmp_to_key", "lru_cache", "partial", "reduce", "total_ordering"),
    "heapq": ("heapify", "heappop", "heappush", "heappushpop", "heapreplace", "merge", "nlargest", "nsmallest"),
    "itertools": ("accumulate", "chain", "count", "groupby", "islice", "pairwise", "product", "takewhile"),
    "math": ("ceil", "exp", "floor", "fsum", "hypot", "inf", "isclose", "isfinite", "isinf", "log", "log2", "sqrt"),
    "random": ("Random",),
    "statistics": ("fmean", "mean", "median", "quantiles", "stdev"),
    "typing": ("Any", "NamedTuple", "Protocol"),
}
"""Modules, and the names of each that may be used. Others of their names lead to `sys`, or to `eval`."""
BUILTINS = """
    abs all any bool bytes dict divmod enumerate filter float frozenset int isinstance issubclass iter len list map max
    min next object pow print property range repr reversed round set slice sorted staticmethod classmethod str sum super
    tuple zip NotImplemented Exception ArithmeticError AssertionError AttributeError IndexError KeyError LookupError
    NotImplementedError OverflowError RuntimeError StopIteration TypeError ValueError ZeroDivisionError __build_class__
"""
METHODS = """
    __init__ __post_init__ __repr__ __str__ __bool__ __len__ __iter__ __next__ __contains__ __getitem__ __setitem__
    __delitem__ __call__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ __add__ __sub__ __mul__ __neg__
"""
"""Special methods that a class may define."""
LEADS_OUT = {"gi_frame", "cr_frame", "ag_frame", "tb_frame", "gi_code", "cr_code", "ag_code", "f_back", "f_globals"}
LEADS_OUT |= {"f_builtins", "f_locals", "f_code", "mro", "format", "format_map", "with_traceback"}
"""Attributes through which an object shows its frame, its classes, or another's attributes by name."""
REFUSED_EVENTS = ("open", "os.", "ctypes.", "socket.", "subprocess.", "shutil.", "signal.", "fcntl.", "mmap.", "gc.")
REFUSED_EVENTS += ("code.__new__", "sys._current_frames", "sys.addaudithook", "sys.setprofile", "sys.settrace")
"""Beginnings of Python's audit events."""


def refusals(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, what it must not use), for everything in a source that it must not use."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 1)
        if isinstance(node, ast.Import):
            names = [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(node.module or ".", alias.name) for alias in node.names]
        else:
            names = []
        for module, name in names:
            if module == "__future__":
                continue
            if module not in MODULES or (name is not None and name not in MODULES[module]):
                yield line, f"import {module}" if name is None else f"from {module} import {name}"
        for name in _names_in(node):
            if _leads_out(name, node):
                yield line, name


def _names_in(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        return [node.attr]
    if isinstance(node, ast.MatchClass):
        return node.kwd_attrs
    if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
        return [node.name]
    if isinstance(node, (ast.Global, ast.Nonlocal)):
        return node.names
    if isinstance(node, ast.arg):
        return [node.arg]
    return [node.arg] if isinstance(node, ast.keyword) and node.arg else []


def _leads_out(name: str, node: ast.AST) -> bool:
    is_special = name.startswith("__") and name.endswith("__")
    if isinstance(node, ast.FunctionDef) and name in METHODS.split():
        return False
    if isinstance(node, ast.Attribute) and name == "__init__":  # super().__init__()
        return False
    if isinstance(node, ast.Name) and name == "__slots__":
        return False
    return is_special or (name in LEADS_OUT and not isinstance(node, ast.Name))


class SeededRandom(random.Random):
    """Python's generator, which here must be given a seed: without one it would ask the machine for chance."""

    def __init__(self, seed: int | float | str) -> None:
        super().__init__(seed)

    def seed(self, a: Any = None, version: int = 2) -> None:
        if a is None:
            raise ValueError("Random needs a seed: a score must come out the same each time")
        super().seed(a, version)


def builtins_of_a_closed_room() -> dict[str, Any]:
    """What a module may be given as its `__builtins__`. Call it before `close`: it imports what may be imported."""
    shown: dict[str, Any] = {"__future__": importlib.import_module("__future__")}
    for name, members in MODULES.items():
        module = importlib.import_module(name)
        shown[name] = types.SimpleNamespace(**{member: getattr(module, member) for member in members})
    shown["random"].Random = SeededRandom
    shown["collections"].abc = shown["collections.abc"]

    def import_shown(name: str, _globals: Any = None, _locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if level or name not in shown:
            raise ImportError(f"`{name}` can't be imported here; these can: {', '.join(MODULES)}")
        return shown[name] if fromlist else shown[name.partition(".")[0]]

    return {name: getattr(builtins, name) for name in BUILTINS.split()} | {"__import__": import_shown}


def close() -> None:
    """From now on this process opens no file, no connection and no other process. Cannot be taken back."""

    def refuse(event: str, _: tuple[Any, ...]) -> None:
        if event.startswith(REFUSED_EVENTS):
            raise PermissionError(f"{event} is switched off here")

    sys.addaudithook(refuse)
