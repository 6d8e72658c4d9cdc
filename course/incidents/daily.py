"""The daily incident: one a day, the same for everyone, with a par, a streak, an archive, and yesterday's solution."""

from dataclasses import dataclass
from datetime import date, timedelta

from pydantic import Field

from course.incidents.incident import Incident
from course.incidents.players import PlayedRun, best_runs, played_by
from course.lab.json_store import JsonStore, StoredModel
from course.lab.streak import DayPlayed, streak

SHOWN = 14
"""Days of the archive that are listed."""
PAR = "careful"
"""The player whose questions and minutes are par."""


class DayResult(DayPlayed):
    """What came of one day's incident the first time it was played."""

    score: float
    questions: int
    helped: int | None = None
    """Minutes until users were helped."""


class DailyResults(StoredModel):
    """By date."""

    days: dict[str, DayResult] = Field(default_factory=dict)


RESULTS = JsonStore("daily.json", DailyResults)


@dataclass(frozen=True)
class Par:
    """What a careful player needs."""

    questions: int
    minutes: int
    score: float

    def __str__(self) -> str:
        return f"par: {self.questions} questions, {self.minutes} min, {self.score:.0f} points"


def par_of(incident: Incident) -> Par:
    """From a run of the simulator's own player, which takes a few seconds."""
    run = played_by(PAR, incident)
    return Par(run.questions, run.minutes, run.score)


def keep(incident: Incident, day: date, today: date) -> None:
    """Note a graded incident's result, the first one of each day's."""
    result = result_of(incident, day, today)
    RESULTS.change(lambda kept: kept.days.setdefault(str(day), result))


def result_of(incident: Incident, day: date, today: date) -> DayResult:
    """What is kept of a graded incident."""
    return DayResult(
        score=incident.grade().score,
        questions=len(incident.asked()),
        helped=incident.helped_at,
        on_the_day=day == today,
    )


def last_days(results: DailyResults, today: date) -> dict[str, DayResult | None]:
    """What you made of the last days, by date. None: not played."""
    days = [str(today - timedelta(days=back)) for back in range(SHOWN)]
    return {day: results.days.get(day) for day in days}


def archive(results: DailyResults, today: date) -> str:
    """The last days in words; any older one can be played by its date."""
    lines = []
    for day, found in last_days(results, today).items():
        told = "not played" if found is None else f"{found.score:.0f}/100, {found.questions} questions"
        lines.append(f"{day}  {told}")
    return "\n".join([*lines, f"streak: {streak(results.days, today)}", "play one: minillm incident --date 2026-01-05"])


def solution_of(day: date) -> tuple[Incident, list[PlayedRun]]:
    """A day's incident, played and graded by someone who knows it, and the three best runs of the simulator's players.

    What it was is told by the incident's `reveal`: playing it from then on is practice.
    """
    incident = Incident.today(day)
    runs = best_runs(incident)
    known = incident.fresh()
    known.answer(known.truth.cause.phase)
    known.grade()
    return known, runs
