"""What the runs of lesson 14 showed: its verdict on its claim, and what its predictions are scored by."""

import math
from collections.abc import Callable, Sequence

from course.lab.claims import VERDICTS, Claim, say
from course.lab.display import Html
from course.lab.know_cold import know_cold
from course.lab.lab import Lab
from course.lab.predict import MeasuredAnswer
from course.lessons.lesson_14.rows import LedgerRow
from course.lessons.lesson_14.run import CLAIMED, CONTROLS, NOISY, TechniqueFactor, by_technique, measure, noise, spread

HOLDING = ("few: under one in five", "one in five to half of them", "more than half")
"""How many claims hold as they stand."""


def as_they_stand(rows: Sequence[LedgerRow]) -> MeasuredAnswer | str:
    """The share of the claims with a verdict that hold without a condition; a sentence where none can be judged."""
    judged = [row for row in rows if row.kind in VERDICTS and row.kind != "not shown"]
    if not judged:
        return "no claim has a verdict yet; measure some, and run this cell again"
    holding = sum(row.kind == "holds" for row in judged)
    share = holding / len(judged)
    answer = HOLDING[0] if share < 0.2 else HOLDING[1] if share <= 0.5 else HOLDING[2]
    conditional = sum(row.kind == "only when" for row in judged)
    evidence = (
        f"of {len(judged)} claims that could be judged, {holding} hold as they stand, {conditional} in part, "
        f"{len(judged) - holding - conditional} are wrong"
    )
    return MeasuredAnswer(answer, evidence)


def most_fickle(cells: Sequence[TechniqueFactor]) -> MeasuredAnswer | str:
    """The technique whose factor depends most on the workload; why not, where this machine was too busy to tell."""
    if noise(cells) > NOISY:
        return f"equal work differed by a factor of {noise(cells):.1f} on this machine; measure again when it is quiet"
    spreads = {technique: spread(group) for technique, group in by_technique(cells).items()}
    winner = max(spreads, key=spreads.get)
    others = ", ".join(f"{name} {value:.1f}" for name, value in spreads.items() if name != winner)
    return MeasuredAnswer(winner, f"{winner}: best over worst workload {spreads[winner]:.1f}; {others}")


DEPENDS = 1.5
"""A factor that differs by more than this between two workloads depends on the workload."""
AGREES = 1.25
"""A factor within this of the claimed one agrees with it."""
GAIN = 1.05
"""A smaller factor is no gain; a factor below its inverse is a loss."""


def d22(cells: Sequence[TechniqueFactor]) -> Claim:
    """The table, filled in for several workloads."""
    groups = by_technique(cells)
    told = "; ".join(
        f"{name} (claimed {CLAIMED[name]:g}) " + ", ".join(f"{cell.factor:.2f} {cell.workload}" for cell in group)
        for name, group in groups.items()
    )
    return Claim("D22", say("D22.measured", told=told), verdict(cells))


def verdict(cells: Sequence[TechniqueFactor]) -> str:
    groups = by_technique(cells)
    if (apart := noise(cells)) > NOISY:
        return say("D22.not_shown", apart=apart)
    judged = [cell for cell in cells if (cell.technique, cell.workload) not in CONTROLS]
    depends = [name for name, group in groups.items() if spread(group) > DEPENDS]
    agree = [cell for cell in cells if 1 / AGREES < cell.factor / CLAIMED[cell.technique] < AGREES]
    if not depends:
        return say("D22.wrong", num_agree=len(agree), num_cells=len(cells))
    idle = sum(cell.factor < GAIN for cell in cells)
    slower = [f"{cell.technique} with {cell.workload} × {cell.factor:.2f}" for cell in judged if cell.factor < 1 / GAIN]
    losses = f", or a loss: {'; '.join(slower)}" if slower else ""
    return say(
        "D22.only_when",
        depends=", ".join(depends),
        depends_names=DEPENDS,
        num_agree=len(agree),
        num_cells=len(cells),
        idle=idle,
        losses=losses,
    )


def three_numbers(rows: Sequence[LedgerRow]) -> Html:
    """The lesson's three numbers."""
    judged = [row for row in rows if row.kind in VERDICTS and row.kind != "not shown"]
    holding = sum(row.kind == "holds" for row in judged)
    share, factor = 0.6, 2.3
    return know_cold(
        (f"{holding} of {len(judged)}", "claims hold as they stand, on this machine", "the ledger, above"),
        (f"×{1 / (1 - share + share / factor):.1f}", f"E2E from ×{factor:g} on {share:.0%} of it", "Amdahl's law"),
        (
            f"1 in {math.comb(10, 5) // 2}",
            "by luck alone, five runs are all faster, or all slower, than five equal ones",
            "2 / C(10, 5)",
        ),
    )


MEASURE: dict[str, Callable[[Lab], Claim]] = {"D22": lambda lab: d22(measure(lab))}
