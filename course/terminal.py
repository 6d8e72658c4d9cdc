"""Text as wide as a terminal."""

import re
import shutil
import sys
import textwrap
from typing import TextIO

WIDEST = 100
"""Columns; wider text is hard to read."""
COLUMNS = re.compile(r"^(?: *(?:.{0,32}\S {2,})?)")
"""What stands before the last column's text."""


def fitted(text: str, screen: TextIO) -> str:
    """Broken between words where a terminal ends, further lines indented under its text; for a pipe as it is."""
    width = min(shutil.get_terminal_size().columns, WIDEST) if screen.isatty() else sys.maxsize
    return "\n".join(
        textwrap.fill(line, width, subsequent_indent=len(COLUMNS.findall(line)[0]) * " ", break_on_hyphens=False)
        if len(line) > width
        else line
        for line in text.split("\n")
    )
