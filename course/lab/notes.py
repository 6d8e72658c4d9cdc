"""Notes in a notebook whose lab can't have everything: its device is simulated (simulated_notes.py), or its engine is a
server that runs elsewhere (server_lab.py).

A cell that needs what isn't there ends with a note and no error, so that the rest of the notebook runs. The names that
it would have set, had it gone on, stand for something that isn't here: a cell that uses one shows the same note.
"""

import ast
from collections.abc import Iterator
from html import escape
from types import TracebackType
from typing import NoReturn

from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from IPython.display import display

from course.lab.display import Html
from course.lab.errors import NotInThisLabError
from course.lab.marks import UNAVAILABLE

NOTE = '<p style="border-left:6px solid #888;padding:4px 12px">{}</p>'
OPERATIONS = (
    *("call", "iter", "len", "bool", "int", "float", "str", "format", "getitem", "contains", "lt", "le", "gt", "ge"),
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "neg"),
    *("round", "abs", "mod", "rmod", "pow", "rpow"),
)
"""Special methods that anything made from a result would use."""
SCOPES = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
"""Parts of a cell with names of their own."""


class NotHere:
    """Stands for what this lab can't have: any use of it says why, but for a comparison by `==`."""

    def __init__(self, error: NotInThisLabError) -> None:
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


class NotedNotebook:
    """The notes of a notebook; `watch` begins, and a lab opened later takes over."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell

    def label_beneath(self, result: ExecutionResult) -> Html | None:
        """What has to stand beneath a cell that was executed; None = nothing."""
        return None

    def watch(self) -> None:
        """Begin, in place of one that did before."""
        unwatch(self._shell)
        self._shell.events.register("post_run_cell", self._after)
        self._shell.set_custom_exc((NotInThisLabError,), self._say)

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
        if isinstance(error, NotInThisLabError):
            result.error_in_exec = None  # said already; as an error it would end "Run All Cells"
            code = self._shell.transform_cell(result.info.raw_cell)  # magics and `!` lines become Python
            for name in names_set_by(code, since=self._failing_line(error)):
                self._shell.user_ns[name] = NotHere(error)
        elif (label := self.label_beneath(result)) is not None:
            display(label)

    def _failing_line(self, error: BaseException) -> int:
        """Line of the cell that its top level was at when the error passed; 1 where that isn't known."""
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_globals is not self._shell.user_global_ns:
            trace = trace.tb_next
        return 1 if trace is None else trace.tb_lineno


def unwatch(shell: InteractiveShell) -> None:
    """From here on cells show what they show: another lab is opened."""
    for callback in list(shell.events.callbacks["post_run_cell"]):
        if isinstance(getattr(callback, "__self__", None), NotedNotebook):
            shell.events.unregister("post_run_cell", callback)
            shell.set_custom_exc((), None)


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
