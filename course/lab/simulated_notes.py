"""A notebook on a simulated device: what its cells show is labelled, and what can't be had is said in a sentence."""

import ast
from collections.abc import Mapping
from html import escape
from types import FunctionType, ModuleType

from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

from course.grading import Result
from course.grading.card import CheckCard
from course.lab.display import Html
from course.lab.marks import LABEL
from course.lab.notes import NotedNotebook
from course.lab.predict import Prediction
from course.lab.run import Run
from course.lab.simulated_device import SimulatedDevice
from minillm.policies.config import EngineConfig

UNLABELLED = (Prediction, Result, CheckCard)
"""Results of cells that show nothing simulated: a bet, a check, and the graded answer to one."""
THIS_LAB, OTHERS = "this lab", "others"
OTHERS_MODULES = ("_70b", ".simulated")
"""How the names of modules end that simulate a deployment of their own, whatever the lab's device."""
MOST_LOOKED_AT = 3
"""Items of a list: they're all of a kind."""


class SimulatedNotebook(NotedNotebook):
    """Labels and notes in the notebook of a lab.

    Args:
        config: the lab's own. Runs are labelled by theirs.
    """

    def __init__(self, shell: InteractiveShell, device: SimulatedDevice, config: EngineConfig) -> None:
        super().__init__(shell)
        self._device = device
        self._label = label_of(device, config, ", as the lab was opened")

    def label_beneath(self, result: ExecutionResult) -> Html | None:
        shown = result.result
        if shown is None or isinstance(shown, UNLABELLED) or self._is_of_others(result):
            return None
        if isinstance(shown, Run) and shown.simulated_on:
            return label_of(self._device, shown.config)
        return self._label

    def _is_of_others(self, result: ExecutionResult) -> bool:
        """Whether a cell shows nothing but what was simulated apart from the lab, with an error band of its own."""
        names = names_used_by(self._shell.transform_cell(result.info.raw_cell))
        found = set[str]()
        for name in names & self._shell.user_ns.keys():
            found |= origins(self._shell.user_ns[name])
        return found == {OTHERS}


def label_of(device: SimulatedDevice, config: EngineConfig, when: str = "") -> Html:
    """One line for beneath a cell: what was simulated, and its error band."""
    words = (
        f"{device.label(config).capitalize()}{when}; text is a placeholder, and what Python does is this machine's. "
    )
    band = device.error_band(config)
    look = "font-size:12px;opacity:.75"
    return Html(f'<div style="{look}">{escape(words)}{band.html}</div>', words + band.text, {LABEL: True})


def origins(value: object, depth: int = 3) -> set[str]:
    """Whose figures something holds that a cell uses: the lab's, or a simulation's of its own; none if it's code.
    What isn't known counts as the lab's.
    """
    if isinstance(value, Mapping) and depth:
        return set().union(*(origins(each, depth - 1) for each in value.values()))
    if isinstance(value, (list, tuple)) and depth:
        return set().union(*(origins(each, depth - 1) for each in value[:MOST_LOOKED_AT]))
    home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or ""
    if home.startswith("course.simulator") or home.endswith(OTHERS_MODULES):
        return {OTHERS}
    return set() if isinstance(value, (ModuleType, FunctionType, type, Prediction)) else {THIS_LAB}


def names_used_by(code: str) -> set[str]:
    """Names that a cell reads; none in what is no Python."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return set()
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
