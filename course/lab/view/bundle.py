"""The view's files as one script: a widget takes a single file, and a page opened from disk may load no modules."""

import re
from pathlib import Path

FOLDER = Path(__file__).parent
PARTS = (
    "trace",
    "say",
    "paint",
    "timeline",
    "blocks",
    "elements",
    "controls",
    "headline",
    "playhead",
    "player",
    "view",
)
"""Modules, each after those that it imports."""
IMPORT = re.compile(r'^import .*? from "\./\w+\.js";\n', re.M | re.S)
EXPORT = re.compile(r"^export \{.*?\};\n", re.M | re.S)
STYLE = FOLDER / "view.css"


def joined(*more: str) -> str:
    """The modules behind each other, without what imports and exports between them.

    Args:
        more: modules after PARTS.
    """
    sources = ((FOLDER / f"{name}.js").read_text(encoding="utf-8") for name in (*PARTS, *more))
    return "\n".join(EXPORT.sub("", IMPORT.sub("", source)) for source in sources)


def widget_script(render: str = "render") -> str:
    """For anywidget: a module with `render`, under the name that it has in the modules."""
    return f"{joined()}\nexport default {{ render: {render} }};\n"


def page_script() -> str:
    """For a page without a kernel: a script that leaves `minillmDashboard`, whose `mountAll` wants recorded runs."""
    live = joined("port", "tab", "live_traffic", "live_strip", "live", "workshop", "contest", "recorded")
    names = "TabPython, mountAll, mountContest, mountExercise, mountLive, mountPlayers, figuresAt, meanPhases"
    exported = f"window.minillmDashboard = {{ {names} }};"
    return f'(() => {{\n"use strict";\n{live}\n{exported}\n}})();\n'
