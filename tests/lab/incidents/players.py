"""Three who play incidents by a script: one who knows, one with a single idea, one who guesses."""

import random

from course.lab.grading import Result
from course.lab.incidents import Incident
from course.lab.incidents.marking import second_phases
from minillm.core.timeline import PHASES


def expert(incident: Incident) -> Result:
    """Asks the right three questions, and does what follows."""
    incident = incident.fresh()
    hidden = incident._hidden
    cause, fix = hidden.cause, hidden.fixes[0]
    asked = list(dict.fromkeys((*cause.convicting, cause.told_apart_by)))[:3]
    for name in asked:
        incident.ask(name)
    second = sorted(second_phases(hidden), key=str)[0]
    incident.answer(cause.phase, second, asked, [fix], regime=cause.regime)
    incident.deploy([fix])
    return incident.grade()


def one_idea(incident: Incident, fix: str, phase: str) -> Result:
    """Looks at the GPUs, and does what was always going to be done."""
    incident = incident.fresh()
    incident.ask("gpu")
    incident.answer(phase, evidence=["gpu"], ranked=[fix])
    incident.deploy([fix])
    return incident.grade()


def guesser(incident: Incident, seed: int) -> Result:
    """Everything at random."""
    luck, incident = random.Random(seed), incident.fresh()
    asked = luck.sample([question.id for question in incident.questions()], 3)
    for name in asked:
        incident.ask(name)
    ranked = luck.sample([one.id for one in incident.interventions()], 3)
    incident.answer(
        luck.choice(PHASES), luck.choice([*PHASES, None]), asked, ranked, regime=luck.choice(("steady", "spike"))
    )
    incident.deploy(ranked[:1])
    return incident.grade()
