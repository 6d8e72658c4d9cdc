"""Text files that people write: UTF-8, with or without the byte order mark that some editors put before it. And what
Python calls a text, and UTF-8 doesn't."""

from pathlib import Path
from typing import TextIO


def open_text(path: str | Path, newline: str | None = None) -> TextIO:
    """Open it for reading. A mark left in the text would belong to the first line: a key that never matches, a JSON
    object that is none.

    Args:
        newline: as the built-in `open` takes it.
    Raises:
        OSError: it cannot be read. UnicodeDecodeError, while it is read: it is not UTF-8.
    """
    return open(path, encoding="utf-8-sig", newline=newline)


def read_text(path: str | Path) -> str:
    """All of it. Raises like open_text."""
    with open_text(path) as file:
        return file.read()


def half_character(text: str) -> str | None:
    """What is wrong with a str that has half of a surrogate pair in it, as JSON's `"\\ud800"` has; else None."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"U+{ord(text[error.start]):04X} is a surrogate, half of a character: send the other half, too, or none"
    return None
