"""Every cause: the service is ill, the fix cures it on traffic that no one has seen, the tempting one does not,
and those who know score, and those who do not, do not.
"""

from collections.abc import Callable
from statistics import mean, median

import pytest
from players import (
    borrow_machines,
    everything_harmless,
    expert,
    guesser,
    one_idea,
    raise_every_limit,
    template,
    template_of_settings,
)

from course.grading import Result
from course.incidents import Incident
from course.incidents.causes import CAUSES
from course.incidents.classics import CLASSICS
from course.incidents.interventions import BY_ID as INTERVENTIONS
from course.incidents.questions import BY_ID as QUESTIONS
from course.incidents.service import play

QUICK = (1,)
LONG = tuple(range(3, 13))
SEVERAL = ("overload", "few_slots", "launch_bound", "proxy", "output_drift")
IN_A_HURRY = 5
"""Every fifth cause is drawn in `make test`, which should be over soon; the others in `make slow`."""
EVERY_CAUSE = [pytest.param(c, marks=[pytest.mark.slow] if i % IN_A_HURRY else []) for i, c in enumerate(CAUSES)]
AT_LEAST, AT_MOST = 90, 35
Draw = Callable[[str, int], Incident]


def test_there_are_causes_enough_and_their_names_exist() -> None:
    assert len(CAUSES) >= 24
    for cause in CAUSES.values():
        assert cause.looks_like in CAUSES
        assert cause.looks_like != cause.name
        assert {*cause.convicting, cause.told_apart_by} <= set(QUESTIONS)
        assert {*cause.fixes, cause.tempting} <= set(INTERVENTIONS)
        assert cause.tempting not in cause.fixes
        assert "gpu" not in cause.convicting


def check(incident: Incident) -> None:
    """It is an incident, the fix cures it, the tempting one does not, and an expert scores."""
    hidden = incident._hidden
    for one in (hidden.scene.before, hidden.scene.now, *(play(hidden.case.now, seed) for seed in hidden.held_out)):
        one.run.check_conservation()
        assert len(one.run.records) == len(one.service.workload(one.seed))
    assert hidden.scene.before.holds
    assert not hidden.scene.now.holds

    player = incident.fresh()
    player.answer(hidden.cause.phase)
    cure = hidden.fixes if hidden.cause.together else hidden.fixes[:1]
    cured, tempted = player.deploy(cure), player.deploy([hidden.cause.tempting])
    assert cured.restored, str(cured)
    assert cured.before < cured.target
    assert not tempted.restored, str(tempted)

    assert expert(incident).score >= AT_LEAST, str(expert(incident))


UNKNOWING: dict[str, Callable[[Incident], Result]] = {
    "adds GPUs": lambda incident: one_idea(incident, "double_fleet", "queue"),
    "shrinks weights": lambda incident: one_idea(incident, "int8_weights", "decode"),
    "borrows machines": borrow_machines,
    "raises every limit": raise_every_limit,
    "changes all that is harmless": everything_harmless,
    "fills in a form": template,
    "fills in a form, with settings": template_of_settings,
    "guesses": lambda incident: guesser(incident, 0),
}


def check_those_who_do_not_know(incidents: list[Incident]) -> None:
    """One idea, or a form, or none, isn't enough."""
    scores = {name: [player(each).score for each in incidents] for name, player in UNKNOWING.items()}
    for name, found in scores.items():
        print(f"{name:32} mean {mean(found):5.1f} median {median(found):5.1f}")
    assert all(mean(found) < AT_MOST > median(found) for found in scores.values()), scores


@pytest.mark.parametrize("seed", QUICK)
@pytest.mark.parametrize("cause", EVERY_CAUSE)
def test_a_cause(draw: Draw, cause: str, seed: int) -> None:
    check(draw(cause, seed))


@pytest.mark.slow
@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("seed", LONG)
def test_a_cause_over_many_seeds(cause: str, seed: int) -> None:
    check(Incident.generate(seed, difficulty=1 + seed % 3, cause=cause))


@pytest.mark.parametrize(
    "causes", [SEVERAL, pytest.param(tuple(CAUSES), marks=[pytest.mark.slow, pytest.mark.timeout(7200)])]
)
def test_those_who_do_not_know_do_not_score(draw: Draw, causes: tuple[str, ...]) -> None:
    """Also where more machines do help, where one setting does, and where decoding is to blame."""
    check_those_who_do_not_know([draw(cause, 1) for cause in causes])


@pytest.mark.parametrize("name", ["three-months", "straggler"])
def test_a_classic(name: str) -> None:
    incident = Incident.classic(name)
    check(incident)
    assert incident.page.story


@pytest.mark.parametrize(
    "name", ["two-limits", *(pytest.param(name, marks=pytest.mark.slow) for name in [*CLASSICS][3:])]
)
def test_a_case(name: str) -> None:
    check(Incident.classic(name))
