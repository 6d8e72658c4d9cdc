"""Claims that public articles make about latency, each with what was measured here and a verdict.

A lesson's words.py has a function for each claim that the lesson measures, named after it (`a1`): it takes what the
lesson has run, and returns the row of the ledger. What it may say stands beside it, in words.toml:

    [claims.A6]
    claim = "Two services with equal E2E can be ill in opposite phases."
    lessons = "01"            # the first one measures it; it is a topic of the others
    phases = "QD"             # queue, prefill, first token, decode, stream

    [claims.A6.texts]
    measured = "E2E differs by {apart:.0%}."
    holds = "holds."

`MEASURE` of each words.py runs a small experiment for each of its claims, for a learner who has skipped the lesson.
`EXPERIMENT` names the code under course/ that measures them outside the lesson's own folder: when it changes, the
ledger calls its results old.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from course.lab.display import fold
from course.lab.style import PHASE_LABELS, fill_in

VERDICTS = ("only when", "holds", "wrong", "not shown")
"""`not shown`: this machine, or this run, cannot tell."""
ANSWERS = dict(zip(VERDICTS, ("only when", "yes", "no", "not shown")))
IN_PART = "in part"
"""Where a condition is a sentence of its own: `only when: drafts are free. Others ...`"""
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z(×])")
SOURCES = {
    "A": "'Serving LLMs: The Latency Anatomy Framework'",
    "B": "'Decomposing LLM Inference Latency for Better Serving Performance'",
    "D": "an article on techniques for lower LLM latency, from batching to streaming, with measured gains",
    "E": "'Latency Optimization in LLM Inference Systems'",
    "F": "an article on LLM latency in three layers: surface, guided, deep dive",
}
"""Sources by the first letter of a claim's id."""
SHORT_NAMES = {"A": "anatomy", "B": "decomposing", "D": "techniques", "E": "systems", "F": "layers"}
EVERY = tuple(PHASE_LABELS)
_LETTERS = dict(zip("QPFDS", EVERY))


@dataclass(frozen=True)
class RegisteredClaim:
    """One claim, before it is measured."""

    id: str
    claim: str
    """The claim, in our own words."""
    lessons: tuple[str, ...]
    """The first one measures it; it is a topic of the others."""
    phases: tuple[str, ...]
    """Phases of a request whose time it speaks of."""
    texts: Mapping[str, str]
    """Templates by name: `measured`, and the verdicts."""

    @property
    def source(self) -> str:
        return SOURCES[self.id[0]]

    @property
    def source_name(self) -> str:
        """The source in one word, for filters."""
        return SHORT_NAMES[self.id[0]]

    @property
    def lesson(self) -> str:
        """The lesson that measures it."""
        return self.lessons[0]


def read_claims(folder: Path) -> dict[str, RegisteredClaim]:
    """The claims of all lessons under `folder`, by id, in order of their ids."""
    found = {}
    for lesson in folder.glob("lesson_*"):
        for name, row in read_words(lesson, "claims").items():
            phases = tuple(_LETTERS[letter] for letter in row["phases"])
            found[name] = RegisteredClaim(name, row["claim"], tuple(row["lessons"].split()), phases, row["texts"])
    return dict(sorted(found.items(), key=lambda item: (item[0][0], int(item[0][1:]))))


def read_words(lesson: Path, part: str) -> dict[str, Any]:
    """What a lesson may say: the tables `[claims.*]` or `[findings.*]` of its words.toml, if it has one."""
    path = lesson / "words.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")).get(part, {}) if path.is_file() else {}


REGISTRY = read_claims(Path(__file__).parents[1] / "lessons")


def say(name: str, /, **values: Any) -> str:
    """A text of a claim, filled in: `say("A6.holds", apart=0.1)`."""
    claim, text = name.split(".")
    return fill_in(REGISTRY[claim].texts[text], **values)


@dataclass(frozen=True)
class Claim:
    """One row of the claims ledger."""

    id: str
    measured: str
    """What the runs of this lesson show."""
    verdict: str
    """Begins with one of VERDICTS; then why, and the right statement."""

    def __post_init__(self) -> None:
        if not self.verdict.startswith(VERDICTS):
            raise ValueError(f"{self.id}: a verdict begins with one of: {', '.join(VERDICTS)}")

    @property
    def claim(self) -> str:
        """What is claimed, with its source."""
        entry = REGISTRY[self.id]
        return f"{entry.claim} ({entry.source})"

    @property
    def kind(self) -> str:
        """The one of VERDICTS that it begins with."""
        return next(kind for kind in VERDICTS if self.verdict.startswith(kind))

    @property
    def answer(self) -> tuple[str, str]:
        """What to answer those who say so, in a word or two; and the rest of the verdict, which goes on from there."""
        rest = self.verdict.removeprefix(self.kind)
        word = IN_PART if self.kind == "only when" and rest.startswith(":") else ANSWERS[self.kind]
        # "In part. True past capacity", not "In part: True ...".
        return word, re.sub(r"^: (.)", lambda colon: f". {colon[1].upper()}", rest)

    @property
    def told(self) -> str:
        """The verdict as one would say it."""
        answer, rest = self.answer
        return f"{answer[0].upper()}{answer[1:]}{rest}"

    def __str__(self) -> str:
        return f"{self.id}. Claim: {self.claim} Measured: {self.measured} Verdict: {self.told}"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        rows = (("Claim", self.claim), ("Verdict", self.told))
        body = "".join(f"<div><b>{name}.</b> {escape(words)}</div>" for name, words in rows)
        parts = "".join(f"<li>{escape(part)}</li>" for part in re.split(r"(?<=[.;]) (?=\S)", self.measured))
        body += fold("Measured here", f'<ul style="margin:2px 0">{parts}</ul>')
        look = "border:1px solid var(--jp-border-color2,#d0d7de);border-radius:6px;padding:6px 12px;margin:6px 0"
        return {"text/html": f'<div style="{look}"><b>{self.id}</b>{body}</div>', "text/plain": str(self)}


def conclude(name: str, verdict: str, /, **values: Any) -> Claim:
    """A row of the ledger from words.toml: what was measured, and one of its verdicts. Both get the same values.

    Args:
        verdict: the verdict's name, such as "holds" or "only_above_capacity".
    """
    return Claim(name, say(f"{name}.measured", **values), say(f"{name}.{verdict}", **values))


@dataclass(frozen=True)
class InShort:
    """Claims, a line for each: what articles say, and what came of it here. The rest is a click away."""

    claims: Sequence[Claim]

    def __str__(self) -> str:
        return "\n".join(map(str, self.claims))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        lines = "".join(map(_line, self.claims))
        ledger = '<a href="14_claims_ledger.ipynb">lesson 14</a>'
        where = f"<div>All claims of five articles: {ledger}.</div>"
        return {"text/html": lines + where, "text/plain": str(self)}


def in_short(*claims: Claim) -> InShort:
    """What a lesson keeps of the claims that it measures."""
    return InShort(claims)


def _line(claim: Claim) -> str:
    answer, rest = claim.answer
    stop = ". " if rest.startswith(". ") else ""  # the answer is a sentence by itself
    first, *others = SENTENCE.split(rest.removeprefix(stop))
    told = [*others, f"Measured: {claim.measured}"]
    head = f"<b>{claim.id}.</b> Articles say: {escape(REGISTRY[claim.id].claim)}"
    body = "".join(f"<div>{escape(each)}</div>" for each in told)
    line = f"{head} Measured: <b>{answer}</b>{stop}{escape(first)}"
    return f'<div style="margin:6px 0">{line}{fold("Why, and the figures", body)}</div>'
