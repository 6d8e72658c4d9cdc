"""Views' files as one script each: a widget takes a single file, and a page opened from disk may load no modules."""

import re
from pathlib import Path

FOLDER = Path(__file__).parent
PARTS = (
    "keep",
    "held_model",
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
    "view",
)
"""The dashboard's modules, each after those that it imports."""
TAB = ("port", "tab", "live_traffic", "live_strip", "live", "chats", "progress", "workshop", "contest")
"""What needs Python in the tab, after the dashboard's."""
SHEET = ("keep", "held_model", "elements", "sheet")
"""The capacity worksheet's."""
INSTRUMENTS = (
    *SHEET,
    "port",
    "late_python",
    "recorded_frames",
    "progress",
    "explorer_page",
    "check_page",
    "instruments_page",
)
"""What lessons' pages ask of Python: worksheets, explorers and checks."""
CONSOLE = (
    "elements",
    "held_model",
    "kernel_port",
    "console_chart",
    "console_alarm",
    "console_evidence",
    "console_actions",
    "console_debrief",
    "console",
)
"""The incident console's, in the same order."""
ON_PAGE = ("port", "progress", "played", "opened")
"""What a view that Python plays takes on a page, before its own module for that."""
CONSOLE_PAGE = (*CONSOLE, *ON_PAGE, "console_page")
"""What it takes on a page."""
DRILL = ("elements", "held_model", "kernel_port", "fields", "countdown", "drill_verdict", "drill")
"""A drill's."""
DRILL_PAGE = (*DRILL, *ON_PAGE, "drill_page")
"""What it takes on a page."""
ROUND_PAGE = ("elements", "fields", "countdown", "round", *ON_PAGE, "round_page")
NAPKIN_PAGE = ("elements", "countdown", *ON_PAGE, "napkin_page")
PROGRESS_PAGE = ("elements", "progress", "progress_page")
IMPORT = re.compile(r'^import .*? from "\./[\w/]+\.js";\n', re.M | re.S)
EXPORT = re.compile(r"^export \{.*?\};\n", re.M | re.S)
STYLE = FOLDER / "view.css"


def joined(*names: str) -> str:
    """Modules behind each other, without what imports and exports between them."""
    return "\n".join(_alone(FOLDER / f"{name}.js") for name in names)


def _alone(module: Path) -> str:
    """Without what it imports and exports."""
    return EXPORT.sub("", IMPORT.sub("", module.read_text(encoding="utf-8")))


def keeping_script(module: Path) -> str:
    """For anywidget: a module of its own that keeps last frames (keep.js), and says what a screen reader needs
    (accessible.js)."""
    return f"{joined('keep', 'accessible')}\n{_alone(module)}"


def styles(*names: str) -> str:
    """The style that all views share, and more of this folder's."""
    return "\n".join(path.read_text(encoding="utf-8") for path in (STYLE, *(FOLDER / f"{name}.css" for name in names)))


def widget_script(render: str = "render", parts: tuple[str, ...] = PARTS) -> str:
    """For anywidget: a module with `render`, under the name that it has in the modules."""
    return f"{joined(*parts)}\nexport default {{ render: {render} }};\n"


def page_script() -> str:
    """For a page without a kernel: a script that leaves `minillmDashboard`, whose `mountAll` wants recorded runs."""
    mounts = ("mountAll", "mountChats", "mountContest", "mountExercise", "mountLive", "mountPlayers")
    offered = ("TabPython", *mounts)
    exported = ", ".join((*offered, "figuresAt", "meanPhases"))
    return in_page(f"window.minillmDashboard = {{ {exported} }};", *PARTS, *TAB, "recorded")


def in_page(exported: str, *names: str) -> str:
    """A script of modules for a page.

    Args:
        exported: the statement that leaves something for other scripts.
    """
    return f'(() => {{\n"use strict";\n{joined(*names)}\n{exported}\n}})();\n'
