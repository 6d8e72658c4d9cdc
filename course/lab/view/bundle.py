"""The view's files as one script: a widget takes a single file, and a page opened from disk may load no modules."""

import re
from pathlib import Path

FOLDER = Path(__file__).parent
PARTS = (
    "keep",
    "trace",
    "say",
    "paint",
    "timeline",
    "blocks",
    "strip",
    "elements",
    "loop",
    "controls",
    "headline",
    "playhead",
    "player",
    "growing",
    "envelope",
    "sheet",
    "view",
)
"""Modules, each after those that it imports."""
IMPORT = re.compile(r'^import .*? from "\./[\w/]+\.js";\n', re.M | re.S)
EXPORT = re.compile(r"^export \{.*?\};\n", re.M | re.S)
STYLE = FOLDER / "view.css"


def joined(*more: str) -> str:
    """The modules behind each other, without what imports and exports between them.

    Args:
        more: modules after PARTS.
    """
    return "\n".join(_alone(FOLDER / f"{name}.js") for name in (*PARTS, *more))


def _alone(module: Path) -> str:
    """Without what it imports and exports."""
    return EXPORT.sub("", IMPORT.sub("", module.read_text(encoding="utf-8")))


def keeping_script(module: Path) -> str:
    """For anywidget: a module of its own that keeps last frames (keep.js)."""
    return f"{_alone(FOLDER / 'keep.js')}\n{_alone(module)}"


def widget_script(render: str = "render") -> str:
    """For anywidget: a module with `render`, under the name that it has in the modules."""
    return f"{joined()}\nexport default {{ render: {render} }};\n"


def page_script() -> str:
    """For a page without a kernel: a script that leaves `minillmDashboard`, whose `mountAll` wants recorded runs."""
    offered = ("mountAll", "mountPlayers", "mountSheets", "figuresAt", "meanPhases", "price")
    exported = f"window.minillmDashboard = {{ {', '.join(offered)} }};"
    return f'(() => {{\n"use strict";\n{joined("recorded")}\n{exported}\n}})();\n'
