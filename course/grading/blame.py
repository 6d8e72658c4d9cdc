"""What learners read: a judge's `Mistake`, and an exception inside an answer, with their line in which it was."""

import linecache
import reprlib
import traceback
from collections.abc import Mapping
from typing import Any

LONGEST_MESSAGE = 300
MOST_ITEMS, LONGEST_STRING = 12, 120


class Mistake(Exception):
    """An answer does something wrong.

    Args:
        feedback: the name of a text in the exercise's `[feedback]`, or the text itself: what was given, what came, what
            was expected.
        share: of the part's points that are earned all the same, 0 to 1.
        slip: the usual mistake that gives exactly that, if it is one: a name or a text, too.
        fields: what the named text has in braces.
    """

    def __init__(self, feedback: str, share: float = 0.0, *, slip: str | None = None, **fields: Any) -> None:
        super().__init__(feedback)
        self.feedback, self.share, self.slip, self.fields = feedback, share, slip, fields

    def words(self, texts: Mapping[str, str], constants: Mapping[str, Any]) -> str:
        """The feedback in words. Texts may have the constants of the judge's module in braces, too."""
        values = {**constants, **self.fields}
        text = texts[self.feedback].format(**values) if self.feedback in texts else self.feedback
        slip = texts.get(self.slip or "", self.slip)
        return f"{text}. {capitalized(slip)}" if slip else text.strip()


def capitalized(sentence: str) -> str:
    """A name in the learner's code (num_tokens, add()) stays as it's spelled."""
    first = sentence.split(" ", 1)[0]
    return sentence if "_" in first or "(" in first else sentence[0].upper() + sentence[1:]


class Short(reprlib.Repr):
    """Shows the beginning of what is long; floats with the digits that matter."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = MOST_ITEMS
        self.maxstring = self.maxother = LONGEST_STRING

    def repr_float(self, value: float, level: int) -> str:
        return f"{value:.6g}"


def shown(value: Any) -> str:
    """A short repr of anything, even of what has a broken one; arrays are shown as lists."""
    try:
        value = value.tolist() if type(value).__module__ == "numpy" else value
        return Short().repr(value).replace("\n", " ")  # spaces are the learner's own: they stay
    except BaseException as error:
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"


def explain(error: BaseException, files: frozenset[str] = frozenset()) -> str:
    """One sentence or two about an exception.

    Args:
        files: names of the learner's files.
    """
    if hasattr(error, "explanation"):  # it was raised in the answer's process, which knows the line
        return str(error.explanation)
    place = place_of(error, files)
    what = f"{type(error).__name__}: {message_of(error)}".rstrip(": ")
    if place is None and isinstance(error, SyntaxError | UnicodeError):
        return f"Python can't read your code ({what})"
    if place is None:
        return f"the checker could not use what your code gave back ({what})"
    line, function, code = place
    where = f"line {line}, `{code}`" if code else f"line {line}"
    if isinstance(error, SyntaxError):
        return f"Python can't read your code, in {where} ({type(error).__name__}: {error.msg})"
    if isinstance(error, NotImplementedError):
        said = message_of(error)
        return f"{function} is not written yet (line {line}){f': {said}' if said else ''}"
    if isinstance(error, SystemExit):
        return f"your code asked Python to exit, in {where}: return a value instead"
    if isinstance(error, MemoryError):
        return f"your code ran out of memory, in {where}: does something grow without end?"
    if isinstance(error, RecursionError):
        return f"`{function}` calls itself without end ({where})"
    return f"your code raised {what}, in {where}"


def place_of(error: BaseException, files: frozenset[str]) -> tuple[int, str, str] | None:
    """The innermost line of the learner's: its number, its function, its code. None = it was not in their files."""
    if isinstance(error, SyntaxError) and error.filename in files:
        return error.lineno or 0, "", (error.text or "").strip()
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename in files:
            code = linecache.getline(frame.f_code.co_filename, line).strip()
            found = line, frame.f_code.co_name, code[:100]
    return found


def message_of(error: BaseException) -> str:
    try:
        said = " ".join(str(error).split())
    except BaseException:  # an answer may bring exceptions of its own
        return "(its message cannot be printed)"
    return said if len(said) <= LONGEST_MESSAGE else said[:LONGEST_MESSAGE] + " ..."
