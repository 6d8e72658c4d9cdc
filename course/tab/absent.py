"""Libraries that a browser tab lacks, as far as importing them goes (as Sphinx's autodoc mocks imports).

Lessons' modules import PyTorch, NumPy or IPython at their top, and draw many of their pictures without. While
`standing_in` lasts, such an import gives a StandIn. It can be called, subclassed or named in an annotation, as modules
do when they are imported, but it's no number, no text and no sequence: a picture that would need one fails.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

from course.tab import widgets
from minillm.core.errors import MinillmError

ABSENT = (
    *("IPython", "aiohttp", "anywidget", "httpx", "ipywidgets", "numpy", "psutil", "safetensors", "tokenizers"),
    *("starlette", "torch", "traitlets", "transformers", "triton", "typer", "uvicorn"),
    *("course", "minillm"),
)
"""Those of our own modules that don't travel (files.py) stand in as well: who measures a model, or drives a server."""


class AbsentError(MinillmError):
    """Something would need a library that isn't here."""


class Made:
    """What a class stands on whose real base is absent."""

    def __init__(self, *_: object, **__: object) -> None: ...


class StandIn(ModuleType):
    """A module, and whatever is found in it or comes of calling that."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__file__ = f"{name}/__init__.py"

    def __getattr__(self, name: str) -> "StandIn":
        if name.startswith("__"):
            raise AttributeError(name)
        found = StandIn(f"{self.__name__}.{name}")
        setattr(self, name, found)
        return found

    def __call__(self, *_: object, **__: object) -> "StandIn":
        return StandIn(f"{self.__name__}()")

    def __mro_entries__(self, _: object) -> tuple[type, ...]:
        return (Made,)

    def _with(self, *_: object) -> "StandIn":
        return StandIn(f"{self.__name__} …")

    def _is_no_value(self, *_: object) -> NoReturn:
        raise AbsentError(f"{self.__name__} isn't in a browser tab")

    __getitem__ = __or__ = __ror__ = __and__ = __rand__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = _with
    __rmul__ = __truediv__ = __rtruediv__ = __rshift__ = __lshift__ = __neg__ = __invert__ = _with
    __bool__ = __iter__ = __len__ = __float__ = __int__ = __index__ = __str__ = __repr__ = __format__ = _is_no_value
    __lt__ = __le__ = __gt__ = __ge__ = _is_no_value


class Finder:
    """Finds stand-ins for imports that nothing else finds."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in ABSENT else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == "ipywidgets":
            vars(module).update({name: kind for name, kind in vars(widgets).items() if isinstance(kind, type)})
        elif module.__name__ == "anywidget":
            vars(module)["AnyWidget"] = widgets.ValueWidget


@contextmanager
def standing_in() -> Iterator[None]:
    """For imports of the course's own modules. Afterwards importing those libraries fails again."""
    finder: Any = Finder()
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name, module in sys.modules.items() if isinstance(module, StandIn)]:
            del sys.modules[name]
