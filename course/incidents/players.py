"""Players of the simulator's own: what they make of an incident is its par, and is shown when it is over.

Each is told the truth or isn't; what they do goes through `Incident` like anyone's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from course.incidents.causes import CAUSES
from course.incidents.incident import Incident
from course.incidents.marking import second_phases


@dataclass(frozen=True)
class PlayedRun:
    """What one player did, and what it was worth."""

    player: str
    score: float
    questions: int
    helped: int | None
    """Minutes until a quick change restored the SLO; None = none did."""
    minutes: int
    """Until the end."""
    steps: tuple[str, ...]

    def __str__(self) -> str:
        helped = "users not helped" if self.helped is None else f"users helped in {self.helped} min"
        return f"{self.score:.0f}/100, {self.questions} questions, {helped} ({self.player})\n" + "\n".join(
            f"    {step}" for step in self.steps
        )


def expert(incident: Incident) -> None:
    """Knows the cause: helps users with what helps most, asks what decides, and mends it."""
    cause = incident.truth.cause
    incident.mitigate([cause.mitigation])
    _make_the_case(incident)
    incident.deploy(incident.truth.fixes if cause.together else incident.truth.fixes[:1])


def careful(incident: Incident) -> None:
    """Looks before it acts, and tries the fix on a canary first."""
    cause = incident.truth.cause
    for name in ("arrivals", "changes", "config"):
        incident.ask(name)
    incident.mitigate([cause.mitigation])
    _make_the_case(incident)
    cure = incident.truth.fixes if cause.together else incident.truth.fixes[:1]
    incident.deploy(cure, canary=True)
    incident.deploy(cure)


def reverts_first(incident: Incident) -> None:
    """Rolls back whatever it is, fails over if that was not it, and only then asks."""
    if not incident.mitigate(["revert"]).restored:
        incident.mitigate(["fail_over"])
    _make_the_case(incident)
    fixes = incident.truth.fixes
    incident.deploy(fixes if incident.truth.cause.together else fixes[:1])


def asks_first(incident: Incident) -> None:
    """Wants to understand before anything is done, and then deploys the fix at once."""
    _make_the_case(incident)
    fixes = incident.truth.fixes
    incident.deploy(fixes if incident.truth.cause.together else fixes[:1])


def buys_machines(incident: Incident) -> None:
    """Has one idea."""
    incident.ask("gpu")
    incident.answer("queue", evidence=["gpu"], ranked=["double_fleet"], regime="steady", cause="overload")
    incident.deploy(["double_fleet"])


def _make_the_case(incident: Incident) -> None:
    """The first split, what convicts, and what tells the look-alike apart."""
    hidden = incident.truth
    cause = hidden.cause
    asked = list(dict.fromkeys(("ttft_itl", "phases", *cause.convicting, cause.told_apart_by)))
    for name in asked:
        incident.ask(name)
    incident.answer(
        cause.phase,
        sorted(second_phases(hidden), key=str)[0],
        asked,
        hidden.fixes,
        regime=cause.regime,
        cause=cause.name if cause.name in CAUSES else cause.names[0],
        ruled_out={cause.told_apart_by: cause.looks_like},
    )


PLAYERS: Mapping[str, Callable[[Incident], None]] = {
    "knows it": expert,
    "careful": careful,
    "rolls back first": reverts_first,
    "asks first": asks_first,
    "buys machines": buys_machines,
}


def played_by(name: str, incident: Incident) -> PlayedRun:
    """One of the players on an untouched copy of an incident."""
    fresh = incident.fresh()
    PLAYERS[name](fresh)
    score = fresh.grade().score
    steps = tuple(f"minute {one.minute}: {one.did}" for one in fresh.timeline if one.minute >= 0)
    return PlayedRun(name, score, len(fresh.asked()), fresh.helped_at, fresh.minutes, steps)


def best_runs(incident: Incident, num: int = 3) -> list[PlayedRun]:
    """The best of all players, best first."""
    runs = [played_by(name, incident) for name in PLAYERS]
    return sorted(runs, key=lambda run: (-run.score, run.minutes))[:num]
