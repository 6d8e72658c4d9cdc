"""Writes the API reference, from the docstrings: `python -m docs.api_reference build/api`. Needs the extra `docs`."""

import sys
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pdoc

import minillm

SOURCES = Path(minillm.__file__).parent
NEEDS = {
    "minillm.kernels.triton.attention_kernels": "triton",
    "minillm.kernels.triton.ops": "triton",
    "minillm.server.deploy_ray": "ray",
}
"""Modules that import what not every machine has: without it they are left out."""
LEFT_OUT = ["minillm.__main__", *(module for module, wanted in NEEDS.items() if find_spec(wanted) is None)]


def write(folder: Path) -> None:
    """Write one HTML page a module, minillm.html first.

    Raises:
        UserWarning: a module cannot be imported, or a docstring cannot be read.
    """
    for package in map(import_module, modules()):
        for name in getattr(package, "__all__", ()):  # some are imported on first use, and pdoc looks without using
            setattr(package, name, getattr(package, name))
    pdoc.render.configure(docformat="google", footer_text="minillm")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", module="pdoc")
        for name in LEFT_OUT:
            warnings.filterwarnings("ignore", message=f"Couldn't import {name}:")
        warnings.filterwarnings("ignore", message="The module specification")  # a package named what is in it, too
        # An alias of observe/records.py, whose modules don't import the frontend: it's shown as it is written.
        warnings.filterwarnings("ignore", message="Error parsing type annotation .*'RequestOutput")
        pdoc.pdoc(*modules(), *(f"!{name}" for name in LEFT_OUT), output_directory=folder)


def modules() -> list[str]:
    """Every module, by name. Left to itself, pdoc stops at an `__all__` that names no modules."""
    files = sorted(SOURCES.rglob("*.py"))
    names = [".".join(file.relative_to(SOURCES.parent).with_suffix("").parts) for file in files]
    return [name for name in (name.removesuffix(".__init__") for name in names) if name not in LEFT_OUT]


if __name__ == "__main__":
    write(Path(sys.argv[1]))
