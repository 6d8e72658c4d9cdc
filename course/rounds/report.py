"""What a candidate is told when a round is over: a verdict with reasons, then everything that was hidden."""

from typing import Any

from course.rounds.judge import AreaResult, JudgedItem, judge
from course.rounds.prompt import AREAS, COLUMNS, DrawnRound
from course.rounds.sitting import RoundSitting

UNREAD = (
    "Your argument in words: unread by the tool. It carries about half the weight in a real round, and nobody but you "
    "has graded it. No judge model is asked either: there are no graded samples of rounds to calibrate one on."
)
MARKS = {True: "+", False: "-", None: "o"}


def debrief(sitting: RoundSitting) -> str:
    """Plain text."""
    verdict = judge(sitting)
    parts = [f"On what can be computed: {verdict.told()}"]
    parts.append("\n".join(f"{AREAS[each.area]}: {each.level} ({each.counted})" for each in verdict.areas))
    for name, items in (("What helped", verdict.helped()), ("What hurt", verdict.hurt())):
        if items:
            parts.append(
                "\n".join([f"{name}:", *(f"- {AREAS[each.area]}: {each.about} {each.told}" for each in items)])
            )
    graded = [f'- {AREAS[area]}: {column} ("{quote}")' for area, (column, quote) in sitting.own.items()]
    parts.append("\n".join([UNREAD, *graded]))
    if weakest := min(verdict.areas, key=lambda each: each.mean, default=None):
        area, staff = AREAS[weakest.area], sitting.drawn.fill(sitting.drawn.round.rubric[weakest.area][-1])
        parts.append(f"Say this part again, in one paragraph: {area}. A staff answer: {staff}")
    return "\n\n".join(parts)


def everything(sitting: RoundSitting) -> str:
    """Item by item, then the columns and a sample conversation. Plain text."""
    parts = [area_text(each) for each in judge(sitting).areas]
    return "\n\n".join([*parts, columns_text(sitting.drawn), sample_text(sitting.drawn)])


def columns_text(drawn: DrawnRound) -> str:
    """The three columns, area by area."""
    rows = []
    for area, columns in drawn.round.rubric.items():
        rows.append(
            "\n".join([AREAS[area], *(f"- {name}: {drawn.fill(text)}" for name, text in zip(COLUMNS, columns))])
        )
    return "\n\n".join(["The same prompt at three levels", *rows])


def sample_text(drawn: DrawnRound) -> str:
    design = "\n".join(f"{start} > {end}" for start, end in drawn.design)
    return f"A sound board\n\n{design}\n\nA staff candidate's conversation\n\n{drawn.fill(drawn.round.conversation)}"


def to_dict(sitting: RoundSitting) -> dict[str, Any]:
    """For programs."""
    verdict = judge(sitting)
    return {
        "round": sitting.drawn.round.id,
        "seed": sitting.drawn.seed,
        "verdict": verdict.told(),
        "level": verdict.level,
        "areas": {each.area: _area_dict(each) for each in verdict.areas},
        "argument": {area: {"column": column, "quote": quote} for area, (column, quote) in sitting.own.items()},
    }


def _area_dict(area: AreaResult) -> dict[str, Any]:
    items = [{"about": each.about, "right": each.right, "points": round(each.points, 3)} for each in area.items]
    return {"level": area.level, "mean": round(area.mean, 3), "items": items}


def area_text(area: AreaResult) -> str:
    """Its level, and item by item what was the case."""
    return "\n".join([f"{AREAS[area.area]}: {area.level} ({area.counted})", *map(_item_text, area.items)])


def _item_text(item: JudgedItem) -> str:
    return f"{MARKS[item.right]} {item.about}\n    {item.told}"
