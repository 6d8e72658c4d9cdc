"""Three who play incidents by a script: one who knows, one with a single idea, one who guesses."""

import random
from dataclasses import dataclass

from course.lab.grading import Result
from course.lab.incidents import Incident
from course.lab.incidents.incident import Reveal
from minillm.timeline import PHASES


@dataclass(frozen=True)
class Truth:
    """What an expert would find out."""

    dominant_phase: str
    secondary: str | None
    regime: str
    questions: tuple[str, ...]
    fix: str

    @classmethod
    def of(cls, revealed: Reveal) -> "Truth":
        second = revealed.secondary[0]
        return cls(revealed.dominant_phase, second, revealed.regime, revealed.convicting[:3], revealed.fixes[0])


def again(incident: Incident) -> Incident:
    """The same incident, untouched; it need not be drawn anew."""
    return Incident(incident._hidden, incident._trials, incident.name)


def truth(incident: Incident) -> Truth:
    """From the reveal of a copy that is thrown away. Its long table of effects is left out."""
    hidden = incident._hidden
    cause = hidden.cause
    from course.lab.incidents.marking import second_phases

    second = sorted(second_phases(hidden), key=str)[0]
    questions = tuple(dict.fromkeys((*cause.convicting, cause.told_apart_by)))[:3]
    return Truth(cause.phase, second, cause.regime, questions, hidden.fixes[0])


def expert(incident: Incident) -> Result:
    """Asks the right three questions, and does what follows."""
    known, incident = truth(incident), again(incident)
    for name in known.questions:
        incident.ask(name)
    incident.answer(known.dominant_phase, known.secondary, known.questions, [known.fix], regime=known.regime)
    incident.deploy([known.fix])
    return incident.grade()


def one_idea(incident: Incident, fix: str, phase: str) -> Result:
    """Looks at the GPUs, and does what was always going to be done."""
    incident = again(incident)
    incident.ask("gpu")
    incident.answer(phase, evidence=["gpu"], ranked=[fix])
    incident.deploy([fix])
    return incident.grade()


def guesser(incident: Incident, seed: int) -> Result:
    """Everything at random."""
    luck, incident = random.Random(seed), again(incident)
    asked = luck.sample([question.id for question in incident.questions()], 3)
    for name in asked:
        incident.ask(name)
    ranked = luck.sample([one.id for one in incident.interventions()], 3)
    second = luck.choice([*PHASES, None])
    incident.answer(luck.choice(PHASES), second, asked, ranked, regime=luck.choice(["steady", "spike"]))
    incident.deploy(ranked[:1])
    return incident.grade()
