"""The lab: what lessons import. The engine knows nothing of it; it only reads what the engine reports.

lab.py         Lab: one model, one engine at a time, runs to compare
session.py     the client of an experiment     run.py    what happened in one run
dashboard.py   the live app                    controls.py, workloads.py   what it can change
pictures/      one picture a module            svg.py, style.py   how they are drawn
predict.py     locked predictions              grading/   checks      claims.py   the ledger's rows
build.py       lessons from .py to executed .ipynb
"""

from course.lab.dashboard import Dashboard
from course.lab.lab import Lab
from course.lab.predict import Prediction
from course.lab.replay import Replay
from course.lab.ruler import Ruler
from course.lab.summary import phase_table

__all__ = ["Dashboard", "Lab", "Prediction", "Replay", "Ruler", "phase_table"]
