"""Modules that an engine's files import, and that a CPU can't have or a scheduler doesn't need."""

import importlib.util
import sys
from types import ModuleType


def stand_in(name: str, **attributes: object) -> None:
    """Let `import name` succeed where the module isn't installed: it has these attributes, and nothing else."""
    if name not in sys.modules and importlib.util.find_spec(name) is None:
        replace(name, **attributes)


def replace(name: str, **attributes: object) -> None:
    """Let `import name` find a module of these attributes, also where there's another."""
    module = ModuleType(name)
    vars(module).update(attributes)
    sys.modules[name] = module
