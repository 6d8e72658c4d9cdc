"""What a prediction about the whole ledger is scored by."""

from collections.abc import Sequence

from course.lab.claims import VERDICTS
from course.lab.predict import Outcome
from course.lessons.lesson_14.rows import Row

HOLDING = ("hardly any: fewer than one in five", "one in five to half of them", "more than half")
"""How many claims hold as they stand."""


def as_they_stand(rows: Sequence[Row]) -> Outcome | str:
    """The share of the claims with a verdict that hold without a condition; a sentence where none can be judged."""
    judged = [row for row in rows if row.kind in VERDICTS and row.kind != "not shown"]
    if not judged:
        return "no claim has a verdict yet; measure some, and run this cell again"
    holding = sum(row.kind == "holds" for row in judged)
    share = holding / len(judged)
    answer = HOLDING[0] if share < 0.2 else HOLDING[1] if share <= 0.5 else HOLDING[2]
    conditional = sum(row.kind == "holds only when" for row in judged)
    evidence = (
        f"of {len(judged)} claims that could be judged, {holding} hold as they stand, {conditional} under a condition, "
        f"{len(judged) - holding - conditional} are wrong"
    )
    return Outcome(answer, evidence)
