"""Drills as data for static/drill.js: steps, prompt, what is right, statements, grades that the samples deserve."""

from typing import Any

from course.drills import calibrate, checks, statements, verdict
from course.drills.amounts import UNITS
from course.drills.console import DrillSession, shown_stage
from course.drills.drill import BARS, LEVELS, DrawnDrill
from course.drills.interviewer import PUSHBACKS, QUESTIONS
from course.drills.sitting import Sitting, solution_text
from course.drills.stages import DrillStage, stages
from course.drills.stated import menu, table
from course.drills.talk import talk_of


def exported(drill: DrawnDrill) -> dict[str, Any]:
    """Everything that a page needs to run one drill without a kernel."""
    rubric, talk = drill.rubric, talk_of(drill)
    samples = {
        label: {
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
        "start": DrillSession(drill).state(),
        "stages": [shown_stage(each) for each in blank_stages(drill)],
        "graders": [{"name": name, "says": said} for name, said in Sitting(drill).graders().items()],
        "solution": solution_text(drill),
        "tags": drill.drill.tags,
        "prompt": drill.prompt,
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
    }


def blank_stages(drill: DrawnDrill) -> list[DrillStage]:
    """The steps of a sitting in which nothing is filled in; what is asked then depends on nothing that was said."""
    run, found = stages(Sitting(drill, "Nothing.")), []
    stage = next(run)
    while True:
        found.append(stage)
        try:
            stage = run.send({field.key: "" for field in stage.fields})
        except StopIteration:
            return [each for each in found if each.part not in ("Pushback", "Disputes", "Once more")]
