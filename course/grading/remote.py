"""An answer as a judge sees it: functions and objects that live in the answer's own process.

`Answer` asks one child (runner.py) and notes what was asked: whether an argument was changed, and what each function
and object gave, so that it can be asked again (causes.py). Results are plain data; what is not plain stays there and is
a `RemoteValue`.
"""

import builtins
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from typing import Any, NamedTuple

from course.grading.blame import Mistake, shown
from course.grading.wire import packed, unpacked

MOST_SHOWN = 160
"""Characters of an argument that was changed: of a longer one only the part is shown that differs."""

MOST_CALLS = 400
"""Calls of one object that are noted, to be repeated."""
MOST_BYTES = 20_000
"""The longest arguments and results that are noted, packed."""

Act = tuple[str | None, Sequence[Any] | None, Mapping[str, Any]]
"""An attribute (None = the target itself), the arguments that it is called with (None = only its value), keywords."""


class ChildReply(NamedTuple):
    """What the child says to an act."""

    data: bytes
    """All of it, packed."""
    is_right: bool
    value: Any
    """The result, or how `raised` is called for what was raised."""
    now: list[Any] | None
    """The arguments as they are afterwards."""


class AnswerEndedError(BaseException):
    """The answer's process hangs or has ended: no judge goes on. The message is the learner's feedback."""


class AnswerTime:
    """CPU seconds that answers took in this process's checks, all together."""

    seconds = 0.0


@dataclass
class CallLog:
    """What was asked of one function, once, or of one object from its making on."""

    name: str
    """The function's, or the object's class's."""
    calls: list[tuple[bytes, ChildReply]] = field(default_factory=list)
    """Packed acts, and the replies."""
    is_whole: bool = True
    """It can be repeated; without that, no calls are kept."""


class Answer:
    """The functions and classes of an answer, as attributes; they run in the answer's own process.

    Args:
        exchange: sends a message, and gives back the reply; with the seconds that it may take.
        left_s: seconds that all questions may take together.
        anew: loads the answer in another process, with another order of sets and hashes.
    """

    def __init__(self, exchange: Callable[[bytes, float], bytes], left_s: float, anew: Callable[[], "Answer"]) -> None:
        self._exchange, self.left_s, self._anew = exchange, left_s, anew
        self._other: Answer | None = None
        self._names: dict[str, tuple[bool, str]] = {}
        self.spoils = True
        """The child overwrites lists and arrays after each call, as their owner may."""
        self.forget()

    def forget(self) -> None:
        """What was noted."""
        self.sessions: dict[Any, CallLog] = {}
        self.changed: str | None = None
        """The first argument that was changed: what became of it."""
        self.printed = ""
        """What a call printed that gave back nothing."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        self._exists(name)

        def asked(*arguments: Any, **keywords: Any) -> Any:
            return self.act("name", name, (None, arguments, keywords))[0]

        asked.__name__ = name
        return asked

    def _exists(self, name: str) -> None:
        if name not in self._names:
            raise Mistake(f"there is no `{name}` in your answer: keep the names of the stub")
        is_callable, kind = self._names[name]
        if not is_callable:
            raise Mistake(f"`{name}` should be a function or a class; yours is {kind}")

    def changing(self, name: str, *arguments: Any) -> tuple[Any, list[Any]]:
        """Call a function that is to change its arguments: the result, and the arguments afterwards, which an exception
        has as `arguments`. A result of the answer's own class, even a kind of list, stays there."""
        self._exists(name)
        reply = self.do("held", name, [packed((None, arguments, {}), _number_of)])[0]
        return self.value(reply), reply.now

    def play(self, of: "RemoteValue", acts: Sequence[tuple[str, Sequence[Any] | None]]) -> list[Any]:
        """What methods of an object give, called one after the other (None: an attribute), in one go."""
        return self.act("thing", of._number, *((name, arguments, {}) for name, arguments in acts))

    def many(self, of: "RemoteValue", name: str, lists: Sequence[Sequence[Any]]) -> list[Any]:
        """What one method of an object gives for many arguments, as quickly as it can be asked. What becomes of the
        object by it cannot be repeated."""
        self.sessions.pop(of._number, None)
        reply = self.ask("many", of._number, name, lists)[0]
        self._look(lists, reply.now)
        return self.value(reply)

    def thing(self, name: str) -> Any:
        """One of the answer's functions or classes, to hand to a prop."""
        self._exists(name)
        return self.act("name", name, (None, None, {}))[0]

    def prop(self, name: str, *arguments: Any) -> Any:
        """What a function or class of props.py gives, in the answer's process."""
        return self.act("prop", name, (None, arguments, {}))[0]

    def elsewhere(self) -> "Answer":
        """The same answer in another process."""
        if self._other is None:
            self._other = self._anew()
        return self._other

    def give_up_elsewhere(self) -> None:
        """That process has ended, or can't load the answer."""
        self._other = None

    def load(self, task: dict[str, Any]) -> None:
        self._names = self.value(self.ask("load", task)[0])

    def again(self) -> None:
        """Load it afresh: nothing that it kept is left."""
        self._names = self.value(self.ask("again")[0])

    def act(self, kind: str, which: Any, *acts: Act) -> list[Any]:
        """Do something with a function (by name), a prop (by name) or a thing (by number), all in one go. Gives back
        the results; what the answer raises there is raised here."""
        data = [packed(act, _number_of) for act in acts]
        results = []
        for (_, arguments, _), asked, reply in zip(acts, data, self.do(kind, which, data)):
            self._note(kind, which, arguments, asked, reply)
            results.append(self.value(reply))
        return results

    def repeat(self, session: CallLog) -> list[ChildReply]:
        """What the acts of a session give when they are asked again, without a note of it."""
        acts = [act for act, _ in session.calls]
        replies = self.do("name", session.name, acts[:1])
        if len(acts) > 1 and isinstance(replies[0].value, RemoteValue):
            replies += self.do("thing", replies[0].value._number, acts[1:], goes_on=True)
        return replies

    def do(self, kind: str, which: Any, acts: Sequence[bytes], goes_on: bool = False) -> list[ChildReply]:
        """The same of packed acts, without a note of it. Nothing is raised; an act that failed is the last one, unless
        it goes on."""
        return self.ask("do", kind, which, acts, self.spoils, goes_on)

    def ask(self, work: str, *content: Any) -> list[ChildReply]:
        """What the child replies, one for each act; the time is charged."""
        began = time.monotonic()
        try:
            data = self._exchange(packed((work, *content), _number_of), self.left_s)
        except AnswerEndedError:
            self.left_s = 0.0
            raise
        replies, printed, took = unpacked(data, self.remote)
        self.left_s -= min(took, time.monotonic() - began)
        AnswerTime.seconds += took
        found = [self.opened(reply) for reply in replies]
        if printed.strip() and found[-1].is_right and found[-1].value is None and found[-1].now is not None:
            self.printed = printed
        return found

    def opened(self, data: bytes) -> ChildReply:
        return ChildReply(data, *unpacked(data, self.remote))

    def remote(self, number: int, said: str, is_callable: bool) -> "RemoteValue":
        """What the child sent a number for."""
        return (RemoteCallable if is_callable else RemoteValue)(self, number, said)

    def value(self, reply: ChildReply) -> Any:
        """The result; raises what was raised."""
        if reply.is_right:
            return reply.value
        error = raised(*reply.value)
        error.arguments = reply.now  # type: ignore[attr-defined]
        raise error

    def _look(self, arguments: Sequence[Any] | None, now: Sequence[Any] | None) -> None:
        for old, new in zip(arguments or (), now or ()):
            if self.changed is None and not identical(old, new):
                where, old, new = narrowed(old, new)
                self.changed = f"{where}{beginning(old)} became {beginning(new)}"

    def _note(self, kind: str, which: Any, arguments: Any, asked: bytes, reply: ChildReply) -> None:
        self._look(arguments, reply.now)
        if arguments is None and (kind == "name" or isinstance(reply.value, RemoteCallable)):
            return  # it was only looked up
        key = which
        if kind == "name":  # each call begins a session, which goes on where it makes an object
            key = reply.value._number if isinstance(reply.value, RemoteValue) else object()
        elif kind != "thing" or which not in self.sessions:
            return
        session = self.sessions.pop(key, None) or CallLog(which)
        self.sessions[key] = session  # the last one that was asked is the last one here
        is_long = max(len(asked), len(reply.data)) > MOST_BYTES or len(session.calls) >= MOST_CALLS
        if is_long or any(isinstance(each, RemoteValue) for each in arguments or ()):
            session.is_whole = False
        if session.is_whole:
            session.calls.append((asked, reply))
        else:
            session.calls.clear()


class RemoteValue:
    """Something of the answer's, in its own process, where its attributes, calls, length and items are asked for."""

    def __init__(self, answer: Answer, number: int, said: str) -> None:
        self.__dict__.update(_answer=answer, _number=number, _said=said)

    def _act(self, name: str | None, arguments: Sequence[Any] | None, keywords: Mapping[str, Any]) -> Any:
        return self._answer.act("thing", self._number, (name, arguments, keywords))[0]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = self._act(name, None, {})
        if isinstance(value, RemoteCallable):
            value = self.__dict__[name] = partial(self._method, name)  # it stays the same: once is enough
        return value

    def _method(self, name: str, *arguments: Any, **keywords: Any) -> Any:
        return self._act(name, arguments, keywords)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._method("__iter__"))

    def __len__(self) -> int:
        return self._method("__len__")

    def __float__(self) -> float:
        return self._method("__float__")

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return self._said

    def __deepcopy__(self, memo: object) -> "RemoteValue":
        return self


class RemoteCallable(RemoteValue):
    """A class or a function of the answer's."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._act(None, arguments, keywords)


def _number_of(thing: Any) -> tuple[int]:
    return (thing._number,)


def identical(one: Any, other: Any) -> bool:
    """Equal in all that can be seen; NaN equals NaN, and whatever lives in another process equals its like."""
    if isinstance(one, RemoteValue) or isinstance(other, RemoteValue):
        return isinstance(one, RemoteValue) and isinstance(other, RemoteValue)
    if type(one) is type(other) and _is_equal(one, other):
        return True
    if hasattr(one, "tobytes") and hasattr(other, "tobytes"):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if type(one) is not type(other):
        return False
    parts, others = _parts(one), _parts(other)
    if parts is None or others is None:
        return bool(one != one and other != other)
    return parts.keys() == others.keys() and all(identical(parts[name], others[name]) for name in parts)


def narrowed(old: Any, new: Any) -> tuple[str, Any, Any]:
    """What was changed, of something with many parts: where it is, what it was and what it became."""
    where = ""
    while len(shown(old)) > MOST_SHOWN and type(old) is type(new):
        parts, others = _parts(old), _parts(new)
        if parts is None or others is None or parts.keys() != others.keys():
            break
        differ = [name for name in parts if not identical(parts[name], others[name])]
        if len(differ) != 1:
            break
        where, old, new = f"{where}[{differ[0]!r}]", parts[differ[0]], others[differ[0]]
    return (f"at {where}, " if where else ""), old, new


def beginning(value: Any) -> str:
    """So much of its repr as one can read."""
    said = shown(value)
    return said if len(said) <= MOST_SHOWN else f"{said[:MOST_SHOWN]} ..."


def _is_equal(one: Any, other: Any) -> bool:
    """By `==`; False where that is not one truth, as of arrays."""
    try:
        return bool(one == other)
    except ValueError:
        return False


def _parts(value: Any) -> Mapping[Any, Any] | None:
    """What a record, a dictionary or a list is made of, by name, key or index; None if it is of one piece."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    return value if isinstance(value, dict) else None


def raised(kinds: list[str], message: str, explanation: str) -> Exception:
    """What an answer raised, as the nearest exception of Python's own; `explanation` says where, for the learner."""
    for name in kinds:
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            try:
                error = kind(message)
                break
            except TypeError:  # it wants more than a message: the next more general one
                continue
    else:
        error = RuntimeError(message)  # SystemExit and its like end nothing here
    error.explanation = explanation  # type: ignore[attr-defined]
    return error
