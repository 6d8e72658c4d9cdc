"""Claims that public articles make about latency, each with what was measured here and a verdict.

A module a lesson. A function is named after its claim (`a1`), takes what the lesson has run, and returns the row of the
ledger. `MEASURE` of each module runs a small experiment for each of its claims, for whoever has not: the ledger does.
`EXPERIMENT` names the code under course/lab that measures them and lies neither there nor in the lesson's own package:
when it changes, the ledger calls its results old.
"""

from dataclasses import dataclass
from html import escape

VERDICTS = ("holds only when", "holds", "wrong", "not shown")
"""`not shown`: this machine, or this run, cannot tell."""


@dataclass(frozen=True)
class Claim:
    """One row of the claims ledger."""

    id: str
    claim: str
    """The claim, in our own words."""
    source: str
    measured: str
    """What the runs of this lesson show."""
    verdict: str
    """Begins with one of VERDICTS; then why, and the right statement."""

    def __post_init__(self) -> None:
        if not self.verdict.startswith(VERDICTS):
            raise ValueError(f"{self.id}: a verdict begins with one of: {', '.join(VERDICTS)}")

    @property
    def kind(self) -> str:
        """The one of VERDICTS that it begins with."""
        return next(kind for kind in VERDICTS if self.verdict.startswith(kind))

    def __str__(self) -> str:
        return f"{self.id}. Claim: {self.claim} ({self.source}) Measured: {self.measured} Verdict: {self.verdict}"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        rows = (("Claim", f"{self.claim} ({self.source})"), ("Measured here", self.measured), ("Verdict", self.verdict))
        body = "".join(f"<div><b>{name}.</b> {escape(words)}</div>" for name, words in rows)
        look = "border:1px solid var(--jp-border-color2,#d0d7de);border-radius:6px;padding:6px 12px;margin:6px 0"
        return {"text/html": f'<div style="{look}"><b>{self.id}</b>{body}</div>', "text/plain": str(self)}


ANATOMY = "'Serving LLMs: The Latency Anatomy Framework'"
"""Claims of it have the letter A in the ledger; those of the next ones B, D, E and F."""
DECOMPOSING = "'Decomposing LLM Inference Latency for Better Serving Performance'"
TECHNIQUES = "an article on techniques for lower LLM latency, from batching to streaming, with measured gains"
SYSTEMS = "'Latency Optimization in LLM Inference Systems'"
LAYERS = "an article on LLM latency in three layers: surface, guided, deep dive"
