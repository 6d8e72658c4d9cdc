"""The pages that people read, and the blocks of code in them."""

import itertools
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
    """The opening fence's."""
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """One command of a `sh` block, with its continued lines and its comment, or one within a sentence."""

    block: Block
    text: str

    @property
    def id(self) -> str:
        return f"{Path(self.block.page).stem}: {self.text[:70]}"

    @property
    def programs(self) -> list[list[str]]:
        """The words of each program that it starts: `a b | c > file` has [a, b] and [c]."""
        lexer = shlex.shlex(self.text, posix=True, punctuation_chars="|&;>")
        lexer.whitespace_split = True
        found, before = [], ""
        for is_operator, words in itertools.groupby(lexer, lambda word: set(word) <= set("|&;>")):
            if is_operator:
                before = next(words)
            elif before != ">":
                found.append(list(words))
        return found


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
    for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines(keepends=True):
        pending += line
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:  # within a quote
            continue
        if words:
            found.append(pending.strip())
        pending = ""
    if pending:
        raise ValueError(f"a command does not end: {pending!r}")
    return found
