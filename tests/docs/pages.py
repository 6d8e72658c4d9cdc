"""The pages that people read, and the blocks of code in them."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """What stands between two fences."""

    page: str
    """Its path from the repository's root."""
    line: int
    """Of the opening fence."""
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """One command of a `sh` block, with its continued lines, without its comment."""

    block: Block
    text: str

    @property
    def id(self) -> str:
        return f"{Path(self.block.page).stem}: {self.text[:70]}"

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text, comments=True)


def pages() -> list[Path]:
    """All pages in Markdown, but for what is text for drills."""
    found = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("course/*.md"),
        *ROOT.glob("course/*/**/*.md"),
    ]
    return sorted(page for page in found if "texts" not in page.parts)


def blocks() -> list[Block]:
    found = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(str(page.relative_to(ROOT)), line, match[1], match[2]))
    return found


def commands() -> list[Command]:
    """Every command in every `sh` block."""
    return [Command(block, text) for block in blocks() if block.language == "sh" for text in split(block.text)]


def split(text: str) -> list[str]:
    """The commands of a shell block. A quote may span lines, and a backslash continues one.

    Raises:
        ValueError: a quote is never closed.
    """
    found, pending = [], ""
    for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines():
        pending = f"{pending}\n{line}" if pending else line
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:  # within a quote
            continue
        if words:
            found.append(without_comment(pending).strip())
        pending = ""
    if pending:
        raise ValueError(f"a command does not end: {pending!r}")
    return found


def without_comment(command: str) -> str:
    """`minillm serve  # as a server` -> `minillm serve`. A # within quotes stays."""
    quote = ""
    for place, letter in enumerate(command):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and (place == 0 or command[place - 1].isspace()):
            end = command.find("\n", place)
            return command[:place].rstrip() + ("" if end < 0 else command[end:])
    return command
