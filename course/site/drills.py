"""Drills as data for static/drill.js: prompt, what is right, samples with the grades they deserve."""

from typing import Any

from course.drills import calibrate, checks
from course.drills.drill import LEVELS, DrawnDrill
from course.drills.stated import menu, table

NAMED = ("causes", "techniques", "quantities")


def exported(drill: DrawnDrill) -> dict[str, Any]:
    """Everything that a page needs to run one drill without a kernel; the prose itself is judged in the notebook."""
    rubric = drill.rubric
    samples = {
        label: {
            "text": drill.answers[name],
            "grades": {each.key: drill.grade_of(name, each.key) for each in rubric.criteria},
            "why": rubric.samples[name].why,
        }
        for label, name in calibrate.samples(drill).items()
    }
    general = [{"asks": each["asks"], **each} for each in table()["follow_ups"]]
    return {
        "id": drill.id,
        "title": drill.drill.title,
        "minutes": drill.drill.minutes,
        "prompt": drill.prompt,
        "impossible": drill.impossible,
        "commit": {
            **rubric.commit.model_dump(include={"dominant", "second", "fixes"}),
            "number": {
                "asks": rubric.commit.number.asks,
                "value": drill.asked.value,
                "unit": drill.asked.unit,
                "tolerance": drill.asked.tolerance,
                "written": str(f"{drill.asked}"),
            },
        },
        "causes": menu("causes"),
        "techniques": menu("techniques"),
        "words": [[name, each.pattern] for group in NAMED for name, (_, each) in table()[group].items()],
        "criteria": [{**each.model_dump(), "name": each.name} for each in rubric.criteria],
        "must_say": rubric.must_say,
        "must_not_say": [each.model_dump(include={"says", "right"}) for each in rubric.must_not_say],
        "follow_ups": [*(each.model_dump(exclude_defaults=True) for each in rubric.follow_ups), *general],
        "most_follow_ups": checks.MOST_FOLLOW_UPS,
        "ranks": checks.RANKS,
        "levels": LEVELS,
        "hopeless": calibrate.HOPELESS,
        "samples": samples,
        "answers": {level: drill.answers[level] for level in LEVELS},
    }
