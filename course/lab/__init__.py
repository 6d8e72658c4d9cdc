"""The lab: what lessons import. The engine knows nothing of it; it only reads what the engine reports.

lab.py         Lab: one model, one engine at a time, runs to compare
session.py     the client of an experiment     run.py    what happened in one run
dashboard.py   the live app                    controls.py, workloads.py   what it can change
view/          what the browser draws of it                    printed.py  the same without scripts
explorer.py    a picture with sliders       simulated_70b.py  the same questions at 70B, simulated
simulated_device.py  an accelerator that isn't there             stepped_engine.py  runs on it    three_machines.py
server_lab.py  lessons on a server elsewhere                     remote.py, server_tap.py, notes.py
server.py      the real server              proxy.py, relay.py   what may stand before it      prices.py  of GPUs
pictures/      one picture a module            svg.py, style.py   how they are drawn
predict.py     locked predictions              claims.py, finding.py    what a lesson's words say of a run
waiting.py     what a cell is waiting for
control.py     the same run twice: how noisy the machine is       noise.py  the same of all runs of a dashboard
hero.py        README's picture of the dashboard           plain_text.py  what a cell's last line prints
build.py       lessons and exercises from .py to .ipynb           outcomes.py   how bets end, folded away
run_notebooks.py   as `make test` runs them
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from course.grading.notebook import check, hint
    from course.lab.dashboard import Dashboard
    from course.lab.explorer import Explorer
    from course.lab.lab import Lab, open_lab
    from course.lab.predict import Prediction
    from course.lab.replay import Replay
    from course.lab.ruler import Ruler
    from course.lab.summary import phase_table

# A browser draws beside the engine. Threads of the engine that wait for each other by spinning would keep both
# from running: measured on 2 cores of an Intel Xeon with AMX, a decode step takes 15.5 ms with this spin and 14 with
# minillm's own longer one, but 31 and 95 ms beside one busy process. Before anything imports torch.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

__all__ = ["Dashboard", "Explorer", "Lab", "Prediction", "Replay", "Ruler", "check", "hint", "open_lab", "phase_table"]

_HOMES = {
    "Dashboard": "course.lab.dashboard",
    "Explorer": "course.lab.explorer",
    "Lab": "course.lab.lab",
    "Prediction": "course.lab.predict",
    "Replay": "course.lab.replay",
    "Ruler": "course.lab.ruler",
    "check": "course.grading.notebook",
    "hint": "course.grading.notebook",
    "open_lab": "course.lab.lab",
    "phase_table": "course.lab.summary",
}


def __getattr__(name: str) -> Any:
    """Import on first use (PEP 562): an exercise's check does not wait for torch and widgets."""
    if name not in _HOMES:
        raise AttributeError(f"module 'course.lab' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


if "ipykernel" in sys.modules:  # in a notebook: from here on no cell is silent, this one's imports included
    importlib.import_module("course.lab.waiting").watch_cells()
