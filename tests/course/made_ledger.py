"""A ledger of made experiments: they take no time, and one of them fails."""

from collections.abc import Callable
from pathlib import Path

from course.lab.claims import Claim
from course.lab.lab import Lab
from course.lessons.lesson_14.ledger import Experiment, Ledger
from course.lessons.lesson_14.rows import Book

VERDICT_OF = {"A1": "holds. Really.", "A2": "only when it rains. Then it does.", "D18": "wrong: it is less."}


def finding(claim: str, verdict: str) -> Callable[[Lab], Claim]:
    return lambda lab: Claim(claim, "1 < 2 of | them", verdict)


def failing(lab: Lab) -> Claim:
    raise ValueError("no memory <left>")


def experiments() -> dict[str, Experiment]:
    found = {claim: Experiment("00", finding(claim, verdict), "v1") for claim, verdict in VERDICT_OF.items()}
    return {**found, "B1": Experiment("01", failing, "v1")}


def made_ledger(folder: Path) -> Ledger:
    """Its book lies in this folder."""
    return Ledger(Lab(short=False), book=Book(folder / "ledger.json"), experiments=experiments())
