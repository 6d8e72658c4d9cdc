"""Design rounds as data for static/round.js: texts filled in, and which of them are true.

What a candidate does with them is judged there by the rules of course/rounds/judge.py; a test holds the two together.
"""

from typing import Any

from course.rounds import judge, sitting
from course.rounds.pages import number_label
from course.rounds.prompt import AREAS, COLUMNS, DesignRound, DrawnRound, MenuDecision, Pushback, Stage
from course.rounds.report import UNREAD, sample_text

DRAWS = range(3)
"""Seeds of the numbers that a page has: a round that is sat again has other ones."""


def exported_draws(about: DesignRound) -> list[dict[str, Any]]:
    """One round with each of its sets of numbers."""
    return [exported(about.drawn(seed)) for seed in DRAWS]


def exported(drawn: DrawnRound) -> dict[str, Any]:
    """Everything that a page needs to sit one round without a kernel."""
    about, fill = drawn.round, drawn.fill
    facts = [{"key": each.key, "asks": each.asks, "says": fill(each.says), "use": each.use} for each in drawn.menu]
    for fact, each in zip(facts, drawn.menu):
        fact["changes"] = fill(each.changes)
    return {
        "id": about.id,
        "title": about.title,
        "minutes": about.minutes,
        "opening": fill(about.opening),
        "questions": about.questions,
        "facts": facts,
        "order": [fact.key for fact in about.facts],
        "components": [{"key": each.key, "name": each.name, "extra": fill(each.extra)} for each in about.components],
        "rules": [
            {**each.model_dump(), "says": fill(each.says), "because": fill(each.because)} for each in about.rules
        ],
        "stages": [_stage(drawn, each) for each in about.stages],
        "decisions": [
            {"says": fill(each.says), "holds": drawn.falls(each), "told": judge.told_of_decision(drawn, each)}
            for each in about.change.decisions
        ],
        "rubric": {area: list(map(fill, columns)) for area, columns in about.rubric.items()},
        "sample": sample_text(drawn),
        "unread": UNREAD,
        "areas": AREAS,
        "columns": COLUMNS,
        "sure": sitting.SURE,
        "beliefs": sitting.BELIEFS,
        "falls": sitting.FALLS,
        "quoted_words": sitting.QUOTED_WORDS,
        "levels": judge.LEVELS,
        "least": judge.LEAST,
        "second_try": judge.SECOND_TRY,
    }


def _stage(drawn: DrawnRound, stage: Stage) -> dict[str, Any]:
    numbers = []
    for number in stage.numbers:
        asked = drawn.asked(number)
        slips = [
            (drawn.numbers.amounts[name], judge.told_of_slip(drawn, name, slip))
            for name, slip in number.tempting.items()
        ]
        numbers.append(
            {
                "key": number.key,
                "asks": drawn.fill(number.asks),
                "label": number_label(asked.unit),
                "unit": asked.unit,
                "value": asked.value,
                "room": asked.tolerance,
                "told": judge.told_of_number(drawn, number),
                "slips": [{"value": each.value, "room": each.tolerance, "told": told} for each, told in slips],
            }
        )
    return {
        "key": stage.key,
        "title": stage.title,
        "minutes": stage.minutes,
        "says": (drawn.changed if stage.key == "change" else drawn).fill(stage.says),
        "numbers": numbers,
        "choices": [_choice(drawn, each) for each in stage.choices],
        "statements": [
            {
                "says": drawn.fill(each.says),
                "holds": drawn.is_true(each),
                "told": judge.told_of_statement(drawn, each),
            }
            for each in drawn.statements(stage)
        ],
        "pushbacks": [_pushback(drawn, each) for each in stage.pushbacks],
    }


def _choice(drawn: DrawnRound, choice: MenuDecision) -> dict[str, Any]:
    options = [
        {
            "key": key,
            "says": says,
            "right": drawn.is_right(choice, key),
            "told": judge.told_of_choice(drawn, choice, key),
        }
        for key, says in drawn.options(choice).items()
    ]
    told = judge.told_of_choice(drawn, choice)
    return {"key": choice.key, "asks": drawn.fill(choice.asks), "options": options, "told": told}


def _pushback(drawn: DrawnRound, pushback: Pushback) -> dict[str, Any]:
    because = {each.key: drawn.fill(each.because) for each in pushback.replies}
    replies = [
        {"key": key, "says": says, "right": drawn.is_right(pushback, key), "because": because[key]}
        for key, says in drawn.options(pushback).items()
    ]
    conditions = pushback.model_dump(include={"if_wrong", "if_chose", "if_broken", "if_unasked"})
    asks, told = drawn.fill(pushback.asks), judge.told_of_pushback(drawn, pushback)
    return {"key": pushback.key, "asks": asks, "replies": replies, "told": told, **conditions}
