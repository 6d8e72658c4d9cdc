"""Writes the API reference, from the docstrings: `python -m docs.api_reference build/api`. Needs the extra `docs`."""

import sys
import warnings
from pathlib import Path

import pdoc

import minillm

LEFT_OUT = (
    "minillm.__main__",  # it runs the command
    "minillm.bench.fa3_shim",  # imports what only some GPU machines have
    "minillm.serve.deploy_ray",  # imports Ray
)


def write(folder: Path) -> None:
    """Write one HTML page a module, minillm.html first.

    Raises:
        UserWarning: a module cannot be imported, or a docstring cannot be read.
    """
    for name in minillm.__all__:  # they are imported on first use, and pdoc looks without using
        setattr(minillm, name, getattr(minillm, name))
    pdoc.render.configure(docformat="google", footer_text="minillm")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", module="pdoc")
        pdoc.pdoc("minillm", *(f"!{name}" for name in LEFT_OUT), output_directory=folder)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
