"""Drills as data for static/drill.js: prompt, what is right, statements, samples with the grades they deserve."""

from typing import Any

from course.drills import calibrate, checks, statements, verdict
from course.drills.amounts import UNITS
from course.drills.drill import BARS, LEVELS, DrawnDrill
from course.drills.interviewer import PUSHBACKS, QUESTIONS
from course.drills.library import number_of
from course.drills.stated import menu, table
from course.drills.talk import talk_of


def exported(drill: DrawnDrill) -> dict[str, Any]:
    """Everything that a page needs to run one drill without a kernel."""
    rubric, talk = drill.rubric, talk_of(drill)
    samples = {
        label: {
            "text": drill.answers[name],
            "grades": {each.key: drill.grade_of(name, each.key) for each in rubric.criteria},
            "why": rubric.samples[name].why,
        }
        for label, name in calibrate.samples(drill).items()
    }
    claims = [
        {"says": each.says, "is_true": each.is_true, "because": each.because, "source": each.source}
        for each in talk.put()
    ]
    return {
        "number": number_of(drill.drill),
        "tags": drill.drill.tags,
        "minutes": drill.drill.minutes,
        "prompt": drill.prompt,
        "impossible": drill.impossible,
        "commit": {
            **rubric.commit.model_dump(include={"dominant", "second", "fixes"}),
            "number": {
                "asks": rubric.commit.number.asks,
                "value": drill.asked.value,
                "unit": drill.asked.unit,
                "shown": drill.asked.bare,
                "room": drill.room,
                "written": str(f"{drill.asked}"),
            },
        },
        "causes": menu("causes"),
        "techniques": menu("techniques"),
        "remedies": table()["remedies"],
        "units": UNITS,
        "facts": [each.model_dump() for each in talk.facts],
        "questions": QUESTIONS,
        "statements": claims,
        "sure": statements.SURE,
        "standing": {
            "borne": verdict.BORNE,
            "statements_weigh": verdict.STATEMENTS_WEIGH,
            "bars": [[level, verdict.LEAST[level]] for level in BARS],
        },
        "criteria": [{**each.model_dump(), "name": each.name} for each in rubric.criteria],
        "must_say": rubric.must_say,
        "follow_ups": [
            *(each.model_dump(exclude_defaults=True) for each in rubric.follow_ups),
            *table()["follow_ups"],
        ],
        "most_follow_ups": PUSHBACKS,
        "ranks": checks.RANKS,
        "levels": LEVELS,
        "hopeless": calibrate.HOPELESS,
        "least_words": calibrate.LEAST_WORDS,
        "samples": samples,
        "answers": {level: drill.answers[level] for level in LEVELS},
    }
