"""Of every cause: the service is ill, the fix cures it on traffic that nobody has seen, the tempting one does not,
and those who know score, and those who do not, do not.
"""

from collections.abc import Callable

import pytest
from players import expert, guesser, one_idea

from course.lab.incidents import Incident
from course.lab.incidents.causes import CAUSES
from course.lab.incidents.interventions import BY_ID as INTERVENTIONS
from course.lab.incidents.questions import BY_ID as QUESTIONS
from course.lab.incidents.service import play

QUICK = (1,)
LONG = tuple(range(3, 13))
IN_A_HURRY = 3
"""Every third cause is drawn in `make test`, which has twenty minutes for everything; the others in `make slow`."""
EVERY_CAUSE = [pytest.param(c, marks=[pytest.mark.slow] if i % IN_A_HURRY else []) for i, c in enumerate(CAUSES)]
AT_LEAST, ONE_IDEA_AT_MOST, GUESSED_AT_MOST = 90, 35, 25
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
    cured, tempted = player.deploy(hidden.fixes[:1]), player.deploy([hidden.cause.tempting])
    assert cured.restored, str(cured)
    assert cured.before < cured.target
    assert not tempted.restored, str(tempted)

    assert expert(incident).score >= AT_LEAST, str(expert(incident))


def check_those_who_do_not_know(incident: Incident) -> None:
    """One idea, or none, is not enough."""
    for fix, phase in (("double_fleet", "queue"), ("int8_weights", "decode")):
        assert one_idea(incident, fix, phase).score < ONE_IDEA_AT_MOST
    guessed = [guesser(incident, seed).score for seed in range(3)]
    assert sum(guessed) / len(guessed) < GUESSED_AT_MOST


@pytest.mark.parametrize("seed", QUICK)
@pytest.mark.parametrize("cause", EVERY_CAUSE)
def test_a_cause(draw: Draw, cause: str, seed: int) -> None:
    check(draw(cause, seed))


@pytest.mark.slow
@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("seed", LONG)
def test_a_cause_over_many_seeds(cause: str, seed: int) -> None:
    incident = Incident.generate(seed, difficulty=1 + seed % 3, cause=cause)
    check(incident)
    check_those_who_do_not_know(incident)


@pytest.mark.parametrize("cause", ["overload", "few_slots", "longer_prompts", "launch_bound"])
def test_those_who_do_not_know_do_not_score(draw: Draw, cause: str) -> None:
    """Also where more machines do help, and where decoding is to blame."""
    check_those_who_do_not_know(draw(cause, 1))


@pytest.mark.parametrize("name", ["three-months", "straggler"])
def test_a_classic(name: str) -> None:
    incident = Incident.classic(name)
    check(incident)
    assert incident.page.story
