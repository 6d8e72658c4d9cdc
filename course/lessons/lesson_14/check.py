"""The check of lesson 14. Keys come from the ledger as it is now, and from the table that was measured."""

from collections.abc import Sequence

from course.grading import Checks, Criterion, Question, as_number, choice, close_to
from course.lab.claims import REGISTRY
from course.lessons.lesson_14.ledger import Ledger
from course.lessons.lesson_14.run import CLAIMED, CROWD, TechniqueFactor, by_technique, spread
from course.lessons.lesson_14.words import most_fickle


def checks(ledger: Ledger, cells: Sequence[TechniqueFactor]) -> Checks:
    """Questions about the ledger and the table of techniques.

    q1: how many of the measured claims hold without a condition.
    q2: the id of a claim that the ledger calls wrong.
    q3: the technique whose factor depends most on the workload; any, where the machine was too busy to tell.
    q4: the factor of continuous batching with a crowd.
    q5: ids of two claims about the queue that hold only under a condition.
    """

    def q1(answer: object) -> tuple[Criterion, ...]:
        counts = ledger.counts()
        said, conditional = as_number(answer), counts["holds"] + counts["only when"]
        if said == conditional and counts["only when"]:
            words = f"that includes the {counts['only when']} that are true in part"
            return (Criterion("claims", 0, 1, words, f"{counts['holds']} hold as they stand."),)
        words = f"the ledger has {counts['holds']} now; it changes as more rows are measured"
        return (Criterion("claims", float(said == counts["holds"]), 1, "", words),)

    def q2(answer: object) -> tuple[Criterion, ...]:
        row = ledger.row(_claim(answer))
        return (Criterion("verdict", float(row.kind == "wrong"), 1, f"{row.entry.id}: {row.label}{row.told}"),)

    def q3(answer: object) -> tuple[Criterion, ...]:
        told = {
            name: f"{name}: best over worst workload {spread(group):.1f}" for name, group in by_technique(cells).items()
        }
        key = most_fickle(cells)
        if isinstance(key, str):
            choice(answer, "", told)  # it must be one of them all the same
            return (Criterion("choice", 1, 1, f"too noisy to tell: {key}"),)
        return choice(answer, str(key.answer), told)

    def q4(answer: object) -> tuple[Criterion, ...]:
        found = {(cell.technique, cell.workload): cell.factor for cell in cells}
        key, other = found["continuous batching", CROWD], found["static batching", CROWD]
        if as_number(answer) == CLAIMED["continuous batching"] and abs(as_number(answer) / key - 1) > 0.1:
            return (Criterion("factor", 0, 1, "that's the article's figure", f"Here it was {key:.2f}."),)
        if abs(as_number(answer) / other - 1) < 0.02 and abs(as_number(answer) / key - 1) > 0.1:
            return (
                Criterion("factor", 0, 1, "that's static batching's factor", f"Continuous batching had {key:.2f}."),
            )
        return (close_to(answer, key, "factor"),)

    def q5(answer: object) -> tuple[Criterion, ...]:
        if not isinstance(answer, (list, tuple, set)):
            raise ValueError('a list of two ids, such as ["A1", "B1"]')
        claims = list(dict.fromkeys(_claim(each) for each in answer))
        criteria = []
        for claim in claims[:2]:
            row = ledger.row(claim)
            about = "queue" in row.entry.phases
            right = about and row.kind == "only when"
            words = f"{claim}: {row.label}" + ("" if about else ", and it isn't about the queue")
            criteria.append(Criterion(claim, float(right), 1, words))
        missing = [Criterion("another id", 0, 1, "the question asks for two different ones")] * (2 - len(criteria))
        return (*criteria, *missing)

    questions = {
        "q1": Question("How many of the claims hold as they stand, in the ledger now?", "claims"),
        "q2": Question("The id of a claim that is wrong here?", "such as A1"),
        "q3": Question("Which technique's factor depends most on the workload?", options=tuple(by_technique(cells))),
        "q4": Question("The factor of continuous batching with a crowd, here?", "times"),
        "q5": Question("The ids of two claims about the queue that are true in part?", many=True),
    }
    return Checks({"q1": q1, "q2": q2, "q3": q3, "q4": q4, "q5": q5}, questions)


def _claim(answer: object) -> str:
    """The id of a claim.

    Raises:
        ValueError: there is no such claim.
    """
    name = str(answer).strip().upper()
    if name not in REGISTRY:
        raise ValueError("give the id of a claim, such as A4")
    return name
