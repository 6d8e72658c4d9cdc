"""A notebook on a simulated device: what its cells show is labelled, and what can't be had is said in a sentence.

A cell that needs a real model ends with a note and no error, so that the rest of the notebook runs. The names that it
would have set, had it gone on, stand for something that isn't here: a cell that uses one shows the same note.
"""

import ast
from collections.abc import Iterator, Mapping
from html import escape
from types import FunctionType, ModuleType, TracebackType
from typing import NoReturn

from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from IPython.display import display

from course.grading import Result
from course.lab.display import Html
from course.lab.marks import LABEL, UNAVAILABLE
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
UNLABELLED = (Prediction, Result)
"""Results of cells that show nothing simulated: a bet, and the graded answer to a check."""
THIS_LAB, OTHERS = "this lab", "others"
OTHERS_MODULES = ("_70b", ".simulated")
"""How the names of modules end that simulate a deployment of their own, whatever the lab's device."""
MOST_LOOKED_AT = 3
"""Of a list's items: they're all of a kind."""
SCOPES = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
"""Parts of a cell with names of their own."""


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
        display(Html(NOTE.format(escape(str(error))), str(error), {UNAVAILABLE: True}))

    def _after(self, result: ExecutionResult) -> None:
        error = result.error_in_exec
        if isinstance(error, SimulatedDeviceError):
            result.error_in_exec = None  # said already; as an error it would end "Run All Cells"
            code = self._shell.transform_cell(result.info.raw_cell)  # magics and `!` lines become Python
            for name in names_set_by(code, since=self._failing_line(error)):
                self._shell.user_ns[name] = NotHere(error)
        elif not (result.result is None or isinstance(result.result, UNLABELLED) or self._is_of_others(result)):
            display(self._label_beneath(result.result))

    def _is_of_others(self, result: ExecutionResult) -> bool:
        """Whether a cell shows nothing but what was simulated apart from the lab, with an error band of its own."""
        names = names_used_by(self._shell.transform_cell(result.info.raw_cell))
        found = set[str]()
        for name in names & self._shell.user_ns.keys():
            found |= origins(self._shell.user_ns[name])
        return found == {OTHERS}

    def _failing_line(self, error: BaseException) -> int:
        """Line of the cell that its top level was at when the error passed; 1 where that isn't known."""
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_globals is not self._shell.user_global_ns:
            trace = trace.tb_next
        return 1 if trace is None else trace.tb_lineno

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


def names_set_by(code: str, since: int = 1) -> set[str]:
    """Names that a cell's top level assigns in the statement that a line is part of, or later; none in what is no
    Python."""
    try:
        statements = ast.parse(code).body
    except SyntaxError:
        return set()
    late = [statement for statement in statements if (statement.end_lineno or since) >= since]
    return {name for statement in late for name in _stored(statement)}


def _stored(node: ast.AST) -> Iterator[str]:
    """Names that a node assigns, but for those that are local to a part of it."""
    if isinstance(node, SCOPES):
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    for child in ast.iter_child_nodes(node):
        yield from _stored(child)
