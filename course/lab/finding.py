"""What a run showed, told from its own numbers; what it would have meant otherwise is folded away below.

A lesson keeps its sentences in words.toml beside its code, a table for each finding and in it one for each outcome:

    [findings.chunks.longer]
    here = "Chunks made the long prompt's TTFT {factor:.1f} times as long: each of them reads all weights again."
    otherwise = "Had it become shorter, the steps would have been too large for the caches before."

Code looks at the outcome and picks one: `tell("03", "chunks", "longer", factor=2.1)`. Texts are Markdown.

Where a sentence says that something else kept the machine busy, its table has `is_disturbed = true` as well: a notebook
in which it stands is not committed (build.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from course.lab.claims import read_words
from course.lab.display import fold
from course.lab.marks import DISTURBED
from course.lab.style import fill_in

OTHERWISE = "If it had come out otherwise"
LESSONS = Path(__file__).parents[1] / "lessons"


@dataclass(frozen=True)
class Finding:
    """One paragraph about this run, and the roads not taken."""

    here: str
    """What happened in this run, and why. Markdown."""
    otherwise: Sequence[str] = field(default=())
    """What another outcome would have meant, a sentence or two for each."""
    is_disturbed: bool = False
    """Whether it says that something else kept the machine busy."""

    def __str__(self) -> str:
        return self.here

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> tuple[dict[str, Any], ...]:
        html = html_of(self.here)
        if self.otherwise:
            html += fold(OTHERWISE, html_of("\n".join(f"- {each}" for each in self.otherwise)))
        return {"text/html": html, "text/plain": self.here}, {DISTURBED: True} if self.is_disturbed else {}


def html_of(markdown: str) -> str:
    return MarkdownIt().render(markdown)


def tell(lesson: str, finding: str, outcome: str, /, **values: Any) -> Finding:
    """A finding of a lesson's words.toml, filled in. `{wait:seconds}` and `{rate:number}` as style.py writes them.

    Args:
        lesson: its number, such as "03".
        outcome: which one it was. Its `otherwise`, a sentence or several, says what another would have meant.
    """
    said = texts(lesson)[finding][outcome]
    otherwise = said.get("otherwise", ())
    roads = (otherwise,) if isinstance(otherwise, str) else tuple(otherwise)
    return Finding(fill_in(said["here"], **values), roads, said.get("is_disturbed", False))


@cache
def texts(lesson: str) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """All texts of a lesson's findings, by finding and outcome."""
    return read_words(LESSONS / f"lesson_{lesson}", "findings")
