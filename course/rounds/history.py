"""What a learner has played so far, on this machine only: one JSON file in minillm's home folder."""

from collections.abc import Sequence
from datetime import UTC, datetime

from pydantic import Field

from course.drills.clock import written
from course.lab.json_store import JsonStore, StoredModel
from course.rounds.judge import LEVELS, judge
from course.rounds.library import IDS, find_round
from course.rounds.prompt import AREAS
from course.rounds.sitting import RoundSitting


class PlayedRound(StoredModel):
    """One round, and what became of it."""

    round: str
    seed: int
    when: str
    """ISO 8601, UTC."""
    seconds: float | None = None
    """On the clock; None = without one."""
    level: str
    """The verdict's level, one of LEVELS."""
    areas: dict[str, str] = Field(default_factory=dict)
    """The level of each area, on what can be computed."""
    columns: dict[str, str] = Field(default_factory=dict)
    """The column in which the learner saw their own argument, by area."""


class PlayedRounds(StoredModel):
    done: list[PlayedRound] = Field(default_factory=list)
    """Oldest first."""


FILE = JsonStore("rounds.json", PlayedRounds, anywhere=True)
"""Like drills, rounds are also kept from a terminal."""


def keep(sitting: RoundSitting) -> None:
    """Note a round that is over."""
    if is_played(sitting):
        FILE.change(lambda content: content.done.append(played_of(sitting)))


def is_played(sitting: RoundSitting) -> bool:
    """Whether there is anything to keep: a round in which nothing was asked, said or committed to is none."""
    said = (sitting.asked, sitting.commits, sitting.beliefs, sitting.edges, *sitting.said.values())
    return any(said)


def played_of(sitting: RoundSitting) -> PlayedRound:
    """What is kept of a sitting."""
    verdict = judge(sitting)
    return PlayedRound(
        round=sitting.drawn.round.id,
        seed=sitting.drawn.seed,
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=sitting.seconds,
        level=verdict.level,
        areas={each.area: each.level for each in verdict.areas},
        columns={area: column for area, (column, _) in sitting.own.items()},
    )


def history_text(done: Sequence[PlayedRound]) -> str:
    """Round by round, the newest last, and what to play next."""
    name, left = play_next(done)
    ahead = f"next: minillm round sit {name} ({find_round(name).title}; {left} of {len(IDS)} not played yet)"
    return "\n\n".join([*map(_told, done), ahead] if done else ["no round played yet", ahead])


def _told(played: PlayedRound) -> str:
    clock = "" if played.seconds is None else f", {written(played.seconds)} on the clock"
    lines = [f"{played.when[:10]}  {played.round}, seed {played.seed}: {played.level}{clock}"]
    lines.append("  computed: " + ", ".join(f"{AREAS.get(area, area)} {level}" for area, level in played.areas.items()))
    if played.columns:
        own = ", ".join(f"{AREAS.get(area, area)} {column}" for area, column in played.columns.items())
        lines.append(f"  your own columns: {own}")
    return "\n".join(lines)


def play_next(done: Sequence[PlayedRound]) -> tuple[str, int]:
    """(round, how many were never played): the first of those, or else the one that went worst at its best."""
    best = {name: max((_rank(each) for each in done if each.round == name), default=-1) for name in IDS}
    return min(best, key=lambda name: best[name]), list(best.values()).count(-1)


def _rank(played: PlayedRound) -> int:
    return LEVELS.index(played.level) if played.level in LEVELS else 0
