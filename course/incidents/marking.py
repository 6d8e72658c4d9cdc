"""Marks out of a hundred: whether the service is restored, first of all; then what was said, and cited for it."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from course.grading import Criterion, Result
from course.incidents.causes import CAUSES
from course.incidents.convict import read_off
from course.incidents.generate import Hidden
from course.incidents.interventions import BY_ID as CHANGES
from course.incidents.numbers import PLACES, time_by_place
from course.incidents.outcome import Effect
from course.incidents.questions import BY_ID as QUESTIONS
from course.lab.visits import mean

RESTORED, HARM, COST, PHASE, SECONDARY, REGIME, EVIDENCE, RANKING, CLOCK = 50, 5, 10, 10, 2, 3, 10, 5, 5
"""Points; they add up to 100."""
HALFWAY = 0.3
"""Share of the points for what was gained towards the SLO, without reaching it."""
AT_ONCE = 2
"""Changes in one deployment. Of more, no one knows which it was: the points shrink in proportion."""
CANARY_UNDONE, ALL_UNDONE = 0.9, 0.6
"""What is left of the points after a change that a tenth of the users had for nothing, or all of them. The second
canary counts twice, the third three times: trying one thing after another is no diagnosis."""
TOLERATED = 1.25
"""A bill that is so much above that of the most expensive cure is no worse; beyond, the SLO was bought."""
ENOUGH = 2
"""Convicting answers that make a case."""
PER_STRAY = 0.15
"""Share of the evidence's points taken off for each answer cited that convicts nothing."""
BRISK, SLOW = 30, 75
"""Minutes on the incident clock: full marks up to the first, none from the second."""
MOST_LOST = 1 / 3
"""Share of the lost seconds that makes a place the dominant one, whatever must change."""
NOTABLE = 0.1
"""Share of the lost seconds that makes a phase the second problem."""
NOT_ON_PAPER = frozenset({"clock", "cost"})
"""No question takes time, and what a change costs is in its rank."""


@dataclass(frozen=True)
class Diagnosis:
    """What the learner committed to."""

    dominant_phase: str | None
    secondary: str | None
    evidence: tuple[str, ...]
    ranked: tuple[str, ...]
    regime: str | None
    asked: tuple[str, ...]


@dataclass(frozen=True)
class Rollout:
    """What was deployed in the end, and what it took to get there."""

    effect: Effect | None
    """None = nothing is deployed."""
    minutes: int
    canaries_undone: int = 0
    all_undone: int = 0
    needed: float = 0.0
    """Dollars an hour with the most expensive of the true cures."""


def lost_by_phase(hidden: Hidden) -> dict[str, float]:
    """Seconds that a mean answered request takes longer than last week, by phase, and outside the engine."""
    now, before = (time_by_place(play) for play in (hidden.scene.now, hidden.scene.before))
    return {place: max(mean(now[place]) - mean(before[place]), 0.0) for place in PLACES}


def dominant_phases(hidden: Hidden) -> set[str]:
    """What may fairly be blamed: what must change, or where a large part of the seconds is lost."""
    lost = lost_by_phase(hidden)
    most = {place for place, seconds in lost.items() if seconds and seconds >= MOST_LOST * sum(lost.values())}
    return {hidden.cause.phase, *hidden.cause.also, *most}


def second_phases(hidden: Hidden) -> set[str | None]:
    """What may fairly be named as the second problem; None where there is hardly one."""
    lost = lost_by_phase(hidden)
    total = sum(lost.values()) or 1.0
    named: set[str | None] = {p for p in PLACES if p != hidden.cause.phase and lost[p] / total >= NOTABLE}
    named |= {hidden.also.phase} if hidden.also else set()
    return (named or {None}) | set(hidden.cause.also)


def mark(
    hidden: Hidden,
    answer: Diagnosis,
    rollout: Rollout,
    values: Mapping[str, float],
    on_paper: Collection[str] | None = None,
) -> Result:
    """Grade an answer.

    Args:
        on_paper: for a written dump, the questions it answers: nothing else can be cited; None = all could be asked.
        values: what each ranked intervention, and each true fix, is worth; see `Effect.value`.
    """
    criteria = (
        *_deployed(hidden, rollout),
        _phase(hidden, answer),
        _secondary(hidden, answer),
        _regime(hidden, answer),
        _evidence(hidden, answer, on_paper),
        _ranking(hidden, answer, values),
        _clock(answer, rollout),
    )
    left_out = frozenset() if on_paper is None else NOT_ON_PAPER
    return Result("incident", tuple(c for c in criteria if c.name not in left_out))


def _phase(hidden: Hidden, answer: Diagnosis) -> Criterion:
    cause = hidden.cause
    lost = {place: seconds for place, seconds in lost_by_phase(hidden).items() if seconds > 0}
    told = ", ".join(f"{place.replace('_', ' ')} {1e3 * seconds:.0f} ms" for place, seconds in lost.items())
    text = f"It is {cause.phase.replace('_', ' ')}: {cause.title}. The average request takes longer than last week by: "
    text += f"{told or 'nothing'}."
    if answer.dominant_phase is None:
        return Criterion("dominant phase", 0, PHASE, f"Name one of {', '.join(PLACES)}. {text}")
    right = answer.dominant_phase in dominant_phases(hidden)
    return Criterion("dominant phase", PHASE if right else 0, PHASE, text)


def _secondary(hidden: Hidden, answer: Diagnosis) -> Criterion:
    allowed = second_phases(hidden)
    if answer.dominant_phase in dominant_phases(hidden):  # the two may change places
        allowed = {*allowed, hidden.cause.phase} - {answer.dominant_phase}
    told = " or ".join(sorted(str(name) for name in allowed))
    right = any(answer.secondary == name for name in allowed)
    return Criterion("secondary problem", SECONDARY if right else 0, SECONDARY, f"The second problem: {told}.")


REGIMES = {
    "steady": "It is a steady state: it doesn't pass by itself.",
    "spike": "It is a spike: permanent machines would sit idle most of the time.",
}


def _regime(hidden: Hidden, answer: Diagnosis) -> Criterion:
    truth = hidden.cause.regime
    return Criterion("spike or steady", REGIME if answer.regime == truth else 0, REGIME, REGIMES[truth])


def convicting(hidden: Hidden, on_paper: Collection[str] | None = None) -> tuple[list[str], int, set[str]]:
    """The questions whose answers convict, how many of them make a case, and all whose answers have changed at all."""
    apart, moved = read_off(hidden)
    of_cause = {*hidden.cause.convicting, hidden.cause.told_apart_by, *(hidden.also.convicting if hidden.also else ())}
    known = of_cause | apart
    core = [name for name in QUESTIONS if name in known and (on_paper is None or name in on_paper)]
    return core, min(ENOUGH, len(of_cause.intersection(core))), moved


def _evidence(hidden: Hidden, answer: Diagnosis, on_paper: Collection[str] | None) -> Criterion:
    core, enough, moved = convicting(hidden, on_paper)
    cited = list(dict.fromkeys(answer.evidence))
    hits = [name for name in cited if name in core and name in answer.asked]
    stray = [name for name in cited if name not in core]
    share = min(len(hits) / enough, 1.0) * max(1 - PER_STRAY * len(stray), 0.0)
    twin = CAUSES[hidden.cause.looks_like].title
    words = [f"What has changed since last week, and would not under '{twin}': {_texts(core)}."]
    if unseen := [name for name in cited if name not in answer.asked]:
        words.append(f"Cited without having been asked for: {_texts(unseen)}.")
    if "gpu" in stray:
        words.append("GPU utilisation reads high in nearly every incident: it points at no cause.")
    if same := [name for name in stray if name not in moved and name != "gpu"]:
        words.append(f"No more than context, or as last week: {_texts(same)}.")
    if shared := [name for name in stray if name in moved and name != "gpu"]:
        words.append(f"Changed, and would under the look-alike too: {_texts(shared)}.")
    return Criterion("evidence", round(EVIDENCE * share, 2), EVIDENCE, " ".join(words))


def _texts(names: Iterable[str]) -> str:
    """Questions in the words of the desk, which shows no ids."""
    return "; ".join(QUESTIONS[name].text for name in names)


def _ranking(hidden: Hidden, answer: Diagnosis, values: Mapping[str, float]) -> Criterion:
    """The ranked interventions' measured values, the first counted most, against the best order there is."""
    ranked = list(dict.fromkeys(answer.ranked))
    if not ranked:
        return Criterion("ranking", 0, RANKING, "Nothing was ranked.")
    best = sorted(values.values(), reverse=True)[: len(ranked)]
    reached = sum(max(values[name], 0.0) / place for place, name in enumerate(ranked, 1))
    possible = sum(max(value, 0.0) / place for place, value in enumerate(best, 1))
    share = reached / possible if possible else 0.0
    order = sorted(values, key=lambda name: -values[name])
    told = "; ".join(f"{CHANGES[name].text} {values[name]:+.2f}" for name in order)
    words = f"What each is worth, as share of requests saved, less its cost: {told}."
    cause = hidden.cause
    if cause.tempting in ranked[:2]:
        words += f" {CHANGES[cause.tempting].text}: {cause.why_not}"
    return Criterion("ranking", round(RANKING * share, 2), RANKING, words)


def _deployed(hidden: Hidden, rollout: Rollout) -> Sequence[Criterion]:
    effect = rollout.effect
    if effect is None:
        worth = {"SLO restored": RESTORED, "no harm": HARM, "cost": COST}
        return [Criterion(name, 0, points, "Nothing is deployed.") for name, points in worth.items()]
    told = f"{effect.before:.0%} of requests before, {effect.after:.0%} after, target {effect.target:.0%}."
    gained = max(effect.after - effect.before, 0.0) / max(effect.target - effect.before, 1e-9)
    reached = 1.0 if effect.restored else HALFWAY * min(gained, 1.0)
    if not effect.restored and hidden.cause.tempting in effect.chosen:
        told += f" {hidden.cause.why_not}"
    fair = min(max(effect.bill_before, rollout.needed) / max(effect.bill_after, 1e-9), 1.0)
    counts = {
        f"{len(effect.chosen)} changes at once, no one can say which one did it": AT_ONCE / len(effect.chosen),
        f"taken back on the way: {rollout.canaries_undone} canaries, {rollout.all_undone} full rollouts": (
            CANARY_UNDONE ** math.comb(rollout.canaries_undone + 1, 2) * ALL_UNDONE**rollout.all_undone
        ),
        f"bought for {1 / fair:.1f} times the bill of a cure": (TOLERATED * fair) ** 2,
        f"users lose {effect.lost:.0%} of what they asked for": 1 - effect.lost,
    }
    told += "".join(f" {words[0].upper()}{words[1:]}: counts {n:.0%}." for words, n in counts.items() if n < 1)
    kept = RESTORED * reached * math.prod(min(share, 1.0) for share in counts.values())
    harm = f"Worse than before: {', '.join(effect.regressions)}." if effect.regressions else "Nothing got worse."
    bill = f"${effect.bill_before:.2f} an hour before, ${effect.bill_after:.2f} after."
    return [
        Criterion("SLO restored", round(kept, 2), RESTORED, told),
        Criterion("no harm", HARM if effect.restored and not effect.regressions else 0, HARM, harm),
        Criterion("cost", round(COST * fair, 2) if effect.restored else 0, COST, bill),
    ]


def _clock(answer: Diagnosis, rollout: Rollout) -> Criterion:
    """Minutes count only if something was reached in them."""
    reached = rollout.effect is not None and rollout.effect.restored
    brisk = min(max((SLOW - rollout.minutes) / (SLOW - BRISK), 0.0), 1.0) if reached else 0.0
    told = f"{rollout.minutes} minutes to the end, {len(answer.asked)} questions; {BRISK} minutes are enough."
    return Criterion("clock", round(CLOCK * brisk, 2), CLOCK, told)
