"""A contestant's file: the rules it keeps, the process it runs in, and its answers, each of which is looked at.

The file never runs in this process. It is told what a gateway sees and gives back booleans and numbers; the trace, the
lengths of answers, the clock and the record that the score is counted from stay here.
"""

import ast
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from course.challenge.planned_queue import PlannedQueue
from course.challenge.service import CARDS
from course.grading.blame import explain, shown
from course.grading.confine import MODULES, refusals
from course.grading.props import FleetReplica, FleetRequest
from course.grading.remote import Answer, AnswerEndedError, RemoteValue
from minillm.core.errors import MinillmError
from minillm.text_files import read_text

MOST_LINES, MOST_COLUMNS = 200, 120
LIMIT_S = 20.0
"""CPU seconds on a fast core for one trace, all questions together: fifty times what the starter file takes."""
MEMORY_MB = 256
CLASS, METHODS = "Policy", ("admit", "route", "schedule", "ended")


class EntryError(MinillmError):
    """A file breaks a rule of the challenge, or fails."""


@dataclass(frozen=True)
class Entry:
    """A contestant's file, which keeps the rules that can be seen by reading it."""

    path: str
    text: str

    @classmethod
    def read(cls, path: Path) -> "Entry":
        """Raises:
        EntryError: it can't be read, is too long, or uses what it must not.
        """
        try:
            text = read_text(path)
        except FileNotFoundError:
            raise EntryError(f"there is no {path}: minillm beat start {path} writes one") from None
        except (OSError, UnicodeDecodeError) as error:
            raise EntryError(f"{path} can't be read: {error}") from None
        entry = cls(str(path), text)
        entry.check()
        return entry

    @property
    def num_lines(self) -> int:
        """All lines, blank ones and comments too."""
        return len(self.text.splitlines())

    @property
    def fingerprint(self) -> str:
        """Names this very text."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]

    def check(self) -> None:
        """Raises:
        EntryError: with the first rule that it breaks, and the line.
        """
        if self.num_lines > MOST_LINES:
            raise EntryError(f"{self.path} has {self.num_lines} lines, and {MOST_LINES} are allowed")
        for number, line in enumerate(self.text.splitlines(), 1):
            if len(line) > MOST_COLUMNS:
                raise EntryError(f"line {number} has {len(line)} characters, and {MOST_COLUMNS} are allowed")
        try:
            tree = ast.parse(self.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise EntryError(f"{self.path} is no Python: {error}") from None
        for place, used in sorted(refusals(tree)):
            hint = f"; modules to use: {', '.join(MODULES)}" if "import" in used else ""
            raise EntryError(f"line {place} uses `{used}`, which is off limits{hint}")
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == CLASS]
        if not classes:
            raise EntryError(f"there is no class {CLASS} in {self.path}: `minillm beat start` shows one")
        defined = {node.name for node in classes[-1].body if isinstance(node, ast.FunctionDef)}
        if missing := [name for name in METHODS if name not in defined]:
            raise EntryError(f"class {CLASS} has no method {missing[0]}: keep the four of the starter file")

    @contextmanager
    def opened(self) -> Iterator["Contestant"]:
        """For one trace: the file runs in a process of its own, which ends with the block. So nothing that it has seen
        of one trace is left for the next.

        Raises:
            EntryError: it fails as it is loaded.
        """
        from course.grading.runner import GradingWorker, Submission  # processes: a browser has none

        with GradingWorker() as worker:
            with told(self):
                submission = Submission.of_text(self.text, self.path, closed_in=True)
                answer = worker.load(submission, LIMIT_S, MEMORY_MB)
            yield self.contestant(answer)

    def contestant(self, answer: Answer) -> "Contestant":
        """Its policies, for one trace.

        Args:
            answer: the file, loaded.
        """
        with told(self):
            answer.spoils = False  # a policy may keep the lists it was given
            desk = answer.prop("FleetDesk", answer.thing(CLASS))
        return Contestant(self, answer, desk)


class Contestant:
    """`Policies` whose answers come from a contestant's file, in its own process."""

    scheduling_order = "fcfs"

    def __init__(self, entry: Entry, answer: Answer, desk: RemoteValue) -> None:
        self._entry, self._answer, self._desk = entry, answer, desk
        self._endings: list[tuple[float, int, int, bool]] = []
        """What it hears of with the next question."""
        self._routed: Any = None
        """Where it sends the request that it has just admitted."""

    def queue(self, state: Callable[[], FleetReplica]) -> PlannedQueue:
        return PlannedQueue(state, self._plan)

    def admit(self, now: float, request: FleetRequest, replicas: Sequence[FleetReplica]) -> bool:
        states = [astuple(replica) for replica in replicas]
        found, self._routed = self._ask("arrive", now, astuple(request), states)
        if not isinstance(found, bool):
            raise EntryError(f"admit gives back True or False, not {shown(found)}")
        return found

    def route(self, now: float, request: FleetRequest, replicas: Sequence[FleetReplica]) -> int:
        found = self._routed
        if type(found) is not int or not 0 <= found < len(CARDS):
            raise EntryError(f"route gives back a replica's number, 0 to {len(CARDS) - 1}, not {shown(found)}")
        return found

    def ended(self, now: float, request: FleetRequest, output_tokens: int, in_time: bool) -> None:
        self._endings.append((now, request.id, output_tokens, in_time))

    def _plan(self, now: float, waiting: Sequence[int], replica: FleetReplica) -> tuple[list[int], list[int]]:
        run, refuse = self._ask("schedule", now, [*waiting], astuple(replica))
        named = [*run, *refuse]
        if any(type(number) is not int for number in named) or not set(named) <= set(waiting):
            raise EntryError("schedule named a request that doesn't wait there")
        if len(set(named)) < len(named):
            raise EntryError("schedule named a request twice")
        return run, refuse

    def _ask(self, method: str, *arguments: Any) -> Any:
        endings, self._endings = self._endings, []
        with told(self._entry):
            return self._answer.many(self._desk, method, [(endings, *arguments)])[0]


@contextmanager
def told(entry: Entry) -> Iterator[None]:
    """Whatever goes wrong in a contestant's process is told in one sentence.

    Raises:
        EntryError: in place of all that.
    """
    try:
        yield
    except EntryError:
        raise
    except AnswerEndedError as error:
        raise EntryError(f"{entry.path}: {error}") from None
    except Exception as error:
        raise EntryError(f"{entry.path}: {explain(error)}") from None
