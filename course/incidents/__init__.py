"""Incidents with a hidden cause: you are paged, ask for evidence, commit to a diagnosis, deploy, and are graded.

    incident = Incident.generate(seed=7, difficulty=2)
    incident.page                                    # one alarming number
    incident.mitigate(["revert"])                    # help users first; no diagnosis needed
    incident.ask("ttft_itl")                         # evidence; costs minutes
    incident.answer(cause="few_slots", dominant_phase="queue", evidence=["batch"], ranked=["more_slots"])
    incident.deploy(["more_slots"])                  # before and after, on held-out traffic
    incident.grade(); incident.reveal()

Everything comes out of the simulator under the real scheduler, and follows from the seed. What makes an incident:

service.py      a service as one value, and playing it    causes/        what makes it ill
interventions.py  what can be changed                     generate.py    drawing, and trying it out
questions*.py   what can be asked                         evidence.py    what an answer looks like
outcome.py      what a change did to held-out traffic     marking.py     marks
incident.py     all of it, in order                       cli.py         the same in a terminal
dumps/          the same on paper                         console.py     the same as states and actions
players.py      the simulator's own                       desk.py        those in a notebook
daily.py        one a day
"""

from course.incidents.generate import IncidentError
from course.incidents.incident import Incident

__all__ = ["Incident", "IncidentError"]
