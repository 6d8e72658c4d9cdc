"""A notebook on a simulated device: what its cells show is labelled, and what can't be had is said in a sentence.

A cell that needs a real model ends with a note and no error, so that the rest of the notebook runs. The names that it
would have set stand for something that isn't here: a cell that uses one shows the same note.
"""

import ast
from html import escape
from types import TracebackType
from typing import NoReturn

from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from IPython.display import display

from course.lab.display import Html
from course.lab.predict import Prediction
from course.lab.run import Run
from course.lab.simulated_device import SimulatedDevice, SimulatedDeviceError
from minillm.policies.config import EngineConfig

NOTE = '<p style="border-left:6px solid #888;padding:4px 12px">{}</p>'
OPERATIONS = (
    *("call", "iter", "len", "bool", "int", "float", "str", "format", "getitem", "contains", "lt", "le", "gt", "ge"),
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "neg"),
)
"""Special methods that anything made from a result would use."""


class NotHere:
    """Stands for a result that a simulated device can't have: any use of it says why."""

    def __init__(self, error: SimulatedDeviceError) -> None:
        self._error = error

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # asked by libraries that look what it is
            raise AttributeError(name)
        raise self._error

    def _ipython_display_(self) -> NoReturn:
        raise self._error


def _refuse(self: NotHere, *operands: object) -> NoReturn:
    raise self._error


for _name in OPERATIONS:
    setattr(NotHere, f"__{_name}__", _refuse)


class SimulatedNotebook:
    """Labels and notes in the notebook of a lab; `watch` begins, and a lab opened later takes over.

    Args:
        config: the lab's own. Runs are labelled by theirs.
    """

    def __init__(self, shell: InteractiveShell, device: SimulatedDevice, config: EngineConfig) -> None:
        self._shell, self._device = shell, device
        self._label = label_of(device, config, ", as the lab was opened")

    def watch(self) -> None:
        """Begin, in place of one that did before."""
        unwatch(self._shell)
        self._shell.events.register("post_run_cell", self._after)
        self._shell.set_custom_exc((SimulatedDeviceError,), self._say)

    def _say(
        self,
        shell: InteractiveShell,
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
        tb_offset: int | None = None,
    ) -> None:
        """In place of a traceback."""
        display(Html(NOTE.format(escape(str(error))), str(error)))

    def _after(self, result: ExecutionResult) -> None:
        error = result.error_in_exec
        if isinstance(error, SimulatedDeviceError):
            result.error_in_exec = None  # said already; as an error it would end "Run All Cells"
            known = self._shell.user_ns
            for name in names_set_by(result.info.raw_cell):
                if name not in known or isinstance(known[name], NotHere):
                    known[name] = NotHere(error)
        elif result.result is not None and not isinstance(result.result, Prediction):
            display(self._label_beneath(result.result))

    def _label_beneath(self, shown: object) -> Html:
        if isinstance(shown, Run) and shown.simulated_on:
            return label_of(self._device, shown.config)
        return self._label


def unwatch(shell: InteractiveShell) -> None:
    """From here on cells show what they show: another lab is opened."""
    for callback in list(shell.events.callbacks["post_run_cell"]):
        if isinstance(getattr(callback, "__self__", None), SimulatedNotebook):
            shell.events.unregister("post_run_cell", callback)
            shell.set_custom_exc((), None)


def label_of(device: SimulatedDevice, config: EngineConfig, when: str = "") -> Html:
    """One line for beneath a cell: what was simulated, and its error band."""
    words = (
        f"{device.label(config).capitalize()}{when}; text is a placeholder, and what Python does is this machine's. "
    )
    band = device.error_band(config)
    look = "font-size:12px;opacity:.75"
    return Html(f'<div style="{look}">{escape(words)}{band.html}</div>', words + band.text)


def names_set_by(code: str) -> set[str]:
    """Names that a cell's top level assigns."""
    targets = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name))
    return {node.id for node in targets if isinstance(node.ctx, ast.Store)}
