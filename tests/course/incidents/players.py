"""Those who play incidents by a script: one who reads the answers, and some who don't."""

import random
from collections.abc import Mapping, Sequence

from course.grading import Result
from course.incidents import Incident
from course.incidents.causes import CAUSES
from course.incidents.interventions import AT_ONCE
from course.incidents.marking import second_phases
from course.incidents.numbers import PLACES

LIMITS = ("more_slots", "larger_chunks", "kv_budget", "raise_client_cap", "longer_timeouts", "warm_pool")
HARMLESS = (
    "more_slots",
    "kv_budget",
    "continuous_batching",
    "least_outstanding",
    "raise_client_cap",
    "backoff",
    "unbuffer",
    "ingress_workers",
    "cuda_graphs",
    "gate_speculation",
    "static_first",
    "chunked_prefill",
    "near_clients",
)
"""Each does nothing where it isn't needed."""


def play(
    incident: Incident,
    asked: Sequence[str],
    phase: str | None,
    ranked: Sequence[str],
    deployed: Sequence[str],
    second: str | None = None,
    regime: str = "steady",
    first: Sequence[str] = (),
    cause: str | None = None,
    ruled_out: Mapping[str, str] | None = None,
) -> Result:
    incident = incident.fresh()
    if first:
        incident.deploy(first)
    for name in asked:
        incident.ask(name)
    incident.answer(phase, second, asked, ranked, regime=regime, cause=cause, ruled_out=ruled_out)
    incident.deploy(deployed)
    return incident.grade()


def expert(incident: Incident) -> Result:
    """Helps users, splits the number, asks what decides, rules the look-alike out, and does what follows."""
    hidden = incident._hidden
    cause = hidden.cause
    asked = list(dict.fromkeys(("ttft_itl", "phases", *cause.convicting, cause.told_apart_by)))
    cure = hidden.fixes if cause.together else hidden.fixes[:1]
    second = sorted(second_phases(hidden), key=str)[0]
    name = cause.name if cause.name in CAUSES else cause.names[0]
    against = {cause.told_apart_by: cause.looks_like}
    return play(incident, asked, cause.phase, cure, cure, second, cause.regime, [cause.mitigation], name, against)


def one_idea(incident: Incident, fix: str, phase: str) -> Result:
    """Looks at the GPUs, and does what was always going to be done."""
    return play(incident, ["gpu"], phase, [fix], [fix])


def borrow_machines(incident: Incident) -> Result:
    """The same, with as many as it takes."""
    return play(incident, ["arrivals", "queue_over_time"], "queue", ["warm_pool", "double_fleet"], ["warm_pool"])


def raise_every_limit(incident: Incident) -> Result:
    return play(incident, ["config", "batch"], "queue", LIMITS[:3], LIMITS)


def everything_harmless(incident: Incident) -> Result:
    return play(incident, ["config", "changes"], "queue", HARMLESS[:3], HARMLESS)


def template(incident: Incident) -> Result:
    """The same sensible-looking form every time, with six questions that are always fair."""
    asked = ("ttft_itl", "phases", "arrivals", "queue_over_time", "kv_use", "batch")
    ranked = ["double_fleet", "more_slots", "bound_queue"]
    return play(incident, asked, "queue", ranked, ["double_fleet"], cause="overload", ruled_out={"kv_use": "kv_pool"})


def always_rolls_back(incident: Incident) -> Result:
    """A good beginning, and nothing after it."""
    return play(incident, ["changes", "gpu"], "queue", ["revert"], ["revert"], first=["revert"])


def template_of_settings(incident: Incident) -> Result:
    """The same, with the two settings that are most often to blame."""
    asked = ("phases", "batch", "kv_use", "queue_over_time")
    return play(incident, asked, "queue", ["more_slots", "kv_budget"], ["more_slots", "kv_budget"])


def guesser(incident: Incident, seed: int) -> Result:
    """Everything at random."""
    luck = random.Random(seed)
    asked = luck.sample([question.id for question in incident.questions()], 3)
    ranked = luck.sample([one.id for one in incident.interventions()], 3)
    second, when = luck.choice([*PLACES, None]), luck.choice(("steady", "spike"))
    first, cause = [luck.choice(AT_ONCE).id], luck.choice(incident.suspects()).name
    against = {luck.choice(asked): luck.choice(incident.suspects()).name}
    return play(incident, asked, luck.choice(PLACES), ranked, ranked[:1], second, when, first, cause, against)
