"""An answer as a judge sees it: functions and objects that live in the answer's own process.

`Link` asks one child (runner.py) and notes what was asked: whether an argument was changed, and what each function and
object gave, so that it can be asked again. Results are plain data; what is not plain stays there and is a `Remote`.
"""

import builtins
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Protocol

from course.grading.blame import shown
from course.grading.wire import packed, unpacked

MOST_CALLS = 400
"""Calls of one object that are noted, to be repeated."""
MOST_BYTES = 20_000
"""The longest arguments and results that are noted, packed."""


class AnswerEndedError(BaseException):
    """The answer's process hangs or has ended: no judge goes on. The message is the learner's feedback."""


class Channel(Protocol):
    """One child."""

    def exchange(self, message: bytes, limit_s: float) -> bytes:
        """A reply. Raises EndedError when it takes longer than `limit_s`, or the child ends."""
        ...


class AnswerTime:
    """CPU seconds that answers took in this process's checks, all together."""

    seconds = 0.0


class RemoteValue:
    """Something of the answer's, in its own process, where its attributes, calls, length and items are asked for."""

    def __init__(self, link: "Link", number: int, kind: str, said: str) -> None:
        self.__dict__.update(_link=link, _number=number, _kind=kind, _said=said, _about=None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._link.attribute(self, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._link.ask("read", self._number, "list"))

    def __len__(self) -> int:
        return self._link.noted(self._number, "len", (), lambda: self._link.ask("read", self._number, "len"))

    def __float__(self) -> float:
        return self._link.ask("read", self._number, "float")

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return self._said

    def __deepcopy__(self, memo: object) -> "RemoteValue":
        return self


class RemoteCallable(RemoteValue):
    """A class, a function or a method of the answer's."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        owner, name = self._about or (None, "")
        return self._link.call("thing", self._number, arguments, keywords, session=owner, name=name)


@dataclass
class CallLog:
    """What was asked of one function, once, or of one object from its making on."""

    calls: list[tuple[str, bytes, Any]] = field(default_factory=list)
    """Name, packed arguments, what came: the child's reply, or the type of what was raised."""

    def is_whole(self) -> bool:
        return 0 < len(self.calls) < MOST_CALLS


class Link:
    """The way to one loaded answer.

    Args:
        limit_s: seconds that all questions may take together.
        spoils: the child overwrites lists and arrays after each call, as their owner may.
    """

    def __init__(self, channel: Channel, limit_s: float, spoils: bool = True) -> None:
        self._channel, self._left_s, self.spoils = channel, limit_s, spoils
        self.names: dict[str, tuple[bool, str]] = {}
        self.changed: str | None = None
        """The first argument that was changed: what became of it."""
        self.printed = ""
        """What a call printed that gave back nothing."""
        self.sessions: dict[Any, CallLog] = {}
        self._reply = b""

    def load(self, task: dict[str, Any]) -> None:
        self.names = self.ask("load", task)

    def again(self) -> None:
        self.names = self.ask("again")

    def ask(self, work: str, *content: Any) -> Any:
        """Have the child do something. What it raises there is raised here."""
        return self._asked(work, *content)[0]

    def _asked(self, work: str, *content: Any) -> tuple[Any, Any]:
        message = packed((work, *content, self.spoils), lambda thing: thing._number)
        began = time.monotonic()
        try:
            data = self._channel.exchange(message, self._left_s)
        except AnswerEndedError:
            self._left_s = 0.0
            raise
        self._reply = data
        is_right, result, now, printed, took = unpacked(data, self.thing)
        self._left_s -= min(took, time.monotonic() - began)
        AnswerTime.seconds += took
        if now is not None:
            self._look(content[1 if work == "play" else 2], now)
            if is_right and result is None and printed.strip():
                self.printed = printed
        if not is_right:
            error = raised(*result)
            error.arguments = now  # type: ignore[attr-defined]
            raise error
        return result, now

    def _look(self, before: Any, now: Any) -> None:
        for old, new in zip(before, now):
            if self.changed is None and not identical(old, new):
                self.changed = f"{shown(old)} became {shown(new)}"

    def thing(self, about: tuple[int, str, str, bool]) -> RemoteValue:
        number, kind, said, is_callable = about
        return (RemoteCallable if is_callable else RemoteValue)(self, number, kind, said)

    def attribute(self, of: RemoteValue, name: str) -> Any:
        value = self.noted(of._number, name, (), lambda: self.ask("get", of._number, name), is_call=False)
        if isinstance(value, RemoteCallable):
            value.__dict__["_about"] = (of._number, name)
            of.__dict__[name] = value  # a method stays the same: once is enough
        return value

    def call(
        self, kind: str, which: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any], session: Any, name: str
    ) -> Any:
        def act() -> Any:
            return self.ask("call", kind, which, list(arguments), dict(keywords))

        return self.noted(session, name, (arguments, dict(keywords)), act)

    def many(self, of: "str | RemoteValue", lists: Sequence[Sequence[Any]]) -> list[Any]:
        """The results of many calls of one function, by one message. They are not noted, so that what became of an
        object by them cannot be repeated."""
        target = ("name", of) if isinstance(of, str) else ("thing", of._number)
        if isinstance(of, RemoteValue) and of._about:
            self.sessions.pop(of._about[0], None)
        return self.ask("many", *target, [list(each) for each in lists])

    def play(self, of: RemoteValue, acts: Sequence[tuple[str, Any]]) -> list[Any]:
        """What methods of one object give, called one after the other, by one message; attributes have no arguments."""
        return self.noted(of._number, "play", (acts,), lambda: self.ask("play", of._number, acts))

    def changing(self, name: str, *arguments: Any) -> tuple[Any, list[Any]]:
        """Call a function that is to change what it is given: the result, and the arguments afterwards. A result of
        the answer's own class, even a kind of list, stays there."""
        before = self.changed
        try:
            return self._asked("call", "held", name, list(arguments), {})
        finally:
            self.changed = before

    def noted(self, session: Any, name: str, about: Any, act: Callable[[], Any], is_call: bool = True) -> Any:
        """Do it, and note what came under this session; a new object begins one."""
        try:
            result: Any = act()
        except Exception as error:
            self._note(session, name, about, type(error))
            raise
        if isinstance(result, RemoteValue):
            if name and is_call and session is None:
                session = result._number
            if isinstance(result, RemoteCallable) and not is_call:
                return result
        self._note(session, name, about, result)
        return result

    def _note(self, session: Any, name: str, about: Any, found: Any) -> None:
        if not name or (session is not None and session not in self.sessions and not isinstance(found, RemoteValue)):
            return
        key = (name, len(self.sessions)) if session is None else session
        kept = self.sessions.setdefault(key, CallLog())
        if len(kept.calls) >= MOST_CALLS:
            return
        try:
            data = packed(about, _no_number)
        except TypeError:  # a Remote among them cannot be repeated elsewhere
            data = b""
        if not data or max(len(data), len(self._reply)) > MOST_BYTES:
            kept.calls += [("", b"", None)] * MOST_CALLS
            return
        self.sessions[key] = self.sessions.pop(key)  # the last one that was asked is the last one here
        kept.calls.append((name, data, found if isinstance(found, type) else self._reply))


def result_of(reply: Any, link: Link) -> Any:
    """What a noted call gave: plain data, a Remote, or a type of exception."""
    return reply if isinstance(reply, type) else unpacked(reply, link.thing)[1]


def _no_number(thing: Any) -> Any:
    raise TypeError(f"{thing!r} lives elsewhere")


def repeated(link: Link, session: CallLog) -> tuple[str, Any, Any] | None:
    """Ask the same again, of another link: the first call that gives something else, what it gave, and what now."""
    first: Any = None
    for number, (name, data, reply) in enumerate(session.calls):
        about, before = unpacked(data, _no_number), result_of(reply, link)
        try:
            if number == 0:
                first = now = link.call("name", name, *about, session=None, name="")
            elif name == "play":
                now = link.ask("play", first._number, *about)
            elif about == ():
                now = len(first) if name == "len" else getattr(first, name)
            else:
                now = getattr(first, name)(*about[0], **about[1])
        except Exception as error:
            now = type(error)
        if not identical(before, now):
            if name == "play" and isinstance(now, list) and isinstance(before, list):
                i = next(i for i, pair in enumerate(zip(before, now)) if not identical(*pair))
                (name, *about), before, now = about[0][i], before[i], now[i]
            return f"{name}({', '.join(map(shown, about[0] or ()))})" if about else name, before, now
    return None


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
